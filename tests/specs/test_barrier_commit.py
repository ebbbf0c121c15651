"""Barriers and a two-phase-commit sink: every state of a small job is exactly-once; the machines follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs.barrier_traces import MODULE, UNALIGNED, corrupted, recorded, trace_files
from tests.specs.tlc import check

STATES = 331_994
"""Distinct states: two sources of one row each, two epochs, one crash."""


@pytest.mark.long
def test_every_state_of_two_epochs_and_one_crash_is_exactly_once(tmp_path: Path) -> None:
    result = check(tmp_path, "BarrierCommit")

    assert result.ok, result.output
    assert result.states == STATES


MUTANTS = [
    ("FirstBarrier", {"Consistent"}),
    ("SinkIsEnough", {"Complete"}),
    ("ShowPrepared", {"NotTooEarly"}),
    ("StaleAcks", {"Consistent", "Complete", "NotLost", "ExactlyOnce"}),
    ("PresumeAbort", {"NotLost"}),
    ("CommitInDoubt", {"NotTooEarly"}),
]


@pytest.mark.parametrize(("mutant", "invariants"), MUTANTS)
def test_a_wrong_rule_is_condemned(tmp_path: Path, mutant: str, invariants: set[str]) -> None:
    result = check(tmp_path, "BarrierCommit", {"Mutant": f'"{mutant}"'})

    assert result.violated in invariants, result.output


def test_schedules_of_the_machines_are_behaviours_of_the_specification(tmp_path: Path) -> None:
    traces = [recorded(seed) for seed in range(40)]
    result = check(tmp_path, MODULE, more=trace_files(traces), flags=())

    actions = [step.action for trace in traces for step in trace]
    assert len(actions) > 1_500
    assert min(actions.count(action) for action in ("decide", "publish", "crash")) > 30
    assert result.ok, result.output


@pytest.mark.parametrize("what", ["not stored", "shown early", "not held"])
def test_a_corrupted_schedule_is_rejected(tmp_path: Path, what: str) -> None:
    result = check(tmp_path, MODULE, more=trace_files([corrupted(recorded(1), what)]), flags=())

    assert result.violated == "deadlock", result.output


def test_a_task_that_does_not_align_is_rejected(tmp_path: Path) -> None:
    traces = [recorded(seed, UNALIGNED) for seed in range(10)]
    result = check(tmp_path, MODULE, more=trace_files(traces), flags=())

    assert result.violated == "deadlock", result.output
