"""Schedules in which much goes wrong: what has not happened yet in this one happens as soon as it can.

A seed of `Driver` has few faults, so most of its schedules lack most kinds, and those that need another one first (a torn write
needs a crash, a late one a life that is over) are rare.  Here every seed has faults, a kind that is new to the schedule goes
before those that it has had, and whoever is told of a recovery may die within it.
"""

from __future__ import annotations

from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.schedules import FAULT_RATE, Driver
from checkpoint_lab.world import Choice, Trace, World
from checkpoint_protocols.ids import ProcessId

MENDS = frozenset({"heal", "resume", "wake"})
"""Ends of faults: none is new."""

TORN, LATE = "torn", "late"
PASSING = (TORN, LATE)
"""What they need, a write of somebody dead, does not last: they go before all others."""

PASSING_EAGERNESS = 0.93

EAGERNESS, FLEETING_EAGERNESS = 0.35, 0.5
"""Share of the steps, once faults may happen, at which a new kind of them does if it can, and one that soon cannot."""

BACKGROUND = 0.5
"""How much of the usual rate is left for faults that the schedule has had."""


class Eager(Driver):
    """Draws as ever from one seeded stream, but faults by what the schedule still lacks."""

    def __init__(self, world: World, seed: int, fault_rate: float = FAULT_RATE, timer_rate: float = 0.08) -> None:
        super().__init__(world, seed, fault_rate, timer_rate)
        self.fault_rate = fault_rate * BACKGROUND
        self.quiet = min(self.quiet, self.pick((0.0, 0.15, 0.3)))
        self.had: set[str] = set(MENDS)

    def do(self, choice: Choice) -> None:
        """Remember its kind: a fault is new once."""
        self.had.add(self.sort_of(choice))
        super().do(choice)

    def sort_of(self, choice: Choice) -> str:
        """The kind of a fault; of a crash, whether it comes within a recovery."""
        kind = self.world.fault_of(choice)
        return "crash within" if kind == "crash" and getattr(self.world, "recovering", False) else kind

    def _next(self) -> Choice | None:
        return self._fresh() or super()._next()

    def _fresh(self) -> Choice | None:
        """Of a kind that the schedule has not had; not at every step, unless it does not last."""
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
        """What is not useful mostly waits."""
        choice = super()._fault()
        useless = choice is not None and not self._is_useful(choice)
        return None if useless and self.draw() < PASSING_EAGERNESS else choice

    def _is_useful(self, choice: Choice) -> bool:
        """Until a write has torn and another has come late, only crashes of those who are writing: there are few crashes."""
        if choice[0] != "crash" or self.had.issuperset(PASSING) or not isinstance(self.world, MessageWorld):
            return True
        return bool(self.world.processes[ProcessId(str(choice[1]))].writes)

    def _work(self) -> Choice | None:
        """What a dead life has under way mostly waits until its process begins anew: then it is late."""
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
    """Goes the way of another schedule first, up to where that one reached something new, and on from there by its own draws."""

    def __init__(
        self, world: World, seed: int, fault_rate: float = FAULT_RATE, timer_rate: float = 0.08, way: Trace = ()
    ) -> None:
        super().__init__(world, seed, fault_rate, timer_rate)
        self.way = way

    def chaos(self, steps: int) -> None:
        """The way, then so many steps of anything."""
        for choice in self.way:
            self.do(choice)
        super().chaos(steps)
