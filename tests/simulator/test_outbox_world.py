"""A plain query with an outbox under all faults: no row is lost, or published twice without a report."""

from __future__ import annotations

import pytest
from measured import known_first
from outbox_bugs import (
    CATCHERS,
    HAD,
    OVERLAPPING,
    OVERLAPPING_CATCHERS,
    PLANTED,
    SEEDS,
    the_sinks_of_a_branch_are_not_fenced,
)

import checkpoint_lab as sim
from checkpoint_lab.outbox_world import OutboxWorld
from checkpoint_lab.schedules import OUTBOX_FAULT_RATE, OUTBOX_STEPS, drive, outbox_world
from tests.simulator.eager import TIMES, Eager

ENOUGH = 400
KINDS = (
    "rewind", "delete", "edit", "copy", "stranger", "back up", "lose", "expire", "usurp", "crash", "name", "empty", "arrive",
    "begin fail", "begin silent", "begin again", "runplan fail", "commit fail", "commit silent", "commit again",
    "appendacks fail", "appendacks silent", "publish fail", "publish silent", "publish again", "publish late",
    "TellBranch", "decided", "obey", "acks", "swept", "CKPT_FENCED", "CKPT_STORE_IN_USE", "CKPT_QUERY_FOREIGN",
    "CKPT_BATCH_UNEXPECTED", "CKPT_PUBLISH_CONFLICT",
)  # fmt: skip


@pytest.mark.parametrize("schedules", [200, pytest.param(8_000, marks=pytest.mark.long)])
def test_no_row_is_lost_or_published_twice_without_a_report_and_all_recovery_advice_works(schedules):
    happened = dict.fromkeys(KINDS, 0)
    for seed in range(schedules):
        outcome = sim.run_outbox(seed)
        assert outcome.ok, f"seed {seed}: {outcome.error}"
        for what in happened:
            happened[what] += outcome.counts.get(what, 0)
    assert min(happened.values()) > schedules // 400, happened
    assert happened["decided"] > 4 * schedules


@pytest.mark.parametrize("schedules", [50, pytest.param(8_000, marks=pytest.mark.long)])
def test_no_row_is_lost_or_published_twice_if_a_publish_overlaps_with_the_next_batch(schedules):
    for seed in range(schedules):
        outcome = sim.run_overlapping(seed)
        assert outcome.ok, f"seed {seed}: {outcome.error}"


@pytest.mark.parametrize("plant", OVERLAPPING, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_overlap_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    found = next(
        (each for each in map(sim.run_overlapping, (*OVERLAPPING_CATCHERS, *range(ENOUGH))) if each.condemned), None
    )
    assert found is not None, f"no schedule of {ENOUGH} is condemned"


@pytest.mark.parametrize("lives", [pytest.param(9, marks=pytest.mark.smoke), pytest.param(60, marks=pytest.mark.long)])
def test_no_long_or_eager_schedule_of_a_query_is_condemned(lives):
    for seed in range(lives):
        times = TIMES if seed % 3 == 0 else 1
        outcome = drive(outbox_world(seed, times=times), seed, OUTBOX_STEPS, OUTBOX_FAULT_RATE, Eager)
        assert outcome.ok, f"seed {seed}: {outcome.error}"


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_an_outbox_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    seeds = known_first(SEEDS.get(plant.__name__), (*CATCHERS, *range(ENOUGH)))
    found = next((each for each in map(sim.run_outbox, seeds) if each.condemned), None)
    assert found is not None, f"no schedule of {ENOUGH} is condemned"
    print(f"{plant.__name__}: seed {found.seed}, {len(found.trace)} steps: {str(found.error).splitlines()[0]}")
    again = sim.replay(lambda: outbox_world(found.seed), found)
    assert (type(again.error), str(again.error)) == (type(found.error), str(found.error))


def test_the_schedules_that_catch_bugs_are_sound_without_them():
    assert [seed for seed in CATCHERS if not sim.run_outbox(seed).ok] == []
    assert [seed for seed in OVERLAPPING_CATCHERS if not sim.run_overlapping(seed).ok] == []


def test_the_bugs_that_are_planted_differ():
    assert len({plant.__name__ for plant in PLANTED}) == len(PLANTED) == 34
    assert len(HAD) == 7


def until(world, there):
    """Do what the outbox and its operator have to do, one after the other."""
    while not there():
        choices = world.choices()
        world.do(next((each for each in choices if each[0] == "restore"), choices[0]))


def left_with_a_commit_under_way():
    """A publish is not answered, its query is rewound, and another program has begun the branch."""
    world = OutboxWorld()
    until(world, lambda: world.store.tip == 2 and ("publish", 0, "gold", "late") in world.faults())
    world.follow([("publish", 0, "gold", "late"), ("rewind", 0)])
    until(world, lambda: world.sinks["gold"].left)
    return world


def test_a_publish_under_way_of_an_epoch_that_a_branch_has_left_comes_to_nothing(monkeypatch):
    """Schedules meet this once in some thousand, so it is played."""
    world = left_with_a_commit_under_way()
    assert ("arrive", "gold") not in world.faults()

    the_sinks_of_a_branch_are_not_fenced(monkeypatch)
    with pytest.raises(sim.Violation, match="O9: gold shows epoch 2, which a newer incarnation has left"):
        left_with_a_commit_under_way().do(("arrive", "gold"))
