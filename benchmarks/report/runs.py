"""Repeats of one measurement together: medians, spreads, ratios, failures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from benchmarks.report.lines import FAULTS, Recorded

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """The median of some repeats, and their range."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """Spread of the values; None without a value."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known), len(known)) if known else None

    def times(self, factor: float) -> Spread:
        """The spread in another unit."""
        return Spread(self.median * factor, self.least * factor, self.most * factor, self.count)


@dataclass(frozen=True)
class Runs:
    """All repeats of one measurement, including failed ones."""

    lines: tuple[Recorded, ...]

    @property
    def good(self) -> list[Recorded]:
        """Repeats with numbers."""
        return [line for line in self.lines if line.failed is None]

    @property
    def failed(self) -> list[Recorded]:
        """Failed repeats."""
        return [line for line in self.lines if line.failed is not None]

    def spread(self, name: str) -> Spread | None:
        """Spread of a value over the repeats that have it."""
        return Spread.of(line.number(name) for line in self.good)

    def median(self, name: str) -> float | None:
        """Median of a value over the repeats that have it."""
        value = self.spread(name)
        return value.median if value else None

    def total(self, name: str) -> int | None:
        """Sum of a value over the repeats that have it."""
        known = [value for line in self.good if (value := line.number(name)) is not None]
        return int(sum(known)) if known else None

    @property
    def exact(self) -> bool:
        """True if the oracle found no fault in any repeat."""
        return not any(self.total(fault) for fault in FAULTS)


def ratio(ours: Runs, theirs: Runs, name: str) -> Spread | None:
    """Our median over theirs, and the range of the ratios within each repeat that both have (repeats are interleaved)."""
    above, below = ours.spread(name), theirs.spread(name)
    if above is None or below is None or not below.median:
        return None
    middle = above.median / below.median
    pairs = _within_repeats(ours, theirs, name) or [middle]
    return Spread(middle, min(pairs), max(pairs), len(pairs))


def _within_repeats(ours: Runs, theirs: Runs, name: str) -> list[float]:
    other = {(line.session, line.repeat): line.number(name) for line in theirs.good}
    both = [(line.number(name), other.get((line.session, line.repeat))) for line in ours.good]
    return [above / below for above, below in both if above is not None and below]


def in_one_session(ours: Runs, theirs: Runs) -> bool:
    """True if some of both ran in turn."""
    return not {line.session for line in ours.lines}.isdisjoint(line.session for line in theirs.lines)


def grouped(lines: Iterable[Recorded], key: Callable[[Recorded], K]) -> dict[K, Runs]:
    """Group lines by key; keys are in order of their first line."""
    found: dict[K, list[Recorded]] = {}
    for line in lines:
        found.setdefault(key(line), []).append(line)
    return {each: Runs(tuple(members)) for each, members in found.items()}


def best(candidates: Sequence[tuple[str, Runs]], name: str) -> tuple[str, Runs] | None:
    """The candidate with the largest median, among those with exact output if there are any."""
    known = [(runs.exact, spread.median, each) for each, runs in candidates if (spread := runs.spread(name))]
    if not known:
        return None
    _, _, chosen = max(known)
    return chosen, dict(candidates)[chosen]
