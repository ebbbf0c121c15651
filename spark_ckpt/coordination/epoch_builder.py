"""Collect the content of the open epoch, batch by batch: staged files, snapshots, counts, cursors.

The builder holds file handles, never rows or state. A batch is atomic and ends at most one epoch. If an epoch is
aborted after its barrier, none of its work is lost: its snapshots stay in the chains, and its staged rows move to the
front of the next epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_ckpt.connector import Cursor, Json, StagedFile
from spark_ckpt.coordination.edges import Edges, Segments, segments_in
from spark_ckpt.coordination.job_shape import EdgeShape
from spark_ckpt.coordination.reports import FILE, Report, edge_of, group_of, staged_file
from spark_ckpt.coordination.watermarks import Input, Watermarks
from spark_ckpt.epochs.records import EdgeCut, Manifest, StateFile

Group = tuple[str, int]
"""Key group: name of its operator, and its number."""

Chains = dict[Group, tuple[StateFile, ...]]
"""Snapshot files by key group: at most one full file, then its changes, oldest first."""


@dataclass(slots=True)
class Gathered:
    """Results of consecutive batches."""

    staged: dict[str, list[StagedFile]] = field(default_factory=dict)
    rows_in: int = 0
    rows_out: int = 0
    rejected: int = 0
    late: dict[str, int] = field(default_factory=dict)
    """Late rows by operator."""
    passed: Segments = field(default_factory=dict)
    """Consumed segments by edge."""

    def put_before(self, later: Gathered) -> Gathered:
        """Return the results of these batches followed by the `later` ones."""
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
    """An epoch whose barrier has passed: all its files are durable, but it is not committed."""

    epoch: int
    gathered: Gathered
    chains: Chains
    cursors: Mapping[str, Cursor]
    watermark_ms: int
    late_ms: int
    groups_acked: frozenset[Group]
    edges: Mapping[str, EdgeCut] = field(default_factory=dict)
    watermarks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Watermarks in milliseconds, by operator and input."""


class EpochBuilder:
    """Builder of the open epoch; not thread-safe, the coordinator's thread owns it.

    `base`: the epoch that the incarnation continues from. `delays_ms`: allowed lateness by operator input.
    `rows_from`: the sink at which output rows are counted, None without sinks. `edges`: the job's edges.
    """

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
        # Deltas of this incarnation extend the chains of `base`: state files of committed epochs are reused.
        self._chains: Chains = _chains_of(base)
        self.late_rows: Mapping[str, int] = {}
        """Late rows of the newest batch, by operator; operators without late rows are absent."""

    @property
    def chains(self) -> Chains:
        """Snapshot files of every key group as of the newest barrier."""
        return dict(self._chains)

    @property
    def idle(self) -> bool:
        """True if nothing happened since the last barrier: no source or edge advanced, no operator emitted rows or
        changed state.
        """
        gathered = self._open
        return not (self._moved or gathered.rows_in or gathered.rows_out or gathered.rejected or gathered.staged)

    @property
    def in_flight(self) -> dict[str, Sequence[StagedFile]]:
        """Segments on each edge after the last batch, oldest first."""
        return self._edges.in_flight

    @property
    def rows_in_flight(self) -> dict[str, int]:
        """Number of rows on each edge after the last batch."""
        return self._edges.rows

    @property
    def next_staged(self) -> tuple[int | None, Mapping[str, Sequence[StagedFile]]]:
        """Files staged for the next epoch to commit, by sink, and its number; the number is None before its barrier
        has passed.
        """
        # Closed epochs are in the order of their numbers: the first one commits next.
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
        """Add one finished batch and return its counts, named as in a run's progress.

        `watermark_ms`: Spark's watermark of the batch. `reports`: what its tasks reported. `moved`: the cursor of a
        source advanced. `taken`: per edge, the number of segments that batches have consumed so far.
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
        """Close `epoch`: its barrier was in the newest batch, so everything collected so far belongs to it.

        `cursors`: position of every source at the end of that batch.
        """
        # Step 5 of docs/design/epoch-in-nine-steps.md.
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
        """Return an epoch before the first batch; it contains only the start positions of the sources."""
        times = (self.watermarks.now_ms, self.watermarks.late_ms)
        ended = (epoch, Gathered(), self.chains, dict(cursors), *times, frozenset[Group]())
        return EndedEpoch(*ended, self._edges.cuts(), self.watermarks.by_operator)

    def take(self, epoch: int) -> EndedEpoch:
        """Return a closed epoch that is about to be committed."""
        return self._ended[epoch]

    def decided(self, epoch: int) -> Segments:
        """Forget a closed epoch that is committed; return the segments consumed since the epoch before it, by edge."""
        ended = self._ended.pop(epoch, None)
        return ended.gathered.passed if ended else {}

    def aborted(self, epoch: int) -> None:
        """Move the batches of an aborted epoch to the front of the next epoch."""
        ended = self._ended.pop(epoch, None)
        if ended is not None:
            # `_moved` keeps the stream from looking idle, so that another epoch commits these rows.
            self._open, self._moved = ended.gathered.put_before(self._open), True

    def passed_over(self, epoch: int) -> None:
        """Forget the votes for a barrier of `epoch` that ended nothing; the barrier can be offered again."""
        self._acked.pop(epoch, None)

    def _snapshot(self, group: Group, body: Mapping[str, Json]) -> None:
        if "file" in body and body["file"] is not None:
            file = StateFile.model_validate(body["file"])
            # A full file starts a new chain: the files before it are compacted into it.
            kept = () if file.kind == "full" else self._chains.get(group, ())
            self._chains[group] = (*kept, file)
            self._moved = True
        if "epoch" in body:
            self._acked.setdefault(int(str(body["epoch"])), set()).add(group)


def _gathered(reports: Sequence[Report], rows_from: str | None) -> Gathered:
    """Return the sum of one batch's reports; output rows are counted only at the sink `rows_from`."""
    batch = Gathered()
    for report in reports:
        batch.rejected += _count(report, "rejected")
        batch.rows_in += _count(report, "rows_in")
        if late := _count(report, "late"):
            operator, _ = group_of(report)
            batch.late[operator] = batch.late.get(operator, 0) + late
        # Segments stay inside the job: they count as neither staged nor output rows.
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
