"""Campaigns: many schedules and their results: failures, survived faults, reached table cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from time import process_time

from checkpoint_lab.drivers_schedules import drivers_world
from checkpoint_lab.faults import Faults, hostile
from checkpoint_lab.lease_world import LeaseWorld
from checkpoint_lab.message_world import DEFAULT, MessageWorld
from checkpoint_lab.schedules import (
    DRIVERS_FAULT_RATE,
    DRIVERS_STEPS,
    FAULT_RATE,
    LEASE_FAULT_RATE,
    LEASE_STEPS,
    OPERATED_FAULT_RATE,
    OPERATED_STEPS,
    SPARK_FAULT_RATE,
    SPARK_STEPS,
    STEPS,
    Outcome,
    drive,
    operated_world,
    spark_world,
)
from checkpoint_lab.world import Cell, World
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import Incarnation
from checkpoint_protocols.lease.primary import Primary
from checkpoint_protocols.lease.replica import Replica
from checkpoint_protocols.machine import Machine, Verdict
from checkpoint_protocols.recovery import Birth, Protocol, Settings
from spark_ckpt.coordination.standby import Standby

CELLS_EVERY = 10
"""Number of schedules per schedule that counts table cells."""


@dataclass
class Report:
    """Sums over schedules. `seconds` are of processor time; `failures` keep their traces."""

    protocol: str
    graph: str
    schedules: int = 0
    steps: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)
    reached: set[Cell] = field(default_factory=set)
    cells: frozenset[Cell] = frozenset()
    """Every cell that a table handles."""

    @property
    def rate(self) -> float:
        """Schedules per second of processor time."""
        return self.schedules / self.seconds if self.seconds else 0.0

    @property
    def coverage(self) -> float:
        """Share of the handled table cells that a schedule reached."""
        return len(self.reached & self.cells) / len(self.cells) if self.cells else 1.0

    @property
    def missed(self) -> list[Cell]:
        """Handled cells that no schedule reached."""
        return sorted(self.cells - self.reached)

    def add(self, other: Report) -> None:
        """Add the sums of another report."""
        self.schedules += other.schedules
        self.steps += other.steps
        self.seconds += other.seconds
        self.counts += other.counts
        self.failures += other.failures
        self.reached |= other.reached


def campaign(
    protocol: Protocol,
    graph: Graph,
    seeds: Iterable[int],
    processes: int = 1,
    steps: int = STEPS,
    faults: Faults | None = None,
    inputs: int = 3,
    fault_rate: float = FAULT_RATE,
    settings: Settings = DEFAULT,
) -> Report:
    """Run one schedule per seed of a protocol over plain messages, in `processes` processes."""
    make = partial(_message_world, protocol, graph, faults, inputs, settings)
    total = Report(protocol.name, graph.name, cells=handled_cells(_machines(protocol, graph)))
    return _spread(partial(_run, make, steps, fault_rate), total, list(seeds), processes)


def lease_campaign(
    seeds: Iterable[int], processes: int = 1, steps: int = LEASE_STEPS, fault_rate: float = LEASE_FAULT_RATE
) -> Report:
    """Run one schedule per seed of the checkpoint lease."""
    total = Report("lease", "replicas", cells=handled_cells((Replica, Primary)))
    return _spread(partial(_run, _lease_world, steps, fault_rate), total, list(seeds), processes)


def spark_campaign(
    seeds: Iterable[int], processes: int = 1, steps: int = SPARK_STEPS, fault_rate: float = SPARK_FAULT_RATE
) -> Report:
    """Run one schedule per seed of a job on Spark with the shipped rules."""
    return _spread(partial(_run, spark_world, steps, fault_rate), Report("spark", "job"), list(seeds), processes)


def operated_campaign(
    seeds: Iterable[int], processes: int = 1, steps: int = OPERATED_STEPS, fault_rate: float = OPERATED_FAULT_RATE
) -> Report:
    """Run one schedule per seed of an operated job on Spark."""
    return _spread(partial(_run, operated_world, steps, fault_rate), Report("operated", "job"), list(seeds), processes)


def drivers_campaign(
    seeds: Iterable[int], processes: int = 1, steps: int = DRIVERS_STEPS, fault_rate: float = DRIVERS_FAULT_RATE
) -> Report:
    """Run one schedule per seed of the drivers of a job."""
    total = Report("drivers", "hosts", cells=handled_cells((Standby,)))
    return _spread(partial(_run, drivers_world, steps, fault_rate), total, list(seeds), processes)


def _lease_world(seed: int) -> World:
    return LeaseWorld()


def handled_cells(machines: Iterable[type[Machine[object]]]) -> frozenset[Cell]:  # type: ignore[type-var]
    """Return the cells that have a handler."""
    return frozenset(
        (machine.__name__, phase.name, event.__name__)
        for machine in machines
        for (phase, event), cell in machine.TABLE.items()
        if not isinstance(cell, Verdict)
    )


def _machines(protocol: Protocol, graph: Graph) -> list[type[Machine[object]]]:  # type: ignore[type-var]
    makers = [protocol.worker, *([protocol.coordinator] if protocol.coordinator else [])]
    birth = Birth(graph.processes[0], graph, Incarnation(1), {}, DEFAULT)
    return [type(make(birth)) for make in makers]


def _message_world(
    protocol: Protocol, graph: Graph, faults: Faults | None, inputs: int, settings: Settings, seed: int
) -> World:
    return MessageWorld(protocol, graph, hostile(seed) if faults is None else faults, inputs, settings=settings)


def _run(make: Callable[[int], World], steps: int, fault_rate: float, seeds: Sequence[int]) -> Report:
    report, begun = Report("", ""), process_time()
    for seed in seeds:
        world = make(seed)
        if seed % CELLS_EVERY == 0:
            world.cells = report.reached
        outcome = drive(world, seed, steps, fault_rate)
        report.schedules += 1
        report.steps += len(outcome.trace)
        report.counts.update(outcome.counts)
        if not outcome.ok:
            report.failures.append(outcome)
    report.seconds = process_time() - begun
    return report


def _spread(work: Callable[[Sequence[int]], Report], total: Report, seeds: Sequence[int], processes: int) -> Report:
    if processes <= 1:
        total.add(work(seeds))
        return total
    shares = [seeds[start::processes] for start in range(processes)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for report in pool.map(work, shares):
            total.add(report)
    return total
