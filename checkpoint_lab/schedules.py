"""Random schedules: a seed drives a world with random faults, then without faults until quiescence.

Each seed draws its fault rate, its timer rate and its laggard once. These matter more than single steps: rare paths
need something that is slow all the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from checkpoint_lab.drivers_world import HOSTS, DriversRules, DriversWorld, Troubles
from checkpoint_lab.faults import Faults, hostile
from checkpoint_lab.lease_world import LeaseRules, LeaseWorld, Scope
from checkpoint_lab.message_world import DEFAULT, MessageWorld
from checkpoint_lab.outbox_driver import ProtocolOf
from checkpoint_lab.outbox_format import FormatWorld
from checkpoint_lab.outbox_world import OutboxWorld
from checkpoint_lab.spark_driver import CoreOf, shape_of, shipped
from checkpoint_lab.spark_operated import LONG, SHORT, OperatedWorld
from checkpoint_lab.spark_world import ROWS, SparkWorld
from checkpoint_lab.stages_world import StagesWorld
from checkpoint_lab.violations import NoEnd, Violation
from checkpoint_lab.world import CALM, Choice, Moment, Trace, World, kind_of
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.recovery import Protocol, ProtocolSettings
from spark_ckpt.errors import CkptError
from spark_ckpt.outbox.protocol import OutboxProtocol

T = TypeVar("T")

CALM_STEPS_MAX = 5_000
"""Maximal steps of a drain. A usual run needs some hundred; many more without an end are a livelock (O10)."""

ROUNDS = 2
"""Periodic checkpoints of every process at the end of a schedule: work that waits for a checkpoint completes."""

ROUNDS_MAX, TOGETHER_MAX = 20, 10
"""Maximal number of final rounds, and of those in which all periodic timers expire together.

Two checkpoints that begin at the same time may abort each other every time. In later rounds one begins after the
previous one has ended, as happens with clocks that drift.
"""

FAULT_RATE = 0.15
"""Faults per step of the random phase; each seed multiplies it by 0, 0.5, 1 or 2."""

SPARK_STEPS = 250
SPARK_FAULT_RATE = 0.08
PATIENT = {2: ("tap",), 3: ("out",), 5: ("tap", "out")}
"""Sinks with `publish_every`, by the remainder of the seed."""
AHEAD = (0, 1, 2, 3, 4)
"""Remainders of seeds under which sinks use early sends."""
WATCHED = (4, 12, 13)
"""Remainders of seeds under which standbys come and go."""
LARGE, LARGE_SEGMENT_ROWS = (0, 5, 9), 3
"""Remainders of seeds under which an edge segment takes several rows, and the number of these rows."""

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
"""Kinds of operator actions and damage in one schedule of an operated job; empty for all of them but the next."""
TAKES_BACK = ("take back", "restore", "replace", "publish", "crash")
"""The same where an operator restores older versions of sinks, too: of one seed in seven."""
FORGETS = ("forget", "restore", "replace", "publish", "crash")
"""The same where the source loses rows, too: of another seed in seven."""
OPERATED_STEPS = 150
OPERATED_FAULT_RATE = 0.15

OUTBOX_TROUBLES = (
    ("usurp", "crash"),
    ("rewind", "crash", "usurp"),
    ("rewind", "edit", "usurp", "crash"),
    ("rewind", "stranger"),
    ("name", "usurp", "crash"),
    ("delete", "stranger", "rewind", "usurp", "crash"),
    ("back up", "lose", "crash", "rewind"),
    ("expire",),
    ("copy", "rewind", "crash", "edit"),
    ("rewind", "delete", "edit", "copy", "stranger", "usurp", "crash"),
)
"""Kinds of trouble in one schedule of a plain query with an outbox, in addition to failed steps."""
OUTBOX_FORMAT_TROUBLES = (*OUTBOX_TROUBLES, (), ("copy",), ("copy", "usurp"), ("rewind", "usurp"), ("name",))
"""The same for `format("outbox")`, and a few that leave more room for its own faults."""
OUTBOX_STEPS = 150
OUTBOX_FAULT_RATE = 0.15

LEASE_STEPS = 120
LEASE_FAULT_RATE = 0.08

DRIVERS_STEPS = 300
DRIVERS_FAULT_RATE = 0.1

STAGES_STEPS = 150
STAGES_FAULT_RATE = 0.08

LEISURE = 0.3
"""Probability that an optional step happens before time passes."""

STEPS = 50
"""Average number of steps in the random phase of one schedule."""

VERDICTS = (Violation, ProtocolViolation, CkptError)
"""Errors that condemn a schedule: of an oracle, of a machine, or a typed error of the product.

Any other error is a bug of the code that ran and proves nothing, for example a planted bug that names a renamed method.
"""


@dataclass(frozen=True)
class ScheduleOutcome:
    """The result of one schedule: its trace and its end. `error`: a verdict, a machine's refusal, or a bug."""

    seed: int
    trace: tuple[Choice, ...]
    error: Exception | None
    counts: dict[str, int]
    moments: tuple[Moment, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the schedule raised no error."""
        return self.error is None

    @property
    def condemned(self) -> bool:
        """True if an oracle, a machine or a typed error refused the schedule. Raises an error that is no verdict."""
        if self.error is not None and not isinstance(self.error, VERDICTS):
            raise self.error
        return self.error is not None


class Driver:
    """Draws choices for one world from one seeded generator and records the trace."""

    def __init__(self, world: World, seed: int, fault_rate: float = FAULT_RATE, timer_rate: float = 0.08) -> None:
        self.world = world
        self.draw = random.Random(seed).random  # noqa: S311 - not for secrets
        self.trace: list[Choice] = []
        self.fault_rate = fault_rate * self.pick((0.0, 0.5, 1.0, 2.0))
        self.timer_rate = timer_rate * self.pick((0.3, 1.0, 3.0))
        self.quiet = self.pick((0.0, 0.3, 0.6))
        """Share of the random phase without faults: a checkpoint must complete before a crash can return to it."""
        self.laggard = self.pick(world.LAGGARDS)

    def pick(self, options: Sequence[T]) -> T:
        """Draw one of `options`."""
        return options[int(self.draw() * len(options))]

    def chaos(self, steps: int) -> None:
        """Perform up to `steps` random choices."""
        fault_rate = self.fault_rate
        for step in range(steps):
            self.fault_rate = fault_rate if step >= self.quiet * steps else 0.0
            choice = self.next_choice()
            if choice is None:
                return
            self.do(choice)

    def drain(self) -> None:
        """Perform calm steps until quiescence, then rounds of periodic timers, then judge. Raises a `Violation`."""
        self.do(CALM)
        self._settle()
        # At the first quiescence: a later round of checkpoints could end a protocol step that the schedule left open.
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
            # settling the timers before may have used up or renumbered this one
            elif choice in self.world.periodic():
                self.do(choice)
                self._settle()
        self._settle()

    def do(self, choice: Choice) -> None:
        """Record and perform a choice; a choice that raises is recorded too."""
        self.trace.append(choice)
        self.world.perform(choice)

    def counts(self) -> dict[str, int]:
        """Return the number of events of each kind in the run."""
        return self.world.counts()

    def faults(self) -> Sequence[Choice]:
        """Return the faults that are possible now."""
        return self.world.faults()

    def next_choice(self) -> Choice | None:
        """Draw a fault, a timer or a step of work; None if nothing can happen."""
        draw = self.draw()
        # the budget of a kind may be empty; such a draw is a step of work
        if draw < self.fault_rate:
            fault = self._fault()
            if fault is not None:
                return fault
        elif draw < self.fault_rate + self.timer_rate:
            timers = self.world.timers()
            if timers:
                # mostly the earliest timer; any timer, because clocks may differ
                return self.pick(timers) if self.draw() < 0.3 else timers[0]
        return self._work()

    def _fault(self) -> Choice | None:
        faults = self.faults()
        # The kind is drawn first. Otherwise kinds with many choices, such as links to cut, would leave the others no
        # share.
        kinds = list(dict.fromkeys(kind_of(choice) for choice in faults))
        if not kinds:
            return None
        kind = self.pick(kinds)
        return self.pick([choice for choice in faults if kind_of(choice) == kind])

    def _work(self) -> Choice | None:
        return self._one_of(self.world.choices())

    def _one_of(self, choices: Sequence[Choice]) -> Choice | None:
        """Delay the laggard's choices; without any other work draw an optional step, or let time pass."""
        world = self.world
        if self.laggard and choices:
            # only while anything else can happen: the laggard is slow and not dead
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
) -> ScheduleOutcome:
    """Run one schedule in any world. Return its `ScheduleOutcome`; an error of the schedule is part of the outcome."""
    driver = driver_of(world, seed, fault_rate)
    error: Exception | None = None
    try:
        # from 0.4 to 1.6 of `steps`, which is the average
        driver.chaos(int((0.4 + 1.2 * driver.draw()) * steps * world.stretch))
        driver.drain()
    except Exception as complaint:  # noqa: BLE001 - any error of a machine is this schedule's verdict
        error = complaint
    trace = tuple(driver.trace)
    # an oracle's verdict carries all that is needed to see it again
    if isinstance(error, Violation):
        error.seed, error.trace = seed, trace
    return ScheduleOutcome(seed, trace, error, driver.counts(), tuple(world.moments or ()))


def run(
    protocol: Protocol,
    graph: Graph,
    seed: int,
    steps: int = STEPS,
    faults: Faults | None = None,
    inputs: int = 3,
    settings: ProtocolSettings = DEFAULT,
    story: bool = False,
) -> ScheduleOutcome:
    """Run one schedule of a protocol over plain messages."""
    world = MessageWorld(protocol, graph, hostile(seed) if faults is None else faults, inputs, settings=settings)
    if story:
        world.watch()
    return drive(world, seed, steps)


def replay(make: Callable[[], World], outcome: ScheduleOutcome) -> ScheduleOutcome:
    """Run the trace of an outcome again, without drawing anything."""
    world = make()
    error: Exception | None = None
    calm = rested = False
    try:
        for choice in outcome.trace:
            world.perform(choice)
            calm = calm or choice == CALM
            if calm and not rested and world.quiescent:
                world.judge_rest()
                rested = True
        judge_end(world, outcome.trace)
    except Exception as complaint:  # noqa: BLE001 - as in `drive`
        error = complaint
    return ScheduleOutcome(outcome.seed, outcome.trace, error, world.counts(), tuple(world.moments or ()))


def judge_end(world: World, trace: Trace) -> None:
    """Judge the end of a performed trace as `Driver.drain` does. Raises a `Violation`."""
    if not world.quiescent:
        raise _no_end(world, trace)
    world.judge()
    # a trace with `CALM` has the rounds of a drain
    if CALM in trace:
        world.judge_rounds()


def run_spark(seed: int, core_of: CoreOf = shipped, awaits_lines: bool = False) -> ScheduleOutcome:
    """Run one schedule of a job on Spark with the shipped rules. `awaits_lines`: the job is a stage of a program."""
    world = stage_world(seed, core_of) if awaits_lines else spark_world(seed, core_of)
    return drive(world, seed, SPARK_STEPS, SPARK_FAULT_RATE)


def stage_world(seed: int, core_of: CoreOf = shipped) -> SparkWorld:
    """Return the world of a job whose sinks wait for the decisions of other stages, without early sends and drains."""
    patient = PATIENT.get(seed % 7, ())
    shape = replace(shape_of(seed % 5 in (1, 3) or bool(patient), patient), awaits_lines=True)
    return SparkWorld(core_of, ROWS, deaths=seed % 3 > 0, shape=shape)


def run_operated(seed: int) -> ScheduleOutcome:
    """Run one schedule of a job on Spark and of the operator who restores and repairs it, with the shipped rules."""
    return drive(operated_world(seed), seed, OPERATED_STEPS, OPERATED_FAULT_RATE)


def operated_world(seed: int) -> OperatedWorld:
    """Return the world in which the schedule of a seed begins.

    Two of three seeds have one or two sinks with `publish_every`. Ten of eleven troubles allow only some kinds of
    trouble. Every fourth job is long.
    """
    patient = (("tap",), (), ("tap", "out"))[seed % 3]
    troubles = {4: TAKES_BACK, 3: FORGETS}.get(seed % 7, TROUBLES[seed // 3 % len(TROUBLES)])
    return OperatedWorld(patient, troubles, LONG if seed % 4 == 3 else SHORT)


def outbox_world(seed: int, protocol_of: ProtocolOf = OutboxProtocol, times: int = 1) -> OutboxWorld:
    """Return the world in which the schedule of a seed begins. `times`: its length, in usual schedules."""
    return OutboxWorld(protocol_of, OUTBOX_TROUBLES[seed % len(OUTBOX_TROUBLES)], times)


def run_outbox(seed: int) -> ScheduleOutcome:
    """Run one schedule of a plain query with an outbox, with the shipped protocol."""
    return drive(outbox_world(seed), seed, OUTBOX_STEPS, OUTBOX_FAULT_RATE)


def outbox_format_world(seed: int, times: int = 1) -> FormatWorld:
    """Return the world of a query with `format("outbox")` in which the schedule of a seed begins.

    In every second one the runs change their processes.
    """
    world = FormatWorld(troubles=OUTBOX_FORMAT_TROUBLES[seed % len(OUTBOX_FORMAT_TROUBLES)], times=times)
    world.moves = 3 * (seed % 2)
    return world


def run_outbox_format(seed: int) -> ScheduleOutcome:
    """Run one schedule of a query with `format("outbox")`: its rows are staged before the shipped protocol is called."""
    return drive(outbox_format_world(seed), seed, OUTBOX_STEPS, OUTBOX_FAULT_RATE)


def overlapping_world(seed: int) -> OutboxWorld:
    """Return the world of an outbox that publishes a batch while the next one runs."""
    return outbox_world(seed, partial(OutboxProtocol, overlap=True))


def run_overlapping(seed: int) -> ScheduleOutcome:
    """Run one schedule of an outbox that publishes a batch while the next one runs."""
    return drive(overlapping_world(seed), seed, OUTBOX_STEPS, OUTBOX_FAULT_RATE)


def spark_world(seed: int, core_of: CoreOf = shipped, times: int = 1) -> SparkWorld:
    """Return the world in which the schedule of a seed begins.

    - every second job drains at its end
    - in two of three jobs the driver may die
    - in two of five jobs each batch ends an epoch; also in the three of seven with `publish_every` on one sink or both
    - in five of eleven jobs sinks use early sends
    - in three of 13 jobs an edge segment takes several rows
    - in three of 17 jobs standbys come and go, and the intervals change with them
    """
    patient = PATIENT.get(seed % 7, ())
    shape = shape_of(
        every_batch=seed % 5 in (1, 3) or bool(patient),
        patient=patient,
        ahead=seed % 11 in AHEAD,
        watched=seed % 17 in WATCHED,
    )
    world = SparkWorld(core_of, times * ROWS, draining=seed % 2 == 1, deaths=seed % 3 > 0, shape=shape)
    world.stretch = times
    world.durable.segment_rows = LARGE_SEGMENT_ROWS if seed % 13 in LARGE else 1
    return world


# -- Schedules of the worlds of the checkpoint lease and of drivers.


RATES = ((100, 100, 100), (100, 70, 90), (80, 100, 110))
"""Rates of the clocks in percent of time; no clock is slower than 70 percent of another."""


def scope_of(seed: int) -> Scope:
    """Return the clocks and the health of a seed's replicas. Under every second seed one is without any health."""
    return Scope(dict(zip("abc", RATES[seed % len(RATES)], strict=True)), {"c": 0} if seed % 2 else {})


def lease_world(seed: int, faults: Faults | None = None, rules: LeaseRules | None = None) -> LeaseWorld:
    """Return the world in which the schedule of a seed begins."""
    return LeaseWorld(scope_of(seed), faults, rules)


THEMES = (
    Troubles(),
    Troubles(crashes=0, cuts=0, outages=4, failures=0, starts=0, stops=0, handovers=0, jumps=4),
    Troubles(crashes=1, pauses=4, cuts=0, outages=0, failures=0, starts=0, stops=8, handovers=3),
    Troubles(crashes=1, pauses=6, cuts=2, outages=0, failures=8, starts=0, stops=0, handovers=0),
)
"""Budgets of one schedule: a few faults of every kind, or many of some kinds."""


def drivers_world(seed: int, rules: DriversRules | None = None, crashes: int = 0, times: int = 1) -> DriversWorld:
    """Return the world in which the schedule of a seed begins.

    `crashes`: in addition to its theme; `times`: in usual runs.
    """
    rates = RATES[seed % len(RATES)]
    hosts = {name: (host, rate, wall) for (name, (host, _, wall)), rate in zip(HOSTS.items(), rates, strict=True)}
    theme = THEMES[seed % len(THEMES)]
    world = DriversWorld(hosts, replace(theme, crashes=theme.crashes + crashes).times(times), rules)
    world.stretch = times
    return world


def run_drivers(seed: int) -> ScheduleOutcome:
    """Run one schedule of a job's drivers with the shipped rules."""
    return drive(drivers_world(seed), seed, DRIVERS_STEPS, DRIVERS_FAULT_RATE)


def stages_world(seed: int) -> StagesWorld:
    """Return the world of programs that edges join, in which the schedule of a seed begins."""
    return StagesWorld(seed)


def run_stages(seed: int) -> ScheduleOutcome:
    """Run one schedule of programs that edges join, with the shipped rules."""
    return drive(stages_world(seed), seed, STAGES_STEPS, STAGES_FAULT_RATE)
