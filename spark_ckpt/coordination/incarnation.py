"""The rules of one incarnation around the coordinator's machine: which batch ends an epoch, what an epoch consists of, what
an aborted one carries over, when an idle stream waits, what a sink has to publish next, and why it all ended.

What it does not do: I/O, waiting, threads.  Its host carries out the effects in their order and answers with events.
Events come one at a time; an answer that is at hand while effects are carried out comes behind them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from checkpoint_protocols import barrier
from checkpoint_protocols.ids import Epoch, Incarnation, SinkId
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.vocabulary import SetTimer
from spark_ckpt.connector import Cursor, StagedFile
from spark_ckpt.coordination.ack_records import AckRecords, AcksDue
from spark_ckpt.coordination.ahead import Ahead
from spark_ckpt.coordination.edges import spent
from spark_ckpt.coordination.epoch_builder import Chains, EpochBuilder
from spark_ckpt.coordination.holding import Holding
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.coordination.manifests import Lineage, manifest_of, pinned_of
from spark_ckpt.coordination.markers import AHEAD, BARRIER, OPEN, ControlMarkers
from spark_ckpt.coordination.messages import (
    AcksRecorded,
    AheadEnded,
    ArmTimer,
    BatchDone,
    CountBatch,
    End,
    ManifestFenced,
    ManifestOverdue,
    ManifestStored,
    MaterializeTables,
    NameEpoch,
    OfferMarker,
    Publish,
    PublishEnded,
    QueryStarting,
    SavepointAsked,
    SayAborted,
    SayCommitted,
    SayPublished,
    SourcesPinned,
    StopAsked,
    StoreManifest,
    TimerRanOut,
)
from spark_ckpt.coordination.publication import Publication
from spark_ckpt.coordination.sending import Sending
from spark_ckpt.coordination.watermarks import Input
from spark_ckpt.errors import CkptError, Fenced, PublishFailed, RunFailed, StoreUnreachable
from spark_ckpt.store.identity import Standing
from spark_ckpt.store.records import Manifest, Reason, SinkAck
from spark_ckpt.store.restore import RecoveryPoint

_FINAL = ("stop", "drained")
_REPLACED = "another driver runs this job; this one can be ended"
_SAID_BEHIND_THE_END = (SayCommitted, SayPublished, NameEpoch)
_SAID_WHEN_FENCED = (SayCommitted, NameEpoch)
"""Its successor publishes whatever the log does not acknowledge, and announces it."""


class IncarnationCore:
    """One incarnation's rules. `acked`: per sink the newest epoch that the log knows it has."""

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
        self._machine: barrier.Coordinator | None = None
        self._base = point.manifest
        self._previous = point.last
        self._barrier_at_ms = 0.0
        self._idle_interval: barrier.IntervalElapsed | None = None
        self._drained = False
        self._fence: Fenced | None = None
        self._store_bound: Event | None = None
        self._in_doubt = False
        self._progressed = False
        self._over = False
        self._said_behind_the_end: tuple[type[Effect], ...] = _SAID_BEHIND_THE_END

    # -- what the host may ask -----------------------------------------------------------------------------------------

    @property
    def base(self) -> Manifest:
        """The newest epoch that this incarnation stands on."""
        return self._base

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """Where every source stands behind the last batch."""
        return dict(self._cursors)

    @property
    def chains(self) -> Chains:
        """Every key group's snapshot files as of the newest barrier."""
        return self._builder.chains

    @property
    def in_flight(self) -> Mapping[str, Sequence[StagedFile]]:
        """On each edge the segments that no batch has consumed, oldest first: a query begins with them."""
        return self._builder.in_flight

    @property
    def late_ms(self) -> int:
        """The watermark that rows of the next batch are late by."""
        return self._builder.watermarks.late_ms

    @property
    def event_times_ms(self) -> Mapping[Input, int]:
        """The greatest event time that each operator's inputs have seen, as their watermarks tell it: a query begins with it."""
        return self._builder.watermarks.newest_ms

    @property
    def standing(self) -> Standing:
        """Which tables, topics and folders the job's names mean."""
        return self._publication.standing

    @property
    def acks(self) -> tuple[SinkAck, ...]:
        """What sinks have published and no epoch says yet."""
        return self._publication.acks

    @property
    def progressed(self) -> bool:
        """Whether an epoch of this incarnation's own work is decided."""
        return self._progressed

    @property
    def unpublished(self) -> Mapping[SinkId, tuple[Epoch, ...]]:
        """Decided epochs that each sink still owes, oldest first."""
        return self._machine.unpublished if self._machine else {}

    @property
    def open_epoch(self) -> Epoch | None:
        """The epoch whose barrier is under way."""
        return self._machine.open_epoch if self._machine else None

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: float) -> list[Effect]:
        """What is to be done about `event`. `now_ms`: of any clock that only grows.

        Behind `End` there is only something to tell: what was under way may still be stored or published.
        """
        effects = self._handled(event, now_ms)
        if self._over:
            return [effect for effect in effects if isinstance(effect, self._said_behind_the_end)]
        ends = [effect for effect in effects if isinstance(effect, End)]
        self._over = bool(ends)
        if any(end.outcome is barrier.Outcome.FENCED for end in ends):
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
            case ManifestFenced(why=why) if self._machine is None:
                return [End(barrier.Outcome.FENCED, self._why(barrier.Outcome.FENCED, why))]
            case ManifestFenced(epoch=epoch, why=why):
                return self._coordinated(now_ms, barrier.EpochStoreFailed(Epoch(epoch), self._incarnation, why))
            case ManifestOverdue(epoch=epoch):
                return self._overdue(epoch, now_ms)
            case PublishEnded():
                return self._publish_ended(event, now_ms)
            case AheadEnded():
                return self._ahead_ended(event, now_ms)
            case AcksRecorded(error=Fenced() as error):
                return self._fenced(error, now_ms)
            case AcksRecorded(error=None, acks=acks):
                self._publication.recorded(acks)
                return self._ack_records.refused(self.acks)
            case AcksRecorded():
                return self._ack_records.refused(self.acks)
            case TimerRanOut(elapsed=AcksDue()):
                return self._ack_records.due(self.acks, self.open_epoch is None and self._nothing_to_end)
            case StopAsked():
                return self._coordinated(now_ms, barrier.StopRequested())
            case SavepointAsked(name=name):
                return self._coordinated(now_ms, barrier.EpochRequested(barrier.Reason.SAVEPOINT, name))
            case TimerRanOut(elapsed=barrier.IntervalElapsed() as elapsed) if self._nothing_to_end:
                return self._wait_for_rows(elapsed, now_ms)
            case TimerRanOut(elapsed=elapsed) if elapsed == self._store_bound:
                return self._bound_is_over(elapsed, now_ms)
            case TimerRanOut(elapsed=elapsed):
                return self._coordinated(now_ms, elapsed)
        raise TypeError(f"not an event of an incarnation: {event}")

    def _pin(self, event: SourcesPinned, now_ms: float) -> list[Effect]:
        """A source without a cursor starts where it is configured to, once."""
        self._barrier_at_ms = now_ms
        if not event.starts:
            return []
        self._cursors |= event.starts
        ended = self._builder.pinned(self._previous + 1, self._cursors)
        return [StoreManifest(pinned_of(self._shape, ended, self._lineage(now_ms), self._base))]

    def _start(self, event: QueryStarting, now_ms: float) -> list[Effect]:
        """A job that finds rows waiting ends its first epoch with its first batch: what a crash undid is soon done again
        for good. The barrier is offered before the query plans that batch.
        """
        owed = {
            SinkId(sink): [Epoch(each.epoch) for each in manifests if not self.standing.is_before(sink, each.epoch)]
            for sink, manifests in self._point.unpublished.items()
        }
        self._machine = self._shape.coordinator(self._incarnation, Epoch(self._previous), owed)
        effects: list[Effect] = [OfferMarker(self._markers.offer(OPEN, self._base.epoch))]
        effects += self._coordinated(now_ms, barrier.Started())
        if event.behind:
            effects += self._coordinated(now_ms, barrier.EpochRequested(barrier.Reason.INTERVAL))
        return effects

    def _take_in(self, event: BatchDone, now_ms: float) -> list[Effect]:
        moved = dict(event.cursors) != self._cursors
        self._cursors = dict(event.cursors)
        counts = self._builder.add(event.watermark_ms, event.reports, moved, event.taken)
        in_flight = self._builder.rows_in_flight
        by_name = (in_flight, self._builder.late_rows)
        count = CountBatch(event.batch, self._base.epoch, counts, event.duration_ms, dict(self._cursors), *by_name)
        epoch = self._markers.ended_by(event.markers, self._ahead.epoch or self.open_epoch)
        effects = [count, *([] if epoch is None else self._passed(Epoch(epoch), now_ms))]
        if self._idle_interval is not None and not self._nothing_to_end:
            elapsed, self._idle_interval = self._idle_interval, None
            effects += self._coordinated(now_ms, elapsed)
        # What is held was complete before this batch; the final epoch has everything. The barrier behind it brings another batch.
        if event.drained and not any(in_flight.values()) and not self._drained and not self._ahead.is_held:
            self._drained = True
            effects += self._coordinated(now_ms, barrier.StopRequested(barrier.Reason.DRAINED))
        return effects

    def _passed(self, epoch: Epoch, now_ms: float) -> list[Effect]:
        """The barrier of `epoch` was in the batch that was taken in last."""
        idle = self._builder.idle
        if epoch == self.open_epoch:
            self._ahead.over()
            return self._voted(now_ms, self._votes(epoch), idle)
        if idle:
            self._ahead.over()
            self._builder.passed_over(epoch)
        else:
            self._ahead.hold(self._votes(epoch))
        return []

    def _voted(self, now_ms: float, votes: Sequence[Event], idle: bool) -> list[Effect]:
        """The next barrier goes ahead before anything else is done: Spark waits for it, and plans the next batch."""
        effects = self._coordinated(now_ms, *votes)
        stored = next((each.manifest for each in effects if isinstance(each, StoreManifest)), None)
        if stored is None or idle or not self._shape.every_batch or stored.reason in _FINAL:
            return effects
        self._ahead.offer(Epoch(stored.epoch + 1), now_ms)
        return [OfferMarker(self._markers.offer(AHEAD, stored.epoch + 1)), *effects]

    @property
    def _nothing_to_end(self) -> bool:
        """An idle stream takes no epochs."""
        return self._builder.idle and not self._ahead.is_held

    def _wait_for_rows(self, elapsed: barrier.IntervalElapsed, now_ms: float) -> list[Effect]:
        """The newest interval waits for the first rows: an older one, should it run out later, is stale.

        It waits no longer than until what is held back is due.
        """
        wait_ms = self._holding.due_in_ms(now_ms)
        if wait_ms == 0:
            return self._coordinated(now_ms, elapsed)
        if self._idle_interval is not None and elapsed.timer < self._idle_interval.timer:
            return []
        self._idle_interval = elapsed
        return [] if wait_ms is None else [ArmTimer(math.ceil(wait_ms), elapsed)]

    def _votes(self, epoch: Epoch) -> list[Event]:
        """A batch is atomic: with it, whatever took part in the epoch is durable."""
        ended = self._builder.end(epoch, self._cursors)
        tasks = [*self._shape.source_tasks(), *self._shape.group_tasks(ended.groups_acked)]
        return [
            *(barrier.SnapshotAcked(task, epoch, self._incarnation) for task in tasks),
            *(barrier.SinkPrepared(SinkId(sink), epoch, self._incarnation) for sink in self._shape.sinks),
        ]

    def _decided(self, event: ManifestStored, now_ms: float) -> list[Effect]:
        manifest = event.manifest
        unnamed = spent(self._builder.decided(manifest.epoch), self._base)
        self._base, self._previous = manifest, manifest.epoch
        self._holding.decided(manifest, now_ms)
        self._publication.decided(manifest)
        said: list[Effect] = [SayCommitted(manifest)]
        if self._machine is None:
            return said
        self._progressed = True
        return [
            *said,
            *(NameEpoch(name, manifest.epoch) for name in event.names),
            *self._coordinated(now_ms, barrier.EpochStored(Epoch(manifest.epoch), self._incarnation)),
            MaterializeTables(manifest, unnamed),
        ]

    def _overdue(self, epoch: int, now_ms: float) -> list[Effect]:
        """The log's answer is waited for no longer: nothing is aborted, for the epoch may be decided."""
        if self._machine is None:
            return [End(barrier.Outcome.FAILED, _doubtful(f"whether epoch {epoch} is in the log is unknown"))]
        return [] if self._store_bound is None else self._bound_is_over(self._store_bound, now_ms)

    def _bound_is_over(self, elapsed: Event, now_ms: float) -> list[Effect]:
        self._in_doubt = True
        effects = self._coordinated(now_ms, elapsed)
        self._in_doubt = False  # the answer had come: what bounded the wait is stale
        return effects

    def _with_ahead(self, effects: list[Effect]) -> list[Effect]:
        """A decision is waited for: what is sent while it is made stands in front of it."""
        if not (ahead := self._sent_ahead()):
            return effects
        at = next((at for at, each in enumerate(effects) if isinstance(each, StoreManifest)), len(effects))
        return [*effects[:at], *ahead, *effects[at:]]

    def _sent_ahead(self) -> Sequence[Effect]:
        """What sinks are sent now of the next epoch to be decided."""
        if self._machine is None or not self._sending.possible:
            return []
        ended, staged = self._builder.next_staged
        files = {sink: [*self._holding.in_front(sink), *own] for sink, own in staged.items()}
        epoch = ended or self._machine.next_epoch
        return self._sending.due(epoch, files, {sink for sink, owed in self.unpublished.items() if owed})

    def _ahead_ended(self, event: AheadEnded, now_ms: float) -> list[Effect]:
        """A sink that failed is sent nothing ahead until it has published: then it takes rows again."""
        self._sending.ended(event)
        return self._fenced(event.error, now_ms) if isinstance(event.error, Fenced) else []

    def _fenced(self, error: Fenced, now_ms: float) -> list[Effect]:
        self._fence = error
        return self._coordinated(now_ms, barrier.Fenced(self._incarnation, error.what))

    def _publish_ended(self, event: PublishEnded, now_ms: float) -> list[Effect]:
        if isinstance(event.error, Fenced):
            return self._fenced(event.error, now_ms)
        if event.newest > self._incarnation:
            return self._fenced(_replaced_by(event.newest, self._incarnation), now_ms)
        sink, epoch = SinkId(event.sink), Epoch(event.epoch)
        if event.error is not None:
            error = self._publication.failed(event, event.error)
            return self._coordinated(
                now_ms, barrier.SinkCommitFailed(sink, epoch, self._incarnation, error.retriable, error.what)
            )
        detail = self._publication.published(event)
        self._sending.published(event.sink)
        effects = self._coordinated(now_ms, barrier.SinkCommitted(sink, epoch, self._incarnation))
        self._publication.forget({each for owed in self.unpublished.values() for each in owed})
        ends = any(isinstance(each, End) for each in effects)  # the host then tells the log as it leaves
        return [
            SayPublished(event.epoch, detail),
            *effects,
            *([] if ends else self._ack_records.acknowledged(self.acks)),
        ]

    # -- the machine ---------------------------------------------------------------------------------------------------

    def _coordinated(self, now_ms: float, *events: Event) -> list[Effect]:
        """What is to be done about what the coordinator says of each event."""
        if self._machine is None:
            raise RunFailed("the incarnation has not begun")
        return [ours for event in events for theirs in self._machine.handle(event) for ours in self._of(theirs, now_ms)]

    def _of(self, effect: Effect, now_ms: float) -> list[Effect]:
        match effect:
            case SetTimer(delay_ms=delay_ms, elapsed=elapsed, name=name):
                self._store_bound = elapsed if name == barrier.STORE_TIMER else self._store_bound
                return [ArmTimer(delay_ms, elapsed)]
            case barrier.InjectBarrier(epoch=epoch) if epoch == self._ahead.epoch:
                self._barrier_at_ms = self._ahead.offered_ms
                votes = self._ahead.opened()
                return self._voted(now_ms, votes, idle=False) if votes else []
            case barrier.InjectBarrier(epoch=epoch):
                self._barrier_at_ms = now_ms
                return [OfferMarker(self._markers.offer(BARRIER, epoch))]
            case barrier.StoreEpoch(epoch=epoch, reason=reason, names=names):
                return [StoreManifest(self._manifest(epoch, reason.value, now_ms), names)]
            case barrier.CommitSink(sink=sink, epoch=epoch) if self._publication.holds_back(sink, epoch):
                return self._coordinated(now_ms, barrier.SinkCommitted(sink, epoch, self._incarnation))
            case barrier.CommitSink(sink=sink, epoch=epoch):
                return [Publish(sink, self._publication.output(sink, epoch, self._previous))]
            case barrier.AbortEpoch(epoch=epoch, why=why):
                self._builder.aborted(epoch)
                if epoch == self._ahead.epoch:
                    self._ahead.over()
                return [SayAborted(epoch, why), *self._sending.aborted(epoch)]
            case barrier.Finish(outcome=outcome, why=why):
                return [End(outcome, self._why(outcome, why))]
        return [effect]

    def _manifest(self, epoch: int, reason: Reason, now_ms: float) -> Manifest:
        ended = self._builder.take(epoch)
        return manifest_of(self._shape, ended, self._lineage(now_ms), reason, self.acks)

    def _lineage(self, now_ms: float) -> Lineage:
        took_ms = round(now_ms - self._barrier_at_ms)
        numbers = (self._incarnation, self._base.epoch, self._previous)
        return Lineage(*numbers, now_ms, took_ms, self._holding, self.standing, self._base.rows_so_far)

    def _why(self, outcome: barrier.Outcome, why: str) -> CkptError | None:
        blamed = self._publication.error
        if outcome is barrier.Outcome.FENCED:
            return self._fence or Fenced(why, incarnation=self._incarnation, hint=_REPLACED)
        if outcome is barrier.Outcome.FAILED:
            return _doubtful(why) if self._in_doubt else blamed or RunFailed(why)
        if not why:
            return None
        return blamed or PublishFailed(why, hint="the rows are staged; the next start publishes them")


def _replaced_by(newest: int, incarnation: int) -> Fenced:
    """The sink has the epoch, and the successor may be the one that published it."""
    return Fenced(f"incarnation {newest} took over", incarnation=incarnation, hint=_REPLACED)


def _doubtful(why: str) -> CkptError:
    return StoreUnreachable(
        f"the log does not answer: {why}", hint="is the store's file system or object store reachable?"
    )
