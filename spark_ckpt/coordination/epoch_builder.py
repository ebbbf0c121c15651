"""What belongs to the epoch under way: staged files, snapshots, counts, cursors, gathered batch by batch on the driver.

Handles only, never rows or state.  A batch is atomic and ends at most one epoch.  An epoch that is aborted after its
barrier keeps nothing back: its snapshots stay in the chains and its staged rows move to the front of the next epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_ckpt.connector import Cursor, Json, StagedFile
from spark_ckpt.coordination.edges import Edges, Segments, segments_in
from spark_ckpt.coordination.job_shape import EdgeShape
from spark_ckpt.coordination.reports import FILE, Report, edge_of, group_of, staged_file
from spark_ckpt.coordination.watermarks import Input, Watermarks
from spark_ckpt.store.records import EdgeCut, Manifest, StateFile

Group = tuple[str, int]
"""A key group: its operator's name and its number."""

Chains = dict[Group, tuple[StateFile, ...]]
"""Per key group: one full file or none, then the changes after it, oldest first."""


@dataclass(slots=True)
class Gathered:
    """What some batches produced."""

    staged: dict[str, list[StagedFile]] = field(default_factory=dict)
    rows_in: int = 0
    rows_out: int = 0
    rejected: int = 0
    late: dict[str, int] = field(default_factory=dict)
    """Rows by operator."""
    passed: Segments = field(default_factory=dict)
    """Segments of edges that were consumed."""

    def put_before(self, later: Gathered) -> Gathered:
        """These batches and, after them, `later` ones."""
        return Gathered(
            _one_after_another(self.staged, later.staged),
            self.rows_in + later.rows_in,
            self.rows_out + later.rows_out,
            self.rejected + later.rejected,
            {name: self.late.get(name, 0) + later.late.get(name, 0) for name in {**self.late, **later.late}},
            _one_after_another(self.passed, later.passed),
        )


@dataclass(frozen=True, slots=True)
class EndedEpoch:
    """An epoch whose barrier has passed: everything is durable, nothing is decided."""

    epoch: int
    gathered: Gathered
    chains: Chains
    cursors: Mapping[str, Cursor]
    watermark_ms: int
    late_ms: int
    groups_acked: frozenset[Group]
    edges: Mapping[str, EdgeCut] = field(default_factory=dict)
    watermarks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of every operator's inputs."""


class EpochBuilder:
    """Gathers the epoch under way. Not thread-safe: the coordinator's thread owns it."""

    def __init__(
        self, base: Manifest, delays_ms: Mapping[Input, int], rows_from: str | None, edges: Sequence[EdgeShape] = ()
    ) -> None:
        self._edges = Edges(edges, base)
        self.watermarks = Watermarks(delays_ms, base)
        self._rows_from = rows_from
        self._open = Gathered()
        self._moved = False
        self._ended: dict[int, EndedEpoch] = {}
        self._acked: dict[int, set[Group]] = {}
        self._chains: Chains = _chains_of(base)
        self.late_rows: Mapping[str, int] = {}
        """Of the batch taken in last, by operator; those without any are not there."""

    @property
    def chains(self) -> Chains:
        """Every key group's snapshot files as of the newest barrier."""
        return dict(self._chains)

    @property
    def idle(self) -> bool:
        """Whether nothing has happened since the last barrier: no source or edge moved on, no operator wrote or changed."""
        gathered = self._open
        return not (self._moved or gathered.rows_in or gathered.rows_out or gathered.rejected or gathered.staged)

    @property
    def in_flight(self) -> dict[str, Sequence[StagedFile]]:
        """On each edge the segments that are behind the last batch, oldest first."""
        return self._edges.in_flight

    @property
    def rows_in_flight(self) -> dict[str, int]:
        """Rows on each edge behind the last batch."""
        return self._edges.rows

    @property
    def next_staged(self) -> tuple[int | None, Mapping[str, Sequence[StagedFile]]]:
        """What is staged of the next epoch to be decided, by sink; its number if its barrier has passed."""
        for epoch, ended in self._ended.items():
            return epoch, ended.gathered.staged
        return None, self._open.staged

    def add(
        self,
        watermark_ms: int,
        reports: Sequence[Report],
        moved: bool = False,
        taken: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Take in one finished batch; its counts, named as in a run's progress. `moved`: a source's cursor did.

        `watermark_ms`: Spark's, of the batch. `taken`: segments of each edge that batches have consumed.
        """
        batch, produced = _gathered(reports, self._rows_from), segments_in(reports)
        batch.passed = self._edges.advance(taken or {}, produced)
        self._moved = self._moved or moved or bool(produced or batch.passed)
        self._open, self.late_rows = self._open.put_before(batch), batch.late
        self.watermarks.advance(watermark_ms, reports)
        for report in reports:
            if report.step == "operator":
                self._snapshot(group_of(report), report.body)
        return {
            "numInputRows": batch.rows_in,
            "numOutputRows": batch.rows_out,
            "rejected": batch.rejected,
            "late": sum(batch.late.values()),
        }

    def end(self, epoch: int, cursors: Mapping[str, Cursor]) -> EndedEpoch:
        """The barrier of `epoch` was in the batch taken in last: everything so far belongs to it."""
        ended = EndedEpoch(
            epoch,
            self._open,
            self.chains,
            dict(cursors),
            self.watermarks.now_ms,
            self.watermarks.late_ms,
            frozenset(self._acked.pop(epoch, ())),
            self._edges.cuts(),
            self.watermarks.by_operator,
        )
        self._open, self._moved = Gathered(), False
        self._ended[epoch] = ended
        return ended

    def pinned(self, epoch: int, cursors: Mapping[str, Cursor]) -> EndedEpoch:
        """An epoch before the first batch: nothing but where the sources start."""
        times = (self.watermarks.now_ms, self.watermarks.late_ms)
        ended = (epoch, Gathered(), self.chains, dict(cursors), *times, frozenset[Group]())
        return EndedEpoch(*ended, self._edges.cuts(), self.watermarks.by_operator)

    def take(self, epoch: int) -> EndedEpoch:
        """An ended epoch that is about to be decided."""
        return self._ended[epoch]

    def decided(self, epoch: int) -> Segments:
        """The manifest is in the log: forget what it holds. Segments that were consumed since the epoch before it, per edge."""
        ended = self._ended.pop(epoch, None)
        return ended.gathered.passed if ended else {}

    def aborted(self, epoch: int) -> None:
        """No decision will be made: its batches become part of the next epoch."""
        ended = self._ended.pop(epoch, None)
        if ended is not None:
            self._open, self._moved = ended.gathered.put_before(self._open), True

    def passed_over(self, epoch: int) -> None:
        """A barrier of `epoch` ended nothing; another one may come."""
        self._acked.pop(epoch, None)

    def _snapshot(self, group: Group, body: Mapping[str, Json]) -> None:
        if "file" in body and body["file"] is not None:
            file = StateFile.model_validate(body["file"])
            kept = () if file.kind == "full" else self._chains.get(group, ())
            self._chains[group] = (*kept, file)
            self._moved = True
        if "epoch" in body:
            self._acked.setdefault(int(str(body["epoch"])), set()).add(group)


def _gathered(reports: Sequence[Report], rows_from: str | None) -> Gathered:
    """What one batch's reports add up to. Rows are counted where they pass once: `rows_from` names one of the sinks."""
    batch = Gathered()
    for report in reports:
        batch.rejected += _count(report, "rejected")
        batch.rows_in += _count(report, "rows_in")
        if late := _count(report, "late"):
            operator, _ = group_of(report)
            batch.late[operator] = batch.late.get(operator, 0) + late
        if edge_of(report) is not None:
            continue
        if report.step == "tap" or report.scope.endswith(FILE):
            sink = report.scope.split("/", 1)[0]
            batch.staged.setdefault(sink, []).append(staged_file(report.body))
            batch.rows_out += _count(report, "rows") if sink == rows_from else 0
    for files in batch.staged.values():
        files.sort(key=lambda file: (file.task, file.part))
    return batch


def _one_after_another(first: Segments, second: Segments) -> Segments:
    return {name: [*first.get(name, ()), *second.get(name, ())] for name in {**first, **second}}


def _count(report: Report, name: str) -> int:
    value = report.body.get(name, 0)
    return int(value) if isinstance(value, int | float) else 0


def _chains_of(base: Manifest) -> Chains:
    chains: Chains = {}
    for name, snapshot in base.operators.items():
        for file in snapshot.files:
            group = (name, file.key_group)
            chains[group] = (*chains.get(group, ()), file)
    return chains
