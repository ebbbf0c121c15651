"""P5c, partial recovery: only failed processes and their ancestors go back; all others drop repeated messages.

Seed 003, section 5; Carbone et al. 2015, section 5, after TimeStream and SDG.

    STARTING -> REPLAYING -> RUNNING <-> ALIGNING, each of the last two <-> ORDERING

Snapshots are those of `snapshots`. A process that goes back regenerates its messages. That works only if it does the
same again. So a task with several inputs records the input of each message *before* it delivers the message
(`ORDERING`). After a recovery it accepts its messages in that order (`REPLAYING`). Sources repeat their inputs.

Errata corrected (E16):

- A source's sequence number does not name a record: siblings of a fan-out share it. Here each channel counts, and a
  replay regenerates the count.
- "Smaller than the processed sequence number" delivers the last one twice: it is smaller or equal.
- The seed does not say that merges must repeat their order. Without that, equal numbers name different records.
- A snapshot that begins while a process still repeats messages would hold receipts that are not sent yet. A barrier
  carries the number of messages sent before it. A process that has received more, or that still replays, refuses the
  snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum

from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import Drop, Effect, rows
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.record_fields import as_counts, by_number, number, receipts
from checkpoint_protocols.recovery import Birth, Failure, Key, Needs, Protocol, Record, Records, RecoveryPlan
from checkpoint_protocols.snapshots.coordinator import (
    BEGIN,
    REFUSE,
    SnapshotCoordinator,
    back_to,
    decided,
    nothing_in_flight,
    record_key,
)
from checkpoint_protocols.snapshots.worker import ALWAYS, BARRIER, DECISIONS, SNAPSHOT_EVENTS, AligningWorker, messages
from checkpoint_protocols.vocabulary import (
    CaptureState,
    Commanded,
    Erase,
    Received,
    Stored,
    StoreRecord,
)

ORDER = "order"
"""Table of receipts at merges: position to channel. Recoveries do not undo it, because they repeat its history."""


class PartialPhase(Enum):
    """Phase of a task."""

    STARTING = "before its first event"
    REPLAYING = "messages are taken in the order that was written down"
    RUNNING = "no input is held"
    ALIGNING = "some inputs are held at the barrier"
    ORDERING = "one message waits until its position is durable; all inputs are held"


P = PartialPhase


class PartialTask(AligningWorker[PartialPhase]):
    """One task. `position` counts the messages that a merge has delivered."""

    PHASES = PartialPhase
    AT_REST = (P.RUNNING,)
    TABLE = rows(
        {
            P.STARTING: {Commanded: "_on_start"},
            P.REPLAYING: ALWAYS,
            P.RUNNING: ALWAYS,
            P.ALIGNING: ALWAYS,
            P.ORDERING: ALWAYS,
        },
        SNAPSHOT_EVENTS,
    )
    MESSAGES = messages(
        {
            P.REPLAYING: {APP: "_on_message", BARRIER: "_on_untimely_barrier", **DECISIONS},
            P.RUNNING: {APP: "_on_message", BEGIN: "_on_begin", BARRIER: "_on_barrier", **DECISIONS},
            P.ALIGNING: {APP: "_on_message", BARRIER: "_on_barrier", **DECISIONS},
            P.ORDERING: DECISIONS,
        }
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.STARTING, birth)
        known = birth.checkpoint or {}
        self.position = number(known.get("position", 0))
        self.positions = by_number(known.get("positions", {}))
        """Position at each capture that is not decided."""
        self.order_keys: list[Key] = [key for key in birth.records if key[0] == ORDER]
        self.order = deque(order_after(self.position, birth.records))
        """Channels of the receipts that are to be repeated."""
        self.waiting = _waiting(known)
        """The message whose position is being written."""

    def record(self) -> Record:
        """Return the current record, with the message that was taken from its channel and not delivered."""
        waiting = [self.waiting.message.as_record()] if self.waiting else []
        positions = as_counts(self.positions)
        return {**super().record(), "position": self.position, "positions": positions, "waiting": waiting}

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        super().validate()
        self._ensure(not (self.order and self.held), "who replays does not align")

    def _update_phase(self) -> None:
        if self.waiting:
            self.phase = P.ORDERING
        elif self.order:
            self.phase = P.REPLAYING
        else:
            self.phase = P.ALIGNING if self.held else P.RUNNING

    def _shut(self) -> frozenset[ChannelId]:
        if self.phase is P.ORDERING:
            # One position is written at a time, so a crash leaves no gap in the order.
            return frozenset(self.inputs)
        if self.phase is P.REPLAYING:
            # Only the channel of the next recorded receipt may deliver.
            return frozenset(self.inputs) - {self.order[0]}
        return super()._shut()

    def _on_start(self, event: Commanded) -> list[Effect]:
        waited, self.waiting = self.waiting, None
        self._update_phase()
        gates = self._gate()
        if waited is None:
            return gates
        # Judged again: a recovery may have undone the send of the message while its position was being written.
        turned_away = self._door(waited)
        return [*gates, *(self._on_message(waited) if turned_away is None else turned_away)]

    # -- messages ------------------------------------------------------------------------------------------------

    def _on_message(self, event: Received) -> list[Effect]:
        if self._is_known(event):
            return [Drop(event, f"a replay repeats what was delivered, up to {self.received.get(event.channel, 0)}")]
        # One FIFO input has only one order, so nothing has to be recorded.
        if len(self.inputs) == 1:
            return self._deliver(event)
        if self.order:
            return self._repeat(event)
        # The position is durable before the delivery. Sends that follow may reach a survivor, and a replay in another
        # order would give their numbers to other records (E16).
        self.waiting = event
        self.order_keys.append(record_key(ORDER, self.position + 1))
        self._update_phase()
        return [*self._gate(), self._write_position(event.channel)]

    def _is_known(self, event: Received) -> bool:
        last = self.received.get(event.channel, 0)
        self._ensure(event.message.seq <= last + 1, "a channel has no gaps")
        # E16: the seed drops numbers that are smaller, and delivers the last one twice. The number is the channel's and
        # not the source's: siblings of a fan-out share that one.
        return event.message.seq <= last

    def _repeat(self, event: Received) -> list[Effect]:
        expected = self.order.popleft()
        self._ensure(event.channel == expected, "messages are repeated in the order that was written down")
        return self._deliver_in_order(event)

    def _deliver_in_order(self, event: Received) -> list[Effect]:
        self.position += 1
        delivered = self._deliver(event)
        self._update_phase()
        return [*delivered, *self._gate()]

    def _write_position(self, channel: ChannelId) -> StoreRecord:
        # Index 0: a recovery repeats the order that it finds here, so it must not undo it.
        record: Record = {"incarnation": self.incarnation, "index": 0, "channel": channel}
        return StoreRecord(record_key(ORDER, self.position + 1), record, f"{ORDER} {self.position + 1}")

    def _on_stored(self, event: Stored) -> list[Effect]:
        waited = self.waiting
        if not event.token.startswith(ORDER) or waited is None:
            return super()._on_stored(event)
        if not event.ok:
            return [self._write_position(waited.channel)]
        self.waiting = None
        return self._deliver_in_order(waited)

    # -- barriers ------------------------------------------------------------------------------------------------

    def _on_barrier(self, event: Received) -> list[Effect]:
        sent = number(event.message.body)
        # The sender went back to an earlier state, so its barrier precedes messages that are received here: the cut would have
        # orphans.
        if self.received.get(event.channel, 0) > sent:
            return self._on_untimely_barrier(event)
        return super()._on_barrier(event)

    def _on_untimely_barrier(self, event: Received) -> list[Effect]:
        number = event.message.index
        # Refused at once and not awaited: a barrier that waits for the end of the replay holds its input, and the replay may
        # need that input (mutant `WaitsItOut` in specs/README.md).
        abandoned = self._abandon(f"{number} is refused") if self.aligning is not None else []
        self.over = max(self.over, number)
        return [*abandoned, self._send_control(COORDINATOR, REFUSE, number, "a replay is under way")]

    def _capture(self, number: int) -> tuple[CaptureState, Record]:
        self.positions[number] = self.position
        return super()._capture(number)

    def _keep(self, number: int, captured: Record) -> list[Effect]:
        return [self._write(number, captured)]

    # -- decisions -----------------------------------------------------------------------------------------------

    def _on_commit(self, event: Received) -> list[Effect]:
        return [*super()._on_commit(event), *self._erase_order(event.message.index)]

    def _erase_order(self, number: int) -> list[Effect]:
        # A replay begins at this cut or a later one, so it never repeats earlier receipts.
        base = self.positions.get(number, 0)
        self.positions = {each: position for each, position in self.positions.items() if each > number}
        old = [key for key in self.order_keys if int(key[1]) <= base]
        self.order_keys = [key for key in self.order_keys if int(key[1]) > base]
        return [Erase(tuple(old))] if old else []


def order_after(position: int, records: Records) -> Iterable[ChannelId]:
    """Yield the channels of the receipts after `position`, up to the first gap in the records."""
    while (found := records.get(record_key(ORDER, position + 1))) is not None:
        yield ChannelId(str(found["channel"]))
        position += 1


def _waiting(record: Record) -> Received | None:
    kept = receipts(record.get("waiting", ()))
    return kept[0] if kept else None


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: failed processes and all their ancestors go back, so no message enters that part from outside."""
    workers = frozenset(failure.graph.processes)
    behind = failure.graph.upstream_of(failure.failed & workers)
    return back_to(failure, decided(failure), behind, nothing_in_flight)


PROTOCOL = Protocol(
    name="partial-recovery",
    title="Aligned barriers; after a failure only its upstream goes back",
    source="seed 003, section 5; Carbone et al. 2015, section 5; erratum E16",
    needs=Needs(fifo=True, acyclic=True, deterministic=True),
    worker=PartialTask,
    plan=plan,
    coordinator=SnapshotCoordinator,
)
