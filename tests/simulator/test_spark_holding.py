"""Sinks that get the rows of several epochs at once: none is lost or comes twice, and what would lose one is caught."""

from __future__ import annotations

import pytest
from holding_bugs import PLANTED
from host_bugs import core_with

import spark_ckpt.simulator as sim
from spark_ckpt.protocol.machine import ProtocolViolation
from spark_ckpt.simulator.schedules import PATIENT, spark_world
from spark_ckpt.simulator.violations import Violation

ENOUGH = 200
RARE = 0.02
"""Of faults: a driver's first epoch holds nothing back, so drivers have to live for a while."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_in_what_is_held_back_is_caught(plant):
    outcomes = (sim.run_spark(seed, core_with(plant)) for seed in range(ENOUGH) if seed % 7 in PATIENT)
    condemned = next((each for each in outcomes if not each.ok), None)
    assert condemned is not None, f"not caught in {ENOUGH} seeds"
    print(f"seed {condemned.seed}, {len(condemned.trace)} steps: {condemned.error}")
    assert isinstance(condemned.error, Violation | ProtocolViolation | KeyError), condemned.error


def test_schedules_hold_rows_back_over_epochs_and_crashes():
    held, inherited = 0, 0
    for seed in (seed for seed in range(120) if seed % 7 in PATIENT):
        outcome = sim.run_spark(seed, fault_rate=RARE)
        assert outcome.ok, outcome.error
        world = spark_world(seed)
        for choice in outcome.trace:
            world.perform(choice)
        manifests = world.durable.manifests()
        holding = {each.epoch for each in manifests if any(output.files for output in each.held.values())}
        held += len(holding)
        inherited += sum(driver.base.epoch in holding for driver in world.drivers)
    assert held > 10, "epochs that hold rows back"
    assert inherited > 2, "lives that begin with rows that are held back"
