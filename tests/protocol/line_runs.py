"""Random schedules and small scopes for the protocols that compute a recovery line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from checkpoint_lab import GRAPHS, Clocks, Faults, LinearClock, MessageWorld, drive
from checkpoint_lab.explore import Exploration, explore
from checkpoint_lab.world import Cell
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.machine import INVALID
from checkpoint_protocols.message_machine import AnyMessageMachine
from checkpoint_protocols.recovery import Protocol, ProtocolSettings

SEVERAL = Faults(crashes=4)
OFTEN = ProtocolSettings(options={"checkpoint_every": 2})
SKEWED = Clocks(
    {"a": LinearClock(1.3, 700), "b": LinearClock(0.7, 90), "s": LinearClock(1.0, 350), "k": LinearClock(0.9, 2_000)}
)


def check_schedules(
    protocol: Protocol, seeds: Iterable[int], clocks: Clocks | None = None, settings: ProtocolSettings = OFTEN
) -> Counter[str]:
    """Run every graph with every seed and count the events. The first violation fails the test."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        for graph in GRAPHS.values():
            world = MessageWorld(protocol, graph, SEVERAL, 4, settings=settings, clocks=clocks)
            outcome = drive(world, seed, 60)
            assert outcome.ok, f"{graph.name}, seed {seed}: {outcome.error}"
            counts.update(outcome.counts)
    return counts


def cells_not_reached(
    protocol: Protocol, machine: type[AnyMessageMachine], seeds: Iterable[int] = range(4)
) -> set[Cell]:
    """Valid cells of the machine's table that no random schedule reaches."""
    reached: set[Cell] = set()
    for seed in seeds:
        for graph in GRAPHS.values():
            world = MessageWorld(protocol, graph, SEVERAL, 4, settings=OFTEN)
            world.cells = reached
            drive(world, seed, 60)
    decided = [place for place, cell in machine.TABLE.items() if cell is not INVALID]
    return {(machine.__name__, phase.name, event.__name__) for phase, event in decided} - reached


def small_scope(protocol: Protocol, graph: Graph, inputs: int, crashes: int, timers: int) -> Exploration:
    """Explore every order of all possible steps."""
    faults = Faults(crashes, 0, 0, 0, 0, 0, 0)
    return explore(MessageWorld(protocol, graph, faults, inputs), timers_max=timers)
