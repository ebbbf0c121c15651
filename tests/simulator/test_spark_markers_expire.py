"""Sinks that lose their markers while no driver runs, as a broker does after seven days, publish no row twice."""

from __future__ import annotations

import pytest
from host_bugs import core_with

import checkpoint_lab as sim
from checkpoint_lab import SparkWorld
from checkpoint_lab.schedules import SPARK_FAULT_RATE, SPARK_STEPS, drive
from checkpoint_lab.spark_driver import shape_of, shipped

SEEDS = range(100)


def world(seed, core_of):
    """In every other job, every batch ends an epoch."""
    return SparkWorld(core_of, shape=shape_of(every_batch=seed % 2 == 1, patient=()), forgetful=True)


def run(seed, core_of=shipped):
    return drive(world(seed, core_of), seed, SPARK_STEPS, SPARK_FAULT_RATE)


def a_first_acknowledgement_waits_for_the_next_epoch(core):
    core.publication.ack_records.is_first = lambda sink: False


@pytest.mark.parametrize("schedules", [20, pytest.param(100, marks=pytest.mark.long)])
def test_no_schedule_is_condemned_and_markers_expire(schedules):
    outcomes = [run(seed) for seed in range(schedules)]
    assert [(outcome.seed, outcome.error) for outcome in outcomes if not outcome.ok] == []
    assert sum(outcome.counts.get("expire forgotten", 0) for outcome in outcomes) > schedules // 10


def test_a_first_acknowledgement_that_is_not_in_the_log_is_caught():
    """It is found by its effect: repeated rows."""
    plant = a_first_acknowledgement_waits_for_the_next_epoch
    found = next((outcome for outcome in (run(seed, core_with(plant)) for seed in SEEDS) if outcome.condemned), None)
    assert found is not None, f"{plant.__name__}: no schedule of {len(SEEDS)} is condemned"
    assert str(found.error).startswith(("O14", "O15", "O3")), found.error
    again = sim.replay(lambda: world(found.seed, core_with(plant)), found)
    assert str(again.error) == str(found.error)
