"""Random schedules: a seed, a stream of draws, a world driven by it; then calm until nothing is left to happen.

What a seed draws once (how often faults and timers come, what lags) matters more than the single steps: rare
paths need something that is slow all the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from checkpoint_lab.barrier_processes import LIMITS
from checkpoint_lab.barrier_storage import BarrierGraph
from checkpoint_lab.barrier_world import ROLES, BarrierWorld, Roles
from checkpoint_lab.faults import Faults, hostile
from checkpoint_lab.message_world import DEFAULT, MessageWorld
from checkpoint_lab.spark_driver import CoreOf, shape_of, shipped
from checkpoint_lab.spark_operated import LONG, SHORT, OperatedWorld
from checkpoint_lab.spark_world import ROWS, SparkWorld
from checkpoint_lab.violations import NoEnd, Violation
from checkpoint_lab.world import CALM, Choice, Moment, World, kind_of
from checkpoint_protocols.barrier.settings import Limits
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.recovery import Protocol, Settings
from spark_ckpt.errors import CkptError

T = TypeVar("T")

CALM_STEPS_MAX = 5_000
"""A drain of a usual life takes some hundred steps; many times that without an end is a livelock (O10)."""

ROUNDS = 2
"""Periodic checkpoints of everybody, at the end: whatever waits for one gets it."""

ROUNDS_MAX, TOGETHER_MAX = 20, 10
"""Until everything is shown. Checkpoints that two begin at once may both be given up, time after time; in later rounds one begins
when the one before it has ended, as clocks that are not alike come to do."""

FAULT_RATE = 0.15
"""Faults per step of chaos; a seed multiplies it by 0 to 2."""

BARRIER_STEPS = 200
BARRIER_FAULT_RATE = 0.03
"""Every crash of a coordinator undoes its epoch: more of them and nothing is ever decided."""

SPARK_STEPS = 250
SPARK_FAULT_RATE = 0.08
PATIENT = {2: ("tap",), 3: ("out",), 5: ("tap", "out")}
"""By a seed's remainder: sinks that get the rows of several epochs at once."""
AHEAD = (0, 1, 2, 3, 4)
"""Remainders of seeds under which sinks are sent rows ahead."""
LARGE, LARGE_SEGMENT_ROWS = (0, 5, 9), 3
"""Remainders of seeds under which a segment of an edge takes several rows, and how many."""

TROUBLES = (
    (),
    ("restore",),
    ("damage due", "publish"),
    ("damage", "replace", "publish", "crash"),
    ("damage due", "publish"),
    ("replace", "restore", "damage"),
    ("restore",),
    ("lose", "back up", "restore", "publish"),
    ("damage due", "publish"),
    ("damage", "damage due", "publish", "restore", "crash"),
    ("sweep", "restore", "publish"),
)
"""What happens in one schedule of a job that is operated; empty: everything."""
OPERATED_STEPS = 150
OPERATED_FAULT_RATE = 0.15

LEASE_STEPS = 120
LEASE_FAULT_RATE = 0.08

DRIVERS_STEPS = 300
DRIVERS_FAULT_RATE = 0.1

LEISURE = 0.3
"""How often what need not happen happens before time passes."""

STEPS = 50
"""Steps of chaos in one schedule, on average."""

VERDICTS = (Violation, ProtocolViolation, CkptError)
"""Errors that condemn a schedule: of an oracle, of a machine, of the product for its operator. Any other one is a bug of the code
that ran, a planting that names a method which was renamed, say, and proves nothing."""


@dataclass(frozen=True)
class Outcome:
    """One schedule: what was chosen, how it ended. `error`: an oracle's verdict, a machine's refusal, or a bug."""

    seed: int
    trace: tuple[Choice, ...]
    error: Exception | None
    counts: dict[str, int]
    moments: tuple[Moment, ...] = ()

    @property
    def ok(self) -> bool:
        """Nobody complained."""
        return self.error is None

    @property
    def condemned(self) -> bool:
        """An oracle, a machine or a typed error refused the schedule. Raises an error that is no verdict."""
        if self.error is not None and not isinstance(self.error, VERDICTS):
            raise self.error
        return self.error is not None


class Driver:
    """Draws choices for one world from one seeded stream, and keeps the trace."""

    def __init__(self, world: World, seed: int, fault_rate: float = FAULT_RATE, timer_rate: float = 0.08) -> None:
        self.world = world
        self.draw = random.Random(seed).random  # noqa: S311 - not for secrets
        self.trace: list[Choice] = []
        self.fault_rate = fault_rate * self.pick((0.0, 0.5, 1.0, 2.0))
        self.timer_rate = timer_rate * self.pick((0.3, 1.0, 3.0))
        self.quiet = self.pick((0.0, 0.3, 0.6))
        """Share of the chaos without faults: a checkpoint must be complete before a crash can go back to it."""
        self.laggard = self.pick(world.LAGGARDS)

    def pick(self, options: Sequence[T]) -> T:
        """One of them."""
        return options[int(self.draw() * len(options))]

    def chaos(self, steps: int) -> None:
        """So many steps of anything."""
        fault_rate = self.fault_rate
        for step in range(steps):
            self.fault_rate = fault_rate if step >= self.quiet * steps else 0.0
            choice = self._next()
            if choice is None:
                return
            self.do(choice)

    def drain(self) -> None:
        """Calm steps until quiescence, then the periodic timers, then until quiescence again. Raises `NoEnd`."""
        self.do(CALM)
        self._settle()
        self.world.judge_rest()
        for number in range(ROUNDS_MAX):
            if number >= ROUNDS and not self.world.owes():
                break
            self._round(together=number < TOGETHER_MAX)
        self.world.judge()
        self.world.judge_rounds()

    def _round(self, together: bool) -> None:
        for choice in self.world.periodic():
            if together:
                self.do(choice)
            elif choice in self.world.periodic():
                self.do(choice)
                self._settle()
        self._settle()

    def do(self, choice: Choice) -> None:
        """Make it happen and remember it, also if it raises."""
        self.trace.append(choice)
        self.world.perform(choice)

    def faults(self) -> Sequence[Choice]:
        """What can go wrong now."""
        return self.world.faults()

    def _next(self) -> Choice | None:
        draw = self.draw()
        if draw < self.fault_rate:
            fault = self._fault()
            if fault is not None:
                return fault
        elif draw < self.fault_rate + self.timer_rate:
            timers = self.world.timers()
            if timers:
                return self.pick(timers) if self.draw() < 0.3 else timers[0]
        return self._work()

    def _fault(self) -> Choice | None:
        """Every kind of fault is as likely as every other, however many ways there are to have it."""
        faults = self.faults()
        kinds = list(dict.fromkeys(kind_of(choice) for choice in faults))
        if not kinds:
            return None
        kind = self.pick(kinds)
        return self.pick([choice for choice in faults if kind_of(choice) == kind])

    def _work(self) -> Choice | None:
        return self._one_of(self.world.choices())

    def _one_of(self, choices: Sequence[Choice]) -> Choice | None:
        """What lags waits; without any choice somebody is at leisure, or time passes."""
        world = self.world
        if self.laggard and choices:
            choices = world.put_off(choices, self.laggard) or choices
        if choices:
            return choices[int(self.draw() * len(choices))]
        timers, free = world.timers(), world.at_leisure()
        if free and (not timers or self.draw() < LEISURE):
            return self.pick(free)
        return timers[0] if timers else None

    def _settle(self) -> None:
        for _ in range(CALM_STEPS_MAX * self.world.stretch):
            choices = self.world.drain_choices()
            if not choices:
                return
            self.do(self.pick(choices))
        raise _no_end(self.world, self.trace)


def _no_end(world: World, trace: Sequence[Choice]) -> NoEnd:
    return NoEnd(f"no end after {CALM_STEPS_MAX * world.stretch} calm steps; last {list(trace[-12:])}")


def drive(
    world: World,
    seed: int,
    steps: int = STEPS,
    fault_rate: float = FAULT_RATE,
    driver_of: Callable[[World, int, float], Driver] = Driver,
) -> Outcome:
    """One schedule in a world of any kind."""
    driver = driver_of(world, seed, fault_rate)
    error: Exception | None = None
    try:
        driver.chaos(int((0.4 + 1.2 * driver.draw()) * steps * world.stretch))
        driver.drain()
    except Exception as complaint:  # noqa: BLE001 - whatever a machine raises is this schedule's verdict
        error = complaint
    trace = tuple(driver.trace)
    if isinstance(error, Violation):
        error.seed, error.trace = seed, trace
    return Outcome(seed, trace, error, world.counts(), tuple(world.moments or ()))


def run(
    protocol: Protocol,
    graph: Graph,
    seed: int,
    steps: int = STEPS,
    faults: Faults | None = None,
    inputs: int = 3,
    settings: Settings = DEFAULT,
    story: bool = False,
) -> Outcome:
    """One schedule of a protocol over plain messages."""
    world = MessageWorld(protocol, graph, hostile(seed) if faults is None else faults, inputs, settings=settings)
    if story:
        world.watch()
    return drive(world, seed, steps)


def run_barrier(
    graph: BarrierGraph,
    seed: int,
    roles: Roles = ROLES,
    steps: int = BARRIER_STEPS,
    fault_rate: float = BARRIER_FAULT_RATE,
    story: bool = False,
) -> Outcome:
    """One schedule of the shipped barrier machines."""
    world = barrier_world(graph, seed, roles)
    if story:
        world.watch()
    return drive(world, seed, steps, fault_rate)


def barrier_world(graph: BarrierGraph, seed: int, roles: Roles = ROLES, limits: Limits = LIMITS) -> BarrierWorld:
    """The world that a seed's schedule begins in."""
    return BarrierWorld(graph, roles, newest_marker_only=seed % 2 == 1, limits=limits)


def replay(make: Callable[[], World], outcome: Outcome) -> Outcome:
    """The same again, from the trace alone."""
    world = make()
    error: Exception | None = None
    try:
        for choice in outcome.trace:
            world.perform(choice)
        if world.quiescent:
            world.judge()
        else:
            error = _no_end(world, outcome.trace)
    except Exception as complaint:  # noqa: BLE001 - as in `drive`
        error = complaint
    return Outcome(outcome.seed, outcome.trace, error, world.counts(), tuple(world.moments or ()))


def run_spark(seed: int, core_of: CoreOf = shipped) -> Outcome:
    """One schedule of a job on Spark, with the rules that ship."""
    return drive(spark_world(seed, core_of), seed, SPARK_STEPS, SPARK_FAULT_RATE)


def run_operated(seed: int, core_of: CoreOf = shipped, story: bool = False) -> Outcome:
    """One schedule of whoever operates a job on Spark, with the rules that ship."""
    world = operated_world(seed, core_of)
    if story:
        world.watch()
    return drive(world, seed, OPERATED_STEPS, OPERATED_FAULT_RATE)


def operated_world(seed: int, core_of: CoreOf = shipped) -> OperatedWorld:
    """The world that a seed's schedule begins in: in two of three a sink or both get the rows of several epochs at once, in ten of
    eleven only some kinds of trouble happen, and every fourth job lives long."""
    patient, troubles = (("tap",), (), ("tap", "out"))[seed % 3], TROUBLES[seed // 3 % len(TROUBLES)]
    return OperatedWorld(core_of, patient, troubles, LONG if seed % 4 == 3 else SHORT)


def spark_world(seed: int, core_of: CoreOf = shipped, times: int = 1) -> SparkWorld:
    """The world that a seed's schedule begins in: every other job drains, the driver of every third one does not die, in two of
    five each batch ends an epoch, in three of seven too, where a sink or both get the rows of several epochs at once. In
    five of eleven sinks are sent rows before their epoch is decided, in three of 13 a segment takes several rows."""
    patient = PATIENT.get(seed % 7, ())
    shape = shape_of(every_batch=seed % 5 in (1, 3) or bool(patient), patient=patient, ahead=seed % 11 in AHEAD)
    world = SparkWorld(core_of, times * ROWS, draining=seed % 2 == 1, deaths=seed % 3 > 0, shape=shape)
    world.stretch = times
    world.durable.segment_rows = LARGE_SEGMENT_ROWS if seed % 13 in LARGE else 1
    return world
