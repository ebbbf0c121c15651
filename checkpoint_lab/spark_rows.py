"""The rows of the simulated job on Spark, and what a cut has to hold, worked out without running anything.

Two operators, each counts its rows per key and puts out every count. The first one's rows go round a loop until their rounds are
used up: after an odd number of rounds they only pass, or are dropped; after an even one they are input again. Rows of some keys
reach the second operator over an edge, the others in the same batch. Every row carries the name of what it comes from, so what is
missing at a cut follows from its cursors and from the rows in flight, whatever order they came in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from checkpoint_lab.barrier_storage import ensure

OPERATORS = ("counts", "totals")
SOURCES, SINKS = ("a", "b"), ("out", "tap")
GETS = {"tap": "counts", "out": "totals"}
"""Whose rows each sink gets: one is on the way from the first operator to the second, the other at the end."""
LOOP, LATER = "loop", "later"
EDGES = (LOOP, LATER)
KEYS, GROUPS = 3, 2
DELAY_MS = 25
"""How far the watermark stays behind the newest event."""
GOES_LATER = frozenset({1})
"""Keys of the first operator whose rows reach the second one over the edge."""
ROUNDS = (0, 1, 2, 3)
"""How often a source's rows go round, in turn."""


class Name(NamedTuple):
    """A source's row after some rounds."""

    source: str
    number: int
    rounds: int = 0

    @property
    def goes_round(self) -> bool:
        """Whether it is fed back."""
        return self.rounds < ROUNDS[self.number % len(ROUNDS)]

    @property
    def is_input(self) -> bool:
        """Whether the first operator gets it, or it only passes."""
        return self.rounds % 2 == 0

    @property
    def next(self) -> Name:
        """One round later."""
        return self._replace(rounds=self.rounds + 1)

    @property
    def lane(self) -> tuple[int, int, bool]:
        """Rows of one lane keep their order on every way."""
        return SOURCES.index(self.source), self.rounds, key_of(self) in GOES_LATER


class Row(NamedTuple):
    """A row that an operator puts out: its key, how many rows of input that one has had, and the name of the last one."""

    key: int
    nth: int
    name: Name


Lanes = dict[tuple[int, int, bool], list[int]]
"""Per lane the numbers of its rows, in order."""


def event_ms(source: str, number: int) -> int:
    """The event time of a source's row. One source is always ahead of the other."""
    return 1_000 + 10 * number - 40 * SOURCES.index(source)


def watermark_ms(cursors: Mapping[str, int]) -> int:
    """Of the rows before the cursors: the least of the sources', each of which has event time of its own."""
    return min(event_ms(source, cursors[source] - 1) - DELAY_MS if cursors.get(source) else 0 for source in SOURCES)


@cache
def key_of(name: Name) -> int:
    """The first operator's key."""
    return (name.number + SOURCES.index(name.source) + name.rounds) % KEYS


def key_behind(key: int, nth: int) -> int:
    """The next operator's key for a row that one puts out."""
    return (key + nth) % KEYS


@dataclass(frozen=True)
class Expected:
    """What a cut holds. `counts`: per operator its rows per key. `shown`: per sink its rows. `produced`: per edge, all its rows."""

    counts: Mapping[str, Counter[int]]
    shown: Mapping[str, Lanes]
    produced: Mapping[str, int]


def expected(cursors: Mapping[str, int], in_flight: Mapping[str, Sequence[Row]]) -> Expected:
    """What a cut holds whose sources and edges stand there. Raises a `Violation` if these rows can't be in flight."""
    arrived = _arrived(cursors, in_flight.get(LOOP, ()))
    inputs = [name for name in arrived if name.is_input]
    first = Counter(map(key_of, inputs))
    rows = {(key, count) for key, total in first.items() for count in range(1, total + 1)}
    later = in_flight.get(LATER, ())
    waiting = {(row.key, row.nth) for row in later}
    names = {row.name for row in later}
    fits = waiting <= rows and names <= set(inputs)
    fits = fits and all(row.key == key_of(row.name) and row.key in GOES_LATER for row in later)
    ensure(fits and len(waiting) == len(names) == len(later), "O1", f"{later} on {LATER}, {rows} put out")
    second = Counter(key_behind(*row) for row in rows - waiting)
    shown = {"tap": lanes(inputs), "out": lanes(name for name in inputs if name not in names)}
    produced = {LOOP: sum(name.goes_round for name in arrived), LATER: sum(first[key] for key in GOES_LATER)}
    return Expected(dict(zip(OPERATORS, (first, second), strict=True)), shown, produced)


@cache
def in_the_end(rows: int) -> Expected:
    """When every source has been read and nothing is in flight."""
    return expected(dict.fromkeys(SOURCES, rows), {})


def _arrived(cursors: Mapping[str, int], going_round: Sequence[Row]) -> set[Name]:
    """Every row of every round that has come in, but those that are still to come from the rows in the loop."""
    whole = {each for source, end in cursors.items() for number in range(end) for each in _rounds(Name(source, number))}
    still = [each for row in going_round for each in _rounds(row.name.next)]
    fits = whole.issuperset(still) and len(set(still)) == len(still) and all(row.name.goes_round for row in going_round)
    ensure(fits, "O1", f"{going_round} on {LOOP}, the sources stand at {dict(cursors)}")
    return whole.difference(still)


@cache
def _rounds(name: Name) -> tuple[Name, ...]:
    """The row in this round and all that follow."""
    return (name, *_rounds(name.next)) if name.goes_round else (name,)


def lanes(names: Iterable[Name]) -> Lanes:
    """The names as they should come."""
    return in_order(sorted(names))


def in_order(names: Iterable[Name]) -> Lanes:
    """The names as they come."""
    found: Lanes = {}
    for name in names:
        found.setdefault(name.lane, []).append(name.number)
    return found


def by_key(rows: Iterable[Row]) -> dict[int, list[int]]:
    """The rows of a sink per key, in order."""
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row.nth)
    return found


def outputs_of(counts: Mapping[int, int]) -> dict[int, list[int]]:
    """Per key what a sink shows, in order: 1, 2, ... up to its count."""
    return {key: list(range(1, count + 1)) for key, count in counts.items() if count}
