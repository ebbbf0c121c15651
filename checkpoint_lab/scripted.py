"""Runs by name: any protocol on any graph, from a seed, with crashes at chosen steps.

- `spark`: a job on Spark with all its rules: the barriers, commits and publishes that ship
- `operated`: such a job with an operator who restores epochs and replaces sources and sinks
- `drivers`: the lease of a job for which several drivers compete
- `lease`: the rotation of checkpoints among replicas
- all others: `protocol.menu`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from checkpoint_lab.campaign import (
    Report,
    campaign,
    drivers_campaign,
    lease_campaign,
    operated_campaign,
    spark_campaign,
)
from checkpoint_lab.drivers_schedules import drivers_world
from checkpoint_lab.faults import NO_FAULTS, Faults, hostile
from checkpoint_lab.graphs import ACYCLIC, GRAPHS
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
    Driver,
    Outcome,
    drive,
    operated_world,
    spark_world,
)
from checkpoint_lab.world import Choice, World
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.recovery import Settings
from checkpoint_protocols.vocabulary import Json

SPARK, OPERATED, DRIVERS, LEASE = "spark", "operated", "drivers", "lease"
NAMES: tuple[str, ...] = (SPARK, OPERATED, DRIVERS, LEASE, *MENU)
SHIPPED = "barrier"
"""The protocol of `Job(protocol=...)`. It has no world of its own: it runs inside the job."""
ONLY_GRAPH = {LEASE: "replicas", SPARK: "job", OPERATED: "job", DRIVERS: "hosts"}
"""Worlds of one shape, without times and options of their own."""
PACE = {
    LEASE: (LEASE_STEPS, LEASE_FAULT_RATE),
    SPARK: (SPARK_STEPS, SPARK_FAULT_RATE),
    OPERATED: (OPERATED_STEPS, OPERATED_FAULT_RATE),
    DRIVERS: (DRIVERS_STEPS, DRIVERS_FAULT_RATE),
}
"""Steps of the random phase and faults per step, for worlds that differ from the defaults."""


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


@dataclass(frozen=True)
class Scenario:
    """Everything that determines a run."""

    protocol: str
    graph: str
    seed: int = 0
    steps: int | None = None
    inputs: int = 3
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

    def settings(self) -> Settings:
        """Return the settings of a protocol over plain messages. Raises `NotOnTheMenu`."""
        given = {
            name: value for name, value in (("interval_ms", self.interval_ms), ("timeout_ms", self.timeout_ms)) if value
        }
        return replace(DEFAULT, **given, options=options_of(self.protocol, self.options))

    def world(self) -> World:
        """Return the world before its first step. Raises `NotOnTheMenu`."""
        if self.protocol in ONLY_GRAPH:
            _refuse_settings(self)
            return self._only_world()
        return MessageWorld(MENU[self.protocol], _graph(self), self.budget(), self.inputs, settings=self.settings())

    def _only_world(self) -> World:
        if self.protocol == LEASE:
            return LeaseWorld(faults=self.budget())
        if self.protocol == OPERATED:
            return operated_world(self.seed)
        if self.protocol == DRIVERS:
            return drivers_world(self.seed, crashes=len(self.crashes))
        world = spark_world(self.seed)
        # named crashes override a seed whose driver does not die
        world.deaths |= bool(self.crashes)
        return world

    def run(self) -> Outcome:
        """Run the random phase, the drain and the judgement. Return the outcome with its moments."""
        world = self.world().watch()
        unknown = {crash.process for crash in self.crashes} - set(world.names())
        if unknown:
            raise NotOnTheMenu(f"graph {self.graph} has no process {sorted(unknown)[0]!r}", world.names())
        return drive(world, self.seed, *self.pace(), partial(ScriptedDriver, crashes=self.crashes))

    def pace(self) -> tuple[int, float]:
        """Return the steps of the random phase and the random faults per step."""
        steps, rate = PACE.get(self.protocol, (STEPS, FAULT_RATE))
        return self.steps or steps, rate if self.faults else 0.0

    def budget(self) -> Faults:
        """Return the budgets of faults: the named crashes, plus those that the seed may draw."""
        budget = hostile(self.seed) if self.faults else NO_FAULTS
        return replace(budget, crashes=budget.crashes + len(self.crashes))


class ScriptedDriver(Driver):
    """Draws choices like `Driver`, but performs each named crash as soon as it is due and possible."""

    def __init__(self, world: World, seed: int, fault_rate: float, crashes: Sequence[Crash]) -> None:
        super().__init__(world, seed, fault_rate)
        self._crashes = sorted(crashes, key=lambda crash: crash.step)

    def _next(self) -> Choice | None:
        due = next((crash for crash in self._crashes if crash.step <= len(self.trace)), None)
        choice = self.world.crash_of(due.process) if due else None
        if due is not None and choice in self.world.faults():
            self._crashes.remove(due)
            return choice
        return super()._next()


CAMPAIGNS = {
    LEASE: lease_campaign, SPARK: spark_campaign, OPERATED: operated_campaign, DRIVERS: drivers_campaign,
}  # fmt: skip


def runnable(protocol: str) -> dict[str, Graph]:
    """Return the graphs that a protocol of the menu runs on, by name."""
    return ACYCLIC if MENU[protocol].needs.acyclic else GRAPHS


def graphs_of(protocol: str) -> tuple[str, ...]:
    """Return the names of the graphs that a protocol runs on. Raises `NotOnTheMenu`."""
    if protocol in ONLY_GRAPH:
        return (ONLY_GRAPH[protocol],)
    if protocol == SHIPPED:
        raise NotOnTheMenu(f"{SHIPPED} runs inside a job: simulate {SPARK}", NAMES)
    if protocol not in MENU:
        raise NotOnTheMenu(f"no protocol {protocol!r}", NAMES)
    return tuple(runnable(protocol))


def many(scenario: Scenario, schedules: int, processes: int = 1) -> Report:
    """Run `schedules` schedules, beginning with the scenario's seed. Raises `NotOnTheMenu`."""
    seeds = range(scenario.seed, scenario.seed + schedules)
    steps, rate = scenario.pace()
    if scenario.protocol in ONLY_GRAPH:
        _refuse_settings(scenario)
        return CAMPAIGNS[scenario.protocol](seeds, processes, steps, rate)
    graph = _graph(scenario)
    protocol, settings = MENU[scenario.protocol], scenario.settings()
    # a campaign draws the budgets of each seed itself, unless crashes are named
    faults = None if scenario.faults and not scenario.crashes else scenario.budget()
    return campaign(protocol, graph, seeds, processes, steps, faults, scenario.inputs, rate, settings)


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
    if scenario.own or scenario.options or scenario.interval_ms or scenario.timeout_ms:
        raise NotOnTheMenu(f"{scenario.protocol} takes no graph, times or options", [ONLY_GRAPH[scenario.protocol]])


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
