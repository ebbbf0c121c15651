"""Edges: durable logs between two places of a job's graph, and what of them belongs to a cut.

A micro-batch puts its rows on an edge as segments: files, durable with the batch. A later batch, as a rule the next one, takes
them off in the same order. A cut holds two positions per edge, counted in rows: what was consumed, and what was produced. The
segments between are in flight: the cut names them, nobody copies them. For a back-edge that is the log of seed 003 (cyclic
snapshots): what the loop holds at the barrier, and what a recovery replays first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

from checkpoint_protocols.machine import ProtocolViolation
from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.job_shape import EdgeShape
from spark_ckpt.coordination.reports import Report, edge_of, staged_file
from spark_ckpt.store.records import EdgeCut, Manifest, StagedFileRecord

Segments = dict[str, list[StagedFile]]
"""Per edge its segments, oldest first."""


def segments_in(reports: Iterable[Report]) -> Segments:
    """What one batch put on each edge, in the order in which it is taken off."""
    found: Segments = {}
    for report in reports:
        edge = edge_of(report)
        if edge is not None:
            found.setdefault(edge, []).append(staged_file(report.body))
    for segments in found.values():
        segments.sort(key=lambda each: (each.task, each.part))
    return found


@dataclass(frozen=True, slots=True)
class Bound:
    """How many rows an edge may hold before the sources rest (backpressure), and how many a batch takes off it at most.

    What is on an edge leaves it in any case, so the sources go on, unless a loop feeds back more rows than that for ever.
    """

    rows: int

    def portion(self, segments: Sequence[StagedFile]) -> int:
        """How many of an edge's segments, oldest first, a batch takes. Segments are whole: one goes however large it is."""
        within = sum(total <= self.rows for total in accumulate(each.rows for each in segments))
        return max(within, min(1, len(segments)))

    def full(self, rows: Mapping[str, int]) -> tuple[str, ...]:
        """Edges that hold more, of edges with so many rows. While there is one, a batch has no row of a source."""
        return tuple(name for name, held in rows.items() if held > self.rows)


UNBOUNDED = Bound(sys.maxsize)


class EdgeLog:
    """One edge in one incarnation, from `cut` on. `taken` segments of it were consumed, counted from the cut's first."""

    def __init__(self, cut: EdgeCut | None) -> None:
        self._in_flight = [each.staged_file() for each in cut.files] if cut else []
        self._consumed_rows = cut.consumed if cut else 0
        self._taken = 0

    @property
    def in_flight(self) -> Sequence[StagedFile]:
        """Segments that no batch has consumed, oldest first."""
        return tuple(self._in_flight)

    @property
    def rows(self) -> int:
        """Rows in flight."""
        return sum(each.rows for each in self._in_flight)

    def advance(self, taken: int, produced: Sequence[StagedFile]) -> list[StagedFile]:
        """A batch is over: it and those before it consumed `taken` segments, and it produced some. What it consumed.

        Raises `ProtocolViolation` if it consumed what is not there.
        """
        count = taken - self._taken
        if not 0 <= count <= len(self._in_flight):
            raise ProtocolViolation(
                f"{taken} segments consumed, {self._taken} before, {len(self._in_flight)} in flight"
            )
        consumed, self._in_flight[:count] = self._in_flight[:count], []
        self._taken = taken
        self._consumed_rows += sum(each.rows for each in consumed)
        self._in_flight += produced
        return consumed

    def cut(self, shape: EdgeShape) -> EdgeCut:
        """Both positions as they are now, and what lies between."""
        files = tuple(StagedFileRecord(**asdict(each)) for each in self._in_flight)
        consumed = self._consumed_rows
        return EdgeCut(
            edge=shape.name, row_schema=shape.schema, consumed=consumed, produced=consumed + self.rows, files=files
        )


class Edges:
    """Every edge of a job in one incarnation."""

    def __init__(self, shapes: Sequence[EdgeShape], base: Manifest) -> None:
        self._shapes = shapes
        self._logs = {each.name: EdgeLog(base.edges.get(each.name)) for each in shapes}

    @property
    def in_flight(self) -> dict[str, Sequence[StagedFile]]:
        """On each edge the segments that no batch has consumed, oldest first."""
        return {name: log.in_flight for name, log in self._logs.items()}

    @property
    def rows(self) -> dict[str, int]:
        """Rows in flight on each edge."""
        return {name: log.rows for name, log in self._logs.items()}

    def advance(self, taken: Mapping[str, int], produced: Mapping[str, Sequence[StagedFile]]) -> Segments:
        """A batch is over; what it consumed. `taken`: segments that batches have consumed, `produced`: what this one put on, per
        edge."""
        consumed = {name: log.advance(taken.get(name, 0), produced.get(name, ())) for name, log in self._logs.items()}
        return {name: segments for name, segments in consumed.items() if segments}

    def cuts(self) -> dict[str, EdgeCut]:
        """Every edge as it is now."""
        return {each.name: self._logs[each.name].cut(each) for each in self._shapes}


def spent(passed: Mapping[str, Sequence[StagedFile]], base: Manifest) -> dict[str, tuple[str, ...]]:
    """Paths of consumed segments that no decided epoch names, per edge: in flight between two barriers only.

    `base`: the epoch before: what was consumed after its cut and produced before it is in flight there.
    """
    named = {name: {file.path for file in cut.files} for name, cut in base.edges.items()}
    return {
        name: tuple(each.path for each in segments if each.path not in named.get(name, ()))
        for name, segments in passed.items()
    }
