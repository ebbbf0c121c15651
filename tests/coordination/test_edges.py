"""Edges: the part of an edge that belongs to a cut, and segments that no epoch needs any more."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from checkpoint_protocols.machine import ProtocolViolation
from spark_ckpt.coordination.cut import EpochBuilder
from spark_ckpt.coordination.edges import Bound, EdgeLog, consumed_segments, segments_in
from spark_ckpt.coordination.job_shape import EdgeShape
from spark_ckpt.coordination.reports import EDGE, Report
from spark_ckpt.epochs.records import EdgeCut, Manifest, StagedFileRecord

SHAPE = EdgeShape("loop", "k string")


def segment(number: int, task: int = 0, rows: int = 2) -> StagedFileRecord:
    return StagedFileRecord(f"s{number}", 1, rows, 0, 0, task, 0)


def manifest(epoch: int, cut: EdgeCut | None = None) -> Manifest:
    edges = {"loop": cut} if cut else {}
    return Manifest(job="j", epoch=epoch, incarnation=1, attempt="a", created_ms=0, edges=edges)


def put(*segments: StagedFileRecord) -> list[Report]:
    return [Report("tap", each.task, number, f"{EDGE}loop", asdict(each)) for number, each in enumerate(segments)]


def test_segments_are_consumed_in_the_order_of_tasks() -> None:
    reports = put(segment(1, task=1), segment(0, task=0))
    assert [each.path for each in segments_in(reports)["loop"]] == ["s0", "s1"]


def test_a_cut_has_the_segments_between_its_two_positions() -> None:
    log = EdgeLog(None)
    log.advance(0, [segment(0), segment(1, rows=3)])
    log.advance(1, [segment(2)])
    cut = log.cut(SHAPE)
    assert (cut.consumed, cut.produced) == (2, 7)
    assert [file.path for file in cut.files] == ["s1", "s2"]


def test_an_incarnation_counts_from_the_segments_in_flight_at_its_cut() -> None:
    before = EdgeLog(None)
    before.advance(0, [segment(0), segment(1)])
    before.advance(1, [])
    log = EdgeLog(before.cut(SHAPE))
    assert [each.path for each in log.advance(1, [segment(2)])] == ["s1"]
    cut = log.cut(SHAPE)
    assert (cut.consumed, cut.produced) == (4, 6)


@pytest.mark.parametrize("taken", [-1, 2])
def test_consuming_missing_segments_is_refused(taken: int) -> None:
    log = EdgeLog(None)
    log.advance(0, [segment(0)])
    with pytest.raises(ProtocolViolation, match="segments consumed"):
        log.advance(taken, [])


def test_a_cut_whose_positions_and_segments_differ_is_refused() -> None:
    good = EdgeLog(None)
    good.advance(0, [segment(0)])
    with pytest.raises(ValidationError, match="2 rows in flight between 0 and 5"):
        EdgeCut.model_validate(good.cut(SHAPE).model_dump() | {"produced": 5})


def test_a_loop_at_work_is_not_idle() -> None:
    builder = EpochBuilder(manifest(0), {}, None, (SHAPE,))
    assert builder.idle
    builder.add(0, put(segment(0)))
    assert not builder.idle
    builder.end(1, {})
    builder.add(0, [], taken={"loop": 1})
    assert not builder.idle


def test_rows_on_an_edge_are_no_sinks_rows() -> None:
    builder = EpochBuilder(manifest(0), {}, "loop", (SHAPE,))
    counts = builder.add(0, put(segment(0)))
    assert counts["numOutputRows"] == 0
    assert builder.end(1, {}).gathered.staged == {}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.sampled_from(["", "decide", "abort"]))))
def test_a_segment_is_released_once_when_no_epoch_names_it(
    steps: list[tuple[int, int, str]],
) -> None:
    """A batch puts some segments on the edge and takes some off; then an epoch may end, committed or aborted."""
    base, number, taken, epoch = manifest(0), 0, 0, 0
    builder = EpochBuilder(base, {}, None, (SHAPE,))
    named: set[str] = set()
    gone: list[str] = []
    flying: list[str] = []
    for put_on, most, ending in steps:
        new = [segment(number + each) for each in range(put_on)]
        taken += min(most, len(flying))
        del flying[: min(most, len(flying))]
        builder.add(0, put(*new), taken={"loop": taken})
        flying += [each.path for each in new]
        number += put_on
        if not ending:
            continue
        epoch += 1
        ended = builder.end(epoch, {})
        assert [file.path for file in ended.edges["loop"].files] == flying
        if ending == "abort":
            builder.aborted(epoch)
            continue
        gone += [path for paths in consumed_segments(builder.committed(epoch), base).values() for path in paths]
        base = manifest(epoch, ended.edges["loop"])
        named |= set(flying)
        assert len(gone) == len(set(gone))
        assert set(gone) == {f"s{each}" for each in range(number)} - named


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_a_batch_takes_complete_segments_within_the_bound_and_at_least_one() -> None:
    five = [segment(number, rows=2) for number in range(5)]
    assert [Bound(rows).portion(five) for rows in (1, 3, 4, 9, 10, 99)] == [1, 1, 2, 4, 5, 5]
    assert Bound(1).portion([]) == 0


def most_on_the_edge(bound: Bound, arriving: list[int], times: int, takes: int) -> int:
    """Return the largest number of rows on an edge. The job multiplies the rows of its sources before the edge, takes `takes`
    segments of the edge per batch, and must come to its end."""
    log, queue, most = EdgeLog(None), list(arriving), 0
    for batch in range(10 * times * (sum(arriving) + len(arriving)) + 10):
        rests = bound.full({"edge": log.rows})
        new = 0 if rests or not queue else queue.pop(0)
        taken = min(takes, bound.portion(log.in_flight))
        log.advance(log.taken + taken, [segment(batch * 100 + each, rows=1) for each in range(new * times)])
        most = max(most, log.rows)
        if not queue and not log.rows:
            return most
    raise AssertionError("rows stay on the edge")


@given(st.integers(1, 20), st.lists(st.integers(0, 5), max_size=20), st.integers(1, 4), st.integers(1, 3))
def test_an_edge_has_at_most_its_bound_and_the_rows_of_one_batch(
    rows: int, arriving: list[int], times: int, takes: int
) -> None:
    assert most_on_the_edge(Bound(rows), arriving, times, takes) <= rows + times * max(arriving, default=0)


def test_an_edge_whose_sources_never_pause_grows_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bound, "full", lambda self, rows: ())
    assert most_on_the_edge(Bound(5), [5] * 20, 2, 1) > 100
