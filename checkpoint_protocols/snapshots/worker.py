"""Common work of all snapshot workers: count, stamp, capture, write, acknowledge, publish, erase.

`index` is the newest snapshot that this process captured; it stamps every message sent after it. `over` is the newest
one that is finished here, captured or aborted: messages of it or of an older one are stale.

A sink shows rows when the snapshot that holds them is decided, never before (G6). `cuts` holds the number of rows
delivered at each capture that is not decided yet. The number of visible rows is not in a record, since a crash may come
between the two. So the sink reports it to every incarnation (`Birth.shown`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import ClassVar, TypeVar

from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import ChannelId, Epoch
from checkpoint_protocols.machine import Cell, Effect, Event
from checkpoint_protocols.message_worker import MessageWorker, erase_before
from checkpoint_protocols.record_fields import as_counts, by_number, counts, number
from checkpoint_protocols.recovery import Birth, Record, checkpoint_key
from checkpoint_protocols.snapshots.coordinator import ABORT, ACK, BEGIN, COMMIT, REFUSE
from checkpoint_protocols.vocabulary import (
    AppSent,
    CaptureState,
    CheckpointKind,
    Commanded,
    Deliver,
    Envelope,
    Hold,
    Note,
    Received,
    Release,
    SinkReplied,
    SinkTransaction,
    Stored,
    StoreRecord,
)

PhaseT = TypeVar("PhaseT", bound=Enum)

SNAPSHOT_EVENTS: tuple[type[Event], ...] = (Commanded, Received, AppSent, Stored, SinkReplied)

ALWAYS = {
    Received: "_on_received",
    AppSent: "_on_app_sent",
    Stored: "_on_stored",
    SinkReplied: "_on_sink_replied",
}
"""Handlers of every phase after the first."""

DECISIONS = {COMMIT: "_on_commit", ABORT: "_on_abort"}
"""Handlers of the coordinator's decisions."""


def messages(cells: Mapping[PhaseT, Mapping[str, str]]) -> dict[tuple[Enum, str], Cell]:
    """Return the second half of a table: the handlers of each phase, by the kind of the message."""
    return {(phase, kind): handler for phase, handlers in cells.items() for kind, handler in handlers.items()}


class SnapshotWorker(MessageWorker[PhaseT]):
    """Base of the workers. Subclasses define phases, `TABLE`, `MESSAGES` and the events that make them capture."""

    EVENTS = SNAPSHOT_EVENTS
    MESSAGES: ClassVar[Mapping[tuple[Enum, str], Cell]]
    """Second half of the table: the handler of each phase and message kind."""

    def __init__(self, phase: PhaseT, birth: Birth) -> None:
        super().__init__(phase, birth)
        known = birth.checkpoint or {}
        self.index = number(known.get("index", 0))
        self.over = max(self.index, number(known.get("over", 0)))
        self.sent = counts(known.get("sent", {}))
        self.received = counts(known.get("received", {}))
        self.delivered = number(known.get("delivered", 0))
        self.cuts = by_number(known.get("cuts", {}))
        # Read from storage and not from the record: a checkpoint may have become durable after the state that this incarnation
        # continues from.
        self.kept = {int(key[1]) for key in birth.records if key[0] == "checkpoint"}
        """Durable checkpoints known in this incarnation."""

    def record(self) -> Record:
        """Return counts and numbers. An unfinished snapshot is not included: its markers end with this incarnation."""
        return {
            "incarnation": self.incarnation,
            "index": self.index,
            "over": self.over,
            "sent": as_counts(self.sent),
            "received": as_counts(self.received),
            "delivered": self.delivered,
            "cuts": as_counts(self.cuts),
        }

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        self._ensure(self.index <= self.over, "what was captured is over")
        self._ensure(all(rows <= self.delivered for rows in self.cuts.values()), "cuts are of the past")
        self._ensure(self.shown <= self.delivered, "only delivered rows are shown")

    # -- the door and the second half of the table ---------------------------------------------------------------

    def _on_received(self, event: Received) -> list[Effect]:
        return self._call(self.MESSAGES.get((self.phase, event.message.kind)), event)

    # -- the application -----------------------------------------------------------------------------------------

    def _on_app_sent(self, event: AppSent) -> list[Effect]:
        return [self._send_app(event.channel, event.body, self.index)]

    def _deliver(self, event: Received) -> list[Effect]:
        self.received[event.channel] = self.received.get(event.channel, 0) + 1
        self.delivered += 1
        return [Deliver(event)]

    # -- capturing and writing -----------------------------------------------------------------------------------

    def _capture(self, number: int) -> tuple[CaptureState, Record]:
        """Capture the current state of the application and of this machine."""
        # Before the record is made: an incarnation that continues from it stamps its messages with this number.
        self.index = number
        self.over = max(self.over, number)
        self.cuts[number] = self.delivered
        return CaptureState(Epoch(number), CheckpointKind.BASIC), self.record()

    def _write(self, number: int, record: Record, messages: Sequence[Envelope] = ()) -> StoreRecord:
        """Write the record of a capture, with the messages that belong to the same cut."""
        kept = [message.as_record() for message in messages]
        return StoreRecord(checkpoint_key(number), {**record, "messages": kept}, f"checkpoint {number}")

    def _cut_at(self, number: int) -> list[Effect]:
        """Capture the state and write it."""
        capture, captured = self._capture(number)
        return [capture, self._write(number, captured)]

    def _on_stored(self, event: Stored) -> list[Effect]:
        number = int(event.token.split()[1])
        if not event.ok:
            return [self._send_control(COORDINATOR, REFUSE, number, "the checkpoint could not be written")]
        # G2: the decision counts this acknowledgement, and a decided snapshot must be readable after any crash.
        self.kept.add(number)
        return [self._send_control(COORDINATOR, ACK, number)]

    # -- decisions -----------------------------------------------------------------------------------------------

    def _on_commit(self, event: Received) -> list[Effect]:
        number = event.message.index
        # Every recovery from now on goes back to this decision or a later one (O12).
        return [*self._show(number), *self._erase_before(number)]

    def _show(self, number: int) -> list[Effect]:
        # Rows of aborted snapshots have waited here. Each cut counts from the beginning, so the next decision shows them, too.
        rows = self.cuts.get(number, 0)
        self.cuts = {each: later for each, later in self.cuts.items() if each > number}
        # A decision may reach a sink again (the coordinator's successor repeats it), and `shown` already counts its rows then.
        if self.outputs or rows <= self.shown:
            return []
        first, self.shown = self.shown, rows
        return [self._show_rows(number, first, rows)]

    def _show_rows(self, number: int, first: int, last: int) -> SinkTransaction:
        # The name carries the rows, so that a refusal says which rows to repeat.
        return SinkTransaction(f"{self.me}/{number}/{first}-{last}", first, last)

    def _on_sink_replied(self, event: SinkReplied) -> list[Effect]:
        if event.ok:
            return []
        # The snapshot is decided, so a refusal cannot undo its rows. The transaction is repeated.
        _, number, rows = event.transaction.rsplit("/", 2)
        first, last = rows.split("-")
        return [self._show_rows(int(number), int(first), int(last))]

    def _erase_before(self, number: int) -> list[Effect]:
        return erase_before(self.kept, number)


# -- Alignment of inputs at barriers, shared by the barrier protocols over plain messages.
#
# A barrier holds its input until barriers of the same snapshot have arrived on all awaited inputs (`regular`). Then the
# task captures, forwards the barrier and releases the inputs, in one step. One snapshot is open at a time, so a barrier
# of a newer one proves that the older was aborted.
#
# The state alone determines the gate of each input (`_shut`); `_gate` returns the difference to the present gates.


BARRIER = "barrier"
"""Kind of a barrier. Its body is the number of application messages that the sender had sent on the channel."""


class AligningWorker(SnapshotWorker[PhaseT]):
    """A task that aligns. Subclasses set the phase (`_update_phase`) and process a captured state (`_keep`)."""

    def __init__(self, phase: PhaseT, birth: Birth) -> None:
        super().__init__(phase, birth)
        self.regular = frozenset(self.inputs)
        self.aligning: int | None = None
        self.held: set[ChannelId] = set()
        """Inputs on which the barrier of `aligning` has arrived."""
        self.closed: frozenset[ChannelId] = frozenset()
        """Inputs that the host holds at present."""

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        super().validate()
        self._ensure((self.aligning is not None) == bool(self.held), "inputs are held iff something is aligned")
        self._ensure(self.aligning is None or self.aligning > self.over, "what is over holds nothing")
        self._ensure(not self.held or self.held < self.regular, "never are all inputs held")
        self._ensure(self.closed == self._shut(), "the gates are as the state says")

    @abstractmethod
    def _update_phase(self) -> None:
        """Set the phase from the state."""

    @abstractmethod
    def _keep(self, number: int, captured: Record) -> list[Effect]:
        """Return the effects that store or complete the state captured for a snapshot."""

    def _stale(self, event: Event) -> str | None:
        match event:
            case Received(message=Envelope(kind=kind, index=number)) if kind in (BEGIN, BARRIER):
                if number <= self.over:
                    return f"snapshot {number} is over here"
                if self.aligning is not None and number < self.aligning:
                    return f"snapshot {number} is older than {self.aligning}, which is being aligned"
        return None

    def _on_start(self, event: Commanded) -> list[Effect]:
        self._update_phase()
        return []

    # -- barriers ------------------------------------------------------------------------------------------------

    def _on_begin(self, event: Received) -> list[Effect]:
        # E4: a source has no input, so this request is its only barrier, the seed's Nil.
        return self._take(event.message.index)

    def _on_barrier(self, event: Received) -> list[Effect]:
        number, channel = event.message.index, event.channel
        if channel not in self.regular or channel in self.held:
            raise self._invalid(event, f"barriers are awaited on {sorted(self.regular - self.held)}")
        # A lost or repeated message would make the cut inconsistent, so the sender's count is compared.
        self._ensure(self.received.get(channel, 0) == event.message.body, "what came before a barrier was delivered")
        abandoned = self._make_way(number)
        if self.held | {channel} == self.regular:
            return [*abandoned, *self._take(number)]
        self.aligning = number
        # Seed 003, algorithm 1, line 9: what follows on this input is after the cut. Processed before the capture, it
        # would be in the state, and the sender would send it again after a recovery.
        self.held.add(channel)
        self._update_phase()
        return [*abandoned, *self._gate()]

    def _make_way(self, number: int) -> list[Effect]:
        if self.aligning is None or self.aligning == number:
            return []
        # One snapshot is open at a time, so a barrier of a newer one proves that this one was aborted.
        return self._abandon(f"the barrier of {number} came")

    def _take(self, number: int) -> list[Effect]:
        self._end_alignment()
        capture, captured = self._capture(number)
        kept = self._keep(number, captured)
        self._update_phase()
        # The capture is first: a released input delivers at once. Seed 003 sends the barrier before it snapshots (algorithm 1,
        # lines 12 and 13), which is right only because both are one step.
        return [capture, *self._forward(number), *self._gate(), *kept]

    def _forward(self, number: int) -> list[Effect]:
        return [self._send_on(channel, BARRIER, number, self.sent.get(channel, 0)) for channel in self.outputs]

    # -- aborted snapshots ---------------------------------------------------------------------------------------

    def _on_abort(self, event: Received) -> list[Effect]:
        number = event.message.index
        # An abort that was overtaken by the barrier of a newer snapshot must not end the newer alignment.
        due = self.aligning is not None and self.aligning <= number
        abandoned = self._abandon("the coordinator gave it up") if due else []
        self.over = max(self.over, number)
        return abandoned

    def _abandon(self, why: str) -> list[Effect]:
        """End an alignment that will never complete here, and release its inputs."""
        note = Note("alignment abandoned", f"{self.aligning}: {why}")
        # The rest of its barriers is stale from now on. One of them would begin the alignment again, and hold its input for ever
        # (E5: algorithm 2 gives barriers no id and cannot tell).
        self.over = max(self.over, self.aligning or 0)
        self._end_alignment()
        self._update_phase()
        return [note, *self._gate()]

    # -- gates ---------------------------------------------------------------------------------------------------

    def _end_alignment(self) -> None:
        self.aligning = None
        self.held.clear()

    def _shut(self) -> frozenset[ChannelId]:
        """Return the inputs from which nothing may be delivered now."""
        return frozenset(self.held)

    def _gate(self) -> list[Effect]:
        before, self.closed = self.closed, self._shut()
        opened = [Release(channel) for channel in sorted(before - self.closed)]
        return [*opened, *(Hold(channel) for channel in sorted(self.closed - before))]
