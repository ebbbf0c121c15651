"""Going back in part: who survives has every row once and in one order, whoever fails; every snapshot ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs.tlc import check

SCOPES = [
    ({"MaxId": "0", "MaxFail": "2"}, 3_018),
    ({"MaxId": "1", "MaxFail": "2", "OtherRows": "0"}, 17_461),
    pytest.param({"MaxId": "0", "MaxRows": "2"}, 55_182, marks=pytest.mark.long),
]
"""Snapshots, failures, rows of the two sources, and the distinct states. All rows arrive in all of them."""


@pytest.mark.parametrize(("scope", "states"), SCOPES)
def test_every_state_keeps_every_row_once_and_every_snapshot_ends(
    tmp_path: Path, scope: dict[str, str], states: int
) -> None:
    result = check(tmp_path, "PartialRecovery", scope)

    assert result.ok, result.output
    assert result.states == states


NO_SNAPSHOT, ONE_SOURCE = {"MaxId": "0"}, {"MaxId": "1", "OtherRows": "0"}
MUTANTS = [
    ("Smaller", NO_SNAPSHOT, {"OnceInOrder"}),
    ("SourceNumber", NO_SNAPSHOT, {"NoGap"}),
    ("NoOrder", NO_SNAPSHOT, {"OneOrder"}),
    ("OrderInMemory", NO_SNAPSHOT, {"OneOrder"}),
    ("Alone", NO_SNAPSHOT, {"NoGap"}),
    ("NoRefusal", ONE_SOURCE, {"NoOrphan", "violated"}),
]
"""What is violated; `violated` is a temporal property, which TLC looks at now and then: whichever it meets first."""


@pytest.mark.parametrize(("mutant", "scope", "violated"), MUTANTS)
def test_a_wrong_rule_is_condemned(tmp_path: Path, mutant: str, scope: dict[str, str], violated: set[str]) -> None:
    result = check(tmp_path, "PartialRecovery", {"Mutant": f'"{mutant}"', **scope})

    assert result.violated in violated, result.output
