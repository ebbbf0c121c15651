"""Schedules of the barrier machines that must end well, for tests: what the simulator finds is raised."""

from __future__ import annotations

from spark_ckpt.simulator.barrier_storage import DIAMOND, JOIN, PIPELINE, BarrierGraph
from spark_ckpt.simulator.barrier_world import ROLES, BarrierWorld, Roles
from spark_ckpt.simulator.schedules import BARRIER_FAULT_RATE, BARRIER_STEPS, barrier_world, drive

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
    outcome = drive(world, seed, steps, fault_rate)
    if outcome.error is not None:
        raise outcome.error
    return world


def run_long(graph: BarrierGraph, seed: int, roles: Roles = ROLES) -> BarrierWorld:
    """Five times as long."""
    return run(graph, seed, roles, steps=5 * BARRIER_STEPS)
