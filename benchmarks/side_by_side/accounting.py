"""Compute each record's time by part from a system's records of its batches and epochs. Pure functions.

All moments are seconds of one clock. A record passes the spans of its batch, then those of its epoch; its time in a span is the
overlap with its own time from input to visible output. So no moment counts twice, and time in no span is the unexplained rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

EVER, NEVER = -np.inf, np.inf
WAIT, VISIBLE, UNEXPLAINED = "wait", "visible", "unexplained"


class Span(NamedTuple):
    """A part of a record's path, from `start` to `end`."""

    part: str
    start: float
    end: float


Ends = Mapping[int, int]
"""By partition, the offset after the last record."""


@dataclass(frozen=True)
class Passage:
    """The spans of all records up to `ends` that no earlier passage has."""

    ends: Ends
    spans: tuple[Span, ...]


@dataclass(frozen=True, eq=False)
class Records:
    """An entry per record: its due time, the time at which a reader had its output, in seconds; its position in the source."""

    created: np.ndarray
    came: np.ndarray
    partition: np.ndarray
    offset: np.ndarray

    def __len__(self) -> int:
        return len(self.created)

    def where(self, chosen: np.ndarray) -> Records:
        """Select records."""
        return Records(self.created[chosen], self.came[chosen], self.partition[chosen], self.offset[chosen])


def in_turn(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans without overlaps: a span that begins before the end of the last one begins there, with no negative length."""
    placed: list[Span] = []
    for span in spans:
        start = max(span.start, placed[-1].end) if placed else span.start
        placed.append(Span(span.part, start, max(start, span.end)))
    return tuple(placed)


def passage_of(records: Records, passages: Sequence[Passage]) -> np.ndarray:
    """Number of each record's passage: the first one that ends after it; -1 for a record without a passage."""
    found = np.full(len(records), -1)
    for partition in np.unique(records.partition):
        ends = np.maximum.accumulate([each.ends.get(int(partition), 0) for each in passages])
        own = records.partition == partition
        number = np.searchsorted(ends, records.offset[own], side="right")
        found[own] = np.where(number < len(passages), number, -1)
    return found


def seconds_by_part(records: Records, passages: Sequence[Passage]) -> dict[str, np.ndarray]:
    """Seconds of each record by part, including `UNEXPLAINED`; their sum is its time from input to visible output.

    The time of a record without a passage is unexplained. Raises ValueError if the parts of a record exceed its time, which is a
    fault of the passages: their spans overlap.
    """
    names = dict.fromkeys(span.part for each in passages for span in each.spans)
    spent = {name: np.zeros(len(records)) for name in names}
    number = passage_of(records, passages)
    for at in np.unique(number[number >= 0]):
        own = np.flatnonzero(number == at)
        for span in passages[at].spans:
            spent[span.part][own] += _overlap(span, records.created[own], records.came[own])
    whole = records.came - records.created
    rest = whole - sum(spent.values(), np.zeros(len(records)))
    if len(rest) and rest.min() < -1e-6:
        raise ValueError(f"the parts of a record exceed its time by {-rest.min():.3f} s: spans overlap")
    return {**spent, UNEXPLAINED: rest.clip(0)}


def _overlap(span: Span, created: np.ndarray, came: np.ndarray) -> np.ndarray:
    return (np.minimum(came, span.end) - np.maximum(created, span.start)).clip(0)


def values_of(spent: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Means of all parts, which add up to `mean_ms`, and percentiles, which do not, since a record is slow in one part only."""
    values = {"mean_ms": float(np.mean(sum(spent.values()))) * 1000}
    for part, seconds in spent.items():
        p50, p99 = np.percentile(seconds * 1000, [50, 99])
        values |= {
            f"{part}_mean_ms": float(seconds.mean()) * 1000,
            f"{part}_p50_ms": float(p50),
            f"{part}_p99_ms": float(p99),
        }
    return values
