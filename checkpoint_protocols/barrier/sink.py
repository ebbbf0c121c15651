"""One sink of aligned barriers: a participant in two-phase commit that never decides alone.

    staged -> prepared and voted -> decided -> published

    NEW -> RESOLVING -> OPEN -> PREPARING -> VOTED -> OPEN ...          FENCED when a newer incarnation exists

1. At most one epoch is prepared and undecided. If the next barrier arrives before the outcome of the last epoch is
   known, the sink waits. The outcome determines the rows of the next transaction.
2. An epoch that is aborted in this incarnation passes its rows to the next one (`CarryOver`): nothing upstream rolled
   back.
3. In doubt after a crash, an epoch is published iff its decision record exists. Otherwise its staged rows are
   discarded, since the sources produce them again. The sink resolves in-doubt epochs, in order, before it prepares
   anything new.
4. Committed epochs are published in order, one at a time, while the next one is prepared. A repeated decision repeats
   the answer: publishing is idempotent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum

from checkpoint_protocols.barrier.messages import (
    AckPublished,
    AskDecision,
    CarryOver,
    DiscardPrepared,
    DoubtResolved,
    EpochAborted,
    EpochDecided,
    Fenced,
    Prepared,
    PrepareFailed,
    PrepareSink,
    Published,
    PublishEpoch,
    PublishRefused,
    ReportPublishFailure,
    StagedUpTo,
    Started,
    VoteNo,
    VoteYes,
)
from checkpoint_protocols.ids import Epoch, Incarnation, SinkId
from checkpoint_protocols.machine import IGNORE_STALE, Cell, Effect, Event, Machine, rows
from checkpoint_protocols.vocabulary import Note


class SinkPhase(Enum):
    """Phase of a sink, by the state of its undecided epoch."""

    NEW = "recovered, not started"
    RESOLVING = "asks the log about epochs of earlier incarnations"
    OPEN = "nothing is undecided"
    PREPARING = "rows are being made durable"
    VOTED = "prepared; the coordinator decides"
    FENCED = "a newer incarnation owns the sink"


P = SinkPhase

_EVENTS = (
    Started,
    StagedUpTo,
    Prepared,
    PrepareFailed,
    DoubtResolved,
    EpochDecided,
    EpochAborted,
    Published,
    PublishRefused,
    Fenced,
)

_ALWAYS: dict[type[Event], Cell] = {
    StagedUpTo: "_on_staged_early",
    EpochDecided: "_on_decided_again",
    EpochAborted: "_on_abort_of_other",
    Published: "_on_published",
    PublishRefused: "_on_publish_refused",
    Fenced: "_on_fenced",
}


class SinkParticipant(Machine[SinkPhase]):
    """One sink. `last_epoch` is the epoch the job was restored to; `last_published` is the newest visible one.

    `in_doubt` holds the transactions found prepared and not published, as (epoch, incarnation that prepared it).
    """

    PHASES = SinkPhase
    EVENTS = _EVENTS
    TABLE = rows(
        {
            P.NEW: {Started: "_on_started", Fenced: "_on_fenced"},
            P.RESOLVING: {**_ALWAYS, DoubtResolved: "_on_doubt_resolved"},
            P.OPEN: {**_ALWAYS, StagedUpTo: "_on_staged"},
            P.PREPARING: {
                **_ALWAYS,
                Prepared: "_on_prepared",
                PrepareFailed: "_on_prepare_failed",
                EpochAborted: "_on_aborted",
            },
            P.VOTED: {**_ALWAYS, EpochDecided: "_on_decided", EpochAborted: "_on_aborted"},
            P.FENCED: dict.fromkeys(_EVENTS, IGNORE_STALE),
        },
        _EVENTS,
    )

    def __init__(
        self,
        sink: SinkId,
        incarnation: Incarnation,
        last_epoch: Epoch,
        last_published: Epoch,
        in_doubt: Iterable[tuple[Epoch, Incarnation]] = (),
    ) -> None:
        super().__init__(P.NEW, incarnation)
        self.sink = sink
        self._in_doubt = deque(sorted(in_doubt))
        self._undecided: Epoch | None = None
        self._next: Epoch | None = None
        self._seen = last_epoch
        self._owed: deque[Epoch] = deque()
        self._publishing = False
        self._last_published = last_published
        self.validate()

    @property
    def undecided(self) -> Epoch | None:
        """The epoch that is being prepared or waits for its decision."""
        return self._undecided

    @property
    def last_published(self) -> Epoch:
        """The newest epoch whose rows are visible."""
        return self._last_published

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        busy = self.phase in (P.PREPARING, P.VOTED)
        self._ensure(
            self.phase is P.FENCED or busy == (self._undecided is not None),
            "an epoch is undecided iff preparing or voted",
        )
        self._ensure(
            self._next is None or self._undecided is None or self._next > self._undecided,
            "epochs are prepared in order",
        )
        self._ensure(self.phase is not P.OPEN or self._next is None, "an open sink has nothing waiting")
        self._ensure(self.phase in (P.NEW, P.RESOLVING, P.FENCED) or not self._in_doubt, "doubts are resolved first")
        self._ensure(list(self._owed) == sorted(set(self._owed)), "epochs are published in the order of decision")
        self._ensure(not self._owed or self._owed[0] > self._last_published, "no epoch is owed twice")
        self._ensure(self._publishing <= bool(self._owed), "only owed epochs are published")

    # -- at the door -----------------------------------------------------------------------------------------

    def _stale(self, event: Event) -> str | None:
        match event:
            case StagedUpTo(epoch=epoch) if epoch <= self._seen:
                return f"epoch {epoch} is over here, the last was {self._seen}"
            case Prepared(epoch=epoch) | PrepareFailed(epoch=epoch) if epoch != self._undecided and epoch <= self._seen:
                return f"epoch {epoch} is no longer being prepared"
            case Published(epoch=epoch) | PublishRefused(epoch=epoch) if epoch <= self._last_published:
                return f"epoch {epoch} is published"
        return None

    def _superseded(self, event: Event) -> list[Effect] | None:
        self.phase = P.FENCED
        return [Note("fenced", str(event))]

    def _on_fenced(self, event: Fenced) -> list[Effect]:
        self.phase = P.FENCED
        return [Note("fenced", str(event))]

    # -- epochs of earlier incarnations -----------------------------------------------------------------------------

    def _on_started(self, event: Started) -> list[Effect]:
        """Announce the newest published epoch at once.

        No other message answers a decision that was sent to the incarnation before this one.
        """
        self.phase = P.RESOLVING
        known = self._last_published > 0
        announced = [AckPublished(self.sink, self._last_published, self.incarnation)] if known else []
        return [*announced, *self._resolve_next()]

    def _resolve_next(self) -> list[Effect]:
        if self._in_doubt:
            return [AskDecision(self.sink, *self._in_doubt[0], self.incarnation)]
        self.phase = P.OPEN
        return self._prepare_waiting()

    def _on_doubt_resolved(self, event: DoubtResolved) -> list[Effect]:
        if (event.epoch, event.prepared_in) != self._in_doubt[0]:
            raise self._invalid(event, f"the question was about {self._in_doubt[0]}")
        self._in_doubt.popleft()
        # Presumed abort: only a decision record commits a transaction of an earlier incarnation.
        if event.decided:
            self._owed.append(event.epoch)
            return [*self._publish_next(), *self._resolve_next()]
        discard = DiscardPrepared(self.sink, event.epoch, event.prepared_in, self.incarnation)
        return [discard, *self._resolve_next()]

    # -- phase one -------------------------------------------------------------------------------------------

    def _on_staged(self, event: StagedUpTo) -> list[Effect]:
        self._next = self._seen = event.epoch
        return self._prepare_waiting()

    def _on_staged_early(self, event: StagedUpTo) -> list[Effect]:
        """Keep the epoch until the last one's outcome is known. Of two waiting epochs the newer one gets the rows."""
        self._next = self._seen = event.epoch
        return [Note("preparation waits", f"epoch {event.epoch}")]

    def _prepare_waiting(self) -> list[Effect]:
        if self._next is None:
            return []
        self._undecided, self._next = self._next, None
        self.phase = P.PREPARING
        return [PrepareSink(self.sink, self._undecided, self.incarnation)]

    def _on_prepared(self, event: Prepared) -> list[Effect]:
        self._check_undecided(event, event.epoch)
        self.phase = P.VOTED
        return [VoteYes(self.sink, event.epoch, self.incarnation)]

    def _on_prepare_failed(self, event: PrepareFailed) -> list[Effect]:
        """Vote no and carry the rows over at once: after this vote the epoch can only be aborted."""
        self._check_undecided(event, event.epoch)
        return [VoteNo(self.sink, event.epoch, self.incarnation, event.why), *self._carry_over()]

    def _on_aborted(self, event: EpochAborted) -> list[Effect]:
        return self._carry_over() if event.epoch == self._undecided else self._on_abort_of_other(event)

    def _on_abort_of_other(self, event: EpochAborted) -> list[Effect]:
        """Forget the epoch if it waits here. Otherwise it was never prepared or is carried over: the next epoch has its rows."""
        if self._next != event.epoch:
            return []
        self._next = None
        return [Note("preparation dropped", f"epoch {event.epoch}")]

    def _carry_over(self) -> list[Effect]:
        assert self._undecided is not None  # noqa: S101 - for the type checker; callers checked
        # Nothing upstream rolled back, so these rows are not produced again.
        carried = CarryOver(self.sink, self._undecided, self.incarnation)
        self._undecided = None
        self.phase = P.OPEN
        return [carried, *self._prepare_waiting()]

    # -- phase two -------------------------------------------------------------------------------------------

    def _on_decided(self, event: EpochDecided) -> list[Effect]:
        if event.epoch != self._undecided:
            return self._on_decided_again(event)
        self._owed.append(event.epoch)
        self._undecided = None
        self.phase = P.OPEN
        return [*self._publish_next(), *self._prepare_waiting()]

    def _on_decided_again(self, event: EpochDecided) -> list[Effect]:
        """Answer a repeated decision: acknowledge a published epoch, publish an unpublished one."""
        if event.epoch <= self._last_published:
            return [AckPublished(self.sink, event.epoch, self.incarnation)]
        if event.epoch in self._owed or any(event.epoch == epoch for epoch, _ in self._in_doubt):
            return self._publish_next()
        # No epoch commits without this sink's vote, so the coordinator is wrong.
        raise self._invalid(event, "decided without this sink's vote")

    def _publish_next(self) -> list[Effect]:
        # One publish at a time keeps the order of commit.
        if self._publishing or not self._owed:
            return []
        self._publishing = True
        return [PublishEpoch(self.sink, self._owed[0], self.incarnation)]

    def _on_published(self, event: Published) -> list[Effect]:
        self._check_publishing(event, event.epoch)
        self._last_published = self._owed.popleft()
        self._publishing = False
        return [AckPublished(self.sink, event.epoch, self.incarnation), *self._publish_next()]

    def _on_publish_refused(self, event: PublishRefused) -> list[Effect]:
        """Report the failure. The coordinator repeats the decision at the time of the next attempt."""
        self._check_publishing(event, event.epoch)
        self._publishing = False
        return [ReportPublishFailure(self.sink, event.epoch, self.incarnation, event.retriable, event.why)]

    def _check_undecided(self, event: Event, epoch: Epoch) -> None:
        if epoch != self._undecided:
            raise self._invalid(event, f"the undecided epoch is {self._undecided}")

    def _check_publishing(self, event: Event, epoch: Epoch) -> None:
        if not self._publishing or epoch != self._owed[0]:
            raise self._invalid(event, "that epoch is not being published")
