"""Rules of one incarnation around the coordinator's machine: events in, effects out.

The rules decide:

- which batch ends an epoch, and the content of the epoch;
- the fate of an aborted epoch's rows;
- the pause of an idle stream;
- the next publish of each sink;
- the reason of the end.

The rules do no I/O, never wait and start no threads. The host carries out the effects in order and answers with
events, one at a time. An answer that arrives while effects are carried out is handled after all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from checkpoint_protocols.ids import Epoch, Incarnation, SinkId
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.vocabulary import SetTimer
from spark_ckpt.connector import Cursor, StagedFile
from spark_ckpt.coordination.coordinator import STORE_TIMER, Coordinator
from spark_ckpt.coordination.edges import consumed_segments
from spark_ckpt.coordination.epoch_builder import Chains, EpochBuilder
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.coordination.manifests import Lineage, manifest_of, pinned_of
from spark_ckpt.coordination.markers import AHEAD, BARRIER, OPEN, Ahead, ControlMarkers
from spark_ckpt.coordination.messages import (
    AcksRecorded,
    AheadEnded,
    ArmTimer,
    BatchDone,
    CommitSink,
    CountBatch,
    End,
    EpochRequested,
    EpochStored,
    EpochStoreFailed,
    Finish,
    InjectBarrier,
    IntervalElapsed,
    ManifestFenced,
    ManifestOverdue,
    ManifestStored,
    MaterializeTables,
    NameEpoch,
    NewerIncarnation,
    OfferMarker,
    Outcome,
    Publish,
    PublishEnded,
    QueryStarting,
    Reason,
    SayAborted,
    SayCommitted,
    SayPublished,
    SinkCommitFailed,
    SinkCommitted,
    SinkPrepared,
    SnapshotAcked,
    SourcesPinned,
    Started,
    StopRequested,
    StoreEpoch,
    StoreManifest,
    TimerRanOut,
)
from spark_ckpt.coordination.publication import AckRecords, AcksDue, Holding, Publication, Sending
from spark_ckpt.coordination.watermarks import Input
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest, SinkAck
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import CkptError, Fenced, PublishFailed, RunFailed, StoreUnreachable

_FINAL = ("stop", "drained")
_REPLACED = "another driver runs this job; this one can be ended"
_SAID_BEHIND_THE_END = (SayCommitted, SayPublished, NameEpoch)
_SAID_WHEN_FENCED = (SayCommitted, NameEpoch)
"""Effects that a fenced incarnation still carries out after its end.

Its successor publishes and announces every epoch that the log does not acknowledge.
"""


class IncarnationCore:
    """Rules of one incarnation.

    `shape`: the job. `point`: the epoch to continue from. `standing`: endpoints of sources and sinks. `acked`: per
    sink, the newest epoch that the log records as published.
    """

    def __init__(
        self,
        shape: JobShape,
        point: RecoveryPoint,
        standing: Standing | None = None,
        acked: Mapping[str, int] | None = None,
    ) -> None:
        self._shape = shape
        self._point = point
        self._incarnation = Incarnation(point.incarnation)
        self._publication = Publication(shape, point, standing or Standing(), acked or {})
        self._ack_records = AckRecords(shape, self._publication.is_first)
        self._cursors: dict[str, Cursor] = self.standing.goes_on(point.manifest.cursors)
        self._builder = EpochBuilder(point.manifest, shape.delays_ms, next(iter(shape.sinks), None), shape.edges)
        self._holding = Holding(shape.sinks, point.manifest)
        self._sending = Sending(shape.sinks, self._incarnation)
        self._markers = ControlMarkers()
        self._ahead = Ahead()
        self._machine: Coordinator | None = None
        self._base = point.manifest
        self._previous = point.last
        self._barrier_at_ms = 0.0
        self._idle_interval: IntervalElapsed | None = None
        self._drained = False
        self._fence: Fenced | None = None
        self._store_bound: Event | None = None
        self._in_doubt = False
        self._progressed = False
        self._over = False
        self._said_behind_the_end: tuple[type[Effect], ...] = _SAID_BEHIND_THE_END

    # -- queries of the host -------------------------------------------------------------------------------------------

    @property
    def base(self) -> Manifest:
        """Newest committed epoch, on which the next one builds."""
        return self._base

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """Position of every source after the last batch."""
        return dict(self._cursors)

    @property
    def chains(self) -> Chains:
        """Snapshot files of every key group as of the newest barrier."""
        return self._builder.chains

    @property
    def in_flight(self) -> Mapping[str, Sequence[StagedFile]]:
        """Segments that no batch has consumed, by edge, oldest first; a query starts with them."""
        return self._builder.in_flight

    @property
    def late_ms(self) -> int:
        """Watermark in milliseconds that decides which rows of the next batch are late."""
        return self._builder.watermarks.late_ms

    @property
    def event_times_ms(self) -> Mapping[Input, int]:
        """Greatest event time of each operator input, derived from its watermark; a query starts with it."""
        return self._builder.watermarks.newest_ms

    @property
    def standing(self) -> Standing:
        """Endpoints: the tables, topics and folders that the job's names refer to."""
        return self._publication.standing

    @property
    def acks(self) -> tuple[SinkAck, ...]:
        """Acknowledgements of sinks that no log row records yet."""
        return self._publication.acks

    @property
    def progressed(self) -> bool:
        """True if this incarnation has committed an epoch of its own work."""
        return self._progressed

    @property
    def unpublished(self) -> Mapping[SinkId, tuple[Epoch, ...]]:
        """Committed epochs that each sink has not published, oldest first."""
        return self._machine.unpublished if self._machine else {}

    @property
    def open_epoch(self) -> Epoch | None:
        """The epoch whose barrier is in progress; None if there is none."""
        return self._machine.open_epoch if self._machine else None

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: float) -> list[Effect]:
        """Return the effects of `event`, in order.

        `now_ms`: time of any monotonic clock, in milliseconds. After `End` only announcements are returned: a commit
        or publish in progress may still complete.

        Raises:
        - `TypeError` for an unknown event;
        - `RunFailed` for an event that needs the query before `QueryStarting`;
        - `ProtocolViolation` for an event that breaks the protocol.
        """
        effects = self._handled(event, now_ms)
        if self._over:
            return [effect for effect in effects if isinstance(effect, self._said_behind_the_end)]
        ends = [effect for effect in effects if isinstance(effect, End)]
        self._over = bool(ends)
        if any(end.outcome is Outcome.FENCED for end in ends):
            self._said_behind_the_end = _SAID_WHEN_FENCED
        return effects if self._over else self._with_ahead(effects)

    def _handled(self, event: Event, now_ms: float) -> list[Effect]:
        match event:
            case SourcesPinned():
                return self._pin(event, now_ms)
            case QueryStarting():
                return self._start(event, now_ms)
            case BatchDone():
                return self._take_in(event, now_ms)
            case ManifestStored():
                return self._decided(event, now_ms)
            # Before the query starts there is no machine that could end the incarnation.
            case ManifestFenced(why=why) if self._machine is None:
                return [End(Outcome.FENCED, self._why(Outcome.FENCED, why))]
            case ManifestFenced(epoch=epoch, why=why):
                return self._coordinated(now_ms, EpochStoreFailed(Epoch(epoch), self._incarnation, why))
            case ManifestOverdue(epoch=epoch):
                return self._overdue(epoch, now_ms)
            case PublishEnded():
                return self._publish_ended(event, now_ms)
            case AheadEnded():
                return self._ahead_ended(event, now_ms)
            # The log refuses rows of a replaced incarnation: fenced here means that another driver runs the job.
            case AcksRecorded(error=Fenced() as error):
                return self._fenced(error, now_ms)
            case AcksRecorded(error=None, acks=acks):
                self._publication.recorded(acks)
                return self._ack_records.refused(self.acks)
            case AcksRecorded():
                return self._ack_records.refused(self.acks)
            case TimerRanOut(elapsed=AcksDue()):
                return self._ack_records.due(self.acks, self.open_epoch is None and self._nothing_to_end)
            case StopRequested() | EpochRequested():
                return self._coordinated(now_ms, event)
            # An idle stream commits no epochs: the interval waits for rows.
            case TimerRanOut(elapsed=IntervalElapsed() as elapsed) if self._nothing_to_end:
                return self._wait_for_rows(elapsed, now_ms)
            case TimerRanOut(elapsed=elapsed) if elapsed == self._store_bound:
                return self._bound_is_over(elapsed, now_ms)
            case TimerRanOut(elapsed=elapsed):
                return self._coordinated(now_ms, elapsed)
        raise TypeError(f"not an event of an incarnation: {event}")

    def _pin(self, event: SourcesPinned, now_ms: float) -> list[Effect]:
        """Commit an epoch with the start positions of sources that have no cursor.

        So a source resolves its configured start (for example "latest") once: a restart continues from the same
        position.
        """
        self._barrier_at_ms = now_ms
        if not event.starts:
            return []
        self._cursors |= event.starts
        ended = self._builder.pinned(self._previous + 1, self._cursors)
        return [StoreManifest(pinned_of(self._shape, ended, self._lineage(now_ms), self._base))]

    def _start(self, event: QueryStarting, now_ms: float) -> list[Effect]:
        """Create the machine and offer the first markers, before the query plans its first batch.

        A job that finds rows waiting ends its first epoch with its first batch. So the work that a crash undid is
        soon committed again.
        """
        # A sink that replaced another one does not get epochs that were committed before the replacement.
        owed = {
            SinkId(sink): [Epoch(each.epoch) for each in manifests if not self.standing.is_before(sink, each.epoch)]
            for sink, manifests in self._point.unpublished.items()
        }
        self._machine = self._shape.coordinator(self._incarnation, Epoch(self._previous), owed)
        # OPEN comes before every barrier: key groups restore their state and arm timers on it.
        effects: list[Effect] = [OfferMarker(self._markers.offer(OPEN, self._base.epoch))]
        effects += self._coordinated(now_ms, Started())
        if event.behind:
            effects += self._coordinated(now_ms, EpochRequested(Reason.INTERVAL))
        return effects

    def _take_in(self, event: BatchDone, now_ms: float) -> list[Effect]:
        # Compared with the batch before: a batch without new input leaves the stream idle.
        moved = dict(event.cursors) != self._cursors
        self._cursors = dict(event.cursors)
        counts = self._builder.add(event.watermark_ms, event.reports, moved, event.taken)
        in_flight = self._builder.rows_in_flight
        by_name = (in_flight, self._builder.late_rows)
        count = CountBatch(event.batch, self._base.epoch, counts, event.duration_ms, dict(self._cursors), *by_name)
        # A batch reaches the newest marker in the stream: the prefetched barrier, if there is one.
        epoch = self._markers.ended_by(event.markers, self._ahead.epoch or self.open_epoch)
        effects = [count, *([] if epoch is None else self._passed(Epoch(epoch), now_ms))]
        # The first rows after an idle time trigger the postponed interval.
        if self._idle_interval is not None and not self._nothing_to_end:
            elapsed, self._idle_interval = self._idle_interval, None
            effects += self._coordinated(now_ms, elapsed)
        # A prefetched epoch that waits was complete before this batch, so it would miss this batch's rows; the final
        # epoch must contain everything. The next barrier brings another batch, which triggers the stop.
        if event.drained and not any(in_flight.values()) and not self._drained and not self._ahead.is_held:
            self._drained = True
            effects += self._coordinated(now_ms, StopRequested(Reason.DRAINED))
        return effects

    def _passed(self, epoch: Epoch, now_ms: float) -> list[Effect]:
        """Handle the barrier of `epoch`, which was in the newest batch."""
        idle = self._builder.idle
        if epoch == self.open_epoch:
            self._ahead.over()
            return self._voted(now_ms, self._votes(epoch), idle)
        # The epoch of this barrier is not open yet. Without rows the prefetched barrier ends nothing.
        if idle:
            self._ahead.over()
            self._builder.passed_over(epoch)
        else:
            self._ahead.hold(self._votes(epoch))
        return []

    def _voted(self, now_ms: float, votes: Sequence[Event], idle: bool) -> list[Effect]:
        """Hand the votes of an epoch to the machine; prefetch the next barrier if every batch ends an epoch.

        The prefetched barrier comes first among the effects: Spark waits for it before it plans the next batch.
        """
        effects = self._coordinated(now_ms, *votes)
        stored = next((each.manifest for each in effects if isinstance(each, StoreManifest)), None)
        # A barrier starts a batch even without rows. So an idle stream prefetches none, or it would never rest.
        if stored is None or idle or not self._shape.every_batch or stored.reason in _FINAL:
            return effects
        self._ahead.offer(Epoch(stored.epoch + 1), now_ms)
        return [OfferMarker(self._markers.offer(AHEAD, stored.epoch + 1)), *effects]

    @property
    def _nothing_to_end(self) -> bool:
        """True on an idle stream, which commits no epochs."""
        return self._builder.idle and not self._ahead.is_held

    def _wait_for_rows(self, elapsed: IntervalElapsed, now_ms: float) -> list[Effect]:
        """Postpone an elapsed interval until rows arrive, or until deferred rows are due.

        Only the newest interval waits; an older one that elapses later is stale.
        """
        wait_ms = self._holding.due_in_ms(now_ms)
        if wait_ms == 0:
            return self._coordinated(now_ms, elapsed)
        if self._idle_interval is not None and elapsed.timer < self._idle_interval.timer:
            return []
        self._idle_interval = elapsed
        return [] if wait_ms is None else [ArmTimer(math.ceil(wait_ms), elapsed)]

    def _votes(self, epoch: Epoch) -> list[Event]:
        """Return the votes of all tasks and sinks for `epoch`.

        A batch is atomic: its end makes the work of every participant durable.
        """
        # Step 5 of docs/design/epoch-in-nine-steps.md.
        ended = self._builder.end(epoch, self._cursors)
        tasks = [*self._shape.source_tasks(), *self._shape.group_tasks(ended.groups_acked)]
        return [
            *(SnapshotAcked(task, epoch, self._incarnation) for task in tasks),
            *(SinkPrepared(SinkId(sink), epoch, self._incarnation) for sink in self._shape.sinks),
        ]

    def _decided(self, event: ManifestStored, now_ms: float) -> list[Effect]:
        """Handle a manifest that is in the log: announce the commit, name savepoints, publish, update tables."""
        manifest = event.manifest
        # Computed before `_base` changes: `consumed_segments` compares with the epoch before this one.
        unnamed = consumed_segments(self._builder.decided(manifest.epoch), self._base)
        self._base, self._previous = manifest, manifest.epoch
        self._holding.decided(manifest, now_ms)
        self._publication.decided(manifest)
        said: list[Effect] = [SayCommitted(manifest)]
        # This epoch only pins start positions: the query has not started, so there is nothing to publish.
        if self._machine is None:
            return said
        self._progressed = True
        return [
            *said,
            *(NameEpoch(name, manifest.epoch) for name in event.names),
            *self._coordinated(now_ms, EpochStored(Epoch(manifest.epoch), self._incarnation)),
            MaterializeTables(manifest, unnamed),
        ]

    def _overdue(self, epoch: int, now_ms: float) -> list[Effect]:
        """Stop waiting for the log's answer and end the incarnation. The epoch may be committed, so it is not
        aborted.
        """
        if self._machine is None:
            return [End(Outcome.FAILED, _doubtful(f"whether epoch {epoch} is in the log is unknown"))]
        return [] if self._store_bound is None else self._bound_is_over(self._store_bound, now_ms)

    def _bound_is_over(self, elapsed: Event, now_ms: float) -> list[Effect]:
        self._in_doubt = True
        effects = self._coordinated(now_ms, elapsed)
        self._in_doubt = False  # if no `End` followed, the answer came in time and the timer was stale
        return effects

    def _with_ahead(self, effects: list[Effect]) -> list[Effect]:
        """Insert early sends before the commit of an epoch, so that sinks receive rows while the log is written."""
        if not (ahead := self._sent_ahead()):
            return effects
        at = next((at for at, each in enumerate(effects) if isinstance(each, StoreManifest)), len(effects))
        return [*effects[:at], *ahead, *effects[at:]]

    def _sent_ahead(self) -> Sequence[Effect]:
        """Return the early sends that are due for the next epoch to commit."""
        if self._machine is None or not self._sending.possible:
            return []
        ended, staged = self._builder.next_staged
        files = {sink: [*self._holding.in_front(sink), *own] for sink, own in staged.items()}
        # Rows without a barrier so far will belong to the next number of the machine.
        epoch = ended or self._machine.next_epoch
        return self._sending.due(epoch, files, {sink for sink, owed in self.unpublished.items() if owed})

    def _ahead_ended(self, event: AheadEnded, now_ms: float) -> list[Effect]:
        """Handle the answer to an early send; a sink that failed gets no further one until it has published."""
        self._sending.ended(event)
        return self._fenced(event.error, now_ms) if isinstance(event.error, Fenced) else []

    def _fenced(self, error: Fenced, now_ms: float) -> list[Effect]:
        self._fence = error
        return self._coordinated(now_ms, NewerIncarnation(self._incarnation, error.what))

    def _publish_ended(self, event: PublishEnded, now_ms: float) -> list[Effect]:
        # Step 9 of docs/design/epoch-in-nine-steps.md.
        if isinstance(event.error, Fenced):
            return self._fenced(event.error, now_ms)
        # The sink had the epoch before, and a newer incarnation exists: it may have published the epoch.
        if event.newest > self._incarnation:
            return self._fenced(_replaced_by(event.newest, self._incarnation), now_ms)
        sink, epoch = SinkId(event.sink), Epoch(event.epoch)
        if event.error is not None:
            error = self._publication.failed(event, event.error)
            return self._coordinated(
                now_ms, SinkCommitFailed(sink, epoch, self._incarnation, error.retriable, error.what)
            )
        detail = self._publication.published(event)
        self._sending.published(event.sink)
        effects = self._coordinated(now_ms, SinkCommitted(sink, epoch, self._incarnation))
        self._publication.forget({each for owed in self.unpublished.values() for each in owed})
        ends = any(isinstance(each, End) for each in effects)  # the host records them when it ends
        return [
            SayPublished(event.epoch, detail),
            *effects,
            *([] if ends else self._ack_records.acknowledged(self.acks)),
        ]

    # -- the machine ---------------------------------------------------------------------------------------------------

    def _coordinated(self, now_ms: float, *events: Event) -> list[Effect]:
        """Feed events to the machine and return the effects, translated to those of the host."""
        if self._machine is None:
            raise RunFailed("the incarnation has not begun")
        return [ours for event in events for theirs in self._machine.handle(event) for ours in self._of(theirs, now_ms)]

    def _of(self, effect: Effect, now_ms: float) -> list[Effect]:
        match effect:
            case SetTimer(delay_ms=delay_ms, elapsed=elapsed, name=name):
                # Kept, so that an overdue answer of the log ends the wait like the timer itself.
                self._store_bound = elapsed if name == STORE_TIMER else self._store_bound
                return [ArmTimer(delay_ms, elapsed)]
            # The prefetched barrier is already in the stream: no other marker is offered for this epoch.
            case InjectBarrier(epoch=epoch) if epoch == self._ahead.epoch:
                self._barrier_at_ms = self._ahead.offered_ms
                # Votes exist if the barrier's batch is over; otherwise that batch will vote.
                votes = self._ahead.opened()
                return self._voted(now_ms, votes, idle=False) if votes else []
            case InjectBarrier(epoch=epoch):
                self._barrier_at_ms = now_ms
                return [OfferMarker(self._markers.offer(BARRIER, epoch))]
            case StoreEpoch(epoch=epoch, reason=reason, names=names):
                return [StoreManifest(self._manifest(epoch, reason, now_ms), names)]
            # All rows of the sink are deferred: for the machine this publish is done.
            case CommitSink(sink=sink, epoch=epoch) if self._publication.holds_back(sink, epoch):
                return self._coordinated(now_ms, SinkCommitted(sink, epoch, self._incarnation))
            case CommitSink(sink=sink, epoch=epoch):
                return [Publish(sink, self._publication.output(sink, epoch, self._previous))]
            case SayAborted(epoch=epoch):
                self._builder.aborted(epoch)
                if epoch == self._ahead.epoch:
                    self._ahead.over()
                return [effect, *self._sending.aborted(epoch)]
            case Finish(outcome=outcome, why=why):
                return [End(outcome, self._why(outcome, why))]
        return [effect]

    def _manifest(self, epoch: int, reason: Reason, now_ms: float) -> Manifest:
        ended = self._builder.take(epoch)
        return manifest_of(self._shape, ended, self._lineage(now_ms), reason.value, self.acks)

    def _lineage(self, now_ms: float) -> Lineage:
        took_ms = round(now_ms - self._barrier_at_ms)
        numbers = (self._incarnation, self._base.epoch, self._previous)
        return Lineage(*numbers, now_ms, took_ms, self._holding, self.standing, self._base.rows_so_far)

    def _why(self, outcome: Outcome, why: str) -> CkptError | None:
        blamed = self._publication.error
        if outcome is Outcome.FENCED:
            return self._fence or Fenced(why, incarnation=self._incarnation, hint=_REPLACED)
        if outcome is Outcome.FAILED:
            # A sink's own error explains the failure better than the machine's text.
            return _doubtful(why) if self._in_doubt else blamed or RunFailed(why)
        if not why:
            return None
        return blamed or PublishFailed(why, hint="the rows are staged; the next start publishes them")


def _replaced_by(newest: int, incarnation: int) -> Fenced:
    """Return the error after a sink already had the epoch: the newer incarnation may have published it."""
    return Fenced(f"incarnation {newest} took over", incarnation=incarnation, hint=_REPLACED)


def _doubtful(why: str) -> CkptError:
    return StoreUnreachable(
        f"the log does not answer: {why}", hint="is the store's file system or object store reachable?"
    )
