"""What every world is: choices, one step at a time, and a verdict.

A trace is the list of the choices made.  Nothing in a world is random, so a trace replays byte for byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

from checkpoint_lab.copying import Frozen
from checkpoint_protocols.machine import Event, Machine

Scalar = None | bool | int | str

Choice = tuple[Scalar, ...]
"""What happens next: its kind, then names and numbers. JSON."""

CALM: Choice = ("calm",)
"""From here on no more faults: `World.calm`, as a choice of every world."""

Trace = Sequence[Choice]

Cell = tuple[str, str, str]
"""Machine, phase and event: one cell of a transition table."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened, for stories and diagrams. `message` is one sending's number, -1 for none."""

    step: int
    process: str
    kind: str
    label: str = ""
    message: int = -1


class NotPossible(ValueError):
    """The choice is not among those of this state: the trace belongs to another world."""


def kind_of(choice: Choice) -> Scalar:
    """The kind of a fault: of a write, how it ends."""
    return choice[-1] if choice[0] == "stored" else choice[0]


class World(ABC):
    """A deterministic host and everything it hosts.

    `moments` is None unless somebody wants a story, `cells` unless somebody counts the table cells that are
    reached: bulk runs do not pay for them.
    """

    LAGGARDS: tuple[str, ...] = ("",)
    """Sorts of choices (`lag`) that a schedule may put off as long as anything else can happen."""

    FLEETING: frozenset[str] = frozenset()
    """Kinds of faults (`fault_of`) that can happen for a few steps only: to what somebody does just then."""

    moments: list[Moment] | None = None
    cells: set[Cell] | None = None
    step: int = 0
    stretch: int = 1
    """How many usual schedules long its own is."""

    @abstractmethod
    def choices(self) -> Sequence[Choice]:
        """Everything that can happen next, but clocks and faults."""

    def at_leisure(self) -> Sequence[Choice]:
        """What may happen at any time and need not, not even before time passes."""
        return ()

    @abstractmethod
    def timers(self) -> Sequence[Choice]:
        """Timers that can run out next, the earliest first."""

    @abstractmethod
    def faults(self) -> Sequence[Choice]:
        """Everything that can go wrong next."""

    def fault_of(self, choice: Choice) -> str:
        """The kind of a fault, told apart as far as it leads elsewhere."""
        return str(kind_of(choice))

    @abstractmethod
    def do(self, choice: Choice) -> None:
        """Make one of them happen. Raises a `Violation` or a `ProtocolViolation`."""

    @abstractmethod
    def calm(self) -> None:
        """No more faults: heal links, wake whoever is paused. Called once, before the drain."""

    @abstractmethod
    def drain_choices(self) -> Sequence[Choice]:
        """What fair scheduling without faults may pick from; empty at quiescence."""

    @abstractmethod
    def judge(self) -> None:
        """The end, at quiescence. Raises a `Violation`."""

    def judge_rest(self) -> None:  # noqa: B027 - as below
        """At quiescence, before what is periodic comes back: nobody is in the middle of anything."""

    def owes(self) -> bool:
        """Something is still due that takes another round of what is periodic."""
        return False

    def judge_rounds(self) -> None:  # noqa: B027 - most worlds have nothing to say
        """After a drain in which everything periodic came back a few times: something must have come of it."""

    @abstractmethod
    def picture(self) -> Hashable:
        """Equal for worlds that behave alike: what exhaustive exploration compares."""

    def enough(self, choices: Sequence[Choice]) -> Sequence[Choice]:
        """Some of them, which need not be tried in every order with the others; without knowing better, all."""
        return choices

    def public(self) -> Hashable:
        """What others are judged by: a step that changes it is not one that nobody minds."""
        return None

    def lag(self, choice: Choice) -> str:
        """The sort of a choice."""
        return str(choice[0])

    def put_off(self, choices: Sequence[Choice], laggard: str) -> Sequence[Choice]:
        """The choices of other sorts than `laggard`."""
        return [choice for choice in choices if self.lag(choice) != laggard]

    def periodic(self) -> Sequence[Choice]:
        """What comes back for ever: a drain lets it happen a few more times."""
        return ()

    def counts(self) -> dict[str, int]:
        """What happened how often, for reports."""
        return {}

    @property
    def quiescent(self) -> bool:
        """Nothing is left to happen without a fault."""
        return not self.drain_choices()

    def possible(self) -> list[Choice]:
        """All choices: work, clocks, faults."""
        return [*self.choices(), *self.at_leisure(), *self.timers(), *self.faults()]

    def perform(self, choice: Choice) -> None:
        """`do`, or `calm`: what a trace is made of."""
        if choice == CALM:
            self.calm()
        else:
            self.do(choice)

    def follow(self, trace: Trace) -> Self:
        """Do all of `trace`. Raises `NotPossible` at the first choice that this state does not have."""
        for choice in trace:
            if choice != CALM and choice not in self.possible():
                raise NotPossible(f"step {self.step}: {choice} is not possible here")
            self.perform(choice)
        return self

    def shared(self) -> tuple[object, ...]:
        """Constants that a copy has in common with its original."""
        return ()

    def copy(self) -> Self:
        """A world of its own that stands exactly here."""
        return Frozen(self).thaw()

    def watch(self) -> Self:
        """Remember moments from now on, every process once to begin with."""
        self.moments = [Moment(self.step, name, "begin") for name in self.names()]
        return self

    def reach(self, machine: Machine[Enum], event: Event) -> None:
        """A machine meets an event in the phase that it is in, if anybody counts cells."""
        if self.cells is not None:
            self.cells.add((type(machine).__name__, machine.phase.name, type(event).__name__))

    def crash_of(self, process: str) -> Choice:
        """The choice that kills a process, whether it is possible now or not."""
        return ("crash", process)

    def names(self) -> Sequence[str]:
        """The processes, in the order of the graph."""
        return ()

    def tell(self, process: str, kind: str, label: str = "", message: int = -1) -> None:
        """Remember a moment, if anybody wants to know."""
        if self.moments is not None:
            self.moments.append(Moment(self.step, process, kind, label, message))
