"""The checkpoint lease with crashes, partitions, pauses and skewed clocks: it is sound, and bugs are found."""

from __future__ import annotations

from collections import Counter

import pytest

from checkpoint_lab.explore import ScopeTooLarge, explore
from checkpoint_lab.faults import Faults
from checkpoint_lab.lease_node import LeaseEntry
from checkpoint_lab.lease_world import LeaseRules, LeaseWorld, Scope
from checkpoint_lab.schedules import LEASE_FAULT_RATE, LEASE_STEPS, drive, lease_world, scope_of
from checkpoint_lab.violations import Violation
from checkpoint_lab.world import Choice
from checkpoint_protocols.ids import ProcessId
from tests.protocol.lease_scenario import lease_scenarios, play
from tests.protocol.literal import lease as wrong
from tests.simulator.lease_returns import ReturningWorld
from tests.simulator.lease_runs import FAULTS, RETURN_FAULTS, run, run_returning
from tests.simulator.lease_small import small
from tests.simulator.measured import seeds_for
from tests.simulator.return_bugs import PLANTED, Planted

SCHEDULES = 300
UNTIL_CAUGHT = 400
STATES_OF_ONE_LEASE = 2_429


@pytest.mark.parametrize("schedules", [SCHEDULES // 3, pytest.param(4 * SCHEDULES, marks=pytest.mark.long)])
def test_every_schedule_keeps_the_promises_and_every_secondary_publishes_in_the_end(schedules: int) -> None:
    met: set[str] = set()
    for seed in range(schedules):
        found = run(seed)
        met |= found.world.counts().keys()
        assert found.complaint is None, f"seed {seed}: {found.complaint}"
        assert found.world.published == sorted(set(found.world.published))
    assert met >= {"elect", "depose", "crash", "recover", "pause", "cut", "elapse", "fail", "fenced", "propagate"}


def test_a_schedule_replays_from_its_trace() -> None:
    found = run(3)
    again = LeaseWorld(scope_of(3), FAULTS)
    for choice in found.trace[: len(found.trace) // 2]:
        again.do(choice)
    assert again.published == found.world.published[: len(again.published)]


def test_every_order_of_one_lease_without_crashes_is_safe() -> None:
    assert explore(small(leases=1, crashes=0)).states == STATES_OF_ONE_LEASE


BY_SCHEDULES = [
    (wrong.SEED, "L1|L3|L4", 100),
    (wrong.LATE_TIMER, "L1|L3|L4", 100),
    (wrong.POSSESSING, "L1|L3", 500),
    (wrong.UNFENCED, "O8", 400),
    (wrong.WEIGHT_ZERO, "L6", 100),
    (LeaseRules(wrong.AnyBoot), "L1|L3", 100),
    (LeaseRules(wrong.AnyHolder), "L4", 100),
    (LeaseRules(wrong.NeverLooksAtTheClock), "L4", 100),
    (LeaseRules(primary=wrong.ForgetsTheLease), "L1|L3", 400),
    (LeaseRules(primary=wrong.WaitsTheHoldersTime), "L1|L3", 400),
    (LeaseRules(primary=wrong.PromisesTheWholeTime), "L1|L3", 400),
]
CATCHERS = (1, 5, 16, 37, 86, 92, 182, 220)
"""Seeds that condemned these bugs in the last search. They are tried first."""


@pytest.mark.parametrize(("rules", "oracles", "seeds"), BY_SCHEDULES)
def test_a_planted_bug_is_condemned(rules: LeaseRules, oracles: str, seeds: int) -> None:
    complaints = (run(seed, rules).complaint for seed in (*CATCHERS, *range(seeds)))
    first = next((str(complaint) for complaint in complaints if complaint is not None), "nothing was found")

    assert first[:2] in oracles.split("|"), first


def test_the_seeds_of_the_command_have_other_clocks_and_a_sick_replica() -> None:
    worlds = (lease_world(seed, rules=wrong.WEIGHT_ZERO) for seed in range(10))
    outcomes = [drive(world, seed, LEASE_STEPS, LEASE_FAULT_RATE) for seed, world in enumerate(worlds)]

    assert len({tuple(scope_of(seed).rates.values()) for seed in range(3)}) == 3
    assert any(str(outcome.error).startswith("L6") for outcome in outcomes)


def test_the_machines_of_the_planted_bugs_are_sound_without_them() -> None:
    blind = LeaseRules(wrong.BlindReplica, wrong.BlindPrimary)

    assert [run(seed, blind).complaint for seed in range(30)] == [None] * 30


TIE: list[Choice] = [("tick", "a", "b"), ("append", "a"), ("execute", "a"), ("execute", "b"), ("start", "b")]
TIE += [("advance", 1), ("advance", 1), ("report", "c"), ("hear", "c")]
"""The slowest allowed holder is in its last instant when the primary's clock shows the end."""


def test_a_primary_that_acts_at_the_deadline_meets_the_holders_last_instant() -> None:
    with pytest.raises(Violation, match="L3: b may take a checkpoint"):
        small(2, 0, LeaseRules(primary=wrong.ReachesTheDeadline)).follow(TIE).do(("tick", "a", "c"))

    waiting = small(2, 0).follow(TIE[:-2])
    assert not [choice for choice in waiting.possible() if choice[0] in ("tick", "report")]


def test_an_elected_holder_that_keeps_its_right_is_condemned() -> None:
    trace = [*TIE[:4], ("crash", "a"), ("elect", "b")]
    small(1, 1).follow(trace)

    with pytest.raises(Violation, match="L2"):
        small(1, 1, LeaseRules(wrong.GoesOnAsPrimary)).follow(trace)


def test_a_primary_from_the_checkpoint_of_a_lease_does_not_know_it_and_issues_at_once() -> None:
    """Seed 002, "Primary Lacks Knowledge of Lease": the lease is used, or there would be no such checkpoint."""
    world = LeaseWorld(Scope(commands=0), Faults(crashes=2))
    world.follow(
        [("elect", "a"), ("report", "b"), ("hear", "b"), ("tick", "a", "b"), ("append", "a"), ("execute", "b")]
    )
    world.follow([("start", "b"), ("write", "b"), ("land", "b", 1), ("crash", "c"), ("recover", "c"), ("crash", "a")])
    world.follow(
        [("elect", "c"), ("report", "b"), ("hear", "b"), ("tick", "c", "b"), ("append", "c"), ("execute", "c")]
    )
    assert world.now == 0

    world.follow([("answer", "b", 1), ("execute", "b")])
    assert world.nodes[ProcessId("b")].holds(world.now)


def test_a_replica_with_another_entry_than_was_chosen_is_condemned() -> None:
    """No machine writes a log: this oracle watches the world's own abstraction of consensus."""
    world = small(1, 0).follow([("tick", "a", "b"), ("append", "a")])
    world.nodes[ProcessId("b")].log[1] = LeaseEntry(None, ("b", 1))

    with pytest.raises(Violation, match="L5: b has other entries"):
        world.judge()


def test_boots_or_waiting_alone_prevent_overlapping_leases_and_neither_does_not() -> None:
    (scenario,) = [each for each in lease_scenarios() if each.name.startswith("T07")]
    play(scenario, LeaseRules(primary=wrong.PreemptsItsOwn))
    play(scenario, LeaseRules(wrong.AnyBoot, clocks_reset=False))

    with pytest.raises(Violation, match="L1"):
        play(scenario, LeaseRules(wrong.AnyBoot, wrong.PreemptsItsOwn, clocks_reset=False))


def test_a_clock_slower_than_agreed_breaks_the_lease() -> None:
    """The assumption is needed: a holder at 64 percent of the primary's clock breaks the lease."""
    scope = Scope({"a": 100, "b": 64, "c": 100})
    complaints = (run(seed, scope=scope).complaint for seed in (344, *range(400)))

    assert any(str(complaint)[:2] in ("L1", "L3") for complaint in complaints if complaint)


def test_a_scope_that_is_too_large_is_refused() -> None:
    with pytest.raises(ScopeTooLarge):
        explore(small(leases=2, crashes=1), states_max=200)


@pytest.mark.parametrize("schedules", [SCHEDULES // 2, pytest.param(4 * SCHEDULES, marks=pytest.mark.long)])
def test_a_returned_lease_is_never_used_and_the_next_one_is_issued_at_once(schedules: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(schedules):
        found = run_returning(seed)
        assert found.complaint is None, f"seed {seed}: {found.complaint}"
        assert not found.world.returned & set(found.world.published)
        happened.update(found.world.counts())
    kinds = ("return", "returned", "gone", "stop", "resign", "jump", "pause", "cut", "crash")
    assert min(happened[kind] for kind in kinds) > schedules // 6, happened


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_bug_planted_around_returns_is_condemned(planted: Planted) -> None:
    seeds = seeds_for("leases that are returned", planted.name, range(UNTIL_CAUGHT))
    complaints = (planted.run(seed).complaint for seed in seeds)
    first = next((str(complaint) for complaint in complaints if complaint is not None), "nothing was found")

    assert first[:2] in planted.oracles.split("|"), first


def returning(rates: dict[str, int] | None = None) -> ReturningWorld:
    """Node `a` is primary, `b` works under the first lease, and `c` is a candidate for the next one."""
    world = ReturningWorld(Scope(rates or dict.fromkeys("abc", 100), commands=0), RETURN_FAULTS)
    leased: list[Choice] = [("elect", "a"), ("report", "b"), ("hear", "b"), ("tick", "a", "b"), ("append", "a")]
    return world.follow([*leased, ("execute", "a"), ("execute", "b"), ("start", "b"), ("report", "c"), ("hear", "c")])


def test_the_next_holder_gets_the_lease_at_once_after_a_return() -> None:
    waiting = returning()
    assert ("tick", "a", "c") not in waiting.possible()

    waiting.follow([("return", "b", 1), ("returned", "b", 1), ("tick", "a", "c"), ("append", "a")])
    waiting.follow([("execute", "c"), ("execute", "c")])
    assert waiting.now == 0
    assert waiting.nodes["c"].holds(waiting.now)


def test_a_lost_return_costs_the_rest_of_the_lease() -> None:
    waiting = returning().follow([("return", "b", 0), *[("advance", 4)] * 3, *[("advance", 1)] * 2, ("elapse", "b")])
    waiting.follow([("advance", 4), ("report", "c"), ("hear", "c"), *[("advance", 1)] * 2])
    assert waiting.now == 20 * waiting.unit
    assert ("tick", "a", "c") not in waiting.possible()

    waiting.follow([("advance", 1), ("tick", "a", "c")])


def test_a_duplicate_return_does_not_end_the_holders_next_lease() -> None:
    world = returning().follow([("return", "b", 2), ("returned", "b", 1)])
    world.follow([("tick", "a", "b"), ("append", "a"), ("execute", "a"), ("execute", "b"), ("start", "b")])
    world.follow([("returned", "b", 1)])

    assert world.nodes["b"].takes(world.now)
    assert world.nodes["a"].primary.lease.token == 2


def test_a_lease_cannot_be_returned_after_its_publish_request() -> None:
    world = returning().follow([("write", "b")])

    assert not [choice for choice in world.possible() if choice[0] == "return"]


def test_the_successor_of_a_resigned_primary_waits_for_its_lease() -> None:
    world = returning().follow([("resign", "a"), ("execute", "c"), ("elect", "c")])
    assert world.nodes["c"].primary.lease.token == 1

    world.follow([("return", "b", 1), ("returned", "b", 1)])
    assert world.nodes["c"].primary.lease is None
