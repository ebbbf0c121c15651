"""Schedules of the barrier machines that must end well, for tests: what the simulator finds is raised."""

from __future__ import annotations

from checkpoint_lab.barrier_storage import DIAMOND, JOIN, PIPELINE, BarrierGraph
from checkpoint_lab.barrier_world import ROLES, BarrierWorld, Roles
from checkpoint_lab.long_lives import drive_long
from checkpoint_lab.schedules import BARRIER_FAULT_RATE, BARRIER_STEPS, Outcome, barrier_world, drive

GRAPHS = (PIPELINE, DIAMOND, JOIN)


def run(
    graph: BarrierGraph,
    seed: int,
    roles: Roles = ROLES,
    fault_rate: float = BARRIER_FAULT_RATE,
    steps: int = BARRIER_STEPS,
) -> BarrierWorld:
    """Drive a world by one seed to its end; raises what the machines and oracles find."""
    world = barrier_world(graph, seed, roles)
    return _well_ended(world, drive(world, seed, steps, fault_rate))


def run_long(graph: BarrierGraph, seed: int, roles: Roles = ROLES) -> BarrierWorld:
    """Five times as long."""
    world = barrier_world(graph, seed, roles)
    world.stretch = 5
    return _well_ended(world, drive_long(world, seed, BARRIER_STEPS, BARRIER_FAULT_RATE))


def _well_ended(world: BarrierWorld, outcome: Outcome) -> BarrierWorld:
    if outcome.error is not None:
        raise outcome.error
    return world
