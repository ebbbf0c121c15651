"""One task of aligned barriers: hold each input at the barrier until all inputs have it, capture, forward, release.

The channels are FIFO and reliable; the host keeps the queues of held channels. No row after a barrier is processed
before the capture, so the channels of a cut are empty. A snapshot is state alone (seed 003, section 4.2).

    RUNNING <-> ALIGNING          RESTORING until the host has loaded the newer incarnation's base

- A source has no inputs. Its barrier comes on `NIL`, which counts as its one input. Read literally, the published
  algorithm compares an empty set of blocked inputs and never fires (erratum E4).
- An epoch may end half way: the coordinator aborts it, or a source receives only the next barrier. So a higher barrier
  on a free input abandons the current alignment and releases the held inputs.
- A snapshot is acknowledged when it *and every one before it* is durable, since snapshots form a chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from checkpoint_protocols.barrier.messages import (
    NIL,
    AckSnapshot,
    BarrierArrived,
    CaptureSnapshot,
    EpochAborted,
    ForwardBarrier,
    Restored,
    RestoreTask,
    RowsArrived,
    SnapshotStored,
)
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, TaskId
from checkpoint_protocols.machine import IGNORE_STALE, Drop, Effect, Event, Machine, rows
from checkpoint_protocols.vocabulary import Deliver, Hold, Note, Release


class OperatorPhase(Enum):
    """Phase of a task."""

    RUNNING = "no input is held"
    ALIGNING = "some inputs are held at the barrier"
    RESTORING = "the host loads a newer incarnation's base"


P = OperatorPhase

_EVENTS = (BarrierArrived, RowsArrived, SnapshotStored, EpochAborted, Restored)


class Operator(Machine[OperatorPhase]):
    """One task. `inputs` are its channels, none at a source. `last_epoch` is the epoch that its state was restored to."""

    PHASES = OperatorPhase
    EVENTS = _EVENTS
    TABLE = rows(
        {
            P.RUNNING: {
                BarrierArrived: "_on_barrier",
                RowsArrived: "_on_rows",
                SnapshotStored: "_on_snapshot_stored",
                EpochAborted: "_on_abort_elsewhere",
            },
            P.ALIGNING: {
                BarrierArrived: "_on_another_barrier",
                RowsArrived: "_on_rows",
                SnapshotStored: "_on_snapshot_stored",
                EpochAborted: "_on_abort",
            },
            P.RESTORING: {
                SnapshotStored: IGNORE_STALE,
                EpochAborted: IGNORE_STALE,
                Restored: "_on_restored",
            },
        },
        _EVENTS,
    )

    def __init__(
        self,
        task: TaskId,
        inputs: Iterable[ChannelId],
        incarnation: Incarnation,
        last_epoch: Epoch,
    ) -> None:
        super().__init__(P.RUNNING, incarnation)
        self.task = task
        # A source aligns on NIL alone, so that its barrier completes at once (erratum E4).
        self.inputs = frozenset(inputs) or frozenset({NIL})
        self._over = last_epoch
        self._aligning: Epoch | None = None
        self._held: set[ChannelId] = set()
        self._unacked: dict[Epoch, bool] = {}
        self._parked: BarrierArrived | RowsArrived | None = None

    @property
    def held(self) -> frozenset[ChannelId]:
        """Inputs that are held at the barrier."""
        return frozenset(self._held)

    @property
    def last_captured(self) -> Epoch:
        """The newest epoch that this task captured, restored or abandoned; barriers up to it are stale."""
        return self._over

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        self._ensure((self.phase is P.ALIGNING) == bool(self._held), "inputs are held iff aligning")
        self._ensure((self._aligning is not None) == bool(self._held), "an epoch is aligned iff inputs are held")
        self._ensure(self._held < self.inputs, "never are all inputs held")
        self._ensure(
            self._aligning is None or self._aligning > self._over,
            "epochs are aligned in the order of their ids",
        )
        self._ensure(list(self._unacked) == sorted(self._unacked), "epochs are captured in the order of their ids")
        self._ensure((self._parked is not None) == (self.phase is P.RESTORING), "an event is parked iff restoring")

    # -- at the door -----------------------------------------------------------------------------------------

    def _stale(self, event: Event) -> str | None:
        match event:
            case BarrierArrived(epoch=epoch) if epoch <= self._over:
                return f"epoch {epoch} is over here, the last was {self._over}"
            case BarrierArrived(epoch=epoch) if self._aligning is not None and epoch < self._aligning:
                return f"epoch {epoch} is older than {self._aligning}, which is being aligned"
            case SnapshotStored(epoch=epoch) if epoch <= self._over and epoch not in self._unacked:
                return f"the snapshot of epoch {epoch} is acknowledged"
        return None

    def _superseded(self, event: Event) -> list[Effect] | None:
        """Load the state of the newer incarnation before any of its events is processed."""
        if isinstance(event, EpochAborted):
            return [Drop(event, "nothing of that incarnation has reached this task")]
        if self.phase is P.RESTORING or not isinstance(event, BarrierArrived | RowsArrived):
            return None
        # Alignment and acknowledgements of the older incarnation are void; the event is processed after the restore.
        released = self._release()
        self._unacked.clear()
        self._parked = event
        self.phase = P.RESTORING
        return [*released, RestoreTask(event.incarnation)]

    # -- rows and barriers -----------------------------------------------------------------------------------

    def _on_rows(self, event: RowsArrived) -> list[Effect]:
        self._check_open(event, event.channel)
        return [Deliver(event)]

    def _on_barrier(self, event: BarrierArrived) -> list[Effect]:
        self._check_open(event, event.channel)
        return self._arrive(event)

    def _on_another_barrier(self, event: BarrierArrived) -> list[Effect]:
        self._check_open(event, event.channel)
        if event.epoch == self._aligning:
            return self._arrive(event)
        # A sender forwards barriers in order, so a newer one proves that the older epoch cannot complete here.
        return [*self._abandon(f"barrier {event.epoch} came on {event.channel}"), *self._arrive(event)]

    def _arrive(self, event: BarrierArrived) -> list[Effect]:
        if self._held | {event.channel} == self.inputs:
            return self._take_snapshot(event.epoch)
        self._held.add(event.channel)
        self._aligning = event.epoch
        self.phase = P.ALIGNING
        # Rows after the barrier belong to the next epoch, so they wait until the capture.
        return [Hold(event.channel)]

    def _take_snapshot(self, epoch: Epoch) -> list[Effect]:
        self._over = epoch
        self._unacked[epoch] = False
        capture, forward = CaptureSnapshot(epoch, self.incarnation), ForwardBarrier(epoch, self.incarnation)
        # Capture before any held row is delivered; forward before any row of the next epoch is sent.
        return [capture, forward, *self._release()]

    def _release(self) -> list[Effect]:
        held, self._held = sorted(self._held), set()
        self._aligning = None
        self.phase = P.RUNNING
        return [Release(channel) for channel in held]

    def _check_open(self, event: Event, channel: ChannelId) -> None:
        if channel not in self.inputs:
            raise self._invalid(event, f"the inputs are {sorted(self.inputs)}")
        if channel in self._held:
            raise self._invalid(event, "the channel is held: the host must keep what arrives on it")

    # -- aborted epochs ------------------------------------------------------------------------------------------

    def _on_abort(self, event: EpochAborted) -> list[Effect]:
        if self._aligning is not None and event.epoch >= self._aligning:
            return self._abandon("the coordinator gave it up")
        return self._on_abort_elsewhere(event)

    def _on_abort_elsewhere(self, event: EpochAborted) -> list[Effect]:
        """Do nothing: no input is held for the epoch. If its barrier is still in transit, it is processed as any other."""
        return []

    def _abandon(self, why: str) -> list[Effect]:
        assert self._aligning is not None  # noqa: S101 - for the type checker; callers are in ALIGNING
        abandoned = self._over = self._aligning
        return [Note("alignment abandoned", f"epoch {abandoned}: {why}"), *self._release()]

    # -- write ahead -----------------------------------------------------------------------------------------

    def _on_snapshot_stored(self, event: SnapshotStored) -> list[Effect]:
        if event.epoch not in self._unacked:
            raise self._invalid(event, "that snapshot was never captured")
        self._unacked[event.epoch] = True
        acks: list[Effect] = []
        # Changes of a snapshot build on the one before, so acknowledge only an unbroken beginning.
        while self._unacked and self._unacked[oldest := next(iter(self._unacked))]:
            del self._unacked[oldest]
            acks.append(AckSnapshot(self.task, oldest, self.incarnation))
        return acks

    # -- a newer incarnation ----------------------------------------------------------------------------------------

    def _on_restored(self, event: Restored) -> list[Effect]:
        parked = self._parked
        if parked is None or event.incarnation < parked.incarnation:
            raise self._invalid(event, "that is not the incarnation that was asked for")
        self.incarnation = event.incarnation
        self._over = event.epoch
        self._parked = None
        self.phase = P.RUNNING
        # The parked event passes the door again, now as one of the current incarnation.
        return self._react(self.TABLE[P.RUNNING, type(parked)], parked)
