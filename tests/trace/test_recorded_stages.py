"""A trace has the events and effects of the rules between programs: it replays, and other rules do not replay it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkpoint_lab.schedules import STAGES_FAULT_RATE, STAGES_STEPS, drive
from checkpoint_lab.stages_world import StageRules, StagesWorld
from spark_ckpt.coordination.stage_process import Between, EpochEnding, EpochServes, LogsRead, StageProcess
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.errors import TraceInvalid
from spark_ckpt.trace.lines import STAGE_EVENTS, Begun, StageBegun, handled
from spark_ckpt.trace.reading import Recorded, read_traces
from spark_ckpt.trace.recorder import recorded
from spark_ckpt.trace.replay import differences, replayed
from tests.simulator.stage_bugs import PLANTED, Planted
from tests.trace.recording import whole
from tests.trace.test_recorded_drivers import made_with, run_rules

IN_TRACES = [
    each for each in PLANTED if each.rules.stage is not StageProcess and "lets_in" not in vars(each.rules.stage)
]
"""Bugs of the rules that the driver hosts. The planner of an edge hosts the gate, and records nothing."""


def begun(stage: StageProcess) -> Begun:
    shape, point, *_ = made_with()
    return Begun.of(shape, point, Standing(), {}, stage)


class Kept(StageProcess):
    """Rules that keep the lines of a trace."""

    made: list[Kept]

    def __init__(self, *start) -> None:
        super().__init__(*start)
        self.lines = [begun(self).text()]
        self.made.append(self)

    def handle(self, event, now_ms):
        effects = super().handle(event, now_ms)
        self.lines.append(handled(event, now_ms, effects).text())
        return effects


def recording(seed: int) -> list[Recorded]:
    """Traces of the programs of a simulated world, one per incarnation. Independent programs record none."""
    kind = type("Kept", (Kept,), {"made": []})
    assert drive(StagesWorld(seed, StageRules(stage=kind)), seed, STAGES_STEPS, STAGES_FAULT_RATE).ok
    lives = [each for each in kind.made if each.protocol.indexed and len(each.lines) > 1]
    return [whole(number, each.lines) for number, each in enumerate(lives)]


@pytest.fixture(scope="module")
def traces() -> list[Recorded]:
    """Traces of each protocol in a few schedules."""
    return [trace for seed in (3, 4, 42, 43, 80, 81, 312) for trace in recording(seed)]


def test_traces_of_simulated_programs_replay_with_all_faults(traces: list[Recorded]) -> None:
    lines = [line for trace in traces for line in trace.lines]
    assert {line.event["kind"] for line in lines} == {each.__name__ for each in STAGE_EVENTS}
    effects = {effect["kind"] for line in lines for effect in line.effects}
    assert effects == {"StampEpoch", "ReleaseEpochs", "TakeEpoch", "SayIndex"}
    assert {trace.begun.stage.protocol for trace in traces if trace.begun.stage} == set(Between) - {Between.INDEPENDENT}
    assert differences(traces) == []


@pytest.mark.parametrize("planted", IN_TRACES, ids=lambda planted: planted.name)
def test_rules_with_a_planted_bug_do_not_replay_it(traces: list[Recorded], planted: Planted) -> None:
    assert any(replayed(trace, stage_kind=planted.rules.stage) for trace in traces)


def test_the_line_that_differs_is_named(traces: list[Recorded]) -> None:
    trace = next(each for each in traces if any(line.event["kind"] == "EpochServes" for line in each.lines))
    number = next(number for number, line in enumerate(trace.lines) if line.event["kind"] == "EpochEnding")
    line = trace.lines[number].model_copy(update={"effects": [{"kind": "StampEpoch", "index": 1}]})
    found = replayed(replace(trace, lines=[*trace.lines[:number], line, *trace.lines[number + 1 :]]))
    assert found is not None
    assert (found.line, found.event) == (number + 2, {"kind": "EpochEnding"})


def test_the_rules_of_both_kinds_share_a_file(tmp_path) -> None:
    *start, _ = made_with()
    stage = StageProcess(Between.UNALIGNED, 1000, 3, 40, True, [(2, 30)], 50)
    _, rules, between = recorded(tmp_path, *start, stage)
    between.handle(LogsRead(60, (40, 60), 0, 0, idle=False, under_way=False), 61_000)
    run_rules(rules)
    between.handle(EpochEnding(), 62_000)
    between.handle(EpochServes(4, 62), 62_000)
    rules.close()
    [trace] = read_traces(tmp_path)
    assert trace.begun.stage == StageBegun(
        protocol=Between.UNALIGNED, every_ms=1000, epoch=3, index=40, reads=False, served=((2, 30), (3, 40)), heard=50
    )
    assert [line.event["kind"] for line in trace.lines][0::4] == ["LogsRead", "EpochEnding"]
    assert [effect["kind"] for effect in trace.lines[0].effects] == ["ReleaseEpochs", "TakeEpoch"]
    assert differences([trace]) == []


def test_an_event_without_a_change_is_recorded_once(tmp_path) -> None:
    *start, _ = made_with()
    _, rules, between = recorded(tmp_path, *start, StageProcess(Between.INDEX, 10_000, 3, 40))
    for now_ms in (40_000, 41_000, 49_000, 50_000, 51_000, 52_000):
        between.handle(LogsRead(40, (), 0, 0, idle=False, under_way=False), now_ms)
    rules.close()
    [trace] = read_traces(tmp_path)
    assert [(line.now_ms, len(line.effects)) for line in trace.lines] == [(40_000, 0), (50_000, 1), (51_000, 0)]
    assert differences([trace]) == []


def test_rules_of_independent_programs_are_not_recorded(tmp_path) -> None:
    _, rules, between = recorded(tmp_path, *made_with())
    between.handle(EpochEnding(), 1.0)
    rules.close()
    [trace] = read_traces(tmp_path)
    assert (trace.begun.stage, trace.lines) == (None, [])


def test_a_trace_of_an_independent_program_with_such_an_event_is_refused() -> None:
    texts = [begun(StageProcess(Between.INDEPENDENT, 1000)).text(), handled(EpochEnding(), 1.0, []).text()]
    with pytest.raises(TraceInvalid, match="independent"):
        replayed(whole(1, texts))
