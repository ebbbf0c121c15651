"""Schedules ten times as long as usual, with ten times as many faults.

A bug that needs three rare events in a row is rare in a short run. A run of ten times the length finds it more than ten
times as often, because the first two events, once they have happened, persist. Three of four schedules are eager
(`eager.py`).
"""

from __future__ import annotations

from checkpoint_lab.eager import Eager
from checkpoint_lab.faults import Faults, hostile
from checkpoint_lab.message_world import DEFAULT, MessageWorld
from checkpoint_lab.schedules import FAULT_RATE, STEPS, Driver, Outcome, drive
from checkpoint_lab.surroundings import CONTRACT, Surroundings
from checkpoint_lab.world import World
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.recovery import Protocol, Settings

TIMES = 10
"""Length of one long run, in usual runs."""


def long_world(
    protocol: Protocol,
    graph: Graph,
    faults: Faults,
    inputs: int = 3,
    settings: Settings = DEFAULT,
    surroundings: Surroundings = CONTRACT,
    world_of: type[MessageWorld] = MessageWorld,
    times: int = TIMES,
) -> MessageWorld:
    """Return a world for long runs. `faults`, `inputs`: of a usual run; `times`: length in usual runs."""
    world = world_of(protocol, graph, faults.times(times), inputs * times, settings=settings, surroundings=surroundings)
    world.stretch = times
    return world


def drive_long(world: World, seed: int, steps: int = STEPS, fault_rate: float = FAULT_RATE) -> Outcome:
    """Run one schedule of a long world of any kind; `steps`: of a usual run."""
    # plain schedules have the long quiet runs that some bugs need
    return drive(world, seed, steps, fault_rate, Eager if seed % 4 else Driver)


def run_long(protocol: Protocol, graph: Graph, seed: int, faults: Faults | None = None, inputs: int = 3) -> Outcome:
    """Run one long schedule of a protocol over plain messages."""
    return drive_long(long_world(protocol, graph, hostile(seed) if faults is None else faults, inputs), seed)
