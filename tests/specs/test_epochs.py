"""Snapshots by epochs: every committed one is consistent, its log is exact, every epoch ends; the machines follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs.epoch_traces import MODULE, UNCOUNTED, corrupted, recorded, trace_files
from tests.specs.tlc import WHOLE, check, first_in_gate

OVERLAP = 36_680
"""Distinct states: one row, two epochs that overlap, one fault."""

SCOPES = [
    ({"MaxEpoch": "1"}, 875),
    pytest.param({"MaxRows": "2", "MaxEpoch": "1"}, 10_669, marks=pytest.mark.long),
    pytest.param({}, OVERLAP, marks=pytest.mark.long),
]
"""Rows and epochs, and the distinct states with one fault."""


@pytest.mark.parametrize(("scope", "states"), SCOPES)
def test_every_committed_epoch_is_consistent_with_an_exact_log_and_every_epoch_ends(
    tmp_path: Path, scope: dict[str, str], states: int
) -> None:
    result = check(tmp_path, "Epochs", scope, flags=WHOLE)

    assert result.ok, result.output
    assert result.states == states


ONE = {"MaxEpoch": "1", "MaxFault": "0"}
MUTANTS = [
    ("DeliverFirst", ONE, "NoOrphan"),
    ("PartialSum", ONE, "Complete"),
    ("ReportsOnly", ONE, "ExactLog"),
    ("NotLogged", ONE, "ExactLog"),
    ("NoRequest", ONE, "violated"),
    ("IdsAgain", {"MaxEpoch": "1"}, "violated"),
    pytest.param("OldestOnly", {"MaxFault": "0"}, "violated", marks=pytest.mark.long),
    ("CountsLost", {"MaxOpen": "1"}, "ExactLog"),
]


@pytest.mark.parametrize(("mutant", "scope", "violated"), first_in_gate(MUTANTS))
def test_a_wrong_rule_violates_the_specification(
    tmp_path: Path, mutant: str, scope: dict[str, str], violated: str
) -> None:
    """`violated` alone is the temporal property that every epoch ends."""
    result = check(tmp_path, "Epochs", {"Mutant": f'"{mutant}"', **scope})

    assert result.violated == violated, result.output


@pytest.mark.parametrize("seeds", [range(2, 12), pytest.param(range(40), marks=pytest.mark.long)])
def test_schedules_of_the_machines_are_behaviours_of_the_specification(tmp_path: Path, seeds: range) -> None:
    traces = [recorded(seed) for seed in seeds]
    result = check(tmp_path, MODULE, more=trace_files(traces), flags=())

    steps = [step for trace in traces for step in trace]
    actions = [step.action for step in steps]
    assert len(actions) > 37 * len(seeds)
    assert min(actions.count(action) for action in ("decide", "late", "restore", "succeed")) > len(seeds) / 8
    assert any(step.action == "restore" and "log |-> {[" in step.shown["complete"] for step in steps)
    assert result.ok, result.output


@pytest.mark.parametrize("what", first_in_gate(["unreported", "uncounted"]))
def test_a_corrupted_schedule_is_rejected(tmp_path: Path, what: str) -> None:
    result = check(tmp_path, MODULE, more=trace_files([corrupted(recorded(3), what)]), flags=())

    assert result.violated == "deadlock", result.output


@pytest.mark.long  # in the gate: a corrupted schedule, below
def test_a_coordinator_that_does_not_count_messages_is_rejected(tmp_path: Path) -> None:
    traces = [recorded(seed, UNCOUNTED) for seed in range(10)]
    result = check(tmp_path, MODULE, more=trace_files(traces), flags=())

    assert result.violated == "deadlock", result.output
