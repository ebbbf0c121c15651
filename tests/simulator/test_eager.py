"""Schedules with many faults, and schedules that continue another one's trace."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import pytest

import checkpoint_lab as sim
from checkpoint_lab.schedules import FAULT_RATE, STEPS, Driver
from checkpoint_protocols.menu import MENU
from integration_tests.proof.tried import CLASSES, Corpus, States, Way, class_of, one, tried
from tests.protocol import test_snapshot_bugs
from tests.simulator.eager import MENDS, Eager, Guided

SEEDS = range(40)
OF_LINES = {"control lose", "control repeat", "lose", "repeat"}


def drawn(protocol: str, seed: int, driver: type[Driver]) -> sim.ScheduleOutcome:
    return sim.drive(sim.drawn_world(MENU[protocol], seed), seed, STEPS, FAULT_RATE, driver)


def shares(protocol: str, driver: type[Driver]) -> Counter[str]:
    """Number of schedules with each class of faults."""
    outcomes = [drawn(protocol, seed, driver) for seed in SEEDS]
    assert all(outcome.ok for outcome in outcomes)
    return Counter(kind for outcome in outcomes for kind in set(map(class_of, outcome.trace)))


@pytest.mark.parametrize("protocol", ["markers", "synchronous-logging"])
def test_every_kind_of_fault_happens_more_often_than_by_chance_in_sound_schedules(protocol: str) -> None:
    eager, plain = shares(protocol, Eager), shares(protocol, Driver)

    kinds = [kind for kind in CLASSES if kind != "within" and plain[kind] and kind not in OF_LINES]
    assert len(kinds) >= 8
    assert all(eager[kind] > plain[kind] for kind in kinds)
    assert all(eager[kind] >= 0.4 * len(SEEDS) for kind in ("crash", "suspect", "haunt", "failed", "pause", "cut"))


def test_the_same_seed_is_the_same_eager_schedule_and_it_replays() -> None:
    for seed in range(6):
        first, again = drawn("epochs", seed, Eager), drawn("epochs", seed, Eager)
        assert json.dumps(first.trace) == json.dumps(again.trace)

        replayed = sim.replay(partial(sim.drawn_world, MENU["epochs"], seed), first)
        assert (replayed.ok, replayed.counts) == (True, first.counts)


def test_a_guided_schedule_repeats_a_trace_and_then_draws() -> None:
    way = drawn("markers", 3, Eager).trace[:20]
    traces = set()
    for seed in range(5):
        world = sim.drawn_world(MENU["markers"], 3)
        outcome = sim.drive(world, seed, STEPS, FAULT_RATE, partial(Guided, way=way))
        assert outcome.ok
        assert outcome.trace[:20] == way
        traces.add(outcome.trace)

    assert len(traces) == 5


def test_a_bug_that_needs_faults_in_a_row_is_caught_by_fewer_eager_schedules() -> None:
    protocol, _ = test_snapshot_bugs.BUGS["P5a never holds"]
    graphs = list(sim.ACYCLIC.values())

    def caught(driver: type[Driver]) -> int:
        worlds = (
            (seed, sim.MessageWorld(protocol, graphs[seed % len(graphs)], sim.hostile(seed))) for seed in range(60)
        )
        outcomes = (sim.drive(world, seed, STEPS, FAULT_RATE, driver) for seed, world in worlds)
        return next((number for number, outcome in enumerate(outcomes, 1) if outcome.condemned), 61)

    assert caught(Eager) < caught(Driver)


def test_a_campaign_learns_traces_and_its_schedules_replay_from_seed_and_trace() -> None:
    corpus, states, went = Corpus(), States(), 0
    for seed in range(24):
        way = corpus.way(seed)
        outcome, driver, _ = one("coordinated", seed, states, way)
        assert outcome.trace[: len(way.trace)] == way.trace
        again = one("coordinated", seed, States(), way)[0]
        assert json.dumps(again.trace) == json.dumps(outcome.trace)
        corpus.learn(way, driver.newest)
        went += bool(way.trace)

    assert went > 3
    assert corpus.way(0) == Way(0)


def test_kinds_counted_as_possible_include_all_that_happened() -> None:
    found = tried("partial-recovery", 0.4)

    assert not found.failures
    assert all(found.happened[kind] <= found.could[kind] for kind in found.could)
    assert all(found.could[kind] for kind in CLASSES if found.happened[kind])


@pytest.mark.parametrize("name", [name for name in sim.NAMES if name not in MENU or MENU[name].sound])
def test_the_proof_page_can_measure_every_world(name: str) -> None:
    """Faults of a single world are not among the page's classes."""
    found = tried(name, 0.1)
    assert found.schedules > 0
    assert found.failures == []


# The long ones use the same driver, which the others test in the gate.
@pytest.mark.parametrize(
    "protocol",
    [sim.LEASE, sim.OPERATED, *(pytest.param(each, marks=pytest.mark.long) for each in (sim.SPARK, sim.DRIVERS))],
)
def test_each_fault_of_a_world_happens_in_two_fifths_of_the_schedules_that_offer_it(
    protocol: str,
) -> None:
    happened, could = Counter[str](), Counter[str]()
    for seed in range(64):
        outcome, driver, _ = one(protocol, seed, States(), Way(seed))
        assert outcome.ok
        happened.update(driver.happened)
        could.update(driver.could)

    often = [kind for kind, offered in could.items() if offered >= 16 and kind not in MENDS]
    assert len(often) >= 4
    assert {kind: (happened[kind], could[kind]) for kind in often if happened[kind] < 0.4 * could[kind]} == {}
    assert all(happened[kind] <= could[kind] for kind in happened)
