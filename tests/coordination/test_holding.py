"""Which rows wait for a later publish, and how long."""

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


def decided(holding, path, reason, now_ms):
    """What an epoch publishes and holds back, by path, once it is decided."""
    outputs, held = holding.divided(rows(path), reason, now_ms)
    holding.committed(EMPTY.model_copy(update={"outputs": outputs, "held": held, "reason": reason}), now_ms)
    return paths(outputs), paths(held)


def paths(of):
    return {sink: "".join(file.path for file in output.files) for sink, output in of.items()}


def test_rows_wait_until_their_sink_is_due_and_come_in_front_of_that_epochs_own():
    holding = DeferredRows(SINKS, EMPTY)
    assert decided(holding, "a", "interval", 0) == ({"table": "a", "topic": "a"}, {}), "nobody knows of the life before"
    assert decided(holding, "b", "interval", 400) == ({"topic": "b"}, {"table": "b"})
    assert decided(holding, "c", "interval", 999) == ({"topic": "c"}, {"table": "bc"})
    assert decided(holding, "d", "interval", 1000) == ({"table": "bcd", "topic": "d"}, {})
    assert decided(holding, "e", "interval", 1999) == ({"topic": "e"}, {"table": "e"})


@pytest.mark.parametrize("reason", ["savepoint", "stop", "drain"])
def test_savepoints_and_last_epochs_publish_everything(reason):
    holding = DeferredRows(SINKS, EMPTY)
    decided(holding, "a", "interval", 0)
    decided(holding, "b", "interval", 1)
    assert decided(holding, "", reason, 2) == ({"table": "b", "topic": ""}, {})


def test_what_the_restored_epoch_holds_back_is_published_with_the_first_epoch():
    holding = DeferredRows(SINKS, EMPTY.model_copy(update={"held": {"table": staged("old")}}))
    assert holding.due_in_ms(0) == 0
    assert decided(holding, "new", "interval", 0) == ({"table": "oldnew", "topic": "new"}, {})


def test_an_epoch_that_only_pins_where_new_sources_start_leaves_held_rows_held():
    holding = DeferredRows(SINKS, EMPTY.model_copy(update={"held": {"table": staged("old")}}))
    assert decided(holding, "", "initial", 0) == ({"topic": ""}, {"table": "old"})
    assert holding.due_in_ms(0) == 0


def test_an_idle_stream_knows_how_long_its_rows_may_wait():
    holding = DeferredRows(SINKS, EMPTY)
    decided(holding, "a", "interval", 0)
    assert holding.due_in_ms(10) is None, "there are none"
    decided(holding, "b", "interval", 300)
    assert [holding.due_in_ms(now_ms) for now_ms in (300, 900, 1000, 5000)] == [700, 100, 0, 0]
