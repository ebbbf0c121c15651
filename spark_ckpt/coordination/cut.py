"""The cut: everything that belongs to an epoch, from its first batch to its commit.

`EpochBuilder` collects it batch by batch: staged files, snapshots, counts, edges. It holds file handles, never rows or
state. A batch is atomic and ends at most one epoch. If an epoch is aborted after its barrier, none of its work is lost:
its snapshots stay in the chains, and its staged rows move to the front of the next epoch.

`Watermarks` are the event time of a job: a watermark per operator input; the least one is in force, as in Spark. No
watermark decreases.

`Cut` joins both with the sources' cursors, the control markers and the prefetched barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import cast

from checkpoint_protocols.ids import Epoch
from checkpoint_protocols.machine import ProtocolViolation
from spark_ckpt.connector import Cursor, Json, StagedFile
from spark_ckpt.coordination import full_snapshots
from spark_ckpt.coordination.edges import Edges, Segments, consumed_segments, segments_in
from spark_ckpt.coordination.job_shape import EdgeShape, JobShape
from spark_ckpt.coordination.markers import BARRIER, OPEN, PREFETCHED, ControlMarkers
from spark_ckpt.coordination.messages import BatchDone, CountBatch, OfferMarker
from spark_ckpt.coordination.reports import FILE, Report, edge_of
from spark_ckpt.epochs.records import STAGED_FILE, EdgeCut, Manifest, StagedFileRecord, StateFile

Input = tuple[str, str]
"""Name of an operator and of one of its inputs."""

SCOPE = "event times"
"""Scope of the report about the event times of a batch's rows."""


def event_times(newest_ms: Mapping[Input, int]) -> Report:
    """Return the report of the greatest event time of each input in a batch, in milliseconds."""
    return Report("input", 0, 0, SCOPE, {_key(each): time_ms for each, time_ms in newest_ms.items()})


class Watermarks:
    """Watermarks of one incarnation.

    `delays_ms`: allowed lateness in milliseconds, by input. `base`: the epoch that the incarnation continues from. An
    input without rows so far holds the common watermark back, as in Spark.
    """

    def __init__(self, delays_ms: Mapping[Input, int], base: Manifest) -> None:
        self.delays_ms = dict(delays_ms)
        self.base_ms = base.watermark_ms
        self.now_ms = base.watermark_ms
        """Watermark after the rows so far; it expires state in the next batch."""
        self.late_ms = base.watermark_ms if base.late_watermark_ms is None else base.late_watermark_ms
        """Watermark of the last batch; rows of the next batch are late by it."""
        known = {
            (name, each): ms for name, snapshot in base.operators.items() for each, ms in snapshot.watermarks.items()
        }
        # An input that the job no longer has must not hold the common watermark back.
        self.inputs_ms = {each: known[each] for each in self.delays_ms if each in known}
        """Watermark of each input that has had rows."""

    @property
    def newest_ms(self) -> dict[Input, int]:
        """Event times that correspond to the inputs' watermarks; a query's clocks start with them."""
        return {each: ms + self.delays_ms[each] for each, ms in self.inputs_ms.items()}

    @property
    def by_operator(self) -> dict[str, dict[str, int]]:
        """Watermarks in milliseconds, by operator and input."""
        found: dict[str, dict[str, int]] = {}
        for (operator, name), ms in self.inputs_ms.items():
            found.setdefault(operator, {})[name] = ms
        return found

    def advance(self, sparks_ms: int, reports: Iterable[Report]) -> None:
        """Advance the watermarks after a batch. `sparks_ms`: the watermark that Spark recorded for it."""
        # A fresh Spark checkpoint starts without a watermark; the restored one must not decrease.
        self.late_ms = max(self.base_ms, sparks_ms)  # of the batch that ran, and so late for the next one
        self.now_ms = max(self.now_ms, sparks_ms)
        for report in reports:
            if report.scope == SCOPE:
                self._see(report.body)
        if self.delays_ms:
            # Spark computes the same minimum, but only when it plans the next batch.
            least = min(self.inputs_ms.get(each, 0) for each in self.delays_ms)  # 0: one without rows holds it back
            self.now_ms = max(self.now_ms, least)

    def _see(self, body: Mapping[str, Json]) -> None:
        for each, delay_ms in self.delays_ms.items():
            time_ms = body.get(_key(each))
            if isinstance(time_ms, int):
                self.inputs_ms[each] = max(self.inputs_ms.get(each, time_ms - delay_ms), time_ms - delay_ms)


def _key(of: Input) -> str:
    """Return the input's key in a report; operator names contain no slash."""
    return "/".join(of)


Group = tuple[str, int]
"""Key group: name of its operator, and its number."""

Chains = dict[Group, tuple[StateFile, ...]]
"""Snapshot files by key group: at most one full file, then its changes, oldest first."""


@dataclass(slots=True)
class Gathered:
    """Results of consecutive batches."""

    staged: dict[str, list[StagedFileRecord]] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()
    """Sinks whose staged files are their whole content after the newest batch. Empty without a batch."""
    rows_in: int = 0
    rows_out: int = 0
    rejected: int = 0
    late: dict[str, int] = field(default_factory=dict)
    """Late rows by operator."""
    passed: Segments = field(default_factory=dict)
    """Consumed segments by edge."""

    def put_before(self, later: Gathered) -> Gathered:
        """Return the results of these batches followed by the `later` ones."""
        # A later batch has the whole content of such a sink, so the files before it are superseded.
        before = {sink: files for sink, files in self.staged.items() if sink not in later.replaced}
        return Gathered(
            _one_after_another(before, later.staged),
            self.replaced | later.replaced,
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
    batch: int | None = None
    """Micro-batch with the barrier; None before the first batch."""


class EpochBuilder:
    """Builder of the open epoch; not thread-safe, the protocol's thread owns it.

    `base`: the epoch that the incarnation continues from. `delays_ms`: allowed lateness by operator input.
    `rows_from`: the sink at which output rows are counted, None without sinks. `edges`: the job's edges.
    `replaced`: sinks of which each batch has the whole content.
    """

    def __init__(
        self,
        base: Manifest,
        delays_ms: Mapping[Input, int],
        rows_from: str | None,
        edges: Sequence[EdgeShape] = (),
        replaced: frozenset[str] = frozenset(),
    ) -> None:
        self.edges = Edges(edges, base)
        self.watermarks = Watermarks(delays_ms, base)
        self._rows_from = rows_from
        self._replaced = replaced
        self.gathered = Gathered()
        """Results of the batches since the newest barrier."""
        self.moved = False
        """True if a source, an edge or a key group's state changed since the newest barrier."""
        self.closed: dict[int, EndedEpoch] = {}
        """Closed epochs that are not committed, in the order of their numbers."""
        self.voted: dict[int, set[Group]] = {}
        """Key groups whose snapshot for an epoch is durable, by epoch."""
        # Deltas of this incarnation extend the chains of `base`: state files of committed epochs are reused.
        self.chains: Chains = _chains_of(base)
        """Snapshot files of every key group as of the newest barrier."""
        self.batch: int | None = None
        """Number of the newest batch; None before the first one."""
        self.late_rows: Mapping[str, int] = {}
        """Late rows of the newest batch, by operator; operators without late rows are absent."""

    @property
    def idle(self) -> bool:
        """True if nothing happened since the last barrier: no source or edge advanced, no operator emitted rows or
        changed state.
        """
        gathered = self.gathered
        return not (self.moved or gathered.rows_in or gathered.rows_out or gathered.rejected or gathered.staged)

    @property
    def in_flight(self) -> dict[str, Sequence[StagedFile]]:
        """Segments on each edge after the last batch, oldest first."""
        return self.edges.in_flight

    @property
    def rows_in_flight(self) -> dict[str, int]:
        """Number of rows on each edge after the last batch."""
        return self.edges.rows

    @property
    def next_staged(self) -> tuple[int | None, Mapping[str, Sequence[StagedFile]]]:
        """Files staged for the next epoch to commit, by sink, and its number; the number is None before its barrier
        has passed.
        """
        # Closed epochs are in the order of their numbers: the first one commits next.
        for epoch, ended in self.closed.items():
            return epoch, ended.gathered.staged
        return None, self.gathered.staged

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
        batch.replaced = self._replaced
        batch.passed = self.edges.advance(taken or {}, produced)
        self.moved = self.moved or moved or bool(produced or batch.passed)
        self.gathered, self.late_rows = self.gathered.put_before(batch), batch.late
        self.watermarks.advance(watermark_ms, reports)
        for report in reports:
            if report.step == "operator":
                self.take_snapshot(report.scope, report.body)
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
            self.gathered,
            # A copy: if every batch ends an epoch, later batches extend the chains while this one waits for its commit.
            dict(self.chains),
            dict(cursors),
            self.watermarks.now_ms,
            self.watermarks.late_ms,
            frozenset(self.voted.pop(epoch, ())),  # a job without operators has no votes
            self.edges.cuts(),
            self.watermarks.by_operator,
            self.batch,
        )
        self.gathered, self.moved = Gathered(), False
        self.closed[epoch] = ended
        return ended

    def pinned(self, epoch: int, cursors: Mapping[str, Cursor]) -> EndedEpoch:
        """Return an epoch before the first batch; it contains only the start positions of the sources."""
        times = (self.watermarks.now_ms, self.watermarks.late_ms)
        ended = (epoch, Gathered(), dict(self.chains), dict(cursors), *times, frozenset[Group]())
        return EndedEpoch(*ended, self.edges.cuts(), self.watermarks.by_operator)

    def take(self, epoch: int) -> EndedEpoch:
        """Return a closed epoch that is about to be committed."""
        return self.closed[epoch]

    def committed(self, epoch: int) -> Segments:
        """Forget a closed epoch that is committed; return the segments consumed since the epoch before it, by edge."""
        ended = self.closed.pop(epoch, None)
        return ended.gathered.passed if ended else {}

    def aborted(self, epoch: int) -> None:
        """Move the batches of an aborted epoch to the front of the next epoch."""
        # No later epoch is closed: the barrier after this one is prefetched only once this one is being committed.
        ended = self.closed.pop(epoch, None)
        if ended is not None:
            # `moved` keeps the stream from looking idle, so that another epoch commits these rows.
            self.gathered, self.moved = ended.gathered.put_before(self.gathered), True

    def passed_over(self, epoch: int) -> None:
        """Forget the votes for a barrier of `epoch` that ended nothing; the barrier can be offered again."""
        self.voted.pop(epoch, None)

    def take_snapshot(self, operator: str, body: Mapping[str, Json]) -> None:
        """Add a task's report: new files with the snapshots of its key groups, their votes for an epoch, or both.

        Raises `ProtocolViolation` if some key groups of the task have passed a barrier and others have not: the rows
        of the former are in no durable file, and their states no longer have them as changes.
        """
        if "epoch" in body and "groups" not in body:
            raise ProtocolViolation(f"a task of {operator} passed the barrier of epoch {body['epoch']} in part only")
        for each in _list(body, "files"):
            _extend(self.chains, operator, StateFile.model_validate(each))
            # Files and not votes: a barrier that finds no changed state leaves the stream idle.
            self.moved = True
        if "epoch" in body:
            votes = self.voted.setdefault(int(str(body["epoch"])), set())
            votes.update((operator, group) for group in cast("Sequence[int]", _list(body, "groups")))

    def due_for_full(self, after: int) -> str:
        """Return the text of a marker that asks key groups for full snapshots, see `full_snapshots.due`."""
        # With repeats, one for each key group: fewer than the files have ranges means that a range is in no chain.
        found: dict[str, list[StateFile]] = {}
        for (operator, _), chain in self.chains.items():
            found.setdefault(operator, []).extend(chain)
        return full_snapshots.asking(
            {
                name: full_snapshots.due({file.path: file for file in each}.values(), after, len(each))
                for name, each in found.items()
            }
        )


def distinct(files: Iterable[StateFile]) -> list[StateFile]:
    """Return the files of several chains, each once, oldest first."""
    # A file is in the chains of all key groups that have a range in it. The epochs give the order of the changes of
    # each.
    once = {file.path: file for file in files}
    return sorted(once.values(), key=attrgetter("epoch", "path"))


def _list(body: Mapping[str, Json], name: str) -> Sequence[Json]:
    value = body.get(name)
    return value if isinstance(value, list) else ()


def _gathered(reports: Sequence[Report], rows_from: str | None) -> Gathered:
    """Return the sum of one batch's reports; output rows are counted only at the sink `rows_from`."""
    batch = Gathered()
    for report in reports:
        # Segments stay inside the job: they count as neither staged nor output rows.
        if edge_of(report) is not None:
            continue
        if report.step == "tap" or report.scope.endswith(FILE):
            sink = report.scope.split("/", 1)[0]
            file = STAGED_FILE.validate_python(report.body)
            batch.staged.setdefault(sink, []).append(file)
            batch.rows_out += file.rows if sink == rows_from else 0
            continue
        batch.rejected += _count(report, "rejected")
        batch.rows_in += _count(report, "rows_in")
        if late := _count(report, "late"):
            batch.late[report.scope] = batch.late.get(report.scope, 0) + late
    # Rows of a task keep their order, although tasks report in any order.
    for files in batch.staged.values():
        files.sort(key=attrgetter("task", "part"))
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
            _extend(chains, name, file)
    return chains


def _extend(chains: Chains, operator: str, file: StateFile) -> None:
    # A full file starts a new chain: the files before it are compacted into it.
    before = {} if file.kind == "full" else chains
    for number in file.key_groups:
        group = (operator, number)
        chains[group] = (*before.get(group, ()), file)


@dataclass(slots=True)
class Prefetched:
    """The prefetched barrier of one incarnation, if there is one.

    `epoch`: the epoch that it ends. `offered_ms`: time at which it entered the stream. `is_held`: its batch is over, so
    the epoch is closed and waits to be opened.
    """

    epoch: Epoch | None = None
    offered_ms: float = 0.0
    is_held: bool = False

    def offer(self, epoch: Epoch, now_ms: float) -> None:
        """Record that the barrier of `epoch` enters the stream at `now_ms`."""
        self.epoch, self.offered_ms, self.is_held = epoch, now_ms, False

    def hold(self) -> None:
        """Record that the barrier's batch ended before its epoch was opened."""
        self.is_held = True

    def over(self) -> None:
        """Clear the prefetched barrier: it completed its epoch, or it can end no epoch any more."""
        self.epoch, self.is_held = None, False


class Cut:
    """Content of the epochs of one incarnation that are not committed, and the newest committed one.

    `cursors`: position of every source at the start.
    """

    def __init__(self, shape: JobShape, base: Manifest, cursors: Mapping[str, Cursor]) -> None:
        self.shape = shape
        self.base = base
        """Newest committed epoch, on which the next one builds."""
        self._key_groups = shape.key_groups
        self.cursors = dict(cursors)
        """Position of every source after the last batch."""
        # Output rows are counted at one sink only, since several may get the same rows.
        self.builder = EpochBuilder(base, shape.delays_ms, next(iter(shape.sinks), None), shape.edges, shape.replaced)
        self.markers = ControlMarkers()
        self.prefetched = Prefetched()

    # -- a query starts with these -----------------------------------------------------------------------------------

    @property
    def chains(self) -> Chains:
        """Snapshot files of every key group as of the newest barrier."""
        return dict(self.builder.chains)

    @property
    def in_flight(self) -> Mapping[str, Sequence[StagedFile]]:
        """Segments that no batch has consumed, by edge, oldest first."""
        return self.builder.in_flight

    @property
    def late_ms(self) -> int:
        """Watermark in milliseconds that decides which rows of the next batch are late."""
        return self.builder.watermarks.late_ms

    @property
    def event_times_ms(self) -> Mapping[Input, int]:
        """Greatest event time of each operator input, derived from its watermark."""
        return self.builder.watermarks.newest_ms

    # -- barriers ------------------------------------------------------------------------------------------------------

    def opening_marker(self) -> OfferMarker:
        """Return the marker that comes before every barrier: key groups restore their state and arm timers on it."""
        return OfferMarker(self.markers.offer(OPEN, self.base.epoch))

    def barrier(self, epoch: Epoch) -> OfferMarker:
        """Return the barrier of the open epoch."""
        return OfferMarker(self.markers.offer(BARRIER, epoch, self._full()))

    def prefetch(self, epoch: Epoch, now_ms: float) -> OfferMarker:
        """Return the barrier of an epoch that is not open yet."""
        self.prefetched.offer(epoch, now_ms)
        return OfferMarker(self.markers.offer(PREFETCHED, epoch, self._full()))

    def _full(self) -> str:
        # A barrier on its way may bring files that connect other key groups than the ones known now.
        limits = self.shape.limits
        return self.builder.due_for_full(limits.full_after_files) if self.markers.are_reached else ""

    def ended_by(self, markers: int, open_epoch: Epoch | None) -> Epoch | None:
        """Return the epoch that a batch ends; None if it ends none. `markers`: number of markers up to its end."""
        # A batch reaches the newest marker in the stream: the prefetched barrier, if there is one.
        epoch = self.markers.ended_by(markers, self.prefetched.epoch or open_epoch)
        return None if epoch is None else Epoch(epoch)

    # -- batches -------------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True on an idle stream, which commits no epochs."""
        return self.builder.idle and not self.prefetched.is_held

    def add(self, event: BatchDone) -> CountBatch:
        """Add a finished batch, and return its counts."""
        # Compared with the batch before: a batch without new input leaves the stream idle.
        moved = dict(event.cursors) != self.cursors
        self.cursors = dict(event.cursors)
        self.builder.batch = event.batch
        counts = self.builder.add(event.watermark_ms, event.reports, moved, event.taken)
        by_name = (self.builder.rows_in_flight, self.builder.late_rows)
        return CountBatch(event.batch, self.base.epoch, counts, event.duration_ms, dict(self.cursors), *by_name)

    def has_drained(self, event: BatchDone) -> bool:
        """Return true if the sources are read up to their targets, and the final epoch will contain everything."""
        # A prefetched epoch that waits was complete before this batch, so it would miss this batch's rows. The next
        # barrier brings another batch, which triggers the stop.
        return event.drained and not any(self.builder.rows_in_flight.values()) and not self.prefetched.is_held

    def close(self, epoch: Epoch) -> EndedEpoch:
        """Close an epoch: its barrier was in the newest batch."""
        # Step 5 of docs/design/epoch-in-nine-steps.md.
        return self.builder.end(epoch, self.cursors)

    def missing_groups(self, ended: EndedEpoch) -> frozenset[Group]:
        """Return the key groups whose snapshot for a closed epoch is not durable; without any the epoch is complete.

        A batch is atomic: its end makes the work of every other participant durable. The cursors of the sources are
        snapshots, too, and the rows of the sinks are staged. Raises `ProtocolViolation` for a key group that the job
        does not have.
        """
        # They are from tasks that divide the keys in another way than this driver, so its groups are not complete
        # either.
        if unknown := ended.groups_acked - self._key_groups:
            raise ProtocolViolation(f"epoch {ended.epoch} has snapshots of unknown key groups: {sorted(unknown)}")
        return self._key_groups - ended.groups_acked

    # -- the end of an epoch -------------------------------------------------------------------------------------------

    def committed(self, manifest: Manifest) -> dict[str, tuple[str, ...]]:
        """Continue from a committed epoch; return the consumed segments that no committed epoch names, by edge."""
        # Compared with the epoch before this one, so computed before `base` changes.
        unnamed = consumed_segments(self.builder.committed(manifest.epoch), self.base)
        self.base = manifest
        return unnamed

    def aborted(self, epoch: Epoch) -> None:
        """Move the content of an aborted epoch to the next one."""
        self.builder.aborted(epoch)
        # Its barrier may still come: it ends nothing then, because its epoch is neither open nor prefetched.
        if epoch == self.prefetched.epoch:
            self.prefetched.over()
