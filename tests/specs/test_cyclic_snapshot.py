"""Snapshots around two loops: every row exactly once after a restore, every snapshot ends; the machines follow it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.specs.cyclic_traces import FORGETFUL, MODULE, corrupted, recorded, trace_files
from tests.specs.tlc import WHOLE, check, first_in_gate

SCOPES = [
    pytest.param({"MaxRows": "2", "MaxId": "1"}, 40_709, marks=pytest.mark.long),
    ({"MaxRows": "1", "MaxId": "2"}, 8_321),
]
"""Rows and snapshots, and the distinct states with one restore."""


@pytest.mark.parametrize(("scope", "states"), SCOPES)
def test_every_state_has_every_row_once_and_every_snapshot_ends(
    tmp_path: Path, scope: dict[str, str], states: int
) -> None:
    result = check(tmp_path, "CyclicSnapshot", scope, flags=WHOLE)

    assert result.ok, result.output
    assert result.states == states


MUTANTS = [
    ("NoLog", "ExactLogs"),
    ("LogsMarked", "ExactLogs"),
    ("FirstReturn", "ExactLogs"),
    ("LiteralNil", "violated"),
    ("AlignsOnLoops", "violated"),
]


@pytest.mark.parametrize(("mutant", "violated"), first_in_gate(MUTANTS))
def test_a_wrong_rule_violates_the_specification(tmp_path: Path, mutant: str, violated: str) -> None:
    """`violated` alone is the temporal property that every snapshot ends."""
    result = check(tmp_path, "CyclicSnapshot", {"Mutant": f'"{mutant}"', "MaxRows": "2", "MaxId": "1"})

    assert result.violated == violated, result.output


@pytest.mark.parametrize("seeds", [range(1, 11), pytest.param(range(40), marks=pytest.mark.long)])
def test_schedules_of_the_machines_are_behaviours_of_the_specification(tmp_path: Path, seeds: range) -> None:
    traces = [recorded(seed) for seed in seeds]
    result = check(tmp_path, MODULE, more=trace_files(traces), flags=())

    steps = [step for trace in traces for step in trace]
    actions = [step.action for step in steps]
    assert len(actions) > 37 * len(seeds)
    assert min(actions.count(action) for action in ("complete", "restore", "succeed")) > len(seeds) / 8
    assert any(step.action == "restore" and re.search(r"log.*\d", step.shown["complete"]) for step in steps)
    assert result.ok, result.output


@pytest.mark.parametrize("what", first_in_gate(["dropped", "swapped"]))
def test_a_corrupted_schedule_is_rejected(tmp_path: Path, what: str) -> None:
    result = check(tmp_path, MODULE, more=trace_files([corrupted(recorded(1), what)]), flags=())

    assert result.violated == "deadlock", result.output


@pytest.mark.long  # in the gate: a corrupted schedule, above
def test_a_head_that_logs_nothing_is_rejected(tmp_path: Path) -> None:
    traces = [recorded(seed, FORGETFUL) for seed in range(10)]
    result = check(tmp_path, MODULE, more=trace_files(traces), flags=())

    assert result.violated == "deadlock", result.output
