"""Runs by name: any protocol on any graph, from a seed, with crashes at chosen steps.

- `spark`: a job on Spark with all its rules: the barriers, commits and publishes that ship
- `operated`: such a job with an operator who restores epochs and replaces sources and sinks
- `outbox`: a plain query with an outbox, its drivers and its operator; `outbox-overlap` publishes during the next batch
- `outbox-format`: the same for `format("outbox")`
- `drivers`: the lease of a job for which several drivers compete
- `programs`: several programs that edges join, with the index protocol between them
- `lease`: the rotation of checkpoints among replicas
- all others: `checkpoint_protocols.menu`
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from time import process_time

from checkpoint_lab.faults import NO_FAULTS, Clocks, Faults, LinearClock, hostile
from checkpoint_lab.message_world import DEFAULT, MessageWorld
from checkpoint_lab.outbox_world import OutboxWorld
from checkpoint_lab.schedules import (
    DRIVERS_FAULT_RATE,
    DRIVERS_STEPS,
    FAULT_RATE,
    LEASE_FAULT_RATE,
    LEASE_STEPS,
    OPERATED_FAULT_RATE,
    OPERATED_STEPS,
    OUTBOX_FAULT_RATE,
    OUTBOX_STEPS,
    SPARK_FAULT_RATE,
    SPARK_STEPS,
    STAGES_FAULT_RATE,
    STAGES_STEPS,
    STEPS,
    Driver,
    ScheduleOutcome,
    drive,
    drivers_world,
    lease_world,
    operated_world,
    outbox_format_world,
    outbox_world,
    overlapping_world,
    spark_world,
    stages_world,
)
from checkpoint_lab.spark_operated import OperatedWorld
from checkpoint_lab.spark_world import SparkWorld
from checkpoint_lab.world import Cell, Choice, World
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import Incarnation
from checkpoint_protocols.lease.primary import Primary
from checkpoint_protocols.lease.replica import Replica
from checkpoint_protocols.machine import Machine, Verdict
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.recovery import Birth, Protocol, ProtocolSettings
from checkpoint_protocols.vocabulary import Json
from spark_ckpt.coordination.standby import Standby

# -- The graphs that protocols run on, by name.


PIPELINE = Graph("pipeline", (("s", "a"), ("a", "k")))
PAIR = Graph("pair", (("s", "k"),))
DIAMOND = Graph("diamond", (("s", "a"), ("s", "b"), ("a", "k"), ("b", "k")))
JOIN = Graph("join", (("s", "j"), ("t", "j"), ("j", "k")))
FAN_OUT = Graph("fan_out", (("s", "a"), ("a", "k"), ("a", "l")))
CYCLE = Graph("cycle", (("s", "a"), ("a", "b"), ("b", "a"), ("b", "k")))
TWO_BACK_EDGES = Graph(
    "two_back_edges", (("s", "a"), ("a", "b"), ("a", "c"), ("b", "a"), ("c", "a"), ("b", "k"), ("c", "k"))
)
NESTED_CYCLE = Graph("nested_cycle", (("s", "a"), ("a", "b"), ("b", "c"), ("c", "b"), ("c", "a"), ("c", "k")))

GRAPHS: dict[str, Graph] = {
    graph.name: graph for graph in (PIPELINE, PAIR, DIAMOND, JOIN, FAN_OUT, CYCLE, TWO_BACK_EDGES, NESTED_CYCLE)
}
ACYCLIC: dict[str, Graph] = {name: graph for name, graph in GRAPHS.items() if not graph.back_edges}


# -- Worlds drawn from a seed: any small graph, times, options and clocks, in addition to the fixed worlds.


Draw = random.Random

BACK_EDGES = 0.4
"""Share of the graphs that loop, if loops are allowed."""

SHORT_CUTS = 0.35
"""Share of the graphs with an additional edge from a source to a sink."""

INTERVALS_MS, TIMEOUTS_MS = (200, 1_000, 5_000), (500, 3_000, 10_000)
RATES = (0.7, 0.9, 1.0, 1.0, 1.1, 1.3)
OFFSETS_MS = (0, 0, 100, 250, 1_000)
LOOSELY, WITHIN_MS = (0.99, 1.0, 1.01), (0, 0, 100)
BY_THE_CLOCK = frozenset({"index-based", "adaptive-logging"})
"""Protocols that number checkpoints by loosely synchronised clocks.

A process that is a minute ahead, or ever faster, would make the others' rows and records wait as long. No oracle would
be violated, but no schedule would end.
"""
NUMBERS = (1, 2, 5)


def drawn_world(protocol: Protocol, seed: int) -> MessageWorld:
    """Return the world of a seed, with everything drawn except the protocol."""
    # another stream than that of the schedule, which begins from the bare seed
    draw = Draw(f"world {seed}")
    graph = drawn_graph(draw, f"drawn_{seed}", protocol.needs.acyclic)
    interval_ms, timeout_ms = draw.choice(INTERVALS_MS), draw.choice(TIMEOUTS_MS)
    settings = ProtocolSettings(interval_ms, timeout_ms, drawn_options(draw, protocol))
    rates, offsets = (LOOSELY, WITHIN_MS) if protocol.name in BY_THE_CLOCK else (RATES, OFFSETS_MS)
    clocks = Clocks({name: LinearClock(draw.choice(rates), draw.choice(offsets)) for name in graph.processes})
    return MessageWorld(protocol, graph, hostile(seed), draw.randint(1, 4), 1, settings, clocks)


def drawn_graph(draw: Draw, name: str, acyclic: bool) -> Graph:
    """Draw one or two sources, up to three inner processes, and one or two sinks.

    A source reaches every process, and every process reaches a sink.
    """
    sources, sinks = ["s", "t"][: draw.randint(1, 2)], ["k", "l"][: draw.randint(1, 2)]
    inner = ["a", "b", "c"][: draw.randint(0, 3)]
    before, edges = [*sources], list[tuple[str, str]]()
    for process in [*inner, *sinks]:
        edges.append((draw.choice(before), process))
        before += [process] if process in inner else []
    # a process without an output gets one, so that every process leads to a sink
    starts = {source for source, _ in edges}
    # to later ones only, so that no loop arises here
    edges += [(each, draw.choice([*inner[inner.index(each) + 1 :], *sinks])) for each in inner if each not in starts]
    edges += [(each, draw.choice([*inner, *sinks])) for each in sources if each not in starts]
    if draw.random() < SHORT_CUTS:
        edges.append((draw.choice(sources), draw.choice(sinks)))
    if inner and not acyclic and draw.random() < BACK_EDGES:
        late = draw.randrange(len(inner))
        # to an earlier process, or to itself
        edges.append((inner[late], inner[draw.randint(0, late)]))
    return Graph(name, tuple(dict.fromkeys(edges)))


def drawn_options(draw: Draw, protocol: Protocol) -> Mapping[str, Json]:
    """Draw values for some of the protocol's options."""
    # An option is drawn only if each of its values keeps the full promise. So `log` of sender logging is not declared: with
    # `volatile` logs two failures at a time may lose receipts.
    return {name: draw.choice(each.words or NUMBERS) for name, each in protocol.options.items() if draw.random() < 0.5}


# -- Campaigns: many schedules and their results: failures, survived faults, reached table cells.


CELLS_EVERY = 10
"""Number of schedules per schedule that counts table cells."""


@dataclass
class CampaignReport:
    """Sums over schedules. `seconds` are of processor time; `failures` keep their traces."""

    protocol: str
    graph: str
    schedules: int = 0
    steps: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[ScheduleOutcome] = field(default_factory=list)
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

    def add(self, other: CampaignReport) -> None:
        """Add the sums of another report."""
        self.schedules += other.schedules
        self.steps += other.steps
        self.seconds += other.seconds
        self.counts += other.counts
        self.failures += other.failures
        self.reached |= other.reached


def campaign(
    protocol: Protocol, graph: Graph, seeds: Iterable[int], processes: int = 1, steps: int = STEPS, inputs: int = 3
) -> CampaignReport:
    """Run one schedule per seed of a protocol over plain messages, in `processes` processes."""
    make = partial(_message_world, protocol, graph, inputs)
    total = CampaignReport(protocol.name, graph.name, cells=handled_cells(_machines(protocol, graph)))
    return _spread(partial(_run, make, steps, FAULT_RATE, ()), total, list(seeds), processes)


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
    # a maker may be a function that chooses by an option, so only a machine has the type
    birth = Birth(graph.processes[0], graph, Incarnation(1), {}, DEFAULT)
    return [type(make(birth)) for make in makers]


def _message_world(protocol: Protocol, graph: Graph, inputs: int, seed: int) -> World:
    return MessageWorld(protocol, graph, hostile(seed), inputs)


def _run(
    make: Callable[[int], World], steps: int, fault_rate: float, crashes: Sequence[Crash], seeds: Sequence[int]
) -> CampaignReport:
    report, begun = CampaignReport("", ""), process_time()
    for seed in seeds:
        world = make(seed)
        if seed % CELLS_EVERY == 0:
            world.cells = report.reached
        outcome = drive(world, seed, steps, fault_rate, partial(ScriptedDriver, crashes=crashes))
        report.schedules += 1
        report.steps += len(outcome.trace)
        report.counts.update(outcome.counts)
        if not outcome.ok:
            report.failures.append(outcome)
    report.seconds = process_time() - begun
    return report


def _spread(
    work: Callable[[Sequence[int]], CampaignReport], total: CampaignReport, seeds: Sequence[int], processes: int
) -> CampaignReport:
    if processes <= 1:
        total.add(work(seeds))
        return total
    shares = [seeds[start::processes] for start in range(processes)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for report in pool.map(work, shares):
            total.add(report)
    return total


@dataclass(frozen=True, slots=True)
class SeededWorld:
    """A world of one shape, without times and options of its own.

    - `graph`: name of the shape. `make`: function from a seed to the world.
    - `steps` of the random phase, on average. `fault_rate`: faults per step.
    - `promise`: what is judged at the sinks, or in the log. `machines`: those whose table cells are counted.
    """

    graph: str
    make: Callable[[int], World]
    steps: int
    fault_rate: float
    promise: str
    machines: tuple[type[Machine[object]], ...] = ()  # type: ignore[type-var]


SPARK, OPERATED, DRIVERS, LEASE = "spark", "operated", "drivers", "lease"
PROGRAMS = "programs"
OUTBOX, OVERLAPPING, FORMAT = "outbox", "outbox-overlap", "outbox-format"
_OF_OUTBOXES = "each sink gets every row once, except reported rows of a branch that the query has left"
WORLDS: Mapping[str, SeededWorld] = {
    SPARK: SeededWorld(
        "job",
        spark_world,
        SPARK_STEPS,
        SPARK_FAULT_RATE,
        "each sink gets the rows of a key once, in order, with a committed epoch",
    ),
    OPERATED: SeededWorld(
        "job",
        operated_world,
        OPERATED_STEPS,
        OPERATED_FAULT_RATE,
        "each sink gets every row that was read, and none twice without a report",
    ),
    OUTBOX: SeededWorld("query", outbox_world, OUTBOX_STEPS, OUTBOX_FAULT_RATE, _OF_OUTBOXES),
    OVERLAPPING: SeededWorld("query", overlapping_world, OUTBOX_STEPS, OUTBOX_FAULT_RATE, _OF_OUTBOXES),
    FORMAT: SeededWorld("query", outbox_format_world, OUTBOX_STEPS, OUTBOX_FAULT_RATE, _OF_OUTBOXES),
    DRIVERS: SeededWorld(
        "hosts",
        drivers_world,
        DRIVERS_STEPS,
        DRIVERS_FAULT_RATE,
        "the sinks get the rows of one driver at a time, and the epochs in order",
        (Standby,),
    ),
    PROGRAMS: SeededWorld(
        "edges",
        stages_world,
        STAGES_STEPS,
        STAGES_FAULT_RATE,
        "every segment is read once, and every named line is a consistent cut",
    ),
    LEASE: SeededWorld(
        "replicas",
        lease_world,
        LEASE_STEPS,
        LEASE_FAULT_RATE,
        "each token is granted once, and tokens grow",
        (Replica, Primary),
    ),
}
NAMES: tuple[str, ...] = (*WORLDS, *MENU)
SHIPPED = "barrier"
"""The protocol of `Job(protocol=...)`. It has no world of its own: it runs inside the job."""


class NotOnTheMenu(ValueError):
    """The protocol or graph does not exist, or the protocol does not run on the graph. `options` lists valid ones."""

    def __init__(self, what: str, options: Sequence[str]) -> None:
        self.what = what
        self.options = tuple(options)
        super().__init__(what)


@dataclass(frozen=True, slots=True)
class Crash:
    """A scripted crash: `process` dies at the first step, from `step` on, at which it can."""

    process: str
    step: int


INPUTS = 3
"""Rows of a source, if nothing else is said."""


@dataclass(frozen=True)
class Scenario:
    """Everything that determines a run."""

    protocol: str
    graph: str
    seed: int = 0
    steps: int | None = None
    inputs: int = INPUTS
    crashes: tuple[Crash, ...] = ()
    faults: bool = True
    """True if random faults happen too, not only the named crashes."""
    own: Graph | None = None
    """A graph without a name in the simulator; `graph` holds its name."""
    interval_ms: int | None = None
    timeout_ms: int | None = None
    """Times in ms; the protocol's defaults if None."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the protocol, as the user wrote them."""

    def settings(self) -> ProtocolSettings:
        """Return the settings of a protocol over plain messages. Raises `NotOnTheMenu`."""
        given = {
            name: value for name, value in (("interval_ms", self.interval_ms), ("timeout_ms", self.timeout_ms)) if value
        }
        return replace(DEFAULT, **given, options=options_of(self.protocol, self.options))

    def world(self) -> World:
        """Return the world before its first step. Raises `NotOnTheMenu`."""
        if self.protocol in WORLDS:
            _refuse_settings(self)
            return self._only_world()
        return MessageWorld(MENU[self.protocol], _graph(self), self.budget(), self.inputs, settings=self.settings())

    def _only_world(self) -> World:
        if self.protocol == LEASE:
            return lease_world(self.seed, self.budget())
        if self.protocol == DRIVERS:
            return drivers_world(self.seed, crashes=len(self.crashes))
        world = WORLDS[self.protocol].make(self.seed)
        if self.crashes:
            _let_die(world)
        return world

    def shape(self) -> Graph:
        """Return the graph of a protocol over plain messages. Raises `NotOnTheMenu`."""
        return _graph(self)

    def run(self, world: World | None = None) -> ScheduleOutcome:
        """Run the random phase, the drain and the judgement in the scenario's world, or in another one of its protocol.

        Return the outcome with its moments. Raises `NotOnTheMenu`.
        """
        world = (world or self.world()).watch()
        self.refuse_unknown_crashes(world.mortal())
        return drive(world, self.seed, *self.pace(), partial(ScriptedDriver, crashes=self.crashes))

    def refuse_unknown_crashes(self, names: Sequence[str]) -> None:
        """Raise `NotOnTheMenu` if a crash names none of these processes."""
        unknown = {crash.process for crash in self.crashes} - set(names)
        if unknown:
            raise NotOnTheMenu(f"graph {self.graph} has no process {sorted(unknown)[0]!r}", names)

    def pace(self) -> tuple[int, float]:
        """Return the steps of the random phase and the random faults per step."""
        steps, rate = pace_of(self.protocol)
        return steps if self.steps is None else self.steps, rate if self.faults else 0.0

    def budget(self) -> Faults:
        """Return the budgets of faults: the named crashes, plus those that the seed may draw."""
        budget = hostile(self.seed) if self.faults else NO_FAULTS
        return replace(budget, crashes=budget.crashes + len(self.crashes))


class ScriptedDriver(Driver):
    """Draws choices like `Driver`, but performs each named crash as soon as it is due and possible."""

    def __init__(self, world: World, seed: int, fault_rate: float, crashes: Sequence[Crash]) -> None:
        super().__init__(world, seed, fault_rate)
        self._crashes = sorted(crashes, key=lambda crash: crash.step)

    def chaos(self, steps: int) -> None:
        """Perform up to `steps` random choices, and more if a crash is named for a later step."""
        super().chaos(max([steps, *(crash.step + 1 for crash in self._crashes)]))

    def counts(self) -> dict[str, int]:
        """Return the world's counts, and the number of named crashes that the run had no chance for."""
        left = {"named crashes that never happened": len(self._crashes)} if self._crashes else {}
        return {**super().counts(), **left}

    def next_choice(self) -> Choice | None:
        """Return a named crash that is due, else a drawn choice."""
        due = [crash for crash in self._crashes if crash.step <= len(self.trace)]
        # listing every possible fault takes long, and most steps have no crash that is due
        possible = self.world.faults() if due else ()
        for crash in due:
            choice = self.world.crash_of(crash.process)
            if choice in possible:
                self._crashes.remove(crash)
                return choice
        return super().next_choice()


def pace_of(protocol: str) -> tuple[int, float]:
    """Return the steps of the random phase and the faults per step."""
    world = WORLDS.get(protocol)
    return (STEPS, FAULT_RATE) if world is None else (world.steps, world.fault_rate)


def runnable(protocol: str) -> dict[str, Graph]:
    """Return the graphs that a protocol of the menu runs on, by name."""
    return ACYCLIC if MENU[protocol].needs.acyclic else GRAPHS


def graphs_of(protocol: str) -> tuple[str, ...]:
    """Return the names of the graphs that a protocol runs on. Raises `NotOnTheMenu`."""
    if protocol in WORLDS:
        return (WORLDS[protocol].graph,)
    if protocol == SHIPPED:
        raise NotOnTheMenu(f"{SHIPPED} runs inside a job: simulate {SPARK}", NAMES)
    if protocol not in MENU:
        raise NotOnTheMenu(f"no protocol {protocol!r}", NAMES)
    return tuple(runnable(protocol))


def many(scenario: Scenario, schedules: int, processes: int = 1) -> CampaignReport:
    """Run `schedules` schedules, beginning with the scenario's seed, each as `Scenario.run` does. Raises `NotOnTheMenu`."""
    scenario.refuse_unknown_crashes(scenario.world().mortal())
    seeds = list(range(scenario.seed, scenario.seed + schedules))
    if scenario.protocol in WORLDS:
        graph, machines = WORLDS[scenario.protocol].graph, WORLDS[scenario.protocol].machines
    else:
        graph, machines = scenario.shape().name, tuple(_machines(MENU[scenario.protocol], scenario.shape()))
    total = CampaignReport(scenario.protocol, graph, cells=handled_cells(machines))
    return _spread(
        partial(_run, partial(_world_of, scenario), *scenario.pace(), scenario.crashes), total, seeds, processes
    )


def _let_die(world: World) -> None:
    """Let named crashes happen, also under a seed whose driver does not die."""
    if isinstance(world, SparkWorld):
        world.deaths = True
    # an operated job without named troubles has all kinds of them
    elif isinstance(world, OutboxWorld) or (isinstance(world, OperatedWorld) and world.troubles):
        world.troubles = (*world.troubles, "crash")


def _world_of(scenario: Scenario, seed: int) -> World:
    return replace(scenario, seed=seed).world()


def options_of(protocol: str, written: Mapping[str, str]) -> dict[str, Json]:
    """Parse a protocol's options. Raises `NotOnTheMenu`."""
    known = MENU[protocol].options if protocol in MENU else {}
    read: dict[str, Json] = {}
    for name, value in written.items():
        if name not in known:
            raise NotOnTheMenu(f"{protocol} has no option {name!r}", sorted(known) or ["none"])
        try:
            read[name] = known[name].read(value)
        except ValueError as error:
            allowed = known[name].words or ("1", "2", "3 and so on")
            raise NotOnTheMenu(f"option {name} of {protocol}: {value!r} is {error}", allowed) from error
    return read


def _refuse_settings(scenario: Scenario) -> None:
    shape = WORLDS[scenario.protocol].graph
    given = scenario.own or scenario.options or scenario.interval_ms or scenario.timeout_ms
    if given or scenario.graph != shape or scenario.inputs != INPUTS:
        raise NotOnTheMenu(f"{scenario.protocol} takes no graph, inputs, times or options", [shape])


def _graph(scenario: Scenario) -> Graph:
    if scenario.own is not None:
        return _own_graph(scenario, scenario.own)
    names = graphs_of(scenario.protocol)
    if scenario.graph not in names:
        raise NotOnTheMenu(f"{scenario.protocol} does not run on a graph {scenario.graph!r}", names)
    return GRAPHS[scenario.graph]


def _own_graph(scenario: Scenario, graph: Graph) -> Graph:
    able = [*MENU]
    if graph.back_edges:
        able = [name for name, protocol in MENU.items() if not protocol.needs.acyclic]
    if scenario.protocol not in able:
        why = f", which loops at {', '.join(sorted(graph.back_edges))}" if graph.back_edges else ""
        raise NotOnTheMenu(f"{scenario.protocol} does not run on {graph.name}{why}", able)
    return graph
