"""The lease's specification: every state of a small cluster is safe, wrong rules are not, the machines follow it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.specs.lease_traces import MODULE, corrupted, recorded, recorded_returning, trace_files
from tests.specs.tlc import check, first_in_gate

STATES = 361_443
"""Distinct states: three nodes, two leases, one crash, one clock at half the rate."""


STATES_OF_AN_END = 22_583
"""The same with one lease: TLC keeps the graph of all states to check that every right ends."""


ONE_RETURN = {"MaxReturn": "1", "MaxCrash": "0"}
STATES_WITH_A_RETURN = 46_286
"""Two leases, one return that may be lost or come twice, no crash."""

STATES_OF_AN_END_WITH_A_RETURN = 34_345


@pytest.mark.long
def test_every_state_of_two_leases_and_one_crash_is_safe(tmp_path: Path) -> None:
    result = check(tmp_path, "MCCheckpointLease")

    assert result.ok, result.output
    assert result.states == STATES


@pytest.mark.long
def test_every_right_ends_with_time_also_around_a_crash(tmp_path: Path) -> None:
    result = check(tmp_path, "MCLeaseEnds")

    assert result.ok, result.output
    assert result.states == STATES_OF_AN_END


@pytest.mark.long
def test_every_right_ends_if_it_may_be_returned(tmp_path: Path) -> None:
    result = check(tmp_path, "MCLeaseEnds", {"MaxReturn": "1"})

    assert result.ok, result.output
    assert result.states == STATES_OF_AN_END_WITH_A_RETURN


@pytest.mark.long  # in the gate: tests/simulator/test_lease_world.py
def test_nothing_of_a_returned_lease_counts_and_the_next_one_is_safe_at_once(tmp_path: Path) -> None:
    result = check(tmp_path, "MCCheckpointLease", ONE_RETURN)

    assert result.ok, result.output
    assert result.states == STATES_WITH_A_RETURN


def test_a_right_ends_because_its_time_expires(tmp_path: Path) -> None:
    result = check(tmp_path, "MCLeaseEnds", {"Mutant": '"NeverElapses"', "MaxCrash": "0"})

    assert "Temporal properties were violated" in result.output


SEEDS = [range(12), pytest.param(range(40), marks=pytest.mark.long)]


MUTANTS = [
    ("TimerAtExecution", {"MaxCrash": "0"}, {"AtMostOne", "PrimaryKnows"}),
    ("PreemptAnyBoot", {"MaxCrash": "2"}, {"AtMostOne", "PrimaryKnows"}),
    ("PossessNotExecute", {}, {"AtMostOne", "PrimaryKnows"}),
    ("ForgetLease", {}, {"AtMostOne", "PrimaryKnows"}),
    ("KeepRight", {}, {"PrimaryTakesNone"}),
    ("NoFence", {"MaxCrash": "0"}, {"TokensIncrease", "FenceStays"}),
    ("GoesOn", ONE_RETURN, {"NothingReturned"}),
    ("ReturnsUploads", ONE_RETURN, {"NothingReturned"}),
    ("AnyReturn", ONE_RETURN, {"AtMostOne", "PrimaryKnows"}),
    ("ClearsFence", ONE_RETURN, {"FenceStays"}),
]


@pytest.mark.parametrize(("mutant", "scope", "invariants"), first_in_gate(MUTANTS))
def test_a_wrong_rule_violates_the_specification(
    tmp_path: Path, mutant: str, scope: dict[str, str], invariants: set[str]
) -> None:
    result = check(tmp_path, "MCCheckpointLease", {"Mutant": f'"{mutant}"', **scope})

    assert result.violated in invariants, result.output


@pytest.mark.long  # in the gate: tests/simulator/test_lease_world.py
def test_a_clock_slower_than_agreed_breaks_the_lease(tmp_path: Path) -> None:
    """The holder may use Budget of its clock, at half the primary's rate; here its clock has a fifth of it."""
    rates = "Rates == [a |-> 5, b |-> 1, c |-> 5]"
    text = "------------------------- MODULE MCCheckpointLease -------------------------\n"
    text += f"EXTENDS CheckpointLease\n{rates}\n=====\n"
    result = check(tmp_path, "MCCheckpointLease", {"MaxCrash": "0"}, {"MCCheckpointLease.tla": text})

    assert result.violated in {"AtMostOne", "PrimaryKnows"}, result.output


@pytest.mark.parametrize("seeds", SEEDS)
def test_schedules_of_the_machines_are_behaviours_of_the_specification(tmp_path: Path, seeds: range) -> None:
    traces = [recorded(seed) for seed in seeds]
    result = check(tmp_path, MODULE, more=trace_files(traces), flags=())

    assert sum(map(len, traces)) > 37 * len(seeds)
    assert result.ok, result.output


@pytest.mark.parametrize("seeds", SEEDS)
def test_schedules_with_returns_are_behaviours_of_the_specification(tmp_path: Path, seeds: range) -> None:
    traces = [recorded_returning(seed) for seed in seeds]
    result = check(tmp_path, MODULE, more=trace_files(traces), flags=())

    met = Counter(step.action for trace in traces for step in trace)
    assert min(met["return"], met["returned"], met["returned first"], met["gone"]) >= len(seeds) / 8, met
    assert result.ok, result.output


@pytest.mark.long  # in the gate: tests/simulator/test_lease_world.py
def test_the_next_lease_before_a_return_arrived_is_rejected(tmp_path: Path) -> None:
    unheard = [[step for step in recorded_returning(seed) if "returned" not in step.action] for seed in range(8)]
    result = check(tmp_path, MODULE, more=trace_files(unheard), flags=())

    assert result.violated == "deadlock", result.output


@pytest.mark.parametrize("what", first_in_gate(["phase", "exec", "order"]))
def test_a_corrupted_schedule_is_rejected(tmp_path: Path, what: str) -> None:
    result = check(tmp_path, MODULE, more=trace_files([corrupted(recorded(1), what)]), flags=())

    assert result.violated == "deadlock", result.output
