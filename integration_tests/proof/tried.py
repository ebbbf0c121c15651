"""Schedules of every protocol, on fixed graphs and in drawn worlds: their number, length, and faults."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from time import process_time
from typing import Self

import checkpoint_lab as sim
from checkpoint_lab.schedules import Driver, drivers_world, lease_world, outbox_world, spark_world
from checkpoint_lab.scripted import pace_of
from checkpoint_lab.world import CALM, Cell, Choice, Trace, World
from checkpoint_protocols.menu import MENU
from tests.simulator.eager import TIMES, Guided, long_world
from tests.simulator.lease_runs import FAULTS as LEASE_FAULTS

CURVE_POINTS = 10
PLAIN = (0,)
"""Seeds modulo eight that draw as `simulate` does; the others prefer new faults, and two in seven start from a recorded path."""
ON_A_WAY = 2
WAYS_MAX = 64
WAY_STEPS_MAX = 300
"""Longest recorded path: a longer one costs more time than its new states are worth."""
LONG = 4
"""Seeds modulo sixteen with a long schedule."""

CLASSES = {
    "crash": "a process dies",
    "suspect": "a running process is considered dead",
    "haunt": "a replaced incarnation continues",
    "freeze": "a recovery reaches the processes one by one",
    "within": "a recovery begins within another",
    "late": "a write or rows of a dead incarnation arrive",
    "failed": "a write fails",
    "torn": "a write tears",
    "control lose": "a control message is lost",
    "control repeat": "a control message comes twice",
    "lose": "a message of the application is lost (unreliable channels)",
    "repeat": "a message of the application comes twice (unreliable channels)",
    "pause": "a process is paused",
    "cut": "two processes cannot reach each other",
}


class States(set[Cell]):
    """Distinct triples of phase, event and preceding fault: a set of cells to which the newest fault is added."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = ""

    def add(self, cell: Cell) -> None:
        """Add a cell with the newest fault."""
        super().add((cell[0], cell[1], f"{cell[2]} after {self.fault}"))


@dataclass(frozen=True)
class Condemned:
    """A schedule that an oracle condemned: the world of a seed, and its choices. `verdict`, by hand: the cause, and the
    correction."""

    seed: int
    world: int
    error: str
    trace: Trace
    verdict: str = ""


@dataclass
class Tried:
    """Results of one protocol."""

    protocol: str
    schedules: int = 0
    steps: int = 0
    simulated_ms: float = 0.0
    seconds: float = 0.0
    failures: list[Condemned] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    could: Counter[str] = field(default_factory=Counter)
    """Number of schedules in which a class of faults was possible."""
    curve: list[tuple[int, int]] = field(default_factory=list)
    replayed: int = 0

    def as_json(self) -> dict[str, object]:
        """Convert for `json`: `asdict` makes counts of counts."""
        failures = [asdict(each) for each in self.failures]
        return {**vars(self), "failures": failures, "happened": dict(self.happened), "could": dict(self.could)}


@dataclass(frozen=True)
class Way:
    """Path of a schedule to a new state: the seed of its world, and its choices."""

    world: int
    trace: Trace = ()


class Watching(Driver):
    """Extension of every driver here: it records faults, and the path to the newest state."""

    states: States
    happened: set[str]
    could: set[str]
    of_messages: bool
    newest: Trace = ()

    def watch(self, states: States) -> Self:
        """Start to record states."""
        self.states, self.happened, self.could = states, set(), classes_of(self.world)
        self.of_messages = isinstance(self.world, sim.MessageWorld)
        states.fault = ""
        self.world.cells = states
        return self

    def do(self, choice: Choice) -> None:
        kind = class_of(choice)
        if kind:
            self.states.fault = kind
            if self.of_messages:
                self.happened.add(kind)
        known = len(self.states)
        super().do(choice)
        if len(self.states) > known and CALM not in self.trace:
            self.newest = tuple(self.trace)

    def faults(self) -> Sequence[Choice]:
        found = super().faults()
        if not self.of_messages:
            self.could.update(map(self.world.fault_of, found))
        return found

    def _fault(self) -> Choice | None:
        return self._seen(super()._fault())

    def _seen(self, choice: Choice | None) -> Choice | None:
        """Return a fault of a world with its own faults."""
        if choice is not None and not self.of_messages:
            self.happened.add(self.world.fault_of(choice))
        return choice


class Plain(Watching):
    """Draws as `simulate` does."""


class Eagerly(Watching, Guided):
    """Prefers faults that have not occurred, after the path of another schedule."""

    def _fresh(self) -> Choice | None:
        return self._seen(super()._fresh())


class Corpus:
    """Paths to new states, of which the newest are kept."""

    def __init__(self) -> None:
        self.ways: deque[Way] = deque(maxlen=WAYS_MAX)

    def way(self, seed: int) -> Way:
        """Path with which the schedule of a seed begins."""
        goes_on = seed % 4 == ON_A_WAY and self.ways
        return self.ways[seed // 4 % len(self.ways)] if goes_on else Way(seed)

    def learn(self, way: Way, newest: Trace) -> None:
        """Record that a schedule on this path reached a new state."""
        if newest and len(newest) <= WAY_STEPS_MAX:
            self.ways.append(Way(way.world, newest))


def class_of(choice: Choice) -> str:
    """Class of a fault among those of the message world; empty for other choices."""
    kind = str(choice[-1] if choice[0] == "stored" else choice[0])
    if kind in ("lose", "repeat") and "=>" in str(choice[1:2]):
        return f"control {kind}"
    return kind if kind in CLASSES else ""


def classes_of(world: World) -> set[str]:
    """Classes of faults that a world may have: not all worlds have failing lines, stepwise recoveries and lossy channels.
    Empty for a world with its own faults, which counts the offered ones."""
    if not isinstance(world, sim.MessageWorld):
        return set()
    lacks = set() if world.lossy else {"control lose", "control repeat"}
    if world.network.reliable:
        lacks |= {"lose", "repeat"}
    if world.protocol.rejoin is not None or not world.budget.staggered:
        lacks.add("freeze")
    return CLASSES.keys() - lacks


def world_of(protocol: str, seed: int) -> World:
    """Fixed graphs under even seeds, drawn worlds under odd ones, and a long schedule under one in sixteen; protocols outside of
    the menu have their own worlds."""
    if seed % 16 == LONG and (longer := _long_world_of(protocol, seed)):
        return longer
    if protocol == sim.LEASE:
        return lease_world(seed, LEASE_FAULTS)
    if protocol in MENU and seed % 2:
        return sim.drawn_world(MENU[protocol], seed)
    graphs = sim.graphs_of(protocol)
    return sim.Scenario(protocol, graphs[seed // 2 % len(graphs)], seed).world()


def _long_world_of(protocol: str, seed: int) -> World | None:
    """Long worlds of the menu, of drivers, of outboxes and on Spark; every fourth operated job is long anyway."""
    if protocol in MENU:
        graphs = sim.graphs_of(protocol)
        return long_world(MENU[protocol], sim.GRAPHS[graphs[seed // 16 % len(graphs)]], sim.hostile(seed // 16))
    if protocol == sim.DRIVERS:
        return drivers_world(seed, times=TIMES)
    if protocol == sim.OUTBOX:
        return outbox_world(seed, times=TIMES)
    return spark_world(seed, times=TIMES) if protocol == sim.SPARK else None


def one(protocol: str, seed: int, states: States, way: Way) -> tuple[sim.ScheduleOutcome, Watching, World]:
    """Run one schedule and watch it. Protocols outside of the menu have few faults: with many, no epoch is ever committed."""
    steps, rate = pace_of(protocol)
    world = world_of(protocol, way.world)
    drivers: list[Watching] = []

    def driver_of(world: World, seed: int, fault_rate: float) -> Watching:
        driver = (
            Plain(world, seed, fault_rate) if seed % 8 in PLAIN else Eagerly(world, seed, fault_rate, way=way.trace)
        )
        drivers.append(driver.watch(states))
        return driver

    return sim.drive(world, seed, steps, rate, driver_of), drivers[0], world


def tried(protocol: str, seconds: float, first: int = 0) -> Tried:
    """Run schedules for `seconds` of processor time; every tenth runs again and must make the same choices byte for byte."""
    found, states, begun, seed = Tried(protocol), States(), process_time(), first
    corpus = Corpus()
    while (used := process_time() - begun) < seconds:
        way = corpus.way(seed) if protocol in MENU else Way(seed)
        outcome, witness, world = one(protocol, seed, states, way)
        corpus.learn(way, witness.newest)
        _add(found, outcome, witness, world, way)
        if seed % 10 == 0:
            again = one(protocol, seed, States(), way)[0]
            assert json.dumps(again.trace) == json.dumps(outcome.trace)
            found.replayed += 1
        if used >= seconds * (len(found.curve) + 1) / CURVE_POINTS:
            found.curve.append((found.schedules, len(states)))
        seed += 1
    found.curve.append((found.schedules, len(states)))
    found.seconds = process_time() - begun
    return found


def _add(found: Tried, outcome: sim.ScheduleOutcome, witness: Watching, world: World, way: Way) -> None:
    found.schedules += 1
    found.steps += len(outcome.trace)
    found.simulated_ms += float(getattr(world, "now", 0)) / getattr(world, "unit", 1)
    found.happened.update(witness.happened)
    found.could.update(witness.could)
    found.happened["within"] += bool(outcome.counts.get("recovery within a recovery"))
    if not outcome.ok:
        found.failures.append(Condemned(outcome.seed, way.world, str(outcome.error).splitlines()[0], outcome.trace))
