"""Verdicts of the campaign on stages, on tables and states with a planted defect, and a few cells on Spark."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from integration_tests.campaign import stage_kills
from integration_tests.campaign.stage_kills import (
    RANDOM,
    Broken,
    Cell,
    StagedProgram,
    cells,
    judge_hop,
    judge_incarnations,
    judge_run,
    judge_search,
    judge_table,
    judge_traces,
    tried,
)
from integration_tests.edges.stage_graphs import GRAPHS, Hop
from integration_tests.spark import connected_session
from spark_ckpt.coordination.stage_process import Between, EpochEnding, EpochServes, StageProcess, StampEpoch
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.lines import UNDONE, CutEpoch, Input, Line, Program, Programs
from spark_ckpt.trace.lines import Begun, Handled, handled
from spark_ckpt.trace.reading import Recorded, read_traces
from tests.trace.recording import whole
from tests.trace.test_recorded_drivers import made_with

LINE = Line({"staged.main": 3, "staged.second": 2}, 60)
[HOP, _] = GRAPHS["pipeline"].hops
[LOOP, BACK] = GRAPHS["loop"].hops
States = dict[str, dict[str, tuple[int, int]]]


def rows(*numbers: int, wrong: int = 0) -> list[dict[str, object]]:
    return [{"k": "a", "v": number, "hop": 0, "number": number, "wrong": wrong} for number in numbers]


def expected(*values: int) -> Counter[tuple[object, ...]]:
    return Counter(("a", value, 0) for value in values)


def test_a_table_with_each_row_once_and_numbers_without_a_gap_is_right() -> None:
    judge_table("second", rows(2, 1, 3), expected(1, 2, 3))


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (rows(1, 2), "lacks"),
        (rows(1, 2, 3, 3), "too many"),
        (rows(1, 2, 3, wrong=1), "out of order"),
        ([*rows(1, 2), {"k": "a", "v": 3, "hop": 0, "number": 4, "wrong": 0}], "gap"),
    ],
)
def test_a_table_with_a_planted_defect_is_found(found: list[dict[str, object]], verdict: str) -> None:
    with pytest.raises(Broken, match=verdict):
        judge_table("second", found, expected(1, 2, 3))


@pytest.mark.parametrize(
    ("hop", "states", "aligned"),
    [
        (HOP, {"main": {"a": (5, 5)}, "second": {"a": (5, 5)}}, True),
        (HOP, {"main": {"a": (5, 5)}, "second": {}}, False),
        (LOOP, {"main": {"a": (5, 3)}, "second": {"a": (4, 3)}}, False),
        (BACK, {"main": {"a": (5, 3)}, "second": {"a": (4, 2)}}, False),
    ],
)
def test_a_line_without_orphans_is_a_cut(hop: Hop, states: States, aligned: bool) -> None:
    judge_hop(LINE, hop, states, aligned)


@pytest.mark.parametrize(
    ("hop", "states", "aligned", "verdict"),
    [
        (HOP, {"main": {"a": (4, 4)}, "second": {"a": (5, 5)}}, False, "has not sent"),
        (HOP, {"main": {}, "second": {"a": (1, 1)}}, False, "has not sent"),
        (HOP, {"main": {"a": (5, 5)}, "second": {"a": (4, 4)}}, True, "in transit"),
        (BACK, {"main": {"a": (5, 3)}, "second": {"a": (4, 1)}}, False, "has not sent"),
    ],
)
def test_a_line_with_orphans_or_rows_in_transit_is_found(hop: Hop, states: States, aligned: bool, verdict: str) -> None:
    with pytest.raises(Broken, match=verdict):
        judge_hop(LINE, hop, states, aligned)


def cut_of(reader_has_read: int, deleted: int = 0) -> Programs:
    main = Program("main", (CutEpoch(1), CutEpoch(2), CutEpoch(3)))
    epochs = (CutEpoch(1), CutEpoch(2, read={"in": 1}), CutEpoch(3, read={"in": reader_has_read}))
    return {"main": main, "second": Program("second", epochs, {"in": Input("main", "out", deleted)})}


@pytest.mark.parametrize("programs", [cut_of(3), cut_of(2), cut_of(UNDONE), cut_of(3, deleted=2)])
def test_a_search_that_agrees_with_every_cut_is_right(programs: Programs) -> None:
    judge_search(programs)


@pytest.mark.parametrize(
    "wrong", [{"main": 3, "second": 3}, {"main": 1, "second": 1}], ids=["orphan", "not the greatest"]
)
def test_a_search_that_finds_another_line_is_found(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, int]) -> None:
    monkeypatch.setattr(stage_kills, "greatest", lambda programs, limits: Line(wrong))
    with pytest.raises(Broken, match="every cut tried gives"):
        judge_search(cut_of(UNDONE))


def test_another_stage_may_restart_only_if_its_host_was_overloaded() -> None:
    judge_incarnations({"main": 1, "second": 4}, "second", {})
    judge_incarnations({"main": 3, "second": 2}, "second", {"main": 2})
    with pytest.raises(Broken, match="restarted, too"):
        judge_incarnations({"main": 3, "second": 2}, "second", {"main": 1, "second": 1})


def test_a_trace_that_the_rules_do_not_replay_is_found() -> None:
    shape, point, *_ = made_with()
    stage = StageProcess(Between.INDEX, 1000, 3, 40)
    begun = Begun.of(shape, point, Standing(), {}, stage).text()
    right = whole(1, [begun, handled(EpochEnding(), 50_000, [StampEpoch(50)]).text()])
    judge_traces([right], Between.INDEX)
    wrong = whole(1, [begun, handled(EpochEnding(), 50_000, [StampEpoch(49)]).text()])
    with pytest.raises(Broken, match="recorded"):
        judge_traces([wrong], Between.INDEX)
    with pytest.raises(Broken, match="another protocol"):
        judge_traces([right], Between.INDEPENDENT)


def test_the_matrix_has_every_protocol_graph_point_and_stage() -> None:
    found = cells()
    assert len({cell.kind for cell in found}) == len(found) == 272
    assert not [cell for cell in found if (cell.protocol, cell.graph) == ("aligned", "loop")]


@pytest.mark.long  # in the gate: integration_tests/edges/test_stages_of_a_program.py, loops in tests/simulator
@pytest.mark.spark
def test_a_loop_over_stages_passes_each_row_twice(tmp_path: Path) -> None:
    for spark in connected_session():
        cell = Cell(Between.UNALIGNED, "loop", RANDOM, "second")
        assert StagedProgram(spark, tmp_path / "loop", cell).run_undisturbed()["lines"] > 0


@pytest.mark.parametrize("protocol", [Between.INDEX, Between.UNALIGNED, Between.ALIGNED])
@pytest.mark.long  # in the gate: simulated stages in tests/specs/test_stage_lines.py
@pytest.mark.spark
@pytest.mark.kill
def test_a_run_with_a_killed_stage_is_a_behaviour_of_the_specification(tmp_path: Path, protocol: Between) -> None:
    """Each protocol once. The specification rejects a batch without its row count, and a trace without a survivor's commit."""
    for spark in connected_session():
        cell = Cell(protocol, "pipeline", "EPOCH_COMMITTED", "second")
        figures, why = tried(spark, tmp_path / "cell", cell, random.Random(1))
        assert not why, f"{cell.kind}: {why}"
        assert figures["steps"] > 50
    traces = read_traces(tmp_path / "cell" / "trace")
    for name, wrong in {
        "uncounted": without_rows(traces, "staged.third"),
        "commit": without_epoch(traces, "staged.main", 2),
    }.items():
        with pytest.raises(Broken, match="the specification objects"):
            judge_run(tmp_path / name, wrong)


def without_rows(traces: Sequence[Recorded], job: str) -> list[Recorded]:
    """The traces without the row counts of a stage's first batch that has read rows."""
    lines = [line for trace in traces if trace.begun.shape.job == job for line in trace.lines]
    first = next(line for line in lines if any(each["body"].get("rows_in") for each in line.event.get("reports", ())))
    uncounted = first.model_copy(update={"event": {**first.event, "reports": []}})
    return [replace(trace, lines=[uncounted if line is first else line for line in trace.lines]) for trace in traces]


def without_epoch(traces: Sequence[Recorded], job: str, epoch: int) -> list[Recorded]:
    """The traces without a stage's notice that one epoch's index is committed."""
    return [
        replace(
            trace, lines=[line for line in trace.lines if not (trace.begun.shape.job == job and is_of(line, epoch))]
        )
        for trace in traces
    ]


def is_of(line: Handled, epoch: int) -> bool:
    """True if the line says that an epoch serves an index."""
    return (line.event["kind"], line.event.get("epoch")) == (EpochServes.__name__, epoch)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kill
def test_cells_drawn_at_random_keep_every_promise(tmp_path: Path) -> None:
    draw = random.Random()
    for spark in connected_session():
        for number, cell in enumerate(draw.sample(cells(), 2)):
            figures, why = tried(spark, tmp_path / str(number), cell, draw)
            assert not why, f"{cell.kind}: {why}"
            assert figures["lines"] > 0, cell.kind
