"""Sender-based message logging: senders keep sent messages and their receipt numbers; receivers keep nothing (P6b).

Seed 004, "Sender-based Logging"; Johnson and Zwaenepoel 1987.

    send m               log[seq] = (m, -); send; again and again until it is acknowledged
    receive m            known: acknowledge again.  Early: keep.  Next: rsn += 1; ACK(seq, rsn); deliver, send nothing
    ACK(seq, rsn)        log[seq] = (m, rsn), stored; then ACKACK(rsn)
    ACKACK of all        sends go out
    checkpoint stored    COVERED(up to): senders drop the messages that it includes
    failure              newest checkpoint; all senders' later entries in the order of rsn, up to the first gap;
                         messages without rsn are sent again anyway, in any order

Erratum E12: the number is the *receiver's*, one counter for all senders, no clock. The seed's case of m and m' is a
lost acknowledgement: the receiver processed m, crashed, and no process knows the place of m. It is enough to hold the
receiver's *sends* until its receipts are fully logged. `block: receipts` is the seed's own stricter rule: nothing more
is received until then. Sinks show rows by the same rule (G6).

The guarantee depends on the place of a sender's log (option `log`):

- `stable` (the seed's "logs each message"): the sender stores message and number before ACKACK. Tolerates any number of
  failures, at any time, also of both ends.
- `volatile` (the paper's): the log is in memory and in the sender's checkpoints. Tolerates one failure at a time. A
  failure lasts from a crash until every process has started again. In addition, every receipt after its receiver's
  checkpoint must be acknowledged again. If both ends of a channel fail together, receipts can become unknown. If
  another process received a message that depends on one, `plan` raises `ProtocolViolation`: the loss is detected, not
  repaired. A sink that failed with its sender may have shown rows in an order that is lost.

A message that a failed process sent and that was not received yet is not taken from the channel, either. The process
sends it again, and only then can its log name the receipt.

Channels may lose, repeat and reorder. Between two receipts a process must depend only on its state. The seed's round of
requests to all senders is the host's report of survivors and records. `plan` takes the replay from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import count, takewhile
from typing import ClassVar

from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.machine import Drop, Effect, ProtocolViolation, rows
from checkpoint_protocols.message_logging.sender_log import (
    ReceiptOrder,
    SenderLog,
    SentEntry,
    durable_entries,
    log_key,
    log_record,
)
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.message_worker import (
    PERIODIC,
    WORKER_EVENTS,
    WORKING,
    CheckpointingWorker,
    erase_before,
    replay_of_the_failed,
)
from checkpoint_protocols.record_fields import as_counts, counts, mapping, number
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Key,
    Needs,
    Option,
    Output,
    Protocol,
    ProtocolSettings,
    Record,
    RecoveryPlan,
    checkpoints,
)
from checkpoint_protocols.vocabulary import (
    OUT,
    AppSent,
    Commanded,
    Deliver,
    Envelope,
    Erase,
    Hold,
    Json,
    Note,
    Received,
    Release,
    Send,
    Stored,
    StoreRecord,
    TimerElapsed,
)

# -- One process of sender-based logging, sender and receiver at once. See `sender_logging` for the protocol and its seed.


REPEAT = "repeat"
ACK, ACKACK, COVERED = "ack", "ackack", "covered"

STABLE, VOLATILE = "stable", "volatile"
SENDS, RECEIPTS = "sends", "receipts"


class SenderPhase(Enum):
    """Phase of a process: fully logged or not."""

    BORN = "the incarnation has not begun"
    OPEN = "it is: sends go out"
    GATED = "it is not: sends wait"


P = SenderPhase


class SenderLoggingWorker(CheckpointingWorker[SenderPhase]):
    """One process. `order` is its own receipts, `log` its sent messages; `captured` numbers its checkpoints."""

    PHASES = SenderPhase
    AT_REST = (P.OPEN,)
    TABLE = rows(
        {
            P.BORN: {Commanded: "_on_start"},
            P.OPEN: WORKING,
            P.GATED: {Received: "_on_received", TimerElapsed: "_on_timer", Stored: "_on_stored"},
        },
        WORKER_EVENTS,
    )
    MESSAGES: ClassVar[dict[str, str]] = {APP: "_take", ACK: "_learn", ACKACK: "_fully_logged", COVERED: "_trim"}

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.BORN, birth)
        self.is_stable = option(birth.settings, "log", STABLE, VOLATILE) == STABLE
        self.is_strict = option(birth.settings, "block", SENDS, RECEIPTS) == RECEIPTS
        self.order, self.log = ReceiptOrder(), SenderLog()
        if birth.checkpoint is not None:
            self._continue(birth.checkpoint)
        self._durable: dict[Key, int] = {}
        """Every durable record of the log, with the number of its message."""
        self.kept: set[int] = set(checkpoints(birth.records))
        self._void: tuple[Key, ...] = ()
        self._read(birth)
        self._writing: dict[str, Key] = {}
        self._is_armed = False

    def _continue(self, record: Record) -> None:
        self.captured = number(record["captured"])
        self.sent = counts(record["sent"])
        self.order = ReceiptOrder.of(mapping(record["order"]))
        self.log = SenderLog.of(record, self.table)
        self.log.renew(self.incarnation)

    def _read(self, birth: Birth) -> None:
        """Read the durable state: receipts in the newest checkpoint, and receipt numbers of this sender's messages."""
        kept = checkpoints(birth.records)
        if kept:
            newest = ReceiptOrder.of(mapping(kept[max(kept)]["order"]))
            self.order.cover(newest.rsn, newest.received)
        void: list[Key] = []
        for key, entry, stands in durable_entries(birth.records, self.table):
            if stands:
                self._durable[key] = entry.message.seq
            else:
                void.append(key)
        self._void = tuple(void)

    def record(self) -> Record:
        """Return the current state, without the content of the durable log."""
        return {
            "incarnation": self.incarnation,
            "index": self.index,
            "captured": self.captured,
            "sent": as_counts(self.sent),
            "received": as_counts(self.order.received),
            "order": self.order.as_record(),
            "log": self.log.as_record(),
        }

    @property
    def receipts(self) -> int:
        """Number of messages received."""
        return self.order.rsn

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        order = self.order
        self._ensure((self.phase is P.GATED) <= bool(order.unacked), "sends wait only for receipts")
        self._ensure((self.phase is P.OPEN) <= (not order.unacked), "nothing goes out ahead of the log")
        self._ensure(sum(order.received.values()) == order.rsn, "every receipt has its place in the order")
        self._ensure(order.unacked <= set(order.places.values()), "a receipt that is not logged has a place")

    # -- an incarnation begins -------------------------------------------------------------------------------------------

    def _on_start(self, event: Commanded) -> list[Effect]:
        self.phase = P.OPEN
        gate = self._close() if self.order.unacked else []
        erased: list[Effect] = [Erase(self._void)] if self._void else []
        return [
            self._set_timer(),
            *gate,
            *erased,
            *self._erase_older(),
            *self._forget_early(),
            *self._say_covered(),
            *self._repeat(),
            *self._show(),
        ]

    def _forget_early(self) -> list[Effect]:
        # Accepted, they would wait for receipts that their senders cannot log before they send the messages again.
        needless = [event for event in self.order.early.values() if self._comes_again(event)]
        for event in needless:
            del self.order.early[event.channel, event.message.seq]
        return [Drop(event, "its sender failed since and sends it again") for event in needless]

    def _repeat(self) -> list[Effect]:
        """Send again messages without a receipt, and receipts that are not logged."""
        acks = [self._ack(channel, seq, rsn) for (channel, seq), rsn in self.order.waiting()]
        return [*(Send(channel, message) for channel, message in self.log.without_rsn()), *acks, *self._arm()]

    def _arm(self) -> list[Effect]:
        """Run the repetition timer while any message or receipt is unacknowledged."""
        if self._is_armed or not (self.order.unacked or any(self.log.without_rsn())):
            return []
        self._is_armed = True
        return [self._set(REPEAT, self.settings.timeout_ms)]

    # -- receiving -----------------------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> list[Effect]:
        return self._call(self.MESSAGES.get(event.message.kind), event)

    def _take(self, event: Received) -> list[Effect]:
        if self.order.is_known(event):
            return [self._answer_again(event), Drop(event, "received before")]
        if self.is_strict and self.order.unacked and not event.replayed:
            raise self._invalid(event, "inputs are held until the receipt before is logged")
        if self._comes_again(event) and not event.replayed:
            return [Drop(event, "its sender failed since and sends it again")]
        if self.order.is_next(event):
            return self._accept(event)
        return self._keep(event)

    def _comes_again(self, event: Received) -> bool:
        # A sender that failed since cannot log the receipt before it sends the message again. In a loop, processes wait
        # for each other's logs, so accepting the message could deadlock.
        source, sent_in = event.message.source, event.message.incarnation
        later = (row for incarnation, row in self.table.items() if incarnation > sent_in)
        return any(isinstance(row, Mapping) and source in row for row in later)

    def _keep(self, event: Received) -> list[Effect]:
        # An earlier message is in transit, or lost and will be repeated: channels need no order here.
        place = event.channel, event.message.seq
        if place in self.order.early:
            return [Drop(event, "came early before")]
        self.order.early[place] = event
        return []

    def _accept(self, event: Received) -> list[Effect]:
        """Deliver the message and its early successors. Hold sends until every sender has the receipt's number."""
        # Seed 004, "Sender-based Logging", step 2: the receiver numbers the receipt. Step 3 is `_learn`, at the sender.
        rsn = self.order.take(event)
        ack = self._ack(event.channel, event.message.seq, rsn)
        # The gate closes before the delivery: what the application sends because of this message has to wait for the ACK-ACK.
        effects: list[Effect] = [ack, *self._close(), Deliver(event), *self._arm()]
        return effects if self.is_strict else [*effects, *self._accept_early()]

    def _accept_early(self) -> list[Effect]:
        early = self.order.next_early()
        return [] if early is None else self._accept(early)

    def _close(self) -> list[Effect]:
        if self.phase is P.GATED:
            return []
        self.phase = P.GATED
        inputs = self.inputs if self.is_strict else ()
        return [Note("gated"), Hold(OUT), *map(Hold, inputs)]

    def _open(self) -> list[Effect]:
        """Process a logged receipt. When all receipts are logged, release the sends."""
        if self.order.unacked:
            return self._show()
        # With `block: receipts` an early message waits until the receipt before it is logged, so its turn comes only now.
        shown, early = self._show(), self._accept_early() if self.is_strict else []
        # An accepted early message has an unlogged receipt, which keeps the gate closed.
        if early or self.phase is P.OPEN:
            return [*shown, *early]
        self.phase = P.OPEN
        inputs = self.inputs if self.is_strict else ()
        return [*shown, Release(OUT), *map(Release, inputs)]

    def _fully_logged(self, event: Received) -> list[Effect]:
        self.order.unacked.discard(number(mapping(event.message.body)["rsn"]))
        return self._open()

    def _ack(self, channel: ChannelId, seq: int, rsn: int) -> Effect:
        body: dict[str, Json] = {"channel": channel, "seq": seq, "rsn": rsn}
        return self._send_control(self.graph.ends[channel][0], ACK, self.index, body)

    def _answer_again(self, event: Received) -> Effect:
        # The sender missed the acknowledgement, or failed and lost it. Without a place, the durable checkpoint includes
        # the message.
        rsn = self.order.places.get((event.channel, event.message.seq))
        if rsn is None:
            return self._covered(event.channel)
        return self._ack(event.channel, event.message.seq, rsn)

    def _show(self) -> list[Effect]:
        # G6: output cannot be undone, so it waits as sends do.
        last = max(self.order.fully_logged, self.order.covered)
        return self._publish(last, f"{self.me}/{last}")

    # -- sending -------------------------------------------------------------------------------------------------

    def _on_sent(self, event: AppSent) -> list[Effect]:
        send = self._send_app(event.channel, event.body, self.index)
        self.log.add(event.channel, SentEntry(send.message))
        return [send, *self._arm()]

    def _learn(self, event: Received) -> list[Effect]:
        channel, seq, rsn = _receipt(event)
        entry = self.log.get(channel, seq)
        if entry is not None:
            entry.rsn = rsn
            if self.is_stable and log_key(channel, seq, rsn) not in self._durable:
                return self._make_durable(channel, entry, rsn)
        # In a loop both ends may replay and wait for each other. So a receipt in the stable log is acknowledged even
        # before this process has sent the message again.
        elif seq > self.sent.get(channel, 0) and log_key(channel, seq, rsn) not in self._durable:
            return [Drop(event, "the replay has not come to that message")]
        return [self._ackack(channel, rsn)]

    def _make_durable(self, channel: ChannelId, entry: SentEntry, rsn: int) -> list[Effect]:
        # Before the ACK-ACK (G2): the receiver may send only when the log survives a failure of this process.
        key = log_key(channel, entry.message.seq, rsn)
        token = "/".join(key)
        # The receiver repeats its acknowledgement until the ACK-ACK. Its record is written once, and answered when it is
        # durable.
        if token in self._writing:
            return []
        self._writing[token] = key
        return [StoreRecord(key, log_record(entry, self.incarnation), token)]

    def _ackack(self, channel: ChannelId, rsn: int) -> Effect:
        return self._send_control(self.graph.ends[channel][1], ACKACK, self.index, {"rsn": rsn})

    def _trim(self, event: Received) -> list[Effect]:
        """Drop the messages that the receiver's checkpoint includes."""
        body = mapping(event.message.body)
        channel, last = ChannelId(str(body["channel"])), number(body["last"])
        self.log.trim(channel, last)
        needless = tuple(key for key, seq in self._durable.items() if key[1] == channel and seq <= last)
        for key in needless:
            del self._durable[key]
        return [Erase(needless)] if needless else []

    # -- checkpoints and timers ----------------------------------------------------------------------------------

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        if event.name == PERIODIC:
            return [*self._checkpoint(), self._set_timer()]
        self._is_armed = False
        return self._repeat()

    def _receipts_in(self, record: Record) -> int:
        return sum(counts(record["received"]).values())

    def _on_stored(self, event: Stored) -> list[Effect]:
        key = self._writing.pop(event.token, None)
        if key is not None:
            return self._log_stored(key, event.ok)
        return self._on_checkpoint_stored(event)

    def _log_stored(self, key: Key, ok: bool) -> list[Effect]:
        channel, seq, rsn = ChannelId(key[1]), int(key[2]), int(key[3])
        entry = self.log.get(channel, seq)
        # The receiver's checkpoint covered the message during the write.
        if entry is None:
            return [Erase((key,))] if ok else []
        if not ok:
            return self._make_durable(channel, entry, rsn)
        self._durable[key] = seq
        return [self._ackack(channel, rsn)]

    def _kept(self, index: int, saved: Record) -> list[Effect]:
        self.kept.add(index)
        self.order.cover(number(mapping(saved["order"])["rsn"]), counts(saved["received"]))
        return [*self._erase_older(), *self._say_covered(), *self._open()]

    def _erase_older(self) -> list[Effect]:
        # The newest may have become durable after its writer failed, which erased nothing then.
        return erase_before(self.kept, max(self.kept, default=0))

    def _say_covered(self) -> list[Effect]:
        return [self._covered(channel) for channel in self.order.covered_up_to]

    def _covered(self, channel: ChannelId) -> Effect:
        body: dict[str, Json] = {"channel": channel, "last": self.order.covered_up_to.get(channel, 0)}
        return self._send_control(self.graph.ends[channel][0], COVERED, self.index, body)


def _receipt(event: Received) -> tuple[ChannelId, int, int]:
    body = mapping(event.message.body)
    return ChannelId(str(body["channel"])), number(body["seq"]), number(body["rsn"])


def option(settings: ProtocolSettings, name: str, *values: str) -> str:
    """Return an option of this protocol; the first value is the default.

    Raises `ProtocolViolation` for a value that is not in `values`.
    """
    value = str(settings.options.get(name, values[0]))
    if value not in values:
        raise ProtocolViolation(f"option {name} is {value!r}, not one of {values}")
    return value


Receipts = Mapping[int, Envelope]
"""Known receipts of one process, by rsn."""


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: failed processes restore a checkpoint and replay their receipts.

    Raises `ProtocolViolation` if a survivor or a replay depends on a receipt that is lost (see the module).
    """
    decided = replay_the_failed(failure)
    _check_dependencies(failure, decided)
    return decided


def replay_the_failed(failure: Failure) -> RecoveryPlan:
    """Return the plan that replays all known receipts without a gap, without the check of dependencies."""
    known = _known_receipts(failure)
    return replay_of_the_failed(
        failure,
        lambda process: _order(failure, process).rsn,
        lambda process: _behind(_order(failure, process).rsn, known[process]),
    )


def _known_receipts(failure: Failure) -> dict[ProcessId, dict[int, Envelope]]:
    """Collect receipts from the logs of survivors, of the failed ones' checkpoints, and of all stable storage."""
    known: dict[ProcessId, dict[int, Envelope]] = {process: {} for process in failure.graph.processes}
    for entry in _entries(failure):
        if entry.rsn is not None:
            known[entry.message.target].setdefault(entry.rsn, entry.message)
    return known


def _entries(failure: Failure) -> list[SentEntry]:
    found: list[SentEntry] = []
    for process in failure.graph.processes:
        record = _base(failure, process)
        log = SenderLog.of(record, failure.table) if record else SenderLog()
        found.extend(entry for kept in log.entries.values() for entry in kept.values())
        found.extend(e for _, e, stands in durable_entries(failure.records[process], failure.table) if stands)
    return found


def _base(failure: Failure, process: ProcessId) -> Record | None:
    """Return the record that the process continues from: the current one, its newest checkpoint, or None."""
    kept = checkpoints(failure.records[process])
    return failure.survivors.get(process) or (kept[max(kept)] if kept else None)


def _order(failure: Failure, process: ProcessId) -> ReceiptOrder:
    record = _base(failure, process)
    return ReceiptOrder.of(mapping(record["order"])) if record else ReceiptOrder()


def _behind(rsn: int, known: Receipts) -> tuple[Envelope, ...]:
    # Receipts after a gap cannot be repeated in their order: what the unknown one changed in the state is lost.
    numbers = takewhile(known.__contains__, count(rsn + 1))
    return tuple(known[number] for number in numbers)


def _check_dependencies(failure: Failure, decided: RecoveryPlan) -> None:
    """Raise `ProtocolViolation` if a process keeps a message that depends on a lost receipt of its sender."""
    assert isinstance(decided.row, Mapping)  # noqa: S101 - for the type checker: it was made above
    for process, part in decided.parts.items():
        rests_on = list(_order(failure, process).depends.items())
        rests_on += [(message.source, message.index) for message in part.replay]
        for sender, rsn in rests_on:
            first_unknown = decided.row.get(ProcessId(sender))
            if first_unknown is not None and rsn >= first_unknown:
                raise ProtocolViolation(
                    f"{process} received what {sender} sent after its receipt {rsn}, which no process knows: with volatile"
                    f" logs {sorted(failure.failed)} must not be down together"
                )


PROTOCOL = Protocol(
    name="sender-logging",
    title="Senders log messages and the order in which they were received; receivers log nothing",
    source="seed 004, Sender-based Logging (Johnson and Zwaenepoel 1987)",
    needs=Needs(fifo=False, reliable=False, deterministic=True),
    output=Output(at_once=True),
    worker=SenderLoggingWorker,
    plan=plan,
    options={"block": Option(("sends", "receipts"))},
)
