"""Index-based checkpointing with approximately synchronized clocks: no coordinator, no domino effect (P6e).

Seed 004, "Synchronized Clocks" and "Recording Message Sequence Numbers"; Briatico, Ciuffoletti and Simoncini 1984,
Manivannan and Singhal 1996. Clocks only make checkpoints coincide; correctness does not depend on them.

    every T        the index of the clock is newer than mine: checkpoint, mine = that one
    send m         m.index = mine
    receive m      its send was undone: drop                                                     (rule G4, whole table)
                   m.index > mine: checkpoint m.index first, THEN deliver                         ("forced")
                   m.index < mine: store m in the log first, THEN deliver                         ("logged")
                   m.index = mine: deliver
    stored         send "durable n" to all; the least of all is complete: show output, erase
    failure        the failed go to the newest index r that all of them have; every other process, at the news of it,
                   to its checkpoint that serves r if its index is at or above r; replay the logged messages

                 RUNNING  <->  SAVING

Line n consists of every process's checkpoint that serves n. It is consistent for every n, because forced checkpoints
precede the delivery. Corrections and additions:

- E8: the seed says that checkpointing first "remembers the message". It prevents orphans only. The lost messages are
  those of senders with a *lower* index than the receiver, and they are logged.
- E14: a message of an older incarnation whose send was not undone is late, not stale. It is logged, because its sender
  will not send it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from checkpoint_protocols.graph import channel_between
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, ProcessId
from checkpoint_protocols.incarnation import Age, Line, RollbackTable, age
from checkpoint_protocols.machine import Drop, Effect, ProtocolViolation, rows
from checkpoint_protocols.message_worker import PERIODIC, WORKER_EVENTS, WORKING, MessageWorker
from checkpoint_protocols.record_fields import as_counts, counts, envelopes, items, mapping, number
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Key,
    Needs,
    Output,
    Part,
    Protocol,
    Record,
    Records,
    RecoveryPlan,
    checkpoint_key,
    checkpoints,
)
from checkpoint_protocols.vocabulary import (
    OUT,
    AppSent,
    CaptureState,
    CheckpointKind,
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
    SetTimer,
    Stored,
    StoreRecord,
    TimerElapsed,
)

# -- Compact set of the messages that a process has received on channels without order.
#
# Two messages of one channel with the same number never both count: the second exists only because the first was undone.
# So numbers are enough. One number stands for the unbroken beginning; early messages are listed.


class Receipts:
    """A set of messages. As JSON, it maps a channel to [n, [more]]: numbers 1 to n, and the listed ones."""

    def __init__(self, record: Json = None) -> None:
        self._upto: dict[ChannelId, int] = {}
        self._early: dict[ChannelId, set[int]] = {}
        for name, value in mapping(record or {}).items():
            upto, early = items(value)
            self._upto[ChannelId(name)] = number(upto)
            self._early[ChannelId(name)] = {number(each) for each in items(early)}

    def __contains__(self, message: Envelope) -> bool:
        channel = channel_between(message.source, message.target)
        return message.seq <= self._upto.get(channel, 0) or message.seq in self._early.get(channel, ())

    def add(self, message: Envelope) -> None:
        """Add one message to the set."""
        channel = channel_between(message.source, message.target)
        early = self._early.setdefault(channel, set())
        early.add(message.seq)
        upto = self._upto.get(channel, 0)
        while upto + 1 in early:
            upto += 1
            early.discard(upto)
        self._upto[channel] = upto

    def as_record(self) -> Mapping[str, Json]:
        """Return the JSON that the constructor reads."""
        return {channel: [upto, sorted(self._early[channel])] for channel, upto in sorted(self._upto.items())}


# -- Records of the index-based protocols, and the restore decision.
#
# A checkpoint is stored under the lowest index it serves and names the highest. An idle process that jumps from 3 to 6
# takes one checkpoint for 4, 5 and 6. Recovery to index r undoes everything from r on, so no index is above r then. An
# older checkpoint that served up to 6 then serves up to r.


LOG = "log"


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A durable checkpoint: it serves the indices `low` to `high`; `delivered` messages were delivered before it."""

    low: int
    high: int
    delivered: int


def log_key(message: Envelope) -> Key:
    """Return the key of a logged message. It depends on the message only."""
    return (LOG, message.source, f"{message.incarnation:06d}", f"{message.seq:012d}")


def kept_in(records: Records, table: RollbackTable) -> list[KeptCheckpoint]:
    """Return a process's durable checkpoints, oldest first."""
    return [
        KeptCheckpoint(low, clipped(record, table), number(record["delivered"]))
        for low, record in checkpoints(records).items()
    ]


def clipped(record: Record, table: RollbackTable) -> int:
    """Return the index that a state has in the newest incarnation: every recovery since lowers it to its line."""
    # After a recovery no index is above its line. A checkpoint that served later indices as well serves up to the line.
    return min(number(record["index"]), _limit(record, table))


def local_part(records: Records, table: RollbackTable, incarnation: Incarnation, now: Record) -> Part:
    """Decide a survivor's part (Manivannan and Singhal): stay below the line, else restore the checkpoint that serves it.

    `table` includes the new row. A survivor may have missed recoveries, so the lowest line of all since `now` counts.
    """
    line = _limit(now, table)
    # It has received nothing from the line or above: such a message would have forced a checkpoint of that index first.
    if number(now["index"]) < line:
        return Part(None, because=f"index {now['index']} is below {line}: nothing of it is undone")
    return _go_back(_up_to(records, line), table, incarnation)


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: all processes go to one index, the newest that every failed process has stored."""
    # Only failed processes lose work: a survivor above the line restores at the news of the recovery, one below it keeps its
    # state.
    newest = {process: _newest(failure, process) for process in failure.failed}
    line = Epoch(min(newest.values()))
    table = {**failure.table, failure.incarnation: line}
    parts = {process: _part_of_failed(failure, process, table, line) for process in failure.failed}
    return RecoveryPlan(failure.incarnation, line, parts)


def rejoin(decided: RecoveryPlan, birth: Birth) -> Part:
    """Return a survivor's own decision, at the news of the recovery."""
    assert birth.checkpoint is not None  # noqa: S101 - who hears of a recovery has a now
    table = {**birth.table, decided.incarnation: decided.row}
    return local_part(birth.records, table, decided.incarnation, birth.checkpoint)


def _newest(failure: Failure, process: ProcessId) -> int:
    kept = kept_in(failure.records[process], failure.table)
    return kept[-1].high if kept else 0


def _part_of_failed(failure: Failure, process: ProcessId, table: RollbackTable, line: Epoch) -> Part:
    part = _go_back(_up_to(failure.records[process], line), table, failure.incarnation)
    return replace(part, because=f"failed: index {line} is the newest that all who failed have stored")


def _up_to(records: Records, line: int) -> Records:
    """Return the records without checkpoints that serve only indices above the line."""
    return {key: record for key, record in records.items() if key[0] != "checkpoint" or int(key[1]) <= line}


def _go_back(records: Records, table: RollbackTable, incarnation: Incarnation) -> Part:
    """Restore the newest checkpoint in `records`, then replay every logged message that it lacks and that was not undone."""
    known = checkpoints(records)
    low = max(known, default=None)
    state: Record = {} if low is None else known[low]
    replay = tuple(_replayed(logged(records), state, table, incarnation))
    if low is None:
        return Part(None, replay, initial=True, because="nothing is stored that serves the line")
    return Part(checkpoint_key(low), replay, because=f"its checkpoint from {low} on serves the line")


def logged(records: Records) -> list[Envelope]:
    """Return the messages of the log, oldest incarnation first."""
    return [message for key in sorted(records) if key[0] == LOG for message in envelopes(records[key]["messages"])]


def _replayed(
    log: Iterable[Envelope], state: Record, table: RollbackTable, incarnation: Incarnation
) -> Iterable[Envelope]:
    received = Receipts(state.get("received"))
    # A waiting message is in the restored record and comes from there; replayed as well, it would be delivered twice.
    waiting = {log_key(message) for message in envelopes(state.get("waiting", ()))}
    for message in log:
        verdict = age(message.source, message.incarnation, Epoch(message.index), incarnation, table)
        if verdict is not Age.UNDONE and message not in received and log_key(message) not in waiting:
            yield message


def _limit(record: Mapping[str, object], table: RollbackTable) -> int:
    """Return the lowest line of all recoveries since the record was written."""
    written = record["incarnation"]
    assert isinstance(written, int)  # noqa: S101 - every record carries it
    # Without a recovery since, nothing limits the index.
    return min((_one(row) for recovery, row in table.items() if recovery > written), default=2**62)


def _one(row: Line) -> int:
    if isinstance(row, Mapping):
        raise ProtocolViolation("indices are comparable: the row is one index for all")
    return row


DURABLE = "durable"


class IndexPhase(Enum):
    """Phase of a process."""

    RUNNING = "the checkpoint of its index is on disk"
    SAVING = "the checkpoint of the next index is being stored; nothing comes in, nothing leaves"


P = IndexPhase


class IndexWorker(MessageWorker[IndexPhase]):
    """One process. `index` is the newest durable one; 0 is the initial state."""

    PHASES = IndexPhase
    AT_REST = (P.RUNNING,)
    TABLE = rows(
        {
            P.RUNNING: {Commanded: "_on_start", **WORKING},
            P.SAVING: {
                Received: "_on_received_while_saving",
                TimerElapsed: "_on_timer_while_saving",
                Stored: "_on_stored",
            },
        },
        WORKER_EVENTS,
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.RUNNING, birth)
        now: Mapping[str, Json] = birth.checkpoint or {}
        self.index = clipped(now, birth.table) if now else 0
        self.sent = counts(now.get("sent", {}))
        self.received = Receipts(now.get("received"))
        self.delivered = number(now.get("delivered", 0))
        self.complete = number(now.get("complete", 0))
        self.logged = number(now.get("logged", 0))
        self._kept = [kept for kept in kept_in(birth.records, birth.table) if kept.low <= self.index]
        self._log = {log_key(message): message for message in logged(birth.records)}
        # Index 0: the next erasure removes logged messages whose send was undone.
        self._covered = dict.fromkeys((key for key, message in self._log.items() if self._undone(message)), 0)
        self._waiting = {log_key(message): message for message in envelopes(now.get("waiting", ()))}
        self._logging: set[Key] = set()
        self._saving: KeptCheckpoint | None = None
        # Peers send theirs again in every incarnation: an older number may be of a checkpoint that the recovery undid.
        self._durable: dict[ProcessId, int] = dict.fromkeys(self.graph.processes, 0)
        self._durable[self.me] = self.index
        self._saved: Record = {}

    def record(self) -> Record:
        """Return the current record. `waiting`: messages that reached this process and not yet the application."""
        return {
            "incarnation": self.incarnation,
            "index": self.index,
            "sent": as_counts(self.sent),
            "received": self.received.as_record(),
            "delivered": self.delivered,
            "complete": self.complete,
            "logged": self.logged,
            "waiting": [message.as_record() for message in self._waiting.values()],
        }

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        self._ensure((self.phase is P.SAVING) == (self._saving is not None), "something is saved iff saving")
        self._ensure(self._saving is None or self._saving.low == self.index + 1, "indices are served without gaps")
        self._ensure(self.complete <= self.index, "what is complete is on disk here")
        self._ensure(self._logging <= self._waiting.keys(), "only waiting messages are being logged")
        self._ensure(self.shown <= self.delivered, "only delivered rows are shown")

    # -- begin, send, tick -------------------------------------------------------------------------------------------

    def _on_start(self, event: Commanded) -> list[Effect]:
        timer = self._tick(number(event.arguments.get("local_ms", 0)))
        # Index 0 is the initial state: it has no record and no rows.
        known = any(kept.low <= self.complete for kept in self._kept)
        return [timer, *self._send_durable(), *(self._show() if known else ()), *self._take_in_waiting()]

    def _on_sent(self, event: AppSent) -> list[Effect]:
        return [self._send_app(event.channel, event.body, self.index, self._header())]

    def _header(self) -> Mapping[str, Json]:
        return {}

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        timer = self._tick(event.local_ms)
        # The clock proposes the index, so that checkpoints of different processes coincide.
        due = event.local_ms // self.settings.interval_ms
        return [timer, *(self._take(due, CheckpointKind.BASIC) if due > self.index else ())]

    def _on_timer_while_saving(self, event: TimerElapsed) -> list[Effect]:
        return [self._tick(event.local_ms)]

    def _tick(self, local_ms: int) -> SetTimer:
        """Set the timer to the next full interval of this process's clock."""
        return self._set(PERIODIC, self.settings.interval_ms - local_ms % self.settings.interval_ms)

    # -- receive -----------------------------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> list[Effect]:
        if event.message.kind == DURABLE:
            return self._on_durable(event.message)
        return self._take_in(event)

    def _on_received_while_saving(self, event: Received) -> list[Effect]:
        if event.message.kind == DURABLE:
            return self._on_durable(event.message)
        # The channels are held. Only the message of a newer incarnation that announces a recovery still comes, handed
        # in by the host.
        self._waiting[log_key(event.message)] = event.message
        return []

    def _take_in(self, event: Received) -> list[Effect]:
        message = event.message
        key = log_key(message)
        if message in self.received:
            return [Drop(event, "it is here: logged, and given again")]
        if key in self._logging:
            # Neither delivered nor dropped: the channel keeps the copy until the record is durable, or this life ends.
            return []
        # The checkpoint must come before the delivery, or this message would be an orphan on that line.
        if message.index > self.index:
            self._waiting[key] = message
            return [Note("forced", str(message.index)), *self._take(message.index, CheckpointKind.FORCED)]
        if self._must_be_logged(message):
            self._waiting[key] = message
            return self._store_in_log(key, message)
        return self._deliver(event)

    def _must_be_logged(self, message: Envelope) -> bool:
        # E8: seed 004 checkpoints before the delivery, which prevents orphans only. A message from a lower index crosses the
        # lines between both: a receiver that goes back loses it, and its sender does not send it again. E14: neither is an older
        # one sent again that was never undone.
        return message.index < self.index or message.incarnation < self.incarnation

    def _store_in_log(self, key: Key, message: Envelope) -> list[Effect]:
        self._logging.add(key)
        # The message's own incarnation and index: a recovery undoes the record exactly if it undoes the send.
        record: Record = {
            "incarnation": message.incarnation,
            "index": message.index,
            "messages": [message.as_record()],
        }
        return [StoreRecord(key, record, "/".join(key))]

    def _deliver(self, event: Received) -> list[Effect]:
        self._waiting.pop(log_key(event.message), None)
        self.received.add(event.message)
        self.delivered += 1
        return [Deliver(event)]

    def _take_in_waiting(self) -> list[Effect]:
        """Process waiting messages that are not being logged, until a checkpoint has to come first."""
        effects: list[Effect] = []
        for key, message in list(self._waiting.items()):
            if self.phase is P.RUNNING and key not in self._logging:
                effects += self._take_in_late(Received(channel_between(message.source, message.target), message))
        return effects

    def _take_in_late(self, event: Received) -> list[Effect]:
        # Judged again: a recovery may have undone the send while the message waited.
        turned_away = self._door(event)
        if turned_away is None:
            return self._take_in(event)
        del self._waiting[log_key(event.message)]
        return turned_away

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _take(self, index: int, kind: CheckpointKind) -> list[Effect]:
        self._saving = KeptCheckpoint(self.index + 1, index, self.delivered)
        # One checkpoint serves all indices up to `index`, so an idle process skips the ones between.
        self._saved = {**self.record(), "index": index}
        self.phase = P.SAVING
        self._cover(self._saving.low)
        # All channels are held from the capture until it is durable. A survivor can only go back to a durable checkpoint. If it
        # worked at the new index before, it would stay an orphan of a line that it has no checkpoint for.
        return [*self._gates(Hold), CaptureState(Epoch(self._saving.low), kind), self._store_checkpoint()]

    def _cover(self, low: int) -> None:
        """Note the logged messages that this checkpoint contains, in its state or waiting. Those still to be replayed
        are not in it.
        """
        for key, message in self._log.items():
            # Between a recovery and the end of its replay, the rest of the replay is in no state. It stays in the log.
            if message in self.received or key in self._waiting:
                self._covered.setdefault(key, low)

    def _undone(self, message: Envelope) -> bool:
        index = Epoch(message.index)
        return age(message.source, message.incarnation, index, self.incarnation, self.table) is Age.UNDONE

    def _gates(self, gate: type[Hold] | type[Release]) -> Sequence[Effect]:
        return [gate(channel) for channel in (*self.inputs, OUT)]

    def _store_checkpoint(self) -> StoreRecord:
        assert self._saving is not None  # noqa: S101 - callers are in SAVING
        return StoreRecord(checkpoint_key(self._saving.low), self._saved, PERIODIC)

    def _on_stored(self, event: Stored) -> list[Effect]:
        if event.token == PERIODIC:
            return self._on_checkpoint_stored(event)
        key: Key = tuple(event.token.split("/"))
        message = self._waiting.get(key)
        if message is None:
            raise self._invalid(event, "no message waits for this record")
        self._logging.discard(key)
        if not event.ok:
            return self._store_in_log(key, message)
        self._log[key] = message
        self.logged += 1
        received = Received(channel_between(message.source, message.target), message)
        return [Note("logged", str(message.index)), *self._deliver(received)]

    def _on_checkpoint_stored(self, event: Stored) -> list[Effect]:
        saved = self._saving
        if saved is None:
            raise self._invalid(event, "no checkpoint is being stored")
        if not event.ok:
            return [self._store_checkpoint()]
        self._kept.append(saved)
        self.index, self._saving, self.phase = saved.high, None, P.RUNNING
        self._durable[self.me] = self.index
        ratio = Note("logged of received", f"{self.logged}/{self.delivered}")
        return [*self._gates(Release), ratio, *self._send_durable(), *self._advance(), *self._take_in_waiting()]

    # -- the complete index ------------------------------------------------------------------------------------------

    def _send_durable(self) -> list[Send]:
        return [self._send_control(peer, DURABLE, self.index) for peer in self.graph.processes if peer != self.me]

    def _on_durable(self, message: Envelope) -> list[Effect]:
        return self._learn(message.source, message.index)

    def _learn(self, process: ProcessId, index: int) -> list[Effect]:
        # Control messages overtake each other, so an older number may come later.
        self._durable[process] = max(self._durable[process], index)
        return self._advance()

    def _advance(self) -> list[Effect]:
        least = min(self._durable.values())
        if least <= self.complete:
            return []
        # A failed process goes back to an index that it has stored, so no recovery goes below the least one of all.
        self.complete = least
        return [Note("complete", str(least)), *self._show(), *self._erase()]

    def _serving(self) -> KeptCheckpoint:
        return max((kept for kept in self._kept if kept.low <= self.complete), key=lambda kept: kept.low)

    def _show(self) -> list[Effect]:
        # G6: no recovery goes below the complete index, so nothing undoes the rows of the checkpoint that serves it.
        return self._publish(self._serving().delivered, f"{self.me}@{self.complete}")

    def _erase(self) -> list[Effect]:
        oldest = self._serving().low
        old = [kept for kept in self._kept if kept.low < oldest]
        # A checkpoint before the one that contains a message needs the message for its replay.
        covered = [key for key, low in self._covered.items() if low <= oldest]
        self._kept = [kept for kept in self._kept if kept.low >= oldest]
        for key in covered:
            del self._log[key], self._covered[key]
        keys = (*(checkpoint_key(kept.low) for kept in old), *covered)
        return [Erase(keys)] if keys else []


PROTOCOL = Protocol(
    name="index-based",
    title="Index-based checkpoints, forced by messages",
    source="seed 004, Synchronized Clocks; Briatico et al. 1984; Manivannan and Singhal 1996",
    needs=Needs(fifo=False),
    output=Output(keeps_order=False),
    worker=IndexWorker,
    plan=plan,
    rejoin=rejoin,
)
