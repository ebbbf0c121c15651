"""Base of every protocol machine: events in, effects out, one table of the events that each phase allows.

Rules of this folder:

1. A machine does no I/O and reads no clock. Time is an event; storage is an effect that an event answers.
2. `handle` is the only method that changes a machine. One call is atomic, and the host carries out its effects in
   order. State is stored before anything that depends on it is announced (rules G1 and G2 of the recovery literature).
3. One place, `_door`, decides if an event is stale, from incarnation, epoch and timer number. Any other event that the
   table does not allow is a bug of the host. It raises `InvalidTransition` with the machine's story.
4. The table is total: every pair of phase and event type has a handler's name, `IGNORE_STALE` or `INVALID`.

A protocol is one module (or a few) of `Event`s, `Effect`s and `Machine`s. `vocabulary` holds those that most protocols
share. An error here means that a program broke the protocol, never that a user made a mistake. So this folder needs no
error tree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import starmap
from typing import ClassVar, Generic, TypeVar

from checkpoint_protocols.ids import Incarnation

STORY_LENGTH = 40
"""Number of events that an error shows: a whole epoch of a small job, and still one screen."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, named in the past tense. Fields are values; equal fields mean equal events."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Something the host must do, named as a command. Hosts carry out a list of effects in its order."""


@dataclass(frozen=True, slots=True)
class Drop(Effect):
    """Ignore `event`, and count it. `why` says what made it stale."""

    event: Event
    why: str


class Verdict(Enum):
    """A table cell without a handler."""

    IGNORE_STALE = "ignore"
    INVALID = "invalid"


IGNORE_STALE, INVALID = Verdict.IGNORE_STALE, Verdict.INVALID

Cell = str | Verdict
"""A handler's method name, or a verdict."""

Table = Mapping[tuple[Enum, type[Event]], Cell]


@dataclass(frozen=True, slots=True)
class Chapter:
    """One event in a machine's story: the phase that received it, the phase after it, and its effects.

    The text is built only when it is read.
    """

    phase: Enum
    event: Event
    after: Enum
    effects: Sequence[Effect]

    @property
    def outcome(self) -> str:
        """The phase that the event led to, and the effects."""
        return f"{self.after.name} {self.effects}"

    def __str__(self) -> str:
        return f"{self.phase.name}: {self.event} -> {self.outcome}"


class ProtocolViolation(Exception):
    """A program broke the protocol. `story` holds the machine's recent events, oldest first."""

    def __init__(self, what: str, story: Sequence[Chapter] = ()) -> None:
        self.what = what
        self.story = tuple(story)
        super().__init__("\n  ".join([what, *map(str, self.story)]))


class InvalidTransition(ProtocolViolation):
    """The event cannot happen in this phase: the host, or a peer of the same incarnation, is wrong."""


class InvariantBroken(ProtocolViolation):
    """The machine itself is wrong: its state contradicts an invariant."""


# A type of its own, since copies of a world and their pictures leave it out: two machines that differ only in their past behave
# alike.
class Story(deque[tuple[Enum, Event, Enum, Sequence[Effect]]]):
    """Raw material of a machine's newest chapters. `Machine.story` builds the chapters on demand."""


PhaseT = TypeVar("PhaseT", bound=Enum, covariant=True)


class Machine(ABC, Generic[PhaseT]):
    """Base of all machines. Subclasses set `PHASES`, `EVENTS`, `TABLE` and write the handlers that the table names.

    A handler takes the event, changes the machine and returns effects. It checks before it changes, so that a raised
    `InvalidTransition` leaves the machine as it was.
    """

    PHASES: ClassVar[type[Enum]]
    EVENTS: ClassVar[tuple[type[Event], ...]]
    TABLE: ClassVar[Table]

    def __init__(self, phase: PhaseT, incarnation: Incarnation) -> None:
        self.phase: PhaseT = phase
        self.incarnation = incarnation
        self.recent = Story((), STORY_LENGTH)
        """Raw material of `story`."""

    def handle(self, event: Event) -> list[Effect]:
        """Process one event and return the effects that the host must carry out, in order.

        Raises `InvalidTransition` if the phase does not allow the event, and `InvariantBroken` if an invariant fails;
        both are a `ProtocolViolation`.
        """
        before = self.phase
        effects = self._react(self.TABLE.get((before, type(event)), INVALID), event)
        # Recorded before `validate`, so that the story of a broken invariant includes its cause.
        self.recent.append((before, self._abridged(event), self.phase, effects))
        self.validate()
        return effects

    @property
    def story(self) -> tuple[Chapter, ...]:
        """The most recent events, oldest first."""
        return tuple(starmap(Chapter, self.recent))

    @abstractmethod
    def validate(self) -> None:
        """Raise `InvariantBroken` unless every invariant holds. `handle` calls this after every event."""

    def _abridged(self, event: Event) -> Event:
        """Return the event as the story keeps it; a machine shortens those that are too large to keep or to show."""
        return event

    def _stale(self, event: Event) -> str | None:
        """Return the reason why `event`, of this incarnation, is too late to matter; None admits it."""
        return None

    def _superseded(self, event: Event) -> list[Effect] | None:
        """Return the effects for an event of a newer incarnation; None admits it to the table."""
        return None

    def _react(self, cell: Cell, event: Event) -> list[Effect]:
        if cell is IGNORE_STALE:
            return []
        # An INVALID cell is a bug only for a current event, so staleness is judged first.
        turned_away = self._door(event)
        if turned_away is not None:
            return turned_away
        if isinstance(cell, Verdict):
            raise self._invalid(event, "not allowed in this phase")
        # Cells are names and not functions, so that a variant of a protocol overrides a handler and keeps the table.
        effects: list[Effect] = getattr(self, cell)(event)
        return effects

    def _door(self, event: Event) -> list[Effect] | None:
        theirs: Incarnation | None = getattr(event, "incarnation", None)
        # Timers and answers of a store carry no incarnation: the host drops them with the life that they belong to.
        if theirs is not None and theirs < self.incarnation:
            return [Drop(event, f"incarnation {theirs} is over, this is {self.incarnation}")]
        # A newer incarnation is never stale: this machine itself may be the replaced one.
        if theirs is not None and theirs > self.incarnation:
            return self._superseded(event)
        why = self._stale(event)
        return None if why is None else [Drop(event, why)]

    def _invalid(self, event: Event, why: str) -> InvalidTransition:
        what = f"{type(self).__name__} in phase {self.phase.name} met {event}: {why}"
        return InvalidTransition(what, self.story)

    def _ensure(self, holds: bool, what: str) -> None:
        # Not an `assert`: the invariants have to hold under `python -O` as well.
        if not holds:
            raise InvariantBroken(f"{type(self).__name__} in phase {self.phase.name}: {what}", self.story)


def missing_cells(machine: type[Machine[PhaseT]]) -> list[tuple[Enum, type[Event]]]:
    """Return the pairs of phase and event type that the table does not decide. A finished machine has none."""
    return [
        (phase, event) for phase in machine.PHASES for event in machine.EVENTS if (phase, event) not in machine.TABLE
    ]


def rows(phase_cells: Mapping[Enum, Mapping[type[Event], Cell]], events: Iterable[type[Event]]) -> Table:
    """Build a total table from the cells that each phase handles. Pairs that a phase leaves out become `INVALID`."""
    # A phase names what it ignores. An event that it only forgot raises, so a gap in a protocol is found at once.
    known = tuple(events)
    return {(phase, event): cells.get(event, INVALID) for phase, cells in phase_cells.items() for event in known}
