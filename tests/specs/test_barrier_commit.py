"""Barriers and a two-phase-commit sink: every state of a small job is exactly-once.

`test_recorded_incarnations.py` judges the rules that ship by this specification.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs.tlc import WHOLE, check, first_in_gate

GIVEN_UP = {"MaxCrash": "0", "MaxAbort": "1"}
TAKEN_OVER = {"MaxEpoch": "1", "Takeover": "TRUE"}

SCOPES = [
    (GIVEN_UP, 11_496),
    pytest.param({}, 331_994, marks=pytest.mark.long),
    pytest.param({**GIVEN_UP, "MaxEpoch": "3", "MaxAbort": "2"}, 108_357, marks=pytest.mark.long),
    pytest.param(TAKEN_OVER, 192_772, marks=pytest.mark.long),
    pytest.param({**TAKEN_OVER, "MaxAbort": "1"}, 234_552, marks=pytest.mark.long),
    pytest.param({"MaxCrash": "0", "MaxRows": "2"}, 63_602, marks=pytest.mark.long),
]
"""Distinct states of two sources of one row each: two epochs of which one is aborted, two epochs and a crash, three epochs of
which two are aborted in a row, one epoch and a takeover whose old incarnation continues, without and with an aborted epoch;
and of two rows each: two epochs, no crash."""


@pytest.mark.parametrize(("scope", "states"), SCOPES)
def test_every_state_is_exactly_once(tmp_path: Path, scope: dict[str, str], states: int) -> None:
    result = check(tmp_path, "BarrierCommit", scope)

    assert result.ok, result.output
    assert result.states == states


ENDS = [
    ({"MaxEpoch": "1"}, 1_202),
    # TLC visits its states in the gate: those of the scope above with one aborted epoch
    pytest.param({}, 11_496, marks=pytest.mark.long),
    pytest.param({"MaxCrash": "1", "MaxEpoch": "1", "MaxAbort": "0"}, 59_848, marks=pytest.mark.long),
    pytest.param({**TAKEN_OVER, "MaxCrash": "1", "MaxAbort": "0"}, 192_772, marks=pytest.mark.long),
]
"""An epoch that may be aborted; two of which one is; one epoch and a crash, or a takeover."""


@pytest.mark.parametrize(("scope", "states"), ENDS)
def test_every_epoch_ends_and_every_committed_one_is_published(
    tmp_path: Path, scope: dict[str, str], states: int
) -> None:
    result = check(tmp_path, "MCBarrierEnds", scope, flags=WHOLE)

    assert result.ok, result.output
    assert result.states == states


@pytest.mark.parametrize(
    ("mutant", "scope"),
    [
        # in the gate: the rule below violates the same property
        pytest.param("OlderAgain", {}, marks=pytest.mark.long),
        ("WaitsForEver", {}),
        pytest.param("OwnOnly", {"MaxCrash": "1", "MaxEpoch": "1", "MaxAbort": "0"}, marks=pytest.mark.long),
    ],
)
def test_a_rule_under_which_a_step_waits_forever_is_found(tmp_path: Path, mutant: str, scope: dict[str, str]) -> None:
    result = check(tmp_path, "MCBarrierEnds", {"Mutant": f'"{mutant}"', **scope}, flags=WHOLE)

    assert result.violated == "violated", result.output


MUTANTS = [
    ("FirstBarrier", {}, {"Consistent"}),
    ("SinkIsEnough", {}, {"Complete"}),
    ("ShowPrepared", {}, {"NotTooEarly"}),
    ("StaleAcks", {}, {"Consistent", "Complete", "NotLost", "ExactlyOnce"}),
    ("PresumeAbort", {}, {"NotLost"}),
    ("CommitInDoubt", {}, {"NotTooEarly"}),
    ("ForgetsRows", GIVEN_UP, {"NotLost", "ExactlyOnce"}),
    ("GivesUpLate", GIVEN_UP, {"ExactlyOnce"}),
    pytest.param("CarriesAgain", {**GIVEN_UP, "MaxEpoch": "3"}, {"ExactlyOnce"}, marks=pytest.mark.long),
    ("PublishesBlindly", TAKEN_OVER, {"ExactlyOnce"}),
    ("NoFence", TAKEN_OVER, {"Consistent", "ExactlyOnce", "NotLost"}),
]


@pytest.mark.parametrize(("mutant", "scope", "invariants"), first_in_gate(MUTANTS))
def test_a_wrong_rule_violates_the_specification(
    tmp_path: Path, mutant: str, scope: dict[str, str], invariants: set[str]
) -> None:
    result = check(tmp_path, "BarrierCommit", {"Mutant": f'"{mutant}"', **scope})

    assert result.violated in invariants, result.output
