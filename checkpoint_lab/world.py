"""The interface of every simulated world: choices, one step at a time, and a verdict.

A trace is the list of the choices that a schedule made. Nothing in a world is random, so a trace replays byte for byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Self

from checkpoint_lab.picture import Frozen
from checkpoint_protocols.machine import Event, Machine

Scalar = None | bool | int | str

Choice = tuple[Scalar, ...]
"""One possible next step: its kind, then names and numbers. JSON."""

CALM: Choice = ("calm",)
"""The end of all faults: `World.calm`, as a choice that every world has."""

Trace = Sequence[Choice]

_PICTURES = count()

Cell = tuple[str, str, str]
"""Machine, phase and event: one cell of a transition table."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of a run, for stories and diagrams. `message` is the number of one sending, -1 for none."""

    step: int
    process: str
    kind: str
    label: str = ""
    message: int = -1


class NotPossible(ValueError):
    """The state does not offer this choice: the trace belongs to another world."""


def kind_of(choice: Choice) -> Scalar:
    """Return the kind of a choice; for the end of a write, the way it ends (`ok`, `failed`, `torn`)."""
    return choice[-1] if choice[0] == "stored" else choice[0]


class World(ABC):
    """A deterministic host and everything that it hosts.

    `moments` is None unless the caller wants a story. `cells` is None unless the caller counts the transition table
    cells that a run reaches. Bulk runs pay for neither.
    """

    LAGGARDS: tuple[str, ...] = ("",)
    """Sorts of choices (`lag`) that a schedule may delay for as long as anything else can happen."""

    FLEETING: frozenset[str] = frozenset()
    """Kinds of faults (`fault_of`) that are possible for a few steps only, while the step that they hit is under way.
    """

    moments: list[Moment] | None = None
    cells: set[Cell] | None = None
    step: int = 0
    counter: Counter[str] = Counter()  # noqa: RUF012 - worlds that count have their own
    stretch: int = 1
    """Length of this world's schedules, in usual schedules."""

    @abstractmethod
    def choices(self) -> Sequence[Choice]:
        """Return every possible next step except timers and faults."""

    def at_leisure(self) -> Sequence[Choice]:
        """Return optional steps: possible at any time, never required, not even before time passes."""
        return ()

    @abstractmethod
    def timers(self) -> Sequence[Choice]:
        """Return the timers that can expire next, the earliest first."""

    @abstractmethod
    def faults(self) -> Sequence[Choice]:
        """Return the faults that are possible next."""

    def fault_of(self, choice: Choice) -> str:
        """Return the kind of a fault, as fine as needed to separate faults with different outcomes."""
        return str(kind_of(choice))

    @abstractmethod
    def do(self, choice: Choice) -> None:
        """Perform one choice. Raises a `Violation` or a `ProtocolViolation`."""

    def act(self, choice: Choice) -> None:
        """Count a step and call the method of the choice's kind, `_do_...`, with the rest of the choice."""
        kind, *what = choice
        self.step += 1
        getattr(self, "_do_" + str(kind).replace(" ", "_"))(*what)

    @abstractmethod
    def calm(self) -> None:
        """End all faults: heal links, resume paused processes. Called once, before the drain."""

    @abstractmethod
    def drain_choices(self) -> Sequence[Choice]:
        """Return the choices of fair scheduling without faults; empty at quiescence."""

    @abstractmethod
    def judge(self) -> None:
        """Judge the end, at quiescence. Raises a `Violation`."""

    def judge_rest(self) -> None:  # noqa: B027 - as below
        """Judge quiescence before periodic steps repeat: no process is in the middle of a protocol step."""

    def owes(self) -> bool:
        """Return True if the job needs another round of periodic steps to finish."""
        return False

    def judge_rounds(self) -> None:  # noqa: B027 - most worlds have nothing to say
        """Judge progress after a drain that repeated every periodic step a few times. Raises a `Violation`."""

    def picture(self) -> Hashable:
        """Return a value that is equal for worlds of equal behaviour. Exhaustive exploration compares these.

        By default every state is unlike all others, so exploration visits one for each trace.
        """
        # not the object's address: a later world gets the address of one that is gone
        return next(_PICTURES)

    def enough(self, choices: Sequence[Choice]) -> Sequence[Choice]:
        """Return those of `choices` that need not be tried in every order with the others; by default all."""
        return choices

    def public(self) -> Hashable:
        """Return the state by which other processes are judged. A step that changes it is visible to them."""
        return None

    def lag(self, choice: Choice) -> str:
        """Return the sort of a choice."""
        return str(choice[0])

    def put_off(self, choices: Sequence[Choice], laggard: str) -> Sequence[Choice]:
        """Return the choices of other sorts than `laggard`."""
        return [choice for choice in choices if self.lag(choice) != laggard]

    def periodic(self) -> Sequence[Choice]:
        """Return the steps that repeat for ever; a drain performs them a few more times."""
        return ()

    def counts(self) -> dict[str, int]:
        """Return the number of events of each kind, for reports."""
        return dict(self.counter)

    @property
    def quiescent(self) -> bool:
        """True if nothing more can happen without a fault."""
        return not self.drain_choices()

    def possible(self) -> list[Choice]:
        """Return all choices: work, optional steps, timers, faults."""
        return [*self.choices(), *self.at_leisure(), *self.timers(), *self.faults()]

    def perform(self, choice: Choice) -> None:
        """Perform one choice of a trace: `do`, or `calm`."""
        if choice == CALM:
            self.calm()
        else:
            self.do(choice)

    def follow(self, trace: Trace) -> Self:
        """Perform every choice of `trace`. Raises `NotPossible` at the first choice that this state does not offer."""
        for choice in trace:
            if choice != CALM and choice not in self.possible():
                raise NotPossible(f"step {self.step}: {choice} is not possible here")
            self.perform(choice)
        return self

    def shared(self) -> tuple[object, ...]:
        """Return the constants that a copy shares with its original."""
        return ()

    def copy(self) -> Self:
        """Return an independent world in the same state."""
        return Frozen(self).thaw()

    def watch(self) -> Self:
        """Record moments from now on, first one `begin` for each process."""
        self.moments = [Moment(self.step, name, "begin") for name in self.names()]
        return self

    def reach(self, machine: Machine[Enum], event: Event) -> None:
        """Count the cell of the machine's phase and the event, if the caller counts cells."""
        if self.cells is not None:
            self.cells.add((type(machine).__name__, machine.phase.name, type(event).__name__))

    def crash_of(self, process: str) -> Choice:
        """Return the choice that kills a process, even if it is not possible now."""
        return ("crash", process)

    def names(self) -> Sequence[str]:
        """Return the processes, in the order of the graph."""
        return ()

    def mortal(self) -> Sequence[str]:
        """Return the processes that `crash_of` can kill."""
        return self.names()

    def tell(self, process: str, kind: str, label: str = "", message: int = -1) -> None:
        """Record a moment, if the caller wants a story."""
        if self.moments is not None:
            self.moments.append(Moment(self.step, process, kind, label, message))
