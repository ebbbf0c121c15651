r"""The coordinator of aligned barriers: begins epochs, commits them, and directs their sinks to publish.

It receives acknowledgements, votes, the log's answers and timers. Rows, state and storage are not its job.

    NEW -> IDLE -> ALIGNING -> STORING -> IDLE ...           one epoch in flight
                      |           |         \-> PUBLISHING -> FINISHED     after a final epoch
                      \-> IDLE     \-> IDLE                               aborted, bounded in a row

1. ALIGNING ends when *every* task's snapshot is durable and *every* sink has prepared. Votes of the sinks alone are not
   enough. A barrier at a sink proves that upstream tasks took their snapshots, not that these survive a crash (erratum
   E2).
2. In STORING the host writes the decision record. Its outcome may be unknown, so only the log's answer decides the
   epoch here. If the answer does not come in time, the run ends in doubt, and the next incarnation reads the log.
3. Sinks publish while later epochs run, each sink in the order of commit. Too many unpublished epochs delay the next
   barrier. The final epoch is never delayed: it adds one at most, and without it work would be redone.
4. An epoch is the pair (incarnation, epoch). The host makes the incarnation durable before the machine exists, so no
   two incarnations share a number. Within an incarnation epoch numbers only grow. So no pair is used twice, also not
   after an abort or a crash (rule G3). This needs no write per epoch.
5. An epoch *number* is used again if its epoch ended uncommitted with its incarnation; the door rejects messages of the
   earlier incarnation. A committed number is never given to another epoch: an incarnation begins after the highest
   committed one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from checkpoint_protocols.ids import Epoch, Incarnation, SinkId, TaskId, TimerId
from checkpoint_protocols.machine import IGNORE_STALE, Effect, Event, Machine, ProtocolViolation, rows
from checkpoint_protocols.vocabulary import Note, SetTimer
from spark_ckpt.coordination.messages import (
    CommitSink,
    EpochRequested,
    EpochStored,
    EpochStoreFailed,
    Finish,
    InjectBarrier,
    IntervalElapsed,
    NewerIncarnation,
    Outcome,
    PauseElapsed,
    Reason,
    RetryElapsed,
    SayAborted,
    SinkCommitFailed,
    SinkCommitted,
    SinkPrepared,
    SinkRefused,
    SnapshotAcked,
    Started,
    StopRequested,
    StoreEpoch,
    TimeoutElapsed,
)
from spark_ckpt.wording import counted


@dataclass(frozen=True, slots=True)
class Topology:
    """Participants of every epoch. A source's cursor is a snapshot too, so at least one task exists.

    Raises `ProtocolViolation` without a task.
    """

    tasks: frozenset[TaskId]
    sinks: frozenset[SinkId]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ProtocolViolation(
                "a topology needs a task: without one an epoch would be complete before its barrier"
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on waits and backlogs.

    `interval_ms`: from one barrier to the next. `epoch_timeout_ms`: from the barrier until all acknowledgements and
    votes are in. `store_timeout_ms`: for the log's answer. `publish_timeout_ms`: for the sinks after the final epoch.
    `retry_ms`: pause after an aborted epoch and between attempts to publish. `max_failed_epochs`: aborts in a row that
    the run survives. `max_unpublished`: committed epochs that one sink may leave unpublished before barriers are
    delayed. `max_publish_attempts`: per epoch and sink. `max_in_flight`: open epochs at once; this protocol supports
    1.

    Raises `ProtocolViolation` if `max_in_flight` is not 1, a time is below 1 ms, or a bound is too small.
    """

    interval_ms: int = 10_000
    epoch_timeout_ms: int = 600_000
    store_timeout_ms: int = 600_000
    publish_timeout_ms: int = 600_000
    retry_ms: int = 1_000
    max_failed_epochs: int = 3
    max_unpublished: int = 4
    max_publish_attempts: int = 10
    max_in_flight: int = 1

    def __post_init__(self) -> None:
        if self.max_in_flight != 1:
            raise ProtocolViolation(f"aligned barriers take one epoch at a time, not {self.max_in_flight}")
        if (
            min(
                self.interval_ms,
                self.epoch_timeout_ms,
                self.store_timeout_ms,
                self.publish_timeout_ms,
                self.retry_ms,
            )
            < 1
        ):
            raise ProtocolViolation(f"times are at least 1 ms: {self}")
        if min(self.max_failed_epochs, self.max_unpublished - 1, self.max_publish_attempts - 1) < 0:
            raise ProtocolViolation(f"a bound is too small: {self}")


class CoordinatorPhase(Enum):
    """Phase of the coordinator."""

    NEW = "recovered, not started"
    IDLE = "no epoch is open"
    ALIGNING = "a barrier travels; acks and votes come in"
    STORING = "the decision record is being written"
    PUBLISHING = "the final epoch is decided; sinks publish"
    FINISHED = "the incarnation is over"


P = CoordinatorPhase
STORE_TIMER = "store"
"""Timer that bounds the wait for the log's answer."""

_EVENTS = (
    Started,
    IntervalElapsed,
    PauseElapsed,
    EpochRequested,
    StopRequested,
    SnapshotAcked,
    SinkPrepared,
    SinkRefused,
    TimeoutElapsed,
    EpochStored,
    EpochStoreFailed,
    SinkCommitted,
    SinkCommitFailed,
    RetryElapsed,
    NewerIncarnation,
)

_SINKS: Mapping[type[Event], str] = {
    SinkCommitted: "_on_sink_committed",
    SinkCommitFailed: "_on_sink_commit_failed",
    RetryElapsed: "_on_retry",
    NewerIncarnation: "_on_fenced",
}
_WISHES: Mapping[type[Event], str] = {
    IntervalElapsed: "_on_interval",
    EpochRequested: "_on_requested",
    StopRequested: "_on_stop",
}


@dataclass(slots=True)
class _OpenEpoch:
    epoch: Epoch
    reason: Reason
    requests: tuple[EpochRequested, ...]
    tasks_missing: set[TaskId]
    sinks_missing: set[SinkId]

    def waiting_for(self) -> str:
        """Return the missing participants, at most five names: the text is for people."""
        missing = [*sorted(self.tasks_missing), *sorted(self.sinks_missing)]
        return ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")


class Coordinator(Machine[CoordinatorPhase]):
    """The deciding role.

    `last_epoch` is the highest epoch ever committed; new numbers grow from it. `unpublished` holds, per sink, the
    committed epochs that the sink has not acknowledged, in the order of commit. The coordinator publishes them before
    it publishes anything new there.
    """

    PHASES = CoordinatorPhase
    EVENTS = _EVENTS
    TABLE = rows(
        {
            P.NEW: {Started: "_on_started", NewerIncarnation: "_on_fenced"},
            P.IDLE: {**_WISHES, **_SINKS, PauseElapsed: "_on_pause_over"},
            P.ALIGNING: {
                **_WISHES,
                SnapshotAcked: "_on_snapshot_acked",
                SinkPrepared: "_on_sink_prepared",
                SinkRefused: "_on_sink_refused",
                TimeoutElapsed: "_on_epoch_timeout",
                **_SINKS,
            },
            P.STORING: {
                **_WISHES,
                TimeoutElapsed: "_on_store_timeout",
                EpochStored: "_on_stored",
                EpochStoreFailed: "_on_store_failed",
                **_SINKS,
            },
            P.PUBLISHING: {
                IntervalElapsed: IGNORE_STALE,
                EpochRequested: "_on_requested_too_late",
                StopRequested: IGNORE_STALE,
                TimeoutElapsed: "_on_publish_timeout",
                **_SINKS,
            },
            P.FINISHED: dict.fromkeys(_EVENTS, IGNORE_STALE),
        },
        _EVENTS,
    )

    def __init__(
        self,
        topology: Topology,
        incarnation: Incarnation,
        last_epoch: Epoch,
        limits: Limits,
        unpublished: Mapping[SinkId, Iterable[Epoch]] | None = None,
    ) -> None:
        super().__init__(P.NEW, incarnation)
        self.topology = topology
        self.limits = limits
        self._last_used = last_epoch
        self._last_decided = last_epoch
        self._open: _OpenEpoch | None = None
        self._unpublished = {sink: deque[Epoch]() for sink in sorted(topology.sinks)}
        for sink, epochs in (unpublished or {}).items():
            self._unpublished.setdefault(sink, deque()).extend(epochs)
        self._attempts = dict.fromkeys(self._unpublished, 0)
        self._requests: list[EpochRequested] = []
        self._stop: Reason | None = None
        self._due = False
        self._pause_timer: TimerId | None = None
        self._failed_in_a_row = 0
        self._timers = 0
        self._interval_timer: TimerId | None = None
        self._timeout_timer: TimerId | None = None
        self._retry_timers: dict[SinkId, TimerId] = {}
        self.validate()

    # -- read by the host ----------------------------------------------------------------------------------------

    @property
    def open_epoch(self) -> Epoch | None:
        """The epoch in flight, or None."""
        return self._open.epoch if self._open else None

    @property
    def next_epoch(self) -> Epoch:
        """Number of the epoch in flight, else of the next one."""
        return self.open_epoch or Epoch(self._last_used + 1)

    @property
    def last_decided(self) -> Epoch:
        """The newest epoch whose decision record is known to be in the log."""
        return self._last_decided

    @property
    def unpublished(self) -> Mapping[SinkId, tuple[Epoch, ...]]:
        """Committed epochs that each sink has not acknowledged, oldest first."""
        return {sink: tuple(epochs) for sink, epochs in self._unpublished.items()}

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        open_phase = self.phase in (P.ALIGNING, P.STORING)
        self._ensure(
            self.phase is P.FINISHED or open_phase == (self._open is not None),
            "an epoch is open iff aligning or storing",
        )
        self._ensure(self._last_decided <= self._last_used, "decided ids come from used ids")
        if self._open is not None:
            self._ensure(self._last_decided < self._open.epoch == self._last_used, "the open epoch has the newest id")
            complete = not self._open.tasks_missing and not self._open.sinks_missing
            self._ensure(
                self.phase is P.FINISHED or complete == (self.phase is P.STORING),
                "stored iff all acked and prepared",
            )
        for sink, epochs in self._unpublished.items():
            self._ensure(list(epochs) == sorted(set(epochs)), f"{sink} publishes in the order of decision")
            self._ensure(not epochs or epochs[-1] <= self._last_decided, f"{sink} publishes decided epochs only")

    # -- at the door -----------------------------------------------------------------------------------------

    def _stale(self, event: Event) -> str | None:
        match event:
            case IntervalElapsed(timer=timer):
                return None if timer == self._interval_timer else "the timer was set anew"
            case TimeoutElapsed(timer=timer):
                return None if timer == self._timeout_timer else "what it bounded is over"
            case PauseElapsed(timer=timer):
                return None if timer == self._pause_timer else "the pause is over"
            case RetryElapsed(sink=sink, timer=timer):
                return None if timer == self._retry_timers.get(sink) else "the attempt is over"
            case SnapshotAcked(epoch=epoch) | SinkPrepared(epoch=epoch) | SinkRefused(epoch=epoch):
                return self._stale_vote(epoch)
            case SinkCommitted(sink=sink, epoch=epoch) | SinkCommitFailed(sink=sink, epoch=epoch):
                return self._stale_publish(sink, epoch)
        return None

    def _stale_vote(self, epoch: Epoch) -> str | None:
        # A vote for a number that was never used is a bug, so it reaches the table and raises.
        collecting = self._open is not None and epoch == self._open.epoch and self.phase is P.ALIGNING
        return None if collecting or epoch > self._last_used else f"epoch {epoch} no longer collects votes"

    def _stale_publish(self, sink: SinkId, epoch: Epoch) -> str | None:
        owed = self._unpublished.get(sink)
        over = owed is not None and epoch not in owed and epoch <= self._last_decided
        return f"{sink} has published epoch {epoch}" if over else None

    def _superseded(self, event: Event) -> list[Effect] | None:
        # Any message of a newer incarnation proves that this one is over.
        return (
            None
            if isinstance(event, NewerIncarnation)
            else self._finish(Outcome.FENCED, f"a newer incarnation sent {event}")
        )

    # -- beginning an epoch ----------------------------------------------------------------------------------

    def _on_started(self, event: Started) -> list[Effect]:
        self.phase = P.IDLE
        return [self._arm_interval(self.limits.interval_ms), *self._redo_all()]

    def _on_interval(self, event: IntervalElapsed) -> list[Effect]:
        self._interval_timer = None
        self._due = True
        return self._begin_if_wanted()

    def _on_pause_over(self, event: PauseElapsed) -> list[Effect]:
        self._pause_timer = None
        return self._begin_if_wanted()

    def _on_requested(self, event: EpochRequested) -> list[Effect]:
        if event.reason.final:
            raise self._invalid(event, "a final epoch is asked for by StopRequested")
        self._requests.append(event)
        return self._begin_if_wanted()

    def _on_requested_too_late(self, event: EpochRequested) -> list[Effect]:
        return [Note("request refused", f"{event}: the final epoch is already decided")]

    def _on_stop(self, event: StopRequested) -> list[Effect]:
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
        slow = [sink for sink, epochs in self._unpublished.items() if len(epochs) >= self.limits.max_unpublished]
        if slow and not wanted.final:
            return [Note("barrier held back", f"{', '.join(slow)} must publish first")]
        return self._begin(wanted)

    def _begin(self, reason: Reason) -> list[Effect]:
        # Step 1 of docs/design/epoch-in-nine-steps.md.
        epoch = Epoch(self._last_used + 1)
        self._last_used = epoch
        self._due = False
        requests, self._requests = tuple(self._requests), []
        self._open = _OpenEpoch(epoch, reason, requests, set(self.topology.tasks), set(self.topology.sinks))
        self.phase = P.ALIGNING
        return [
            self._arm_timeout("epoch", self.limits.epoch_timeout_ms),
            self._arm_interval(self.limits.interval_ms),
            InjectBarrier(epoch, self.incarnation, reason),
        ]

    # -- deciding it -----------------------------------------------------------------------------------------

    def _on_snapshot_acked(self, event: SnapshotAcked) -> list[Effect]:
        opened = self._opened(event, event.epoch)
        if event.task not in self.topology.tasks:
            raise self._invalid(event, "no such task")
        opened.tasks_missing.discard(event.task)
        return self._store_if_complete(opened)

    def _on_sink_prepared(self, event: SinkPrepared) -> list[Effect]:
        opened = self._opened(event, event.epoch)
        if event.sink not in self.topology.sinks:
            raise self._invalid(event, "no such sink")
        opened.sinks_missing.discard(event.sink)
        return self._store_if_complete(opened)

    def _on_sink_refused(self, event: SinkRefused) -> list[Effect]:
        self._opened(event, event.epoch)
        return self._abort(f"sink {event.sink} could not prepare: {event.why}")

    def _on_epoch_timeout(self, event: TimeoutElapsed) -> list[Effect]:
        opened = self._opened(event, self._last_used)
        return self._abort(f"nothing came within {self.limits.epoch_timeout_ms} ms from {opened.waiting_for()}")

    def _store_if_complete(self, opened: _OpenEpoch) -> list[Effect]:
        if opened.tasks_missing or opened.sinks_missing:
            return []
        # From here on an abort could contradict the log, so this phase has none.
        self.phase = P.STORING
        names = tuple(request.name for request in opened.requests if request.name is not None)
        store = StoreEpoch(opened.epoch, self.incarnation, opened.reason, names)
        return [self._arm_timeout(STORE_TIMER, self.limits.store_timeout_ms), store]

    def _on_store_timeout(self, event: TimeoutElapsed) -> list[Effect]:
        epoch = self._opened(event, self._last_used).epoch
        return self._finish(
            Outcome.FAILED,
            f"whether epoch {epoch} of incarnation {self.incarnation} is in the log is unknown: the next start reads it there",
        )

    def _on_store_failed(self, event: EpochStoreFailed) -> list[Effect]:
        self._opened(event, event.epoch)
        return self._finish(Outcome.FENCED, event.why)

    def _on_stored(self, event: EpochStored) -> list[Effect]:
        opened = self._opened(event, event.epoch)
        self._last_decided = opened.epoch
        self._failed_in_a_row = 0
        self._open = None
        self._timeout_timer = None
        # A sink with a backlog publishes this epoch later, in the order of commit.
        idle_sinks = [sink for sink in sorted(self.topology.sinks) if not self._unpublished[sink]]
        for sink in self.topology.sinks:
            self._unpublished[sink].append(opened.epoch)
        if opened.reason.final:
            return self._publish_last(idle_sinks)
        self.phase = P.IDLE
        return [*map(self._commit, idle_sinks), *self._begin_if_wanted()]

    def _publish_last(self, idle_sinks: list[SinkId]) -> list[Effect]:
        self.phase = P.PUBLISHING
        bound = self._arm_timeout("publish", self.limits.publish_timeout_ms)
        return self._finish_if_published() or [bound, *map(self._commit, idle_sinks)]

    def _abort(self, why: str) -> list[Effect]:
        opened, self._open = self._open, None
        self._timeout_timer = None
        self.phase = P.IDLE
        self._failed_in_a_row += 1
        assert opened is not None  # noqa: S101 - for the type checker; callers checked
        # The next epoch serves the requests of the aborted one, before newer requests.
        self._requests[:0] = opened.requests
        abort = SayAborted(opened.epoch, why)
        if self._failed_in_a_row > self.limits.max_failed_epochs:
            return [
                abort,
                *self._finish(
                    Outcome.FAILED, f"{counted(self._failed_in_a_row, 'epoch')} in a row aborted, the last: {why}"
                ),
            ]
        # The aborted epoch still has to be taken, after the pause.
        self._due = True
        timer = self._pause_timer = self._next_timer()
        pause = PauseElapsed(timer, self.incarnation)
        return [abort, SetTimer("pause", self.limits.retry_ms, timer, pause)]

    def _opened(self, event: Event, epoch: Epoch) -> _OpenEpoch:
        if self._open is None or epoch != self._open.epoch:
            raise self._invalid(event, f"the open epoch is {self.open_epoch}")
        return self._open

    # -- publishing it ---------------------------------------------------------------------------------------

    def _redo_all(self) -> list[Effect]:
        return [self._commit(sink) for sink, epochs in sorted(self._unpublished.items()) if epochs]

    def _commit(self, sink: SinkId) -> Effect:
        self._attempts[sink] += 1
        return CommitSink(sink, self._unpublished[sink][0], self.incarnation)

    def _on_sink_committed(self, event: SinkCommitted) -> list[Effect]:
        """Remove the epoch and all older ones: a sink publishes in order, and its answers may overtake each other."""
        owed = self._due_epochs(event, event.sink, event.epoch)
        while owed and owed[0] <= event.epoch:
            owed.popleft()
        self._attempts[event.sink] = 0
        self._retry_timers.pop(event.sink, None)
        # One epoch at a time per sink keeps the order of commit.
        following: list[Effect] = [self._commit(event.sink)] if owed else []
        return [
            *following,
            *(self._finish_if_published() if self.phase is P.PUBLISHING else self._begin_if_wanted()),
        ]

    def _on_sink_commit_failed(self, event: SinkCommitFailed) -> list[Effect]:
        self._due_epochs(event, event.sink, event.epoch)
        attempts = self._attempts[event.sink]
        if not event.retriable or attempts >= self.limits.max_publish_attempts:
            why = f"sink {event.sink} could not publish epoch {event.epoch} in {attempts} attempts: {event.why}"
            return self._finish(Outcome.FAILED, why)
        timer = self._next_timer()
        self._retry_timers[event.sink] = timer
        elapsed = RetryElapsed(event.sink, timer, self.incarnation)
        return [SetTimer(f"retry {event.sink}", self.limits.retry_ms, timer, elapsed)]

    def _on_retry(self, event: RetryElapsed) -> list[Effect]:
        del self._retry_timers[event.sink]
        return [self._commit(event.sink)]

    def _due_epochs(self, event: Event, sink: SinkId, epoch: Epoch) -> deque[Epoch]:
        owed = self._unpublished.get(sink)
        if owed is None or epoch not in owed:
            raise self._invalid(event, f"{sink} owes no such epoch")
        return owed

    # -- ending ----------------------------------------------------------------------------------------------

    def _finish_if_published(self) -> list[Effect]:
        return [] if any(self._unpublished.values()) else self._finish(Outcome.STOPPED, "")

    def _on_publish_timeout(self, event: TimeoutElapsed) -> list[Effect]:
        left = [
            f"sink {sink} did not publish {'epoch' if len(epochs) == 1 else 'epochs'} {', '.join(map(str, epochs))}"
            for sink, epochs in self._unpublished.items()
            if epochs
        ]
        return self._finish(Outcome.STOPPED, f"{'; '.join(left)} within {self.limits.publish_timeout_ms} ms")

    def _on_fenced(self, event: NewerIncarnation) -> list[Effect]:
        return self._finish(Outcome.FENCED, event.why or f"incarnation {event.incarnation} took over")

    def _finish(self, outcome: Outcome, why: str) -> list[Effect]:
        self.phase = P.FINISHED
        left = tuple((sink, epoch) for sink, epochs in self._unpublished.items() for epoch in epochs)
        return [Finish(outcome, why, left)]

    # -- timers ----------------------------------------------------------------------------------------------

    def _arm_interval(self, delay_ms: int) -> Effect:
        timer = self._interval_timer = self._next_timer()
        return SetTimer("interval", delay_ms, timer, IntervalElapsed(timer, self.incarnation))

    def _arm_timeout(self, name: str, delay_ms: int) -> Effect:
        timer = self._timeout_timer = self._next_timer()
        return SetTimer(name, delay_ms, timer, TimeoutElapsed(timer, self.incarnation))

    def _next_timer(self) -> TimerId:
        self._timers += 1
        return TimerId(self._timers)
