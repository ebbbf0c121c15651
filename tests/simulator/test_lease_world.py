"""The checkpoint lease among crashes, cuts, pauses and clocks of different rates: nothing is found, bugs are."""

from __future__ import annotations

import pytest

from spark_ckpt.simulator.explore import ScopeTooLarge, explore
from spark_ckpt.simulator.lease_world import LeaseWorld, Rules, Scope
from spark_ckpt.simulator.violations import Violation
from spark_ckpt.simulator.world import Choice
from tests.protocol.lease_scenario import lease_scenarios, play
from tests.protocol.literal import lease as wrong
from tests.simulator.lease_runs import FAULTS, RATES, run
from tests.simulator.lease_small import small

SCHEDULES = 300
STATES_OF_ONE_LEASE = 2_055


def test_every_schedule_keeps_the_promises_and_every_secondary_publishes_in_the_end() -> None:
    met: set[str] = set()
    for seed in range(SCHEDULES):
        found = run(seed)
        met |= found.world.counts().keys()
        assert found.complaint is None, f"seed {seed}: {found.complaint}"
        assert found.world.published == sorted(set(found.world.published))
    assert met >= {"elect", "depose", "crash", "recover", "pause", "cut", "elapse", "fail", "fenced", "propagate"}


def test_a_schedule_replays_from_its_trace() -> None:
    found = run(3)
    again = LeaseWorld(Scope(RATES[0], {"c": 0}), FAULTS)
    for choice in found.trace[: len(found.trace) // 2]:
        again.do(choice)
    assert again.published == found.world.published[: len(again.published)]


def test_every_order_of_one_lease_without_crashes_is_safe() -> None:
    assert explore(small(leases=1, crashes=0)).states == STATES_OF_ONE_LEASE


BY_SCHEDULES = [
    (wrong.SEED, "L1|L3", 100),
    (wrong.LATE_TIMER, "L1|L3", 100),
    (wrong.POSSESSING, "L1|L3", 500),
    (wrong.UNFENCED, "O8", 400),
    (wrong.WEIGHT_ZERO, "L6", 100),
    (Rules(wrong.AnyBoot), "L1|L3", 100),
    (Rules(primary=wrong.ForgetsTheLease), "L1|L3", 400),
    (Rules(primary=wrong.WaitsTheHoldersTime), "L1|L3", 400),
]


@pytest.mark.parametrize(("rules", "oracles", "seeds"), BY_SCHEDULES)
def test_a_planted_bug_is_condemned(rules: Rules, oracles: str, seeds: int) -> None:
    complaints = (run(seed, rules).complaint for seed in range(seeds))
    first = next((str(complaint) for complaint in complaints if complaint is not None), "nothing was found")

    assert first[:2] in oracles.split("|"), first


def test_the_machines_of_the_planted_bugs_are_sound_without_them() -> None:
    blind = Rules(wrong.BlindReplica, wrong.BlindPrimary)

    assert [run(seed, blind).complaint for seed in range(30)] == [None] * 30


TIE: list[Choice] = [("tick", "a", "b"), ("append", "a"), ("execute", "a"), ("execute", "b"), ("start", "b")]
TIE += [("advance", 1), ("advance", 1), ("report", "c"), ("hear", "c")]
"""The slowest holder allowed has its last instant when the primary's clock shows the end."""


def test_a_deadline_that_is_reached_and_not_passed_meets_the_holders_last_instant() -> None:
    with pytest.raises(Violation, match="L3: b may take a checkpoint"):
        small(2, 0, Rules(primary=wrong.ReachesTheDeadline)).follow(TIE).do(("tick", "a", "c"))

    waiting = small(2, 0).follow(TIE[:-2])
    assert not [choice for choice in waiting.possible() if choice[0] in ("tick", "report")]


def test_an_elected_holder_that_keeps_its_right_is_condemned() -> None:
    trace = [*TIE[:4], ("crash", "a"), ("elect", "b")]
    small(1, 1).follow(trace)

    with pytest.raises(Violation, match="L2"):
        small(1, 1, Rules(wrong.GoesOnAsPrimary)).follow(trace)


def test_either_of_boots_and_waiting_is_enough_against_the_twelve_states_and_neither_is_not() -> None:
    (scenario,) = [each for each in lease_scenarios() if each.name.startswith("T07")]
    play(scenario, Rules(primary=wrong.PreemptsItsOwn))
    play(scenario, Rules(wrong.AnyBoot, clocks_reset=False))

    with pytest.raises(Violation, match="L1"):
        play(scenario, Rules(wrong.AnyBoot, wrong.PreemptsItsOwn, clocks_reset=False))


def test_clocks_slower_than_agreed_are_not_protected_against() -> None:
    """The assumption is needed: a holder at 64 percent of the primary's clock is to be expelled."""
    scope = Scope({"a": 100, "b": 64, "c": 100})
    complaints = (run(seed, scope=scope).complaint for seed in range(400))

    assert any(str(complaint)[:2] in ("L1", "L3") for complaint in complaints if complaint)


def test_a_scope_that_is_too_large_says_so() -> None:
    with pytest.raises(ScopeTooLarge):
        explore(small(leases=2, crashes=1), states_max=200)
