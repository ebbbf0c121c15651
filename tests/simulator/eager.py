"""Schedules with many faults: a kind of fault that the schedule lacks happens as soon as it can.

A seed of `Driver` has few faults, so most of its schedules lack most kinds. Kinds that need another fault first are
rare: a torn write needs a crash, a late one an ended incarnation. Here every seed has faults, new kinds come before
known ones, and a process may die within a recovery.
"""

from __future__ import annotations

from checkpoint_lab.drivers_world import DriversRules
from checkpoint_lab.durable import CONTRACT, Surroundings
from checkpoint_lab.faults import Faults, hostile
from checkpoint_lab.message_world import DEFAULT, MessageWorld
from checkpoint_lab.schedules import (
    DRIVERS_FAULT_RATE,
    DRIVERS_STEPS,
    FAULT_RATE,
    STEPS,
    Driver,
    ScheduleOutcome,
    drive,
    drivers_world,
)
from checkpoint_lab.world import Choice, Trace, World
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.recovery import Protocol, ProtocolSettings

MENDS = frozenset({"heal", "resume", "wake"})
"""Ends of faults; they never count as new."""

TORN, LATE = "torn", "late"
PASSING = (TORN, LATE)
"""Kinds that need a write of a dead process, which does not last: they come before all others."""

PASSING_EAGERNESS = 0.93

EAGERNESS, FLEETING_EAGERNESS = 0.35, 0.5
"""Share of the steps, once faults may happen, at which a new kind happens, and at which a short-lived one does."""

BACKGROUND = 0.5
"""Share of the usual fault rate that is left for kinds that the schedule has had."""


class Eager(Driver):
    """Draws from one seeded generator like `Driver`, but faults by the kinds that the schedule still lacks."""

    def __init__(self, world: World, seed: int, fault_rate: float = FAULT_RATE, timer_rate: float = 0.08) -> None:
        super().__init__(world, seed, fault_rate, timer_rate)
        # replaces the rate that `Driver` drew: no eager schedule is without faults
        self.fault_rate = fault_rate * BACKGROUND
        self.quiet = min(self.quiet, self.pick((0.0, 0.15, 0.3)))
        self.had: set[str] = set(MENDS)

    def do(self, choice: Choice) -> None:
        """Perform the choice and remember its kind."""
        self.had.add(self.sort_of(choice))
        super().do(choice)

    def sort_of(self, choice: Choice) -> str:
        """Return the kind of a fault; a crash within a recovery is a kind of its own."""
        kind = self.world.fault_of(choice)
        return "crash within" if kind == "crash" and getattr(self.world, "recovering", False) else kind

    def next_choice(self) -> Choice | None:
        return self._fresh() or super().next_choice()

    def _fresh(self) -> Choice | None:
        """Return a fault of a new kind; not at every step, except for kinds that do not last."""
        fresh: list[Choice] = []
        if self.fault_rate:
            fresh = [choice for choice in self.faults() if self.sort_of(choice) not in self.had]
            if self.draw() < PASSING_EAGERNESS:
                fresh = [choice for choice in fresh if self._is_useful(choice)]
        kinds = dict.fromkeys(map(self.sort_of, fresh))
        if not kinds:
            return None
        passing = next((kind for kind in PASSING if kind in kinds), None)
        fleeting = [kind for kind in kinds if kind in self.world.FLEETING]
        eagerness = PASSING_EAGERNESS if passing else FLEETING_EAGERNESS if fleeting else EAGERNESS
        if self.draw() >= eagerness:
            return None
        kind = passing or self.pick(fleeting or list(kinds))
        return self.pick([choice for choice in fresh if self.sort_of(choice) == kind])

    def _fault(self) -> Choice | None:
        """Delay most faults that are not useful."""
        choice = super()._fault()
        useless = choice is not None and not self._is_useful(choice)
        return None if useless and self.draw() < PASSING_EAGERNESS else choice

    def _is_useful(self, choice: Choice) -> bool:
        """Return False for the crash of an idle process, until a write has torn and another one arrived late.

        Crashes are few, so they should hit a process that is writing.
        """
        if choice[0] != "crash" or self.had.issuperset(PASSING) or not isinstance(self.world, MessageWorld):
            return True
        return bool(self.world.processes[ProcessId(str(choice[1]))].writes)

    def _work(self) -> Choice | None:
        """Delay most writes of a dead process until its next incarnation begins: then they are late."""
        world = self.world
        found = world.choices()
        if LATE not in self.had and self.fault_rate and isinstance(world, MessageWorld) and world.budget.late:
            of_the_living = [choice for choice in found if not _is_of_the_dead(world, choice)]
            if 0 < len(of_the_living) < len(found) and self.draw() < PASSING_EAGERNESS:
                return self.pick(of_the_living)
        return self._one_of(found)


def _is_of_the_dead(world: MessageWorld, choice: Choice) -> bool:
    return choice[0] in ("stored", "publish") and world.processes[ProcessId(str(choice[1]))].machine is None


class Guided(Eager):
    """Follows another schedule's trace up to where it reached something new, then continues with its own draws."""

    def __init__(
        self, world: World, seed: int, fault_rate: float = FAULT_RATE, timer_rate: float = 0.08, way: Trace = ()
    ) -> None:
        super().__init__(world, seed, fault_rate, timer_rate)
        self.way = way

    def chaos(self, steps: int) -> None:
        """Perform the trace, then up to `steps` random choices."""
        for choice in self.way:
            self.do(choice)
        super().chaos(steps)


# -- Schedules ten times as long as usual, with ten times as many faults.
#
# A bug that needs three rare events in a row is rare in a short run. A run of ten times the length finds it more than ten
# times as often, because the first two events, once they have happened, persist. Three of four schedules are eager
# (`eager.py`).


TIMES = 10
"""Length of one long run, in usual runs."""


def long_world(
    protocol: Protocol,
    graph: Graph,
    faults: Faults,
    inputs: int = 3,
    settings: ProtocolSettings = DEFAULT,
    surroundings: Surroundings = CONTRACT,
    world_of: type[MessageWorld] = MessageWorld,
    times: int = TIMES,
) -> MessageWorld:
    """Return a world for long runs. `faults`, `inputs`: of a usual run; `times`: length in usual runs."""
    world = world_of(protocol, graph, faults.times(times), inputs * times, settings=settings, surroundings=surroundings)
    world.stretch = times
    return world


def drive_long(world: World, seed: int, steps: int = STEPS, fault_rate: float = FAULT_RATE) -> ScheduleOutcome:
    """Run one schedule of a long world of any kind; `steps`: of a usual run."""
    # plain schedules have the long quiet runs that some bugs need
    return drive(world, seed, steps, fault_rate, Eager if seed % 4 else Driver)


def run_long(
    protocol: Protocol, graph: Graph, seed: int, faults: Faults | None = None, inputs: int = 3
) -> ScheduleOutcome:
    """Run one long schedule of a protocol over plain messages."""
    return drive_long(long_world(protocol, graph, hostile(seed) if faults is None else faults, inputs), seed)


def run_drivers_long(seed: int, rules: DriversRules | None = None) -> ScheduleOutcome:
    """Run one long schedule of a job's drivers."""
    return drive_long(drivers_world(seed, rules, times=TIMES), seed, DRIVERS_STEPS, DRIVERS_FAULT_RATE)
