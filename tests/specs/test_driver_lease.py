"""The driver's lease: every state of three drivers with different clocks and pauses is safe; wrong rules are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs.tlc import check, first_in_gate

ONE_RETURN = {"MaxReturn": "1", "MaxPause": "1"}
STATES = 22_506
"""Distinct states: three drivers, two clocks at three quarters of the third one's rate, six rows, two pauses."""


def test_every_state_of_six_rows_and_two_pauses_is_safe_and_every_lease_is_renewed_in_time(tmp_path: Path) -> None:
    result = check(tmp_path, "MCDriverLease")

    assert result.ok, result.output
    assert result.states == STATES


STATES_WITH_A_RETURN = 41_712
"""The same with one pause and one stop, whose driver returns the lease."""


def test_a_returned_lease_is_taken_at_once_and_its_later_rows_do_not_count(tmp_path: Path) -> None:
    result = check(tmp_path, "MCDriverLease", ONE_RETURN)

    assert result.ok, result.output
    assert result.states == STATES_WITH_A_RETURN


MUTANTS = [
    ("NoCompare", {"OneAtATime"}),
    ("ShortTerm", {"NotEarly"}),
    ("FirstReading", {"NotEarly"}),
    ("NoToken", {"NotEarly"}),
]


@pytest.mark.parametrize(("mutant", "invariants"), first_in_gate(MUTANTS))
def test_a_wrong_rule_violates_the_specification(tmp_path: Path, mutant: str, invariants: set[str]) -> None:
    result = check(tmp_path, "MCDriverLease", {"Mutant": f'"{mutant}"'})

    assert result.violated in invariants, result.output


@pytest.mark.long  # in the gate: the clocks of tests/coordination/test_standby.py
def test_a_shorter_bound_than_the_slowest_clock_allows_does_not_hold(tmp_path: Path) -> None:
    assert check(tmp_path, "MCDriverLease", {"Bound": "4"}).violated == "Soon"


MUTANTS_OF_RETURNS = [
    ("GoesOn", {"NotEarly", "NothingReturned"}),
    ("LateReturn", {"OneAtATime"}),
    ("TakesOnRumour", {"NotEarly"}),
    ("ClearsNumber", {"NothingReturned"}),
    ("WaitsAnyway", {"AtOnce"}),
]


@pytest.mark.parametrize(("mutant", "invariants"), first_in_gate(MUTANTS_OF_RETURNS))
def test_a_wrong_rule_of_returns_violates_the_specification(tmp_path: Path, mutant: str, invariants: set[str]) -> None:
    result = check(tmp_path, "MCDriverLease", {"Mutant": f'"{mutant}"', **ONE_RETURN})

    assert result.violated in invariants, result.output
