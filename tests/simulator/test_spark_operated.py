"""An operator restores, replaces sinks and sources, loses rows and logs, follows recovery advice: no silent loss."""

from __future__ import annotations

import pytest
from measured import known_first
from operated_bugs import CATCHERS, PLANTED, SEEDS

import checkpoint_lab as sim
from checkpoint_lab.schedules import operated_world

ENOUGH = 1_600
FORGETFUL = range(94, 206, 7)
"""Schedules in which the source loses rows."""


@pytest.mark.parametrize("schedules", [60, pytest.param(2_000, marks=pytest.mark.long)])
def test_no_row_is_lost_or_repeated_without_a_report_and_all_recovery_advice_works(schedules):
    kinds = ["restore", "replace", "damage", "lose", "accept", "obey", "correct", "repair", "crash", "sweep", "publish"]
    happened = dict.fromkeys([*kinds, "take back", "forget"], 0)
    for seed in (*range(schedules), *FORGETFUL):
        outcome = sim.run_operated(seed)
        assert outcome.ok, f"seed {seed}: {outcome.error}"
        for what in happened:
            happened[what] += outcome.counts.get(what, 0)
    assert min(happened.values()) > schedules // 60, happened


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_in_the_rules_of_restores_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    seeds = known_first(SEEDS.get(plant.__name__), (*CATCHERS, *range(ENOUGH)))
    found = next((each for each in map(sim.run_operated, seeds) if each.condemned), None)
    assert found is not None, f"no schedule of {ENOUGH} is condemned"
    print(f"{plant.__name__}: seed {found.seed}, {len(found.trace)} steps: {str(found.error).splitlines()[0]}")
    again = sim.replay(lambda: operated_world(found.seed), found)
    assert (type(again.error), str(again.error)) == (type(found.error), str(found.error))


def test_the_schedules_that_catch_bugs_are_sound_without_them():
    returned = 51414  # the old table comes back after a loss was accepted with another one in its place
    assert [seed for seed in (*CATCHERS, returned) if not sim.run_operated(seed).ok] == []


def test_the_bugs_that_are_planted_differ():
    assert len({plant.__name__ for plant in PLANTED}) == len(PLANTED) == 25
