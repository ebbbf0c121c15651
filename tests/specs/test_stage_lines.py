"""Lines of stages: every one is a cut, an aligned one has nothing in transit; recorded stages follow the specification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from checkpoint_lab.stages_world import StageRules
from tests.simulator.stage_bugs import PLANTED
from tests.specs.recorded_lines import MODULE, Run, runs_module
from tests.specs.stage_runs import schedule
from tests.specs.tlc import WHOLE, check, first_in_gate

SEEDS = (12, 19, 57, 58, 98, 96)
"""Schedules of the gate: two of each protocol."""
MANY = tuple(seed for seed in range(10, 120) if seed % 40 >= 10)
ONE = {"MaxIndex": "1"}


def protocols(*names: str) -> dict[str, str]:
    return {"Protocols": "{" + ", ".join(f'"{name}"' for name in names) + "}"}


SCOPES = [
    (ONE, 4_712),
    (protocols("aligned"), 1_680),
    (protocols("unaligned"), 13_360),
    ({**ONE, **protocols("unaligned"), "Names": '{"loop"}'}, 17_096),
    ({**ONE, **protocols("aligned"), "Names": '{"join"}', "MaxCrash": "0"}, 7_980),
    ({**ONE, **protocols("aligned"), "Names": '{"chain"}', "MaxCrash": "0"}, 4_122),
    ({**ONE, **protocols("aligned", "unaligned"), "MaxRows": "2"}, 7_396),
]
"""Graphs, protocols, indices, rows and crashes, and the distinct states."""


@pytest.mark.long  # in the gate: schedules, below, and tests/simulator
@pytest.mark.parametrize(("scope", "states"), SCOPES)
def test_every_line_is_a_cut_and_every_line_ends(tmp_path: Path, scope: dict[str, str], states: int) -> None:
    result = check(tmp_path, "MCStageLines", scope, flags=WHOLE)

    assert result.ok, result.output
    assert result.states == states


QUIET = {**ONE, "MaxCrash": "0"}
INDEX, UNALIGNED, ALIGNED = ({**QUIET, **protocols(name)} for name in ("index", "unaligned", "aligned"))
MUTANTS = [
    ("TakesAny", INDEX, "NoOrphan"),
    ("NoStamp", INDEX, "NoOrphan"),
    ("CutAtCommit", INDEX, "Once"),
    ("ReadsAgain", {**ONE, **protocols("index")}, "Once"),
    ("AnyDecides", UNALIGNED, "NotTooEarly"),
    ("ShowsCommitted", UNALIGNED, "NotTooEarly"),
    ("SaysArrived", ALIGNED, "NoTransit"),
    ("SenderIsEnough", ALIGNED, "NoTransit"),
    ("AlignedByClock", ALIGNED, "NoTransit"),
    ("OneInput", {**ALIGNED, "Names": '{"join"}'}, "NoTransit"),
]


@pytest.mark.long  # in the gate: schedules of wrong rules, below, and tests/simulator
@pytest.mark.parametrize(("mutant", "scope", "violated"), MUTANTS)
def test_a_wrong_rule_violates_the_specification(
    tmp_path: Path, mutant: str, scope: dict[str, str], violated: str
) -> None:
    result = check(tmp_path, "MCStageLines", {"Mutant": f'"{mutant}"', **scope})

    assert result.violated == violated, result.output


def runs(seeds: Sequence[int], rules: StageRules | None = None) -> list[Run]:
    """Return recorded schedules; with wrong rules, up to the first alarm of an oracle."""
    found = [schedule(seed, rules or StageRules()) for seed in seeds]
    assert rules is not None or all(outcome.ok for _, outcome in found)
    return [run for run, _ in found]


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(MANY, marks=pytest.mark.long)], ids=["few", "many"])
def test_recorded_runs_of_simulated_stages_are_behaviours_of_the_specification(
    tmp_path: Path, seeds: Sequence[int]
) -> None:
    found = runs(seeds)
    result = check(tmp_path, MODULE, more=runs_module(found), flags=())

    actions = [step.action for run in found for step in run.steps]
    assert min(actions.count(act) for act in ("take", "commit", "say", "publish", "crash", "rest")) >= len(seeds), (
        actions
    )
    assert result.ok, result.output


PLANTED_IN = {each.name: each.rules for each in PLANTED}
WRONG = [
    ("every segment comes in", 144),
    ("the gate is too far open", 144),
    ("a segment of the own index waits", 24),
    ("nobody listens to senders", 28),
    ("a forced epoch has the index of the clock", 28),
    ("sinks publish the epoch under way", 53),
    ("segments have no stamp", 144),
    ("a segment has the stamp of an older line", 144),
    ("the index follows a clock that goes back", 19),
    ("an index is said for an older epoch", 24),
    ("a segment is passed over", 19),
    ("the gate opens before the epoch is committed", 19),
    ("an epoch has the cursor of its commit, not of its barrier", 189),
    ("sinks publish what is committed", 53),
    ("sinks publish the newest epoch of a line", 68),
    ("nobody hears of a decision", 63),
    ("one stage decides a line", 64),
    ("an aligned stage says its index of rows under way", 90),
    ("an aligned stage follows its clock", 90),
    ("rows on the way count as read", 90),
    ("an aligned stage waits for nothing", 90),
    ("one aligned input is enough", 107),
    ("an epoch without rows is waited for", 98),
]
"""Bugs of stages that the specification refuses, each with a schedule that shows it."""


@pytest.mark.parametrize(("name", "seed"), first_in_gate(WRONG))
def test_recorded_runs_of_stages_with_a_planted_bug_are_rejected(tmp_path: Path, name: str, seed: int) -> None:
    result = check(tmp_path, MODULE, more=runs_module(runs([seed], PLANTED_IN[name])), flags=())

    assert result.violated == "deadlock", result.output
