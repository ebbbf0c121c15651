"""Sinks that publish the rows of several epochs at once lose and repeat none, and bugs that would are caught."""

from __future__ import annotations

import pytest
from holding_bugs import PLANTED
from host_bugs import core_with
from measured import seeds_for
from spark_lives import run

from checkpoint_lab.schedules import PATIENT, SPARK_STEPS, Driver, drive, spark_world

ENOUGH = 200
RARE = 0.02
"""Rate of faults: a driver's first epoch defers no rows, so drivers have to run for a while."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_in_deferred_rows_is_caught(plant):
    seeds = seeds_for(
        "rules of rows held back", plant.__name__, (seed for seed in range(ENOUGH) if seed % 7 in PATIENT)
    )
    outcomes = (run(seed, core_with(plant)) for seed in seeds)
    condemned = next((each for each in outcomes if each.condemned), None)
    assert condemned is not None, f"not caught in {ENOUGH} seeds"
    print(f"seed {condemned.seed}, {len(condemned.trace)} steps: {condemned.error}")


class Ambush(Driver):
    """A driver dies as soon as an epoch with deferred rows commits."""

    died = 0

    def do(self, choice):
        before = len(self.world.durable.manifests())
        super().do(choice)
        decided = self.world.durable.manifests()
        if len(decided) > before and any(output.files for output in decided[-1].held.values()) and self.world.current:
            self.died += 1
            super().do(("end", "crash", self.world.drivers.index(self.world.current)))


def test_a_driver_that_dies_with_deferred_rows_leaves_them_to_its_successor():
    ambushed = 0
    for seed in (seed for seed in range(60) if seed % 7 in PATIENT):
        drivers = []

        def ambush(world, seed, rate, drivers=drivers):
            drivers.append(Ambush(world, seed, rate))
            return drivers[-1]

        outcome = drive(spark_world(seed), seed, SPARK_STEPS, RARE, ambush)
        assert outcome.ok, (seed, outcome.error)
        ambushed += drivers[0].died
    assert ambushed > 5
