"""Rows of the simulated job on Spark, and the expected content of an epoch, computed without a run.

Two operators each count their rows per key and emit every count. Rows of the first one go around a loop until their
rounds are used up. After an odd number of rounds they only pass, or are dropped; after an even number they are input
again. Rows of some keys reach the second operator over an edge, the others in the same batch. Every row carries the
name of its input row. So the expected content of an epoch follows from its cursors and its rows in flight, for every
order of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from checkpoint_lab.violations import ensure

OPERATORS = ("counts", "totals")
SOURCES, SINKS = ("a", "b"), ("out", "tap")
GETS = {"tap": "counts", "out": "totals"}
"""The operator whose rows each sink gets. `tap` is between the two operators, `out` at the end."""
LOOP, LATER = "loop", "later"
EDGES = (LOOP, LATER)
KEYS, GROUPS = 3, 2
DELAY_MS = 25
"""Distance of the watermark from the newest event, in ms."""
GOES_LATER = frozenset({1})
"""Keys of the first operator whose rows reach the second one over the edge."""
ROUNDS = (0, 1, 2, 3)
"""Numbers of rounds that a source's rows take, in turn."""


class Name(NamedTuple):
    """A source's row after some rounds."""

    source: str
    number: int
    rounds: int = 0

    @property
    def goes_round(self) -> bool:
        """True if the row is fed back."""
        return self.rounds < ROUNDS[self.number % len(ROUNDS)]

    @property
    def is_input(self) -> bool:
        """True if the row is input of the first operator; False if it only passes."""
        return self.rounds % 2 == 0

    @property
    def next(self) -> Name:
        """The row one round later."""
        return self._replace(rounds=self.rounds + 1)

    @property
    def lane(self) -> tuple[int, int, bool]:
        """The row's lane. Rows of one lane keep their order on every path."""
        return SOURCES.index(self.source), self.rounds, key_of(self) in GOES_LATER


class Row(NamedTuple):
    """An output row of an operator: its key, the key's count so far, and the name of the last input row."""

    key: int
    nth: int
    name: Name


Lanes = dict[tuple[int, int, bool], list[int]]
"""Numbers of the rows of each lane, in order."""


def event_ms(source: str, number: int) -> int:
    """Return the event time of a source's row, in ms. One source is always ahead of the other."""
    return 1_000 + 10 * number - 40 * SOURCES.index(source)


def watermark_ms(cursors: Mapping[str, int]) -> int:
    """Return the watermark of the rows before the cursors, in ms: the minimum over the sources."""
    return min(event_ms(source, cursors[source] - 1) - DELAY_MS if cursors.get(source) else 0 for source in SOURCES)


@cache
def key_of(name: Name) -> int:
    """Return the first operator's key."""
    return (name.number + SOURCES.index(name.source) + name.rounds) % KEYS


def key_behind(key: int, nth: int) -> int:
    """Return the next operator's key for an output row."""
    return (key + nth) % KEYS


@dataclass(frozen=True)
class Expected:
    """The expected content of an epoch.

    `counts`: rows per key of each operator. `shown`: rows of each sink. `produced`: number of all rows of each edge.
    """

    counts: Mapping[str, Counter[int]]
    shown: Mapping[str, Lanes]
    produced: Mapping[str, int]


def expected(cursors: Mapping[str, int], in_flight: Mapping[str, Sequence[Row]]) -> Expected:
    """Return the expected content of an epoch at these cursors and rows in flight.

    Raises a `Violation` if these rows cannot be in flight.
    """
    arrived = _arrived(cursors, in_flight.get(LOOP, ()))
    inputs = [name for name in arrived if name.is_input]
    first = Counter(map(key_of, inputs))
    rows = {(key, count) for key, total in first.items() for count in range(1, total + 1)}
    later = in_flight.get(LATER, ())
    waiting = {(row.key, row.nth) for row in later}
    names = {row.name for row in later}
    fits = waiting <= rows and names <= set(inputs)
    fits = fits and all(row.key == key_of(row.name) and row.key in GOES_LATER for row in later)
    # each row in flight is an output of the first operator, and none is there twice
    ensure(fits and len(waiting) == len(names) == len(later), "O1", f"{later} on {LATER}, {rows} put out")
    second = Counter(key_behind(*row) for row in rows - waiting)
    shown = {"tap": lanes(inputs), "out": lanes(name for name in inputs if name not in names)}
    produced = {LOOP: sum(name.goes_round for name in arrived), LATER: sum(first[key] for key in GOES_LATER)}
    return Expected(dict(zip(OPERATORS, (first, second), strict=True)), shown, produced)


@cache
def in_the_end(rows: int) -> Expected:
    """Return the expected content after every source is read and no row is in flight."""
    return expected(dict.fromkeys(SOURCES, rows), {})


def _arrived(cursors: Mapping[str, int], going_round: Sequence[Row]) -> set[Name]:
    """Return every row of every round that has arrived, except those that will follow from the rows in the loop."""
    whole = {each for source, end in cursors.items() for number in range(end) for each in _rounds(Name(source, number))}
    still = [each for row in going_round for each in _rounds(row.name.next)]
    fits = whole.issuperset(still) and len(set(still)) == len(still) and all(row.name.goes_round for row in going_round)
    ensure(fits, "O1", f"{going_round} on {LOOP}, the sources stand at {dict(cursors)}")
    return whole.difference(still)


@cache
def _rounds(name: Name) -> tuple[Name, ...]:
    """Return the row in this round and in all later ones."""
    return (name, *_rounds(name.next)) if name.goes_round else (name,)


def lanes(names: Iterable[Name]) -> Lanes:
    """Return the names by lane, in their expected order."""
    return in_order(sorted(names))


def in_order(names: Iterable[Name]) -> Lanes:
    """Return the names by lane, in their order of arrival."""
    found: Lanes = {}
    for name in names:
        found.setdefault(name.lane, []).append(name.number)
    return found


def by_key(rows: Iterable[Row]) -> dict[int, list[int]]:
    """Return the rows of a sink per key, in order."""
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row.nth)
    return found


def outputs_of(counts: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the expected rows of a sink per key: 1, 2, ... up to the count."""
    return {key: list(range(1, count + 1)) for key, count in counts.items() if count}
