"""P1, epochs with in-flight capture: no markers, no order, no blocking; counting detects a complete snapshot.

Seed 000 ("Checkpointing algorithm"); Mattern 1989, Lai and Yang 1987.

    STARTING -> RUNNING

Every message is stamped with its sender's epoch. A process that receives a newer epoch, in a message or in the
coordinator's request, captures *before* it delivers. A message from before a cut that arrives after it was in flight:
it is stored as part of that snapshot. Each process reports a number with its checkpoint: messages of older epochs sent
minus those received. The sum over all processes, less the captured messages, is the number still in flight.

Errata corrected (E1):

- The sum can be zero by accident while reports are missing: all reports are required.
- Messages are counted per epoch, and the counts are in the checkpoint. So snapshots may overlap, and a recovery may
  happen: a late message belongs to every open snapshot between its epoch and its receiver's.
- A process that receives nothing (the seed's mappers) learns of an epoch by a request only.
- Only the coordinator's component of the seed's vector clock is used; the others are for its proof.
- A coordinator's crash ends its open epochs; their numbers are not used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import Epoch, ProcessId
from checkpoint_protocols.machine import Effect, rows
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.record_fields import as_counts, by_number, number
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Key,
    Needs,
    Option,
    Output,
    Protocol,
    Record,
    Records,
    RecoveryPlan,
)
from checkpoint_protocols.snapshots.coordinator import (
    ACK,
    BEGIN,
    REFUSE,
    Open,
    SnapshotCoordinator,
    everybody_back,
    messages_in,
    record_key,
)
from checkpoint_protocols.snapshots.worker import ALWAYS, DECISIONS, SNAPSHOT_EVENTS, SnapshotWorker, messages
from checkpoint_protocols.vocabulary import (
    AppSent,
    Commanded,
    Envelope,
    Erase,
    Received,
    Stored,
    StoreRecord,
)

LATE = "late"
"""Kind of the report to the coordinator that one more message in flight is captured."""

CAPTURED = "captured"
"""Table of messages that were in flight, by snapshot."""


class SnapshotPhase(Enum):
    """Phase of a process: no message ever waits."""

    STARTING = "before its first event"
    RUNNING = "after it"


P = SnapshotPhase


class EpochWorker(SnapshotWorker[SnapshotPhase]):
    """One process. `index` is its epoch."""

    PHASES = SnapshotPhase
    AT_REST = (P.RUNNING,)
    TABLE = rows(
        {
            P.STARTING: {Commanded: "_on_start"},
            P.RUNNING: ALWAYS,
        },
        SNAPSHOT_EVENTS,
    )
    MESSAGES = messages({P.RUNNING: {APP: "_on_message", BEGIN: "_on_begin", **DECISIONS}})

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.STARTING, birth)
        self.balance = by_number((birth.checkpoint or {}).get("balance", {}))
        """Messages sent minus messages received, by the epoch of their stamp."""
        self.deficits: dict[int, int] = {}
        """Deficit of each capture, fixed at the capture and reported when the capture is durable."""
        self.settled = self.index
        """Epochs up to this one capture no more messages: they are decided, or were open in an earlier incarnation."""
        self.decided = 0
        """Newest decision known in this incarnation; earlier captures are not needed."""
        self.given_up: set[int] = set()
        # Captures of earlier incarnations as well: the next decision erases them with its own predecessors.
        self.in_flight: list[Key] = [key for key in birth.records if key[0] == CAPTURED]
        self.writing: Counter[int] = Counter()
        """Messages in flight that are being stored, by snapshot."""

    def record(self) -> Record:
        """Return the current record with the counts: an incarnation that continues from this state continues to count from them."""
        return {**super().record(), "balance": as_counts(self.balance)}

    def _on_start(self, event: Commanded) -> list[Effect]:
        self.phase = P.RUNNING
        return []

    # -- epochs --------------------------------------------------------------------------------------------------

    def _on_begin(self, event: Received) -> list[Effect]:
        return self._advance(event.message.index)

    def _advance(self, epoch: int) -> list[Effect]:
        """Capture the same state for every epoch up to `epoch`."""
        # A process may jump over epochs. The coordinator may decide any of them, so each gets a record of the same state (E1).
        return [effect for number in range(self.index + 1, epoch + 1) for effect in self._cut_at(number)]

    def _cut_at(self, number: int) -> list[Effect]:
        # Fixed at the cut: a message of an older epoch that arrives later is captured and reported as late.
        self.deficits[number] = sum(count for stamp, count in self.balance.items() if stamp < number)
        return super()._cut_at(number)

    # -- messages ------------------------------------------------------------------------------------------------

    def _on_app_sent(self, event: AppSent) -> list[Effect]:
        self._count(self.index, 1)
        return super()._on_app_sent(event)

    def _on_message(self, event: Received) -> list[Effect]:
        """Capture before the delivery. A message that is older than this process's epoch was in flight."""
        message = event.message
        # Seed 000, "Checkpointing algorithm": the first message from a newer epoch is taken after the checkpoint. Otherwise the
        # cut has a receipt whose send it lacks, and the row counts twice after a recovery.
        advanced = self._advance(message.index)
        kept = [self._store_in_flight(number, message) for number in self._open_across(message.index)]
        self._count(message.index, -1)
        return [*advanced, *kept, *self._deliver(event)]

    def _open_across(self, stamp: int) -> list[int]:
        """Return the open snapshots that this process has captured and that the message with this stamp crosses."""
        # Snapshots overlap: a late message is in flight across each cut between its epoch and this process's, so each open one
        # stores it.
        first = max(stamp, self.settled) + 1
        return [number for number in range(first, self.index + 1) if number not in self.given_up]

    def _count(self, epoch: int, change: int) -> None:
        self.balance[epoch] = self.balance.get(epoch, 0) + change

    def _store_in_flight(self, number: int, message: Envelope) -> StoreRecord:
        key = record_key(CAPTURED, number, message.source, message.incarnation, message.seq)
        self.in_flight.append(key)
        self.writing[number] += 1
        messages = [message.as_record()]
        record: Record = {"incarnation": self.incarnation, "index": message.index, "messages": messages}
        return StoreRecord(key, record, f"{CAPTURED} {number}")

    def _on_stored(self, event: Stored) -> list[Effect]:
        what, epoch = event.token.split()
        number = int(epoch)
        # A refused write counts as well: `_erase_in_flight` waits only for writes that may still land.
        self.writing[number] -= what == CAPTURED
        if not event.ok:
            return [self._send_control(COORDINATOR, REFUSE, number, f"{what} could not be written")]
        if what == CAPTURED:
            # The coordinator subtracts only durable captures (G2). If it counted one that is lost with this process, it would
            # decide a snapshot without that message.
            return [self._send_control(COORDINATOR, LATE, number, 1), *self._erase_in_flight()]
        self.kept.add(number)
        return [self._send_control(COORDINATOR, ACK, number, self.deficits.pop(number))]

    # -- decisions -----------------------------------------------------------------------------------------------

    def _on_commit(self, event: Received) -> list[Effect]:
        number = event.message.index
        # A decision has counted every message across its cut, so none of them can arrive any more.
        self.settled = max(self.settled, number)
        self.decided = max(self.decided, number)
        self.given_up = {each for each in self.given_up if each > number}
        self._forget_epochs_before(number)
        return [*super()._on_commit(event), *self._erase_in_flight()]

    def _on_abort(self, event: Received) -> list[Effect]:
        # An aborted snapshot is never decided, so it needs no more messages in flight.
        self.given_up.add(event.message.index)
        return []

    def _forget_epochs_before(self, number: int) -> None:
        old = [stamp for stamp in self.balance if stamp < number]
        total = sum(self.balance.pop(stamp) for stamp in old)
        # Each later deficit sums all stamps below its own epoch, so these need no separate counts.
        self._count(number - 1, total)

    def _erase_in_flight(self) -> list[Effect]:
        # A record that is still being written would land after its erasure and stay: it waits for its `Stored`.
        old = [key for key in self.in_flight if int(key[1]) < self.decided and not self.writing[int(key[1])]]
        self.in_flight = [key for key in self.in_flight if key not in old]
        return [Erase(tuple(old))] if old else []


class EpochCoordinator(SnapshotCoordinator):
    """Asks all processes, and waits for all reports and a balance of zero."""

    MESSAGES = {**SnapshotCoordinator.MESSAGES, LATE: "_on_late"}  # noqa: RUF012 - a table like TABLE

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self.limit = number(birth.settings.options.get("overlap", 3))

    def asked(self) -> Iterable[ProcessId]:
        """Return all processes: one that receives no messages would not learn of the epoch otherwise."""
        return self.workers

    def _on_ack(self, message: Envelope) -> list[Effect]:
        self.open[message.index].balance += number(message.body)
        return super()._on_ack(message)

    def _on_late(self, message: Envelope) -> list[Effect]:
        self.open[message.index].balance -= 1
        return self._decide_if_complete(message.index)

    def _complete(self, opened: Open) -> bool:
        # Control messages overtake each other: before all reports are in, a late message may be counted without its
        # deficit.
        self._ensure(bool(opened.missing) or opened.balance >= 0, "no more is captured than was in flight")
        # E1: while reports are missing, the sum can be 0 by accident although messages are in flight.
        return not opened.missing and opened.balance == 0


def captured_in_flight(process: ProcessId, number: Epoch, records: Records) -> tuple[Envelope, ...]:
    """Return the messages that were in flight to the process across the cut."""
    found = [record for key, record in records.items() if key[0] == CAPTURED and int(key[1]) == number]
    return tuple(message for record in found for message in messages_in(record))


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: all processes restore the newest decided epoch; messages in flight at its cut are delivered first."""
    return everybody_back(failure, captured_in_flight)


PROTOCOL = Protocol(
    name="epochs",
    title="Epochs with in-flight capture and deficit counting",
    source="seed 000; Mattern 1989; Lai and Yang 1987; errata E1",
    needs=Needs(fifo=False),
    output=Output(keeps_order=False),
    worker=EpochWorker,
    plan=plan,
    coordinator=EpochCoordinator,
    options={"overlap": Option()},
)
