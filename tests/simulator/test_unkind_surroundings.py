"""Faults of real systems: lossy and repeating channels, late writes of dead processes, zombies, staggered recoveries."""

from __future__ import annotations

from collections import Counter

import pytest

import checkpoint_lab as sim
from checkpoint_lab.schedules import ScheduleOutcome
from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.vocabulary import Envelope
from checkpoint_protocols.writer_fence import WriterFence
from tests.simulator.measured import seeds_for
from tests.simulator.surroundings_bugs import DAMAGED, PLANTED

SEEDS = 60
"""Schedules until a bug counts as missed."""

S, K = ProcessId("s"), ProcessId("k")
ONE = Incarnation(1)


def first_failure(bug: str) -> ScheduleOutcome:
    """The first condemned schedule."""
    outcomes = map(PLANTED[bug].run, seeds_for("surroundings", bug, range(SEEDS)))
    return next(outcome for outcome in outcomes if outcome.condemned)


@pytest.mark.parametrize("bug", PLANTED)
def test_wrong_surroundings_are_condemned_and_the_contracts_own_are_not(bug: str) -> None:
    found = first_failure(bug)
    print(f"{bug}: seed {found.seed}, {type(found.error).__name__}")

    assert PLANTED[bug].run_without(found.seed).ok


SOUND = [name for name, protocol in MENU.items() if protocol.sound]


# tests/protocol/test_many_schedules.py has schedules with the default surroundings. The large number is a long test's.
@pytest.mark.parametrize("schedules", [5, pytest.param(24, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SOUND)
def test_no_schedule_breaks_a_promise_with_all_faults_at_once(name: str, schedules: int) -> None:
    counts = Counter[str]()
    for graph in sim.graphs_of(name):
        report = sim.many(sim.Scenario(name, graph, seed=70_000), schedules)
        assert not report.failures, f"{name} on {graph}, seed {report.failures[0].seed}: {report.failures[0].error}"
        counts.update(report.counts)

    assert counts["suspicion"] > 5 * schedules / 12
    assert counts["recovery within a recovery"] > 5 * schedules / 12


@pytest.mark.parametrize("seeds", [20, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SOUND)
def test_an_acknowledged_record_that_is_lost_or_torn_is_found_by_its_next_reader(name: str, seeds: int) -> None:
    """Each run then continues with the copy and keeps all promises."""
    counts = Counter[str]()
    for seed in range(seeds):
        graphs = sim.graphs_of(name)
        world = sim.MessageWorld(MENU[name], sim.GRAPHS[graphs[seed % len(graphs)]], DAMAGED, 4)
        outcome = sim.drive(world, seed, 150, 0.3)
        assert outcome.ok, f"{name}, seed {seed}: {outcome.error}"
        counts.update(outcome.counts)

    assert counts["acknowledged, then lost"] > seeds // 4
    assert counts["acknowledged, then torn"] > seeds // 4
    assert counts["damage found"] > seeds // 4


def test_a_fence_refuses_older_incarnations_and_never_falls() -> None:
    fence = WriterFence()
    fence.raise_to(Incarnation(3))
    fence.raise_to(Incarnation(2))

    assert [fence.admits(Incarnation(number)) for number in (1, 2, 3, 4)] == [False, False, True, True]


def crashed() -> sim.MessageWorld:
    """A pair whose sink has crashed during a write and was replaced."""
    world = sim.MessageWorld(MENU["synchronous-logging"], sim.GRAPHS["pair"], sim.Faults(1, 0, 0, 0, 0, 0, 0, late=3))
    for choice in [("read", "s"), ("deliver", "s->k", 0), ("crash", "k"), ("recover",), ("restore", "k")]:
        world.follow([choice])
    return world


def test_a_dead_incarnations_late_write_is_refused_by_the_fence() -> None:
    world = crashed()
    before = dict(world.processes[K].storage.framed)
    late = [choice for choice in world.faults() if choice[0] == "late"]

    world.follow(late[:1])

    assert late
    assert world.processes[K].storage.framed == before


def suspected(name: str = "markers") -> sim.MessageWorld:
    """A pair whose source is suspected and replaced, and continues to work."""
    world = sim.MessageWorld(MENU[name], sim.GRAPHS["pair"], sim.Faults(0, 0, 0, 0, 0, 0, 0, suspicions=1))
    return world.follow([("suspect", "s"), ("recover",)])


def test_messages_of_a_zombie_are_not_delivered() -> None:
    world = suspected().follow([("haunt", 0, "read"), ("restore", "s"), ("restore", "k")])
    zombies = [item.message for item in world.network.queues["s->k"]]  # type: ignore[index]
    world.follow([("deliver", "s->k", 0)])

    assert [(message.incarnation, message.body) for message in zombies] == [(1, "s.0>k")]
    assert world.count["drop"] == 1
    assert world.processes[K].state.rows == []


def test_a_zombie_takes_no_steps_after_the_end_of_faults() -> None:
    world = suspected()
    world.calm()

    assert not [choice for choice in world.possible() if choice[0] == "haunt"]


def test_a_suspected_process_works_until_it_is_replaced() -> None:
    world = sim.MessageWorld(MENU["markers"], sim.GRAPHS["pair"], sim.Faults(0, 0, 0, 0, 0, 0, 0, suspicions=1))
    world.follow([("suspect", "s"), ("read", "s"), ("deliver", "s->k", 0)])

    assert len(world.processes[K].state.rows) == 1


def test_a_staggered_recovery_is_decided_after_all_processes_froze() -> None:
    world = sim.MessageWorld(MENU["markers"], sim.GRAPHS["pair"], sim.Faults(2, 0, 0, 0, 0, 0, 0, staggered=True))
    world.follow([("read", "s"), ("crash", "k")])
    before = {choice for choice in world.choices() if choice[0] in ("freeze", "recover")}
    world.follow([("freeze", "s"), ("freeze", "coordinator")])
    after = {choice for choice in world.choices() if choice[0] in ("freeze", "recover", "read")}

    assert before == {("freeze", "s"), ("freeze", "coordinator")}
    assert after == {("recover",)}


def test_a_process_that_crashes_after_its_freeze_counts_as_failed() -> None:
    world = sim.MessageWorld(MENU["markers"], sim.GRAPHS["pair"], sim.Faults(2, 0, 0, 0, 0, 0, 0, staggered=True))
    world.follow([("crash", "k"), ("freeze", "s"), ("crash", "s"), ("freeze", "coordinator"), ("recover",)])

    assert world.planned_for == {S, K}


def test_channels_without_a_transport_deliver_every_message() -> None:
    bare = sim.MessageWorld(
        MENU["markers"],
        sim.GRAPHS["pair"],
        sim.Faults(control_repeats=1),
        surroundings=sim.Surroundings(transport=None),
    )

    assert all(process.transport is None for process in bare.everybody)


def test_reliable_control_channels_need_no_transport() -> None:
    kind = sim.MessageWorld(MENU["markers"], sim.GRAPHS["pair"], sim.Faults())

    assert all(process.transport is None for process in kind.everybody)


def test_a_message_of_a_zombie_is_valid_only_in_the_old_incarnation() -> None:
    truth = suspected().truth
    message = Envelope(S, K, ONE, 1, 0, "app", {}, "s.0>k")
    truth.ghostly.append((message, (1, 0, 0)))

    assert truth.believe(message, Incarnation(2)) is None
    assert truth.believe(message, ONE) is not None
