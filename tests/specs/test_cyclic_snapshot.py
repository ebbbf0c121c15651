"""Snapshots around two loops: every row once after going back, every snapshot ends, wrong rules are condemned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs.tlc import check

SCOPES = [({"MaxRows": "2", "MaxId": "1"}, 40_709), ({"MaxRows": "1", "MaxId": "2"}, 8_321)]
"""Rows and snapshots, and the distinct states with one return."""


@pytest.mark.parametrize(("scope", "states"), SCOPES)
def test_every_state_keeps_every_row_once_and_every_snapshot_ends(
    tmp_path: Path, scope: dict[str, str], states: int
) -> None:
    result = check(tmp_path, "CyclicSnapshot", scope)

    assert result.ok, result.output
    assert result.states == states


MUTANTS = [
    ("NoLog", "ExactLogs"),
    ("LogsMarked", "ExactLogs"),
    ("FirstReturn", "ExactLogs"),
    ("LiteralNil", "violated"),
    ("AlignsOnLoops", "violated"),
]


@pytest.mark.parametrize(("mutant", "violated"), MUTANTS)
def test_a_wrong_rule_is_condemned(tmp_path: Path, mutant: str, violated: str) -> None:
    """`violated` alone: the temporal property, that every snapshot ends."""
    result = check(tmp_path, "CyclicSnapshot", {"Mutant": f'"{mutant}"', "MaxRows": "2", "MaxId": "1"})

    assert result.violated == violated, result.output
