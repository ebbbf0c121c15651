"""A manifest has the complete content of its epoch, and survives the log's wire format."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ckpt.coordination.cut import EndedEpoch, Gathered
from spark_ckpt.coordination.job_shape import JobShape, Limits, OperatorShape, SinkPlace
from spark_ckpt.coordination.manifests import Lineage, manifest_of, pinned_of, stamped, summary_of
from spark_ckpt.coordination.publication import DeferredRows
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest, SinkAck, StagedFileRecord, StateFile

EMPTY = Manifest(job="job", epoch=0, incarnation=0, attempt="initial", created_ms=0, reason="initial")
LINEAGE = Lineage(
    3,
    7,
    8,
    now_ms=0.0,
    took_ms=12,
    deferred=DeferredRows({"out": SinkPlace(""), "aside": SinkPlace("")}, EMPTY),
    standing=Standing(),
)
TOTALS = OperatorShape("totals", "k string", "total bigint", key_groups=4)


def state_file(group, epoch, kind="changes"):
    return StateFile(
        path=f"g{group}-e{epoch}", size_bytes=100, ranges=((group, 10, 4, 90),), epoch=epoch, incarnation=3, kind=kind
    )


def staged(path, rows=2, **fields):
    return StagedFileRecord(path, 50, rows, 0, 1, 0, 0, **fields)


def shape(*operators):
    sinks = {"out": SinkPlace("s3://bucket/table", {}, "s3://bucket/table"), "aside": SinkPlace("file:/store/aside")}
    return JobShape("job", ("in",), sinks, operators, Limits())


def ended(**fields):
    chains = {("totals", 2): (state_file(2, 5, "full"), state_file(2, 9)), ("totals", 0): (state_file(0, 9),)}
    staged_files = {"out": [staged("a"), staged("b", partition_values={"k": None})]}
    gathered = Gathered(staged_files, rows_in=5, rows_out=4, rejected=1, late={"totals": 2})
    return replace(
        EndedEpoch(9, gathered, chains, {"in": {"n": 5}}, 777, 666, frozenset({("totals", 0), ("totals", 2)})),
        **{"watermarks": {"totals": {"in": 700}}, **fields},
    )


def test_the_complete_epoch_is_in_its_manifest():
    acks = [SinkAck(sink="out", epoch=8)]
    manifest = manifest_of(shape(TOTALS), ended(), LINEAGE, "interval", acks)
    assert (manifest.job, manifest.epoch, manifest.incarnation, manifest.base, manifest.previous) == ("job", 9, 3, 7, 8)
    assert manifest.late_watermark_ms == 666
    assert (manifest.cursors, manifest.watermark_ms, manifest.reason) == ({"in": {"n": 5}}, 777, "interval")
    assert (manifest.rows_in, manifest.rows_out, manifest.rejected) == (5, 4, {"parse": 1})
    assert manifest.acks == tuple(acks)
    (snapshot,) = manifest.operators.values()
    assert (snapshot.operator, snapshot.key_groups, snapshot.key_schema) == ("totals", 4, "k string")
    assert (snapshot.watermarks, snapshot.late_rows) == ({"in": 700}, 2)
    assert [file.path for file in snapshot.files] == ["g2-e5", "g0-e9", "g2-e9"], "oldest first"


def test_an_epoch_before_the_first_batch_has_state_as_it_was_written():
    """Under a wider schema the first barrier writes the files again: the state must record it."""
    narrow = replace(TOTALS, state_schema="total int")
    base = manifest_of(shape(narrow), ended(), LINEAGE, "interval", [])
    pinned = pinned_of(shape(TOTALS, OperatorShape("more", "k string", "n int", 4)), ended(), LINEAGE, base)
    assert pinned.reason == "initial"
    assert {name: each.state_schema for name, each in pinned.operators.items()} == {
        "totals": "total int",
        "more": "n int",
    }
    assert (
        manifest_of(shape(TOTALS), ended(), LINEAGE, "interval", []).operators["totals"].state_schema == "total bigint"
    )


def test_every_sink_has_an_output_even_without_rows():
    outputs = manifest_of(shape(), ended(), LINEAGE, "stop", []).outputs
    assert [file.path for file in outputs["out"].files] == ["a", "b"]
    assert (outputs["out"].root, outputs["out"].rows) == ("s3://bucket/table", 4)
    assert (outputs["aside"].root, outputs["aside"].files, outputs["aside"].rows) == ("", (), 0)


def test_staged_files_survive_the_wire_format():
    manifest = manifest_of(shape(), ended(), LINEAGE, "interval", [])
    read = Manifest.model_validate_json(manifest.model_dump_json())
    assert read == manifest
    assert list(read.outputs["out"].files) == ended().gathered.staged["out"]


@pytest.mark.parametrize("reason", ["interval", "stop", "savepoint", "initial", "drained"])
def test_every_reason_for_an_epoch_can_be_written_down(reason):
    assert manifest_of(shape(), ended(), LINEAGE, reason, []).reason == reason


def test_two_attempts_at_one_epoch_differ():
    manifest = manifest_of(shape(), ended(), LINEAGE, "interval", [])
    one, other = stamped(manifest, "one", 5), stamped(manifest, "other", 6)
    assert ((one.attempt, one.created_ms), (other.attempt, other.created_ms)) == (("one", 5), ("other", 6))
    assert stamped(other, "one", 5) == one


def test_a_manifest_without_rejected_records_names_none():
    manifest = manifest_of(shape(), ended(gathered=Gathered()), LINEAGE, "interval", [])
    assert (manifest.rejected, manifest.rows_in) == ({}, 0)


def test_a_summary_counts_only_the_epochs_own_files():
    summary = summary_of(manifest_of(shape(TOTALS), ended(), LINEAGE, "interval", []))
    assert (summary["state_rows_changed"], summary["state_bytes_written"], summary["rejected"]) == (20, 200, 1)
