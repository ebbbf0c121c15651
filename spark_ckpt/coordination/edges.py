"""Edges: durable logs between two operators of a job, and their part of an epoch.

A micro-batch writes its rows on an edge as segments: files that are durable when the batch ends. A later batch,
usually the next one, consumes them in the same order. An epoch records two positions per edge, counted in rows:
consumed and produced. The manifest names the segments in between (in flight) and copies no rows.

For a back-edge this is the log of seed 003 (cyclic snapshots): the rows inside the loop at the barrier, which a
recovery replays first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from checkpoint_protocols.machine import ProtocolViolation
from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.job_shape import EdgeShape
from spark_ckpt.coordination.reports import Report, edge_of
from spark_ckpt.epochs.records import STAGED_FILE, EdgeCut, Manifest, StagedFileRecord

Segments = dict[str, list[StagedFileRecord]]
"""Segments by edge, oldest first."""


def segments_in(reports: Iterable[Report]) -> Segments:
    """Return the segments that one batch wrote on each edge, in the order in which they are consumed."""
    found: Segments = {}
    for report in reports:
        edge = edge_of(report)
        if edge is not None:
            found.setdefault(edge, []).append(STAGED_FILE.validate_python(report.body))
    # Offsets of the edge count segments, so a batch that is planned again must find them in the same order.
    for segments in found.values():
        segments.sort(key=lambda each: (each.task, each.part))
    return found


@dataclass(frozen=True, slots=True)
class Bound:
    """Backpressure limit of an edge, in rows.

    Above it the sources pause, and a batch consumes at most this many rows of the edge. In-flight rows drain without
    new input, so the sources resume. The exception is a loop that constantly feeds back more rows than the limit.
    """

    rows: int

    def portion(self, segments: Sequence[StagedFile]) -> int:
        """Return how many of an edge's segments, oldest first, the next batch consumes.

        Segments are indivisible: the batch takes at least one, even if it exceeds the limit.
        """
        within = sum(total <= self.rows for total in accumulate(each.rows for each in segments))
        # A segment over the limit must still drain, or the edge would block for ever.
        return max(within, min(1, len(segments)))

    def full(self, rows: Mapping[str, int]) -> tuple[str, ...]:
        """Return the edges over the limit, given the rows in flight by edge. While there is one, a batch reads no
        source.
        """
        return tuple(name for name, held in rows.items() if held > self.rows)


UNBOUNDED = Bound(sys.maxsize)
"""No limit: the sources never pause."""


class EdgeLog:
    """One edge in one incarnation, from the position `cut` on; None: the edge is empty.

    `advance` counts consumed segments from the first segment in flight at `cut`.
    """

    def __init__(self, cut: EdgeCut | None) -> None:
        self.segments = list(cut.files) if cut else []
        self.consumed_rows = cut.consumed if cut else 0
        self.taken = 0

    @property
    def in_flight(self) -> tuple[StagedFileRecord, ...]:
        """Segments that no batch has consumed, oldest first."""
        return tuple(self.segments)

    @property
    def rows(self) -> int:
        """Number of rows in flight."""
        return sum(each.rows for each in self.segments)

    def advance(self, taken: int, produced: Sequence[StagedFileRecord]) -> list[StagedFileRecord]:
        """Apply a finished batch and return the segments that it consumed.

        `taken`: number of segments that this batch and all batches before it have consumed. `produced`: segments that
        this batch wrote. Raises `ProtocolViolation` if the batch consumed segments that are not in flight.
        """
        # Spark's offsets count from the start of the query, so the difference is this batch's part.
        count = taken - self.taken
        if not 0 <= count <= len(self.segments):
            raise ProtocolViolation(f"{taken} segments consumed, {self.taken} before, {len(self.segments)} in flight")
        consumed, self.segments[:count] = self.segments[:count], []
        self.taken = taken
        self.consumed_rows += sum(each.rows for each in consumed)
        self.segments += produced  # after the removal: a batch consumes only what earlier batches wrote
        return consumed

    def cut(self, shape: EdgeShape) -> EdgeCut:
        """Return the edge's part of an epoch: both positions as of now, and the segments in between."""
        consumed, produced = self.consumed_rows, self.consumed_rows + self.rows
        files = self.in_flight
        return EdgeCut(edge=shape.name, row_schema=shape.schema, consumed=consumed, produced=produced, files=files)


class Edges:
    """All edges of a job in one incarnation, from the epoch `base` on."""

    def __init__(self, shapes: Sequence[EdgeShape], base: Manifest) -> None:
        self._shapes = shapes
        self.logs = {each.name: EdgeLog(base.edges.get(each.name)) for each in shapes}

    @property
    def in_flight(self) -> dict[str, Sequence[StagedFile]]:
        """Segments that no batch has consumed, by edge, oldest first."""
        return {name: log.in_flight for name, log in self.logs.items()}

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows in flight, by edge."""
        return {name: log.rows for name, log in self.logs.items()}

    def advance(self, taken: Mapping[str, int], produced: Mapping[str, Sequence[StagedFileRecord]]) -> Segments:
        """Apply a finished batch and return the segments that it consumed, by edge.

        `taken`: per edge, the number of segments that batches have consumed so far. `produced`: per edge, the
        segments that this batch wrote. Raises `ProtocolViolation` if the batch consumed segments that are not in
        flight.
        """
        consumed = {name: log.advance(taken.get(name, 0), produced.get(name, ())) for name, log in self.logs.items()}
        return {name: segments for name, segments in consumed.items() if segments}

    def cuts(self) -> dict[str, EdgeCut]:
        """Return each edge's part of an epoch, as of now."""
        return {each.name: self.logs[each.name].cut(each) for each in self._shapes}


def consumed_segments(passed: Mapping[str, Sequence[StagedFile]], base: Manifest) -> dict[str, tuple[str, ...]]:
    """Return paths of consumed segments that no committed epoch names, by edge: they can be deleted.

    Such a segment was produced and consumed between two barriers. `passed`: per edge, the segments consumed since the
    epoch `base`. A segment consumed after `base` but produced before it is in flight in `base`, so it stays.
    """
    named = {name: {file.path for file in cut.files} for name, cut in base.edges.items()}
    return {
        name: tuple(each.path for each in segments if each.path not in named.get(name, ()))
        for name, segments in passed.items()
    }
