r"""The epoch protocol of one incarnation: events in, effects out.

    NEW -> IDLE -> ALIGNING -> COMMITTING -> IDLE ...             one epoch in flight
            ^         |            |    \-> PUBLISHING -> FINISHED     after a final epoch
            \--aborted/            \-> FINISHED                        the log refuses, or does not answer

`EpochProtocol` decides when an epoch opens, which batch ends it, when it is committed or aborted, when each sink
publishes, and why the incarnation ends. It has two parts. `Cut` is the content of an epoch, `Publication` the state of
the sinks. Neither does I/O, waits or starts threads. The host carries out the effects in order and answers with events,
one at a time. An answer that arrives while effects are carried out is handled after all of them.

1. ALIGNING ends when the barrier's batch is over *and* the snapshots of all key groups are durable. Staged rows of the
   sinks alone are not enough. They prove that upstream tasks took their snapshots, not that these survive a crash
   (erratum E2).
2. In COMMITTING the host appends the manifest to the log. Its outcome may be unknown, so only the log's answer commits
   the epoch here. If the answer does not come in time, the run ends in doubt, and the next incarnation reads the log.
3. Sinks publish while later epochs run, each sink in the order of commit. Too many unpublished epochs delay the next
   barrier. The final epoch is never delayed: it adds one at most, and without it work would be redone.
4. An epoch is the pair (incarnation, epoch). The host makes the incarnation durable before the protocol exists, so no
   two incarnations share a number. Within an incarnation epoch numbers only grow. So no pair is used twice, also not
   after an abort or a crash (rule G3). This needs no write per epoch.
5. An epoch *number* is used again if its epoch ended uncommitted with its incarnation. Each incarnation has a query,
   timers and publishers of its own, so no event of an earlier one arrives. A committed number is never given to another
   epoch: an incarnation begins after the highest committed one.

`on_*` are the handlers that `TABLE` names. Tests plant bugs in them and in the public attributes of the parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from checkpoint_protocols.ids import Epoch, Incarnation, SinkId, TimerId
from checkpoint_protocols.machine import IGNORE_STALE, Effect, Event, Machine, rows
from checkpoint_protocols.vocabulary import Note
from spark_ckpt.coordination.cut import Cut, EndedEpoch, Group
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.coordination.manifests import Lineage, manifest_of, pinned_of
from spark_ckpt.coordination.messages import (
    AcksDue,
    AcksRecorded,
    ArmTimer,
    BatchDone,
    CommitEpoch,
    CommitFenced,
    CommitOverdue,
    EarlySendEnded,
    End,
    EpochCommitted,
    EpochRequested,
    EpochsReleased,
    IntervalElapsed,
    MaterializeTables,
    NameEpoch,
    Outcome,
    PauseElapsed,
    Publish,
    PublishEnded,
    QueryStarting,
    Reason,
    RetryElapsed,
    SayAborted,
    SayCommitted,
    SayPublished,
    SourcesPinned,
    StandbyWaits,
    StopRequested,
    TimeoutElapsed,
)
from spark_ckpt.coordination.publication import Publication
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import CkptError, Fenced, PublishFailed, RunFailed, StoreUnreachable
from spark_ckpt.wording import counted


class EpochPhase(Enum):
    """Phase of the epoch protocol."""

    NEW = "recovered, the query has not started"
    IDLE = "no epoch is open"
    ALIGNING = "a barrier travels; its batch ends the epoch"
    COMMITTING = "the manifest is being appended to the log"
    PUBLISHING = "the final epoch is committed; sinks publish"
    FINISHED = "the incarnation is over"


P = EpochPhase
_REPLACED = "another driver runs this job; this one can be ended"
_REPORTS_IN_STORY = 20

_EVENTS = (
    SourcesPinned,
    QueryStarting,
    BatchDone,
    IntervalElapsed,
    PauseElapsed,
    TimeoutElapsed,
    EpochRequested,
    StopRequested,
    EpochCommitted,
    CommitFenced,
    CommitOverdue,
    PublishEnded,
    RetryElapsed,
    EarlySendEnded,
    AcksRecorded,
    AcksDue,
    EpochsReleased,
    StandbyWaits,
)
_RUNNING: Mapping[type[Event], str] = {  # every phase with a query takes these
    BatchDone: "on_batch_done",
    PublishEnded: "on_publish_ended",
    RetryElapsed: "on_retry",
    EarlySendEnded: "on_early_send_ended",
    AcksRecorded: "on_acks_recorded",
    AcksDue: "on_acks_due",
    EpochsReleased: "on_released",
}
_WISHES: Mapping[type[Event], str] = {  # these wait while no epoch can open
    IntervalElapsed: "on_interval",
    EpochRequested: "on_requested",
    StopRequested: "on_stop",
    StandbyWaits: "on_standby_waits",
}


@dataclass(slots=True)
class OpenEpoch:
    """The epoch in flight. `missing`: key groups without a durable snapshot; None before the barrier's batch is over."""

    epoch: Epoch
    reason: Reason
    requests: tuple[EpochRequested, ...] = ()
    missing: frozenset[Group] | None = field(default=None)

    def waits_for(self) -> str:
        """Return what is missing, at most five names: the text is for people."""
        if self.missing is None:
            return "the barrier's batch"
        names = [f"{operator}/{group}" for operator, group in sorted(self.missing)]
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class EpochProtocol(Machine[EpochPhase]):
    """Epoch protocol of one incarnation.

    `shape`: the job. `point`: the epoch to continue from. `standing`: endpoints of sources and sinks. `acked`: per
    sink, the newest epoch that the log records as published.
    """

    PHASES = EpochPhase
    EVENTS = _EVENTS
    TABLE = rows(
        {
            P.NEW: {
                SourcesPinned: "on_sources_pinned",
                EpochCommitted: "on_starts_committed",  # the epoch of the start positions
                CommitFenced: "on_commit_fenced",
                CommitOverdue: "on_commit_overdue",
                QueryStarting: "on_query_starting",
                StandbyWaits: "on_standby_waits",
            },
            P.IDLE: {**_RUNNING, **_WISHES, PauseElapsed: "on_pause_over"},
            P.ALIGNING: {**_RUNNING, **_WISHES, TimeoutElapsed: "on_epoch_timeout"},
            P.COMMITTING: {
                **_RUNNING,
                **_WISHES,
                EpochCommitted: "on_epoch_committed",
                CommitFenced: "on_commit_fenced",
                CommitOverdue: "on_commit_overdue",
                TimeoutElapsed: "on_commit_overdue",  # if the host does not answer either
            },
            P.PUBLISHING: {
                **_RUNNING,
                IntervalElapsed: IGNORE_STALE,
                EpochRequested: "on_requested_too_late",
                StopRequested: IGNORE_STALE,
                StandbyWaits: IGNORE_STALE,
                TimeoutElapsed: "on_publish_timeout",
            },
            P.FINISHED: {
                **dict.fromkeys(_EVENTS, IGNORE_STALE),
                EpochCommitted: "on_committed_after_end",  # calls that were under way at the end
                PublishEnded: "on_published_after_end",
                AcksRecorded: "on_recorded_after_end",
            },
        },
        _EVENTS,
    )

    def __init__(
        self,
        shape: JobShape,
        point: RecoveryPoint,
        standing: Standing | None = None,
        acked: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(P.NEW, Incarnation(point.incarnation))
        self.shape = shape
        self.limits = shape.limits
        standing = standing or Standing()
        self.cut = Cut(shape, point.manifest, standing.goes_on(point.manifest.cursors))
        self.publication = Publication(shape, point, standing, acked or {})
        self.last_used = self.last_committed = Epoch(point.last)
        self.now_ms = 0.0
        self.progressed = False
        """True if this incarnation has committed an epoch of its own work."""
        self.postponed: IntervalElapsed | None = None
        """The elapsed interval that waits for rows."""
        self.standby_waits = False
        self._open: OpenEpoch | None = None
        self._requests: list[EpochRequested] = []
        self._stop: Reason | None = None
        self._due = False
        self._barrier_at_ms = 0.0
        self._failed_in_a_row = 0
        self.has_drained = False
        """True if every source of a draining run has been read up to its target."""
        self._outcome: Outcome | None = None
        self._timers = 0
        self._interval_timer: TimerId | None = None
        self._timeout_timer: TimerId | None = None
        self._pause_timer: TimerId | None = None
        self._retry_timers: dict[str, TimerId] = {}

    # -- read by the host ----------------------------------------------------------------------------------------------

    @property
    def open_epoch(self) -> Epoch | None:
        """The epoch in flight, or None."""
        return self._open.epoch if self._open else None

    @property
    def is_ending(self) -> bool:
        """True if the epoch in flight is the last one of the incarnation."""
        return self._open is not None and self._open.reason.final

    @property
    def next_epoch(self) -> Epoch:
        """Number of the epoch in flight, else of the next one."""
        return self.open_epoch or Epoch(self.last_used + 1)

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        if self.phase is P.FINISHED:
            return
        opened = self.phase in (P.ALIGNING, P.COMMITTING)
        self._ensure(opened == (self._open is not None), "an epoch is open iff aligning or committing")
        self._ensure(self.last_committed <= self.last_used, "committed numbers come from used ones")
        if self._open is not None:
            self._ensure(
                self.last_committed < self._open.epoch == self.last_used, "the open epoch has the newest number"
            )
        for sink, epochs in self.publication.unpublished.items():
            self._ensure(list(epochs) == sorted(set(epochs)), f"{sink} publishes in the order of commit")
            self._ensure(not epochs or epochs[-1] <= self.last_committed, f"{sink} publishes committed epochs only")

    # -- at the door ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: float = 0.0) -> list[Effect]:
        """Return the effects of `event`, in order.

        `now_ms`: time of any monotonic clock, in milliseconds. After `End` only announcements are returned: a commit
        or publish in progress may still complete. Raises `ProtocolViolation` for an event that breaks the protocol.
        """
        self.now_ms = now_ms
        effects = super().handle(event)
        # No publisher runs before the query or after the end.
        return effects if self.phase in (P.NEW, P.FINISHED) else self._with_early_sends(effects)

    def _with_early_sends(self, effects: list[Effect]) -> list[Effect]:
        """Insert early sends before the commit of an epoch, so that sinks receive rows while the log is written."""
        epoch, staged = self.cut.builder.next_staged
        # Rows without a barrier so far will belong to the next number.
        early = self.publication.early_sends(epoch or self.next_epoch, staged)
        at = next((at for at, each in enumerate(effects) if isinstance(each, CommitEpoch)), len(effects))
        return [*effects[:at], *early, *effects[at:]]

    def _abridged(self, event: Event) -> Event:
        # The story of a job with a thousand tasks would keep all reports of its last batches in memory.
        if isinstance(event, BatchDone) and len(event.reports) > _REPORTS_IN_STORY:
            return replace(event, reports=event.reports[:_REPORTS_IN_STORY])
        return event

    def _stale(self, event: Event) -> str | None:
        match event:
            case IntervalElapsed(timer=timer):
                return None if timer == self._interval_timer else "the timer was set again"
            case TimeoutElapsed(timer=timer):
                return None if timer == self._timeout_timer else "what it bounded is over"
            case PauseElapsed(timer=timer):
                return None if timer == self._pause_timer else "the pause is over"
            case RetryElapsed(sink=sink, timer=timer):
                return None if timer == self._retry_timers.get(sink) else "the attempt is over"
            case CommitOverdue(epoch=epoch):
                return None if epoch > self.last_committed else f"epoch {epoch} is committed"
            case PublishEnded(sink=sink, epoch=epoch):
                epochs = self.publication.unpublished.get(SinkId(sink))
                over = epochs is not None and epoch not in epochs and epoch <= self.last_committed
                return f"{sink} has published epoch {epoch}" if over else None
        return None

    # -- the start -----------------------------------------------------------------------------------------------------

    def on_sources_pinned(self, event: SourcesPinned) -> list[Effect]:
        """Commit an epoch with the start positions of sources that have no cursor.

        So a source resolves its configured start (for example "latest") once: a restart continues from the same
        position.
        """
        self._barrier_at_ms = self.now_ms  # the start positions have no barrier
        if not event.starts:
            return []
        self.cut.cursors |= event.starts
        ended = self.cut.builder.pinned(self.next_epoch, self.cut.cursors)
        return [CommitEpoch(pinned_of(self.shape, ended, self._lineage(), self.cut.base))]

    def on_starts_committed(self, event: EpochCommitted) -> list[Effect]:
        """Continue from the epoch with the start positions. The query has not started, so nothing is published."""
        # This epoch took its number without `_begin`, since it has no barrier.
        self._committed(event.manifest)
        self.last_used = self.last_committed
        return [SayCommitted(event.manifest)]

    def on_query_starting(self, event: QueryStarting) -> list[Effect]:
        """Offer the first markers, before the query plans its first batch, and publish what sinks lack.

        A job that finds rows waiting ends its first epoch with its first batch. So the work that a crash undid is
        soon committed again.
        """
        self.phase = P.IDLE
        sinks = sorted(self.publication.unpublished)
        first = [self.cut.opening_marker(), self._arm_interval(), *self._publish(sinks)]
        if not event.behind:
            return first
        self._requests.append(EpochRequested(Reason.INTERVAL))
        return [*first, *self._begin_if_wanted()]

    # -- opening an epoch ----------------------------------------------------------------------------------------------

    def on_interval(self, event: IntervalElapsed) -> list[Effect]:
        """Open an epoch. On an idle stream, wait for rows, or until deferred rows are due."""
        wait_ms = self.publication.deferred.due_in_ms(self.now_ms) if self.cut.is_idle else 0
        if wait_ms == 0:
            return self._interval_over()
        self.postponed = event
        # The same timer: rows that come first clear its number, which makes this one stale.
        return [] if wait_ms is None else [ArmTimer(math.ceil(wait_ms), event)]

    def _interval_over(self) -> list[Effect]:
        self._interval_timer, self.postponed = None, None
        self._due = True
        return self._begin_if_wanted()

    def on_standby_waits(self, event: StandbyWaits) -> list[Effect]:
        """Shorten the interval while a standby waits: at a takeover it repeats the rows since the last epoch."""
        before, self.standby_waits = self._interval_ms, event.waits
        # An interval that is over already, or not set yet, is not set again.
        is_set = self._interval_timer is not None and self.postponed is None
        return [self._arm_interval()] if is_set and self._interval_ms < before else []

    def on_pause_over(self, event: PauseElapsed) -> list[Effect]:
        """Open an epoch again after an aborted one."""
        self._pause_timer = None
        return self._begin_if_wanted()

    def on_requested(self, event: EpochRequested) -> list[Effect]:
        """Open an epoch for a caller; requests that wait share the next one."""
        if event.reason.final:
            raise self._invalid(event, "a final epoch is asked for by StopRequested")
        self._requests.append(event)
        return self._begin_if_wanted()

    def on_requested_too_late(self, event: EpochRequested) -> list[Effect]:
        """Refuse a request after the final epoch."""
        return [Note("request refused", f"{event}: the final epoch is already committed")]

    def on_stop(self, event: StopRequested) -> list[Effect]:
        """Open the final epoch."""
        if not event.reason.final:
            raise self._invalid(event, "a stop is for STOP or DRAINED")
        self._stop = self._stop or event.reason
        return self._begin_if_wanted()

    def _wanted(self) -> Reason | None:
        if self._stop is not None:
            return self._stop
        if self._requests:
            return self._requests[0].reason
        return Reason.INTERVAL if self._due else None

    def _begin_if_wanted(self) -> list[Effect]:
        wanted = self._wanted()
        if self.phase is not P.IDLE or self._pause_timer is not None or wanted is None:
            return []
        # Bound the backlog of slow sinks; a final epoch is exempt, since it adds one at most.
        slow = self.publication.behind_by(self.limits.max_unpublished)
        if slow and not wanted.final:
            return [Note("barrier held back", f"{', '.join(slow)} must publish first")]
        return self._begin(wanted)

    def _begin(self, reason: Reason) -> list[Effect]:
        # Step 1 of docs/design/epoch-in-nine-steps.md.
        self.last_used = epoch = Epoch(self.last_used + 1)
        self._due = False
        self._open = OpenEpoch(epoch, reason, tuple(self._requests))
        self._requests = []
        self.phase = P.ALIGNING
        # The interval counts from barrier to barrier, so that a slow commit does not lengthen it.
        timers = [self._arm_timeout(self.limits.epoch_timeout_ms), self._arm_interval()]
        prefetched = self.cut.prefetched
        if epoch != prefetched.epoch:
            self._barrier_at_ms = self.now_ms
            return [*timers, self.cut.barrier(epoch)]
        # The prefetched barrier is already in the stream: no other one is offered for this epoch.
        self._barrier_at_ms = prefetched.offered_ms
        if not prefetched.is_held:
            return timers
        prefetched.over()
        return [*timers, *self.commit_if_complete(self.cut.builder.take(epoch), idle=False)]

    # -- ending and committing it --------------------------------------------------------------------------------------

    def on_batch_done(self, event: BatchDone) -> list[Effect]:
        """Take in a batch: it may end an epoch, wake an idle stream, and end a draining job."""
        effects: list[Effect] = [self.cut.add(event)]
        epoch = self.cut.ended_by(event.markers, self.open_epoch)
        if epoch is not None:
            effects += self._barrier_passed(epoch)
        # The first rows after an idle time trigger the postponed interval.
        if self.postponed is not None and not self.cut.is_idle:
            effects += self._interval_over()
        if not self.has_drained and self.cut.has_drained(event):
            self.has_drained = True
            effects += self.on_stop(StopRequested(Reason.DRAINED))
        return effects

    def _barrier_passed(self, epoch: Epoch) -> list[Effect]:
        """Close `epoch`, whose barrier was in the newest batch."""
        # Read before `close`, which begins the content of the next epoch.
        idle, prefetched = self.cut.builder.idle, self.cut.prefetched
        if epoch == self.open_epoch:
            prefetched.over()
            return self.commit_if_complete(self.cut.close(epoch), idle)
        # The epoch of this barrier is not open yet. Without rows the prefetched barrier ends nothing.
        if idle:
            prefetched.over()
            self.cut.builder.passed_over(epoch)
        else:
            self.cut.close(epoch)
            prefetched.hold()
        return []

    def commit_if_complete(self, ended: EndedEpoch, idle: bool) -> list[Effect]:
        """Commit the open epoch if everything in it is durable; prefetch the next barrier if every batch ends an epoch.

        The prefetched barrier comes first among the effects: Spark waits for it before it plans the next batch.
        """
        opened = self._opened()
        self._ensure(self.phase is P.ALIGNING, "an epoch ends once")
        opened.missing = self.cut.missing_groups(ended)
        if opened.missing:  # no later batch brings them: the timeout aborts the epoch
            return []
        # From here on an abort could contradict the log, so this phase has none.
        self.phase = P.COMMITTING
        names = tuple(request.name for request in opened.requests if request.name is not None)
        manifest = manifest_of(self.shape, ended, self._lineage(), opened.reason.value, self.publication.acks)
        bound = self._arm_timeout(self.limits.store_timeout_ms)
        # A barrier starts a batch even without rows. So an idle stream prefetches none, or it would never rest.
        further = self.shape.every_batch and not idle and not opened.reason.final
        prefetched = [self.cut.prefetch(Epoch(opened.epoch + 1), self.now_ms)] if further else []
        return [*prefetched, bound, CommitEpoch(manifest, names, ended.batch)]

    def _lineage(self) -> Lineage:
        took_ms = round(self.now_ms - self._barrier_at_ms)
        numbers = (self.incarnation, self.cut.base.epoch, self.last_committed)
        parts = (self.publication.deferred, self.publication.standing)
        return Lineage(*numbers, self.now_ms, took_ms, *parts, self.cut.base.rows_so_far)

    def on_epoch_committed(self, event: EpochCommitted) -> list[Effect]:
        """Announce the commit, name savepoints, publish, open the next epoch, update tables."""
        manifest = event.manifest
        if manifest.epoch != self.open_epoch:
            raise self._invalid(event, f"the open epoch is {self.open_epoch}")
        opened, self._open = self._opened(), None
        self._timeout_timer = None
        self._failed_in_a_row = 0  # only aborts without a commit in between are a loop
        consumed = self._committed(manifest)
        # A sink with a backlog publishes this epoch later, in the order of commit.
        idle_sinks = self.publication.append(opened.epoch)
        if opened.reason.final:
            following = self._publish_last(idle_sinks)
        else:
            self.phase = P.IDLE
            following = [*self._publish(idle_sinks), *self._begin_if_wanted()]
        names = [NameEpoch(name, manifest.epoch) for name in event.names]
        return [SayCommitted(manifest), *names, *following, MaterializeTables(manifest, consumed)]

    def _committed(self, manifest: Manifest) -> dict[str, tuple[str, ...]]:
        consumed = self.cut.committed(manifest)
        self.publication.committed(manifest, self.now_ms)
        self.last_committed = Epoch(manifest.epoch)
        # Start positions are no progress: a job that fails behind them each time would restart for ever.
        self.progressed = self.progressed or manifest.reason != "initial"
        return consumed

    def on_commit_fenced(self, event: CommitFenced) -> list[Effect]:
        """End: the log has a newer incarnation."""
        return self._fenced(Fenced(event.why, incarnation=self.incarnation, hint=_REPLACED))

    def on_commit_overdue(self, event: CommitOverdue | TimeoutElapsed) -> list[Effect]:
        """Stop waiting for the log and end. The epoch may be committed, so it is not aborted."""
        why = f"whether epoch {self.next_epoch} of incarnation {self.incarnation} is in the log is unknown"
        hint = "is the store's file system or object store reachable? the next start reads the log"
        return self._finish(Outcome.FAILED, StoreUnreachable(f"the log does not answer: {why}", hint=hint))

    def on_epoch_timeout(self, event: TimeoutElapsed) -> list[Effect]:
        """Abort the epoch: its barrier, or snapshots of it, did not arrive in time."""
        return self.abort(f"nothing came within {self.limits.epoch_timeout_ms} ms from {self._opened().waits_for()}")

    def abort(self, why: str) -> list[Effect]:
        """Abort the open epoch: its work moves to the next one, which opens after a pause."""
        opened, self._open = self._opened(), None
        self._timeout_timer = None
        self.phase = P.IDLE
        self._failed_in_a_row += 1
        # The next epoch serves the requests of the aborted one, before newer requests.
        self._requests[:0] = opened.requests
        self.cut.aborted(opened.epoch)
        aborted = [SayAborted(opened.epoch, why), *self.publication.early.aborted(opened.epoch)]
        if self._failed_in_a_row > self.limits.max_failed_epochs:
            last = f"{counted(self._failed_in_a_row, 'epoch')} in a row aborted, the last: {why}"
            return [*aborted, *self._failed(last)]
        # The aborted epoch still has to be committed, after the pause.
        self._due = True
        timer = self._pause_timer = self._next_timer()
        return [*aborted, ArmTimer(self.limits.retry_ms, PauseElapsed(timer))]

    def _opened(self) -> OpenEpoch:
        assert self._open is not None  # noqa: S101 - for the type checker; the phase says so
        return self._open

    # -- publishing it -------------------------------------------------------------------------------------------------

    def _publish(self, sinks: list[SinkId]) -> list[Effect]:
        """Request the oldest unpublished epoch of each sink; one at a time per sink keeps the order of commit."""
        outputs = [(sink, self.publication.next_output(sink, self.last_committed)) for sink in sinks]
        return [Publish(sink, output) for sink, output in outputs if output is not None]

    def _publish_last(self, idle_sinks: list[SinkId]) -> list[Effect]:
        self.phase = P.PUBLISHING
        bound = self._arm_timeout(self.limits.publish_timeout_ms)
        publishes = self._publish(idle_sinks)
        return self._finish_if_published() or [bound, *publishes]  # at once if no sink may publish anything

    def on_publish_ended(self, event: PublishEnded) -> list[Effect]:
        """Record the result of a publish, and request the sink's next one."""
        # Step 9 of docs/design/epoch-in-nine-steps.md.
        if isinstance(event.error, Fenced):  # the log or the sink has a newer incarnation
            return self._fenced(event.error)
        # The sink had the epoch before, and a newer incarnation exists: it may have published the epoch.
        if event.newest > self.incarnation:
            return self._fenced(_replaced_by(event.newest, self.incarnation))
        sink = SinkId(event.sink)
        if event.epoch not in self.publication.unpublished.get(sink, ()):
            raise self._invalid(event, f"{sink} has no such unpublished epoch")
        if event.error is not None:
            return self._publish_failed(event, event.error)
        detail = self.publication.published(event)
        self._retry_timers.pop(sink, None)
        publishes = self._publish([sink])
        following = self._finish_if_published() if self.phase is P.PUBLISHING else self._begin_if_wanted()
        self.publication.forget()
        # The host records the acknowledgements when it ends.
        records = [] if self.phase is P.FINISHED else self.publication.ack_records.acknowledged(self.publication.acks)
        return [SayPublished(event.epoch, detail), *publishes, *following, *records]

    def _publish_failed(self, event: PublishEnded, error: CkptError) -> list[Effect]:
        error = self.publication.failed(event, error)
        attempts = self.publication.attempts[SinkId(event.sink)]
        if not error.retriable or attempts >= self.limits.max_publish_attempts:
            what = f"sink {event.sink} could not publish epoch {event.epoch} in {counted(attempts, 'attempt')}"
            return self._failed(f"{what}: {error.what}")
        timer = self._retry_timers[event.sink] = self._next_timer()
        return [ArmTimer(self.limits.retry_ms, RetryElapsed(SinkId(event.sink), timer))]

    def on_retry(self, event: RetryElapsed) -> list[Effect]:
        """Publish once more."""
        del self._retry_timers[event.sink]
        return self._publish([event.sink])

    def on_early_send_ended(self, event: EarlySendEnded) -> list[Effect]:
        """Record the end of an early send; a sink that failed gets no further one until it has published."""
        self.publication.early.ended(event)
        return self._fenced(event.error) if isinstance(event.error, Fenced) else []

    def on_released(self, event: EpochsReleased) -> list[Effect]:
        """Publish epochs whose line is decided."""
        return self._publish(self.publication.release(event.epoch))

    def on_acks_recorded(self, event: AcksRecorded) -> list[Effect]:
        """Record that acknowledgements are in the log, or wait before the next attempt."""
        # The log refuses rows of a replaced incarnation: fenced here means that another driver runs the job.
        if isinstance(event.error, Fenced):
            return self._fenced(event.error)
        if event.error is None:
            self.publication.recorded(event.acks)
        return self.publication.ack_records.wait(self.publication.acks)

    def on_acks_due(self, event: AcksDue) -> list[Effect]:
        """Record acknowledgements that no epoch has carried into the log."""
        return self.publication.ack_records.due(self.publication.acks, self.open_epoch is not None)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _finish_if_published(self) -> list[Effect]:
        # Epochs that are not released wait for a decision of other stages; the next incarnation publishes them.
        left = (epoch for epochs in self.publication.unpublished.values() for epoch in epochs)
        return [] if any(map(self.publication.may_publish, left)) else self._finish(Outcome.STOPPED, None)

    def on_publish_timeout(self, event: TimeoutElapsed) -> list[Effect]:
        """End with unpublished epochs, which the next start publishes."""
        left = [
            f"sink {sink} did not publish {'epoch' if len(epochs) == 1 else 'epochs'} {', '.join(map(str, epochs))}"
            for sink, epochs in self.publication.unpublished.items()
            if epochs
        ]
        why = f"{'; '.join(left)} within {self.limits.publish_timeout_ms} ms"
        late = PublishFailed(why, hint="the rows are staged; the next start publishes them")
        return self._finish(Outcome.STOPPED, self.publication.error or late)

    def _failed(self, why: str) -> list[Effect]:
        # A sink's own error explains the failure better than the protocol's text.
        return self._finish(Outcome.FAILED, self.publication.error or RunFailed(why))

    def _fenced(self, error: Fenced) -> list[Effect]:
        return self._finish(Outcome.FENCED, error)

    def _finish(self, outcome: Outcome, error: CkptError | None) -> list[Effect]:
        self.phase, self._outcome = P.FINISHED, outcome
        return [End(outcome, error)]

    def on_committed_after_end(self, event: EpochCommitted) -> list[Effect]:
        """Announce a commit that the log answered after the end. The next incarnation publishes the epoch."""
        self._committed(event.manifest)
        return [SayCommitted(event.manifest), *(NameEpoch(name, event.manifest.epoch) for name in event.names)]

    def on_published_after_end(self, event: PublishEnded) -> list[Effect]:
        """Announce a publish that ended after the end.

        The successor of a fenced incarnation publishes and announces every epoch that the log does not acknowledge.
        """
        if event.error is not None or event.newest > self.incarnation:
            return []
        detail = self.publication.published(event)
        return [] if self._outcome is Outcome.FENCED else [SayPublished(event.epoch, detail)]

    def on_recorded_after_end(self, event: AcksRecorded) -> list[Effect]:
        """Record that acknowledgements are in the log: the host does not write them again."""
        if event.error is None:
            self.publication.recorded(event.acks)
        return []

    # -- timers --------------------------------------------------------------------------------------------------------

    def _arm_interval(self) -> Effect:
        # A postponed interval is over: the new one takes its place.
        self.postponed = None
        timer = self._interval_timer = self._next_timer()
        return ArmTimer(self._interval_ms, IntervalElapsed(timer))

    @property
    def _interval_ms(self) -> int:
        short_ms = self.limits.standby_interval_ms if self.standby_waits else None
        return min(self.limits.interval_ms, short_ms or self.limits.interval_ms)

    def _arm_timeout(self, delay_ms: int) -> Effect:
        timer = self._timeout_timer = self._next_timer()
        return ArmTimer(delay_ms, TimeoutElapsed(timer))

    def _next_timer(self) -> TimerId:
        self._timers += 1
        return TimerId(self._timers)


def _replaced_by(newest: int, incarnation: int) -> Fenced:
    """Return the error after a sink already had the epoch: the newer incarnation may have published it."""
    return Fenced(f"incarnation {newest} took over", incarnation=incarnation, hint=_REPLACED)
