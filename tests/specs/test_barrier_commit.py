"""Barriers and a two-phase-commit sink: every state of a small job is exactly-once, wrong rules are condemned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs.tlc import check

STATES = 71_939
"""Distinct states: two sources of one row each, two epochs, one crash."""


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
