"""Partial recovery: survivors have every row once and in one order, for any failures; recoveries and snapshots end; the
machines follow the specification."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.protocol.test_snapshot_bugs import BUGS, ORDER_ERASED_TOO_EARLY
from tests.specs.partial_traces import MODULE, corrupted, recorded, trace_files
from tests.specs.tlc import WHOLE, check, first_in_gate

SCOPES = [
    ({"MaxId": "0", "MaxFail": "2"}, 3_018),
    # in the gate: schedules with snapshots and failures, below and in tests/protocol/test_snapshot_bugs.py
    pytest.param({"MaxId": "1", "OtherRows": "0"}, 8_964, marks=pytest.mark.long),
    pytest.param({"MaxId": "1", "MaxFail": "2", "OtherRows": "0"}, 17_461, marks=pytest.mark.long),
    pytest.param({"MaxId": "0", "MaxRows": "2"}, 6_996, marks=pytest.mark.long),
    pytest.param({"MaxId": "0", "MaxRows": "2", "MaxFail": "2"}, 29_874, marks=pytest.mark.long),
]
"""Snapshots, failures, rows of the two sources, and the distinct states. All rows arrive in all of them."""


@pytest.mark.parametrize(("scope", "states"), SCOPES)
def test_every_state_has_every_row_once_and_every_snapshot_ends(
    tmp_path: Path, scope: dict[str, str], states: int
) -> None:
    result = check(tmp_path, "PartialRecovery", scope, flags=WHOLE)

    assert result.ok, result.output
    assert result.states == states


SNAPSHOT = {"MaxRows": "1", "MaxId": "1"}
ENDS = [
    ({}, 1_431),
    # its states are those of a scope above, which is in the gate and checks the ends of snapshots
    pytest.param({**SNAPSHOT, "MaxFail": "1"}, 8_964, marks=pytest.mark.long),
    pytest.param({"MaxRows": "1", "OtherRows": "1"}, 3_018, marks=pytest.mark.long),
    pytest.param(SNAPSHOT, 17_461, marks=pytest.mark.long),
]
"""Two failures: two rows of one source, a row of each, and a row and a snapshot; the latter with one failure, too."""


@pytest.mark.parametrize(("scope", "states"), ENDS)
def test_every_recovery_and_every_snapshot_ends(tmp_path: Path, scope: dict[str, str], states: int) -> None:
    result = check(tmp_path, "MCPartialEnds", scope, flags=WHOLE)

    assert result.ok, result.output
    assert result.states == states


@pytest.mark.parametrize(
    ("mutant", "scope"), first_in_gate([("OrderOnly", {}), ("WaitsItOut", {**SNAPSHOT, "MaxFail": "1"})])
)
def test_a_rule_under_which_a_step_waits_forever_is_found(tmp_path: Path, mutant: str, scope: dict[str, str]) -> None:
    result = check(tmp_path, "MCPartialEnds", {"Mutant": f'"{mutant}"', **scope})

    assert result.violated == "violated", result.output


NO_SNAPSHOT, ONE_SOURCE = {"MaxId": "0"}, {"MaxId": "1", "OtherRows": "0"}
MUTANTS = [
    ("Smaller", NO_SNAPSHOT, {"OnceInOrder"}),
    ("SourceNumber", NO_SNAPSHOT, {"NoGap"}),
    ("NoOrder", NO_SNAPSHOT, {"OneOrder"}),
    ("OrderInMemory", NO_SNAPSHOT, {"OneOrder"}),
    ("Alone", NO_SNAPSHOT, {"NoGap"}),
    # in the gate: the machine with this error, "P5c takes part while it replays", below and in tests/protocol/test_snapshot_bugs.py
    pytest.param("NoRefusal", ONE_SOURCE, {"NoOrphan", "violated"}, marks=pytest.mark.long),
]
"""Violated properties; `violated` is a temporal property, which TLC checks now and then: the first one that it finds counts."""


@pytest.mark.parametrize(("mutant", "scope", "violated"), first_in_gate(MUTANTS))
def test_a_wrong_rule_violates_the_specification(
    tmp_path: Path, mutant: str, scope: dict[str, str], violated: set[str]
) -> None:
    result = check(tmp_path, "PartialRecovery", {"Mutant": f'"{mutant}"', **scope})

    assert result.violated in violated, result.output


SEEDS = [range(88, 94), *(pytest.param(range(first, first + 30), marks=pytest.mark.long) for first in (200, 230, 260))]


@pytest.mark.parametrize("seeds", SEEDS)
def test_schedules_of_the_machines_are_behaviours_of_the_specification(tmp_path: Path, seeds: range) -> None:
    traces = [recorded(seed) for seed in seeds]
    result = check(tmp_path, MODULE, more=trace_files(traces), flags=())

    steps = [step for trace in traces for step in trace]
    actions = [step.action for step in steps]
    assert len(actions) > 125 * len(seeds)
    assert min(actions.count(action) for action in ("refuse", "drop", "complete", "give up", "fail")) > 1
    assert any(one.action == "join" and other.action == "fail" for one, other in pairwise(steps))
    assert result.ok, result.output


WRONG = {
    "takes part while it replays": (BUGS["P5c takes part while it replays"][0], 46),
    "forgets its numbers": (BUGS["P5c forgets its numbers"][0], 37),
    "delivers before the order is durable": (BUGS["P5c delivers before the order is durable"][0], 37),
    "erases the order too early": (ORDER_ERASED_TOO_EARLY, 51),
    "takes a source's number for a row's": (BUGS["literal P5c source sequence"][0], 37),
    "writes no order": (BUGS["literal P5c no order"][0], 37),
}
"""Machines with a bug, and seeds that show it."""


# Schedules in the gate find the others: tests/protocol/test_snapshot_bugs.py.
@pytest.mark.parametrize(
    "bug", [bug if at < 1 else pytest.param(bug, marks=pytest.mark.long) for at, bug in enumerate(WRONG)]
)
def test_a_machine_with_a_bug_is_rejected(tmp_path: Path, bug: str) -> None:
    protocol, seed = WRONG[bug]
    result = check(tmp_path, MODULE, more=trace_files([recorded(seed, protocol)]), flags=())

    assert result.violated == "deadlock", result.output


@pytest.mark.parametrize("what", first_in_gate(["taken part", "other order"]))
def test_a_corrupted_schedule_is_rejected(tmp_path: Path, what: str) -> None:
    result = check(tmp_path, MODULE, more=trace_files([corrupted(recorded(46), what)]), flags=())

    assert result.violated == "deadlock", result.output
