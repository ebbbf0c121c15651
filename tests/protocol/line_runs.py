"""Random schedules and small scopes for the protocols that compute a recovery line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from spark_ckpt.protocol.graph import Graph
from spark_ckpt.protocol.recovery import Protocol, Settings
from spark_ckpt.simulator import GRAPHS, Clock, Clocks, Faults, MessageWorld, drive
from spark_ckpt.simulator.explore import Exploration, explore

SEVERAL = Faults(crashes=4)
OFTEN = Settings(options={"checkpoint_every": 2})
SKEWED = Clocks({"a": Clock(1.3, 700), "b": Clock(0.7, 90), "s": Clock(1.0, 350), "k": Clock(0.9, 2_000)})


def check_schedules(
    protocol: Protocol, seeds: Iterable[int], clocks: Clocks | None = None, settings: Settings = OFTEN
) -> Counter[str]:
    """Every graph with every seed; what happened how often. The first verdict fails the test."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        for graph in GRAPHS.values():
            world = MessageWorld(protocol, graph, SEVERAL, 4, settings=settings, clocks=clocks)
            outcome = drive(world, seed, 60)
            assert outcome.ok, f"{graph.name}, seed {seed}: {outcome.error}"
            counts.update(outcome.counts)
    return counts


def cells_reached(protocol: Protocol, seeds: Iterable[int]) -> set[tuple[str, str, str]]:
    """Machine, phase and event of every table cell that random schedules reach."""
    cells: set[tuple[str, str, str]] = set()
    for seed in seeds:
        for graph in GRAPHS.values():
            world = MessageWorld(protocol, graph, SEVERAL, 4, settings=OFTEN)
            world.cells = cells
            drive(world, seed, 60)
    return cells


def small_scope(protocol: Protocol, graph: Graph, inputs: int, crashes: int, timers: int) -> Exploration:
    """Every order of everything that can happen."""
    faults = Faults(crashes, 0, 0, 0, 0, 0, 0)
    return explore(MessageWorld(protocol, graph, faults, inputs), timers_max=timers)
