"""The content of an epoch, collected from batches: an abort loses nothing, and nothing is counted twice."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from checkpoint_protocols.machine import ProtocolViolation
from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.cut import EpochBuilder, event_times
from spark_ckpt.coordination.reports import Report
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, StateFile

EMPTY = Manifest(job="job", epoch=0, incarnation=0, attempt="-", created_ms=0)


def builder(base=EMPTY, delay_ms=None):
    return EpochBuilder(base, {} if delay_ms is None else {("totals", "in"): delay_ms}, "out")


def offsets(batch=0, watermark_ms=0):
    """Return a batch's offset log entry with its watermark."""
    return watermark_ms


def staged(path, task=0, part=0, rows=1, sink="out"):
    file = StagedFile(path, 10, rows, 0, 0, task, part)
    return Report("tap", task, 1, sink, asdict(file))


def report(group=0, **body):
    return Report("operator", group, 1, "totals", body)


def state_file(group, epoch, kind="changes"):
    return StateFile(
        path=f"{kind}-{epoch}-{group}", size_bytes=1, ranges=((group, 1, 4, 1),), epoch=epoch, incarnation=1, kind=kind
    )


def acked(group, epoch, kind="changes"):
    return report(group, epoch=epoch, groups=[group], files=[state_file(group, epoch, kind).model_dump(mode="json")])


def paths(ended, sink="out"):
    return [file.path for file in ended.gathered.staged.get(sink, [])]


def test_rows_of_an_epoch_are_in_the_order_of_batch_task_and_part():
    epoch = builder()
    epoch.add(offsets(0), [staged("t1p0", 1), staged("t0p1", 0, 1), staged("t0p0", 0, 0)])
    epoch.add(offsets(1), [staged("next batch", 0)])
    assert paths(epoch.end(1, {})) == ["t0p0", "t0p1", "t1p0", "next batch"]


def test_a_batch_after_the_barrier_belongs_to_the_next_epoch():
    epoch = builder()
    epoch.add(offsets(0), [staged("first")])
    first = epoch.end(1, {})
    epoch.add(offsets(1), [staged("second")])
    assert (paths(first), paths(epoch.end(2, {}))) == (["first"], ["second"])


def test_an_aborted_epochs_rows_come_before_the_next_ones():
    epoch = builder()
    epoch.add(offsets(0), [staged("first"), report(rows_in=3), staged("aside", sink="rejected")])
    epoch.end(1, {})
    epoch.add(offsets(1), [staged("second"), report(rows_in=4, late=1)])
    epoch.aborted(1)
    following = epoch.end(2, {})
    assert paths(following) == ["first", "second"]
    assert paths(following, "rejected") == ["aside"]
    assert (following.gathered.rows_in, following.gathered.late, following.gathered.rows_out) == (7, {"totals": 1}, 2)


def test_rows_after_an_abort_come_after_those_before_it():
    epoch = builder()
    epoch.add(offsets(0), [staged("first")])
    epoch.end(1, {})
    epoch.aborted(1)
    epoch.add(offsets(1), [staged("second")])
    epoch.end(2, {})
    epoch.aborted(2)
    epoch.add(offsets(2), [staged("third")])
    assert paths(epoch.end(3, {})) == ["first", "second", "third"]


def test_a_committed_epochs_rows_never_come_again():
    epoch = builder()
    epoch.add(offsets(0), [staged("first")])
    epoch.end(1, {})
    epoch.committed(1)
    epoch.aborted(1)
    assert paths(epoch.end(2, {})) == []


def test_aborting_an_epoch_whose_barrier_never_came_changes_nothing():
    epoch = builder()
    epoch.add(offsets(0), [staged("first")])
    epoch.aborted(1)
    assert paths(epoch.end(2, {})) == ["first"]


def test_a_full_file_replaces_the_chain_and_changes_extend_it():
    epoch = builder()
    for number, kind in enumerate(["changes", "changes", "full", "changes"], 1):
        epoch.add(offsets(), [acked(0, number, kind), acked(1, number)])
        epoch.end(number, {})
    assert [file.path for file in epoch.chains["totals", 0]] == ["full-3-0", "changes-4-0"]
    assert [file.epoch for file in epoch.chains["totals", 1]] == [1, 2, 3, 4]


def test_the_chain_starts_with_the_base_epochs_files():
    files = (state_file(0, 3, "full"), state_file(0, 4))
    snapshot = OperatorSnapshot(operator="totals", key_groups=2, key_schema="k", state_schema="v", files=files)
    epoch = builder(EMPTY.model_copy(update={"epoch": 4, "operators": {"totals": snapshot}}))
    epoch.add(offsets(), [acked(0, 5)])
    assert [file.epoch for file in epoch.end(5, {}).chains["totals", 0]] == [3, 4, 5]


def test_an_ended_epochs_chain_does_not_grow_with_the_next_one():
    epoch = builder()
    epoch.add(offsets(), [acked(0, 1)])
    first = epoch.end(1, {})
    epoch.add(offsets(), [acked(0, 2)])
    assert [file.epoch for file in first.chains["totals", 0]] == [1]


def test_snapshots_of_an_aborted_epoch_stay_in_the_chain():
    epoch = builder()
    epoch.add(offsets(), [acked(0, 1)])
    epoch.end(1, {})
    epoch.aborted(1)
    epoch.add(offsets(), [acked(0, 2)])
    assert [file.epoch for file in epoch.end(2, {}).chains["totals", 0]] == [1, 2]


def test_a_late_ack_of_an_aborted_epoch_extends_the_chain_and_acknowledges_no_other():
    epoch = builder()
    epoch.aborted(1)
    epoch.add(offsets(), [acked(0, 1), acked(1, 2)])
    ended = epoch.end(2, {})
    assert ended.groups_acked == {("totals", 1)}
    assert [file.epoch for file in ended.chains["totals", 0]] == [1]


def test_a_group_without_changes_acknowledges_without_a_file():
    epoch = builder()
    epoch.add(offsets(), [report(3, epoch=1, groups=[3], files=[])])
    ended = epoch.end(1, {})
    assert (ended.groups_acked, ended.chains) == ({("totals", 3)}, {})


@pytest.mark.parametrize(
    ("delay_ms", "times", "expected"),
    [(10, [100, 50, 200], [90, 90, 190]), (None, [100, 50, 200], [0, 0, 0]), (1000, [100, 0, 0], [0, 0, 0])],
)
def test_the_watermark_follows_the_greatest_event_time_and_never_decreases(delay_ms, times, expected):
    epoch = builder(delay_ms=delay_ms)
    seen = []
    for number, time_ms in enumerate(times, 1):
        epoch.add(offsets(), [event_times({("totals", "in"): time_ms})])
        seen.append(epoch.end(number, {}).watermark_ms)
    assert seen == expected


def test_the_watermark_is_at_least_sparks_and_at_least_the_base_epochs():
    base = EMPTY.model_copy(update={"watermark_ms": 500})
    epoch = builder(base, delay_ms=10)
    assert epoch.end(1, {}).watermark_ms == 500
    epoch.add(offsets(watermark_ms=700), [])
    assert epoch.end(2, {}).watermark_ms == 700


def test_late_rows_are_those_of_their_operator_and_an_abort_loses_none():
    epoch = builder()
    epoch.add(offsets(), [report(late=2), report(1, late=1), Report("operator", 0, 1, "other", {"late": 5})])
    epoch.end(1, {})
    epoch.aborted(1)
    epoch.add(offsets(), [report(late=4)])
    assert epoch.end(2, {}).gathered.late == {"totals": 7, "other": 5}


def test_output_rows_are_counted_once_for_any_number_of_sinks():
    epoch = builder()
    counts = epoch.add(offsets(), [staged("a", rows=5), staged("b", rows=5, sink="other"), report(rows_in=9, late=2)])
    assert counts == {"numInputRows": 9, "numOutputRows": 5, "rejected": 0, "late": 2}


def test_rejected_records_are_counted_and_their_file_is_staged():
    epoch = builder()
    file = asdict(StagedFile("bad", 10, 2, 0, 0, 0, 0))
    counts = epoch.add(
        offsets(),
        [Report("input", 0, 1, "rejected/1", {"rejected": 2}), Report("input", 0, 1, "rejected/1/file", file)],
    )
    assert counts["rejected"] == 2
    assert paths(epoch.end(1, {}), "rejected") == ["bad"]


@pytest.mark.parametrize(
    "reports", [[report(rows_in=1)], [staged("a")], [Report("input", 0, 1, "rejected/1", {"rejected": 1})]]
)
def test_every_report_ends_idleness_until_the_barrier(reports):
    epoch = builder()
    assert epoch.idle
    epoch.add(offsets(), reports)
    assert not epoch.idle
    epoch.end(1, {})
    assert epoch.idle


def test_a_source_that_moved_without_rows_ends_idleness_too():
    epoch = builder()
    epoch.add(offsets(), [], moved=True)
    epoch.add(offsets(), [])
    assert not epoch.idle
    epoch.end(1, {})
    assert epoch.idle
    epoch.aborted(1)
    assert not epoch.idle, "the cursors are not committed yet"


def test_a_pinned_epoch_holds_cursors_and_nothing_else():
    epoch = builder()
    pinned = epoch.pinned(1, {"in": {"count": 0}})
    assert (pinned.cursors, paths(pinned), pinned.chains) == ({"in": {"count": 0}}, [], {})


def test_an_ended_epochs_cursors_are_those_of_its_barrier():
    epoch, cursors = builder(), {"in": {"count": 1}}
    ended = epoch.end(1, cursors)
    cursors["in"] = {"count": 2}
    assert ended.cursors == {"in": {"count": 1}}


def test_a_task_with_only_a_part_of_a_barrier_ends_the_incarnation():
    epoch = EpochBuilder(EMPTY, {}, None)
    with pytest.raises(ProtocolViolation, match="totals passed the barrier of epoch 4 in part only"):
        epoch.add(offsets(), [report(late=0, epoch=4)])
