"""Rows of a sink that are deferred to a later publish, and the time of their deferral."""

from __future__ import annotations

import pytest

from spark_ckpt.coordination.job_shape import SinkPlace
from spark_ckpt.coordination.publication import DeferredRows
from spark_ckpt.epochs.records import Manifest, StagedFileRecord, StagedOutput

EMPTY = Manifest(job="job", epoch=0, incarnation=0, attempt="initial", created_ms=0, reason="initial")
SINKS = {"table": SinkPlace("", publish_every_ms=1000), "topic": SinkPlace("")}


def staged(path, sink="table"):
    files = (StagedFileRecord(path=path, size_bytes=1, rows=1, lane=0, batch=0, task=0, part=0),) if path else ()
    return StagedOutput(sink=sink, files=files, rows=len(files))


def rows(path):
    return {"table": staged(path), "topic": staged(path, "topic")}


def committed(holding, path, reason, now_ms):
    """Return the published and the deferred rows of an epoch, by path, after its commit."""
    outputs, deferred = holding.divided(rows(path), reason, now_ms)
    holding.committed(EMPTY.model_copy(update={"outputs": outputs, "held": deferred, "reason": reason}), now_ms)
    return paths(outputs), paths(deferred)


def paths(of):
    return {sink: "".join(file.path for file in output.files) for sink, output in of.items()}


def test_rows_wait_until_their_sink_is_due_and_precede_the_rows_of_that_epoch():
    holding = DeferredRows(SINKS, EMPTY)
    assert committed(holding, "a", "interval", 0) == ({"table": "a", "topic": "a"}, {}), (
        "the incarnation before is unknown"
    )
    assert committed(holding, "b", "interval", 400) == ({"topic": "b"}, {"table": "b"})
    assert committed(holding, "c", "interval", 999) == ({"topic": "c"}, {"table": "bc"})
    assert committed(holding, "d", "interval", 1000) == ({"table": "bcd", "topic": "d"}, {})
    assert committed(holding, "e", "interval", 1999) == ({"topic": "e"}, {"table": "e"})


@pytest.mark.parametrize("reason", ["savepoint", "stop", "drain"])
def test_savepoints_and_last_epochs_publish_everything(reason):
    holding = DeferredRows(SINKS, EMPTY)
    committed(holding, "a", "interval", 0)
    committed(holding, "b", "interval", 1)
    assert committed(holding, "", reason, 2) == ({"table": "b", "topic": ""}, {})


def test_deferred_rows_of_the_restored_epoch_are_published_with_the_first_epoch():
    holding = DeferredRows(SINKS, EMPTY.model_copy(update={"held": {"table": staged("old")}}))
    assert holding.due_in_ms(0) == 0
    assert committed(holding, "new", "interval", 0) == ({"table": "oldnew", "topic": "new"}, {})


def test_an_epoch_that_only_pins_new_sources_keeps_rows_deferred():
    holding = DeferredRows(SINKS, EMPTY.model_copy(update={"held": {"table": staged("old")}}))
    assert committed(holding, "", "initial", 0) == ({"topic": ""}, {"table": "old"})
    assert holding.due_in_ms(0) == 0


def test_an_idle_stream_knows_how_long_its_rows_may_wait():
    holding = DeferredRows(SINKS, EMPTY)
    committed(holding, "a", "interval", 0)
    assert holding.due_in_ms(10) is None, "there are none"
    committed(holding, "b", "interval", 300)
    assert [holding.due_in_ms(now_ms) for now_ms in (300, 900, 1000, 5000)] == [700, 100, 0, 0]
