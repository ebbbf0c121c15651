"""Synchronous receiver logging: a message is on stable storage before the application sees it (P6f).

Seed 004, "Synchronous Logging"; pessimistic logging of the literature.

    receive m     already delivered: drop it.  Nothing being stored: store log += (order, m), else wait
    stored        deliver the record's messages, in order; store all waiting messages as the next record
    checkpoint    state and order; when it is stored the log up to there is erased
    failure       only the failed process goes back: newest checkpoint, then its log in order, then live

Between two receipts a process depends only on its state. So the replay repeats its sends with the same numbers, and
receivers drop them. A received message is never undone, and a sink shows delivered rows at once (rule G6). Points that
the seed leaves open:

- A record holds every message that arrived while the record before was being stored (group commit). There is one write
  at a time for any number of messages, and the durable log has no gap.
- A repetition is dropped only when its original is *delivered*. While the original is not durable, the repetition may
  be the only copy that survives a crash.
- `index` of a message is the number of receipts that its sender had delivered. Recovery undoes everything after the
  last logged receipt, so the row of the rollback table affects no other process. Sources have no receipts and no row.
- A value from a clock, a random number or an unordered iteration has to reach the process as a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.machine import Drop, Effect, rows
from checkpoint_protocols.message_worker import WORKER_EVENTS, WORKING, CheckpointingWorker, replay_of_the_failed
from checkpoint_protocols.record_fields import as_counts, counts, envelopes, number, receipts
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Key,
    Needs,
    Output,
    Protocol,
    Record,
    Records,
    RecoveryPlan,
    checkpoint_key,
    checkpoints,
)
from checkpoint_protocols.vocabulary import (
    AppSent,
    Commanded,
    Deliver,
    Envelope,
    Erase,
    Json,
    Received,
    Stored,
    StoreRecord,
    TimerElapsed,
)


class LoggingPhase(Enum):
    """Reason why the next message is not delivered yet."""

    BORN = "the incarnation has not begun"
    REPLAYING = "the log holds messages that the state does not have"
    IDLE = "nothing"
    LOGGING = "a record of the log is being stored"


P = LoggingPhase


class LoggingWorker(CheckpointingWorker[LoggingPhase]):
    """One process.

    `order` counts delivered messages; `batch` is being stored; `waiting` is for the next record.
    """

    PHASES = LoggingPhase
    AT_REST = (P.IDLE,)
    TABLE = rows(
        {
            P.BORN: {Commanded: "_on_start"},
            P.REPLAYING: {Received: "_on_replayed", AppSent: "_on_sent", TimerElapsed: "_on_early_timer"},
            P.IDLE: {**WORKING, Stored: "_on_checkpoint_stored"},
            P.LOGGING: {**WORKING, Received: "_on_another"},
        },
        WORKER_EVENTS,
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.BORN, birth)
        self.order = 0
        self.received: dict[ChannelId, int] = {}
        self.batch: list[Received] = []
        self.waiting: list[Received] = []
        self._replays = 0
        """Messages of the log still to come. A survivor of the next failure waits for the rest."""
        if birth.checkpoint is not None:
            self._continue(birth.checkpoint)
        self.seen = dict(self.received)
        for event in (*self.batch, *self.waiting):
            self.seen[event.channel] = max(self._seen(event.channel), event.message.seq)
        self.kept = {key: number(record["index"]) for key, record in birth.records.items()}
        if self._has_failed():
            self._replays = len(logged(birth.records, self.order))

    def _has_failed(self) -> bool:
        """Return True if this incarnation begins with a replay: the recovery's row names only processes that failed."""
        row = self.table.get(self.incarnation)
        return isinstance(row, Mapping) and self.me in row

    def _continue(self, record: Record) -> None:
        self.order = number(record["order"])
        self.captured = number(record["captured"])
        self.sent = counts(record["sent"])
        self.received = counts(record["received"])
        self._replays = number(record["replays"])
        self.batch = receipts(record["batch"])
        self.waiting = receipts(record["waiting"])

    def record(self) -> Record:
        """Return the current state, without the content of the log."""
        return {
            "incarnation": self.incarnation,
            "index": self.index,
            "order": self.order,
            "replays": self._replays,
            "captured": self.captured,
            "sent": as_counts(self.sent),
            "received": as_counts(self.received),
            "batch": [event.message.as_record() for event in self.batch],
            "waiting": [event.message.as_record() for event in self.waiting],
        }

    @property
    def receipts(self) -> int:
        """Number of messages received."""
        return self.order

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        if self.phase in (P.IDLE, P.LOGGING):
            self._ensure((self.phase is P.LOGGING) == bool(self.batch), "a record is being stored iff logging")
            self._ensure(bool(self.batch) or not self.waiting, "nothing waits for nothing")
        self._ensure((self.phase is P.REPLAYING) <= (self._replays > 0), "replaying only what the log has")
        self._ensure(sum(self.received.values()) == self.order, "every receipt has its place in the order")

    # -- an incarnation begins -------------------------------------------------------------------------------------------

    def _on_start(self, event: Commanded) -> list[Effect]:
        begun = [self._set_timer(), *self._show(), *self._erase_again()]
        if self._replays:
            self.phase = P.REPLAYING
            return begun
        return [*begun, *self._go_on()]

    def _on_replayed(self, event: Received) -> list[Effect]:
        if not event.replayed:
            raise self._invalid(event, "the replay comes first")
        self._replays -= 1
        return [*self._deliver([event]), *([] if self._replays else self._go_on())]

    def _go_on(self) -> list[Effect]:
        if self.batch and not self._known(self.batch[0]):
            # An earlier incarnation did not get it stored. It is the same record under the same key, so a second write
            # is harmless.
            self.phase = P.LOGGING
            return [self._log()]
        # The batch is durable and replayed already; the next record drops its messages as known.
        self.waiting = [*self.batch, *self.waiting]
        return self._next_record()

    # -- messages ------------------------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> list[Effect]:
        self._see(event)
        self.waiting.append(event)
        return self._next_record()

    def _on_another(self, event: Received) -> list[Effect]:
        self._see(event)
        self.waiting.append(event)
        return []

    def _on_sent(self, event: AppSent) -> list[Effect]:
        return [self._send_app(event.channel, event.body, self.index)]

    def _see(self, event: Received) -> None:
        seq = event.message.seq
        if seq > self._seen(event.channel) + 1:
            raise self._invalid(event, f"the channel lost messages behind {self._seen(event.channel)}")
        self.seen[event.channel] = max(self._seen(event.channel), seq)

    def _seen(self, channel: ChannelId) -> int:
        return self.seen.get(channel, 0)

    def _known(self, event: Received) -> bool:
        """Return True if the message was delivered before, so its sender repeated it."""
        return event.message.seq <= self.received.get(event.channel, 0)

    # -- the log -------------------------------------------------------------------------------------------------

    def _next_record(self) -> list[Effect]:
        """Store every waiting message, once each, as the next record."""
        # Judged only now: when a repetition arrives, its original may not be durable yet. The repetition may then be the only
        # copy that survives a crash.
        drops: list[Effect] = [Drop(each, "delivered before") for each in self.waiting if self._known(each)]
        self.batch, self.waiting = _first_of_each([each for each in self.waiting if not self._known(each)])
        self.phase = P.LOGGING if self.batch else P.IDLE
        return [*drops, self._log()] if self.batch else drops

    def _log(self) -> Effect:
        key = log_key(self.order + 1)
        record: dict[str, Json] = {
            "incarnation": self.incarnation,
            "index": self.order + len(self.batch),
            "first": self.order + 1,
            "messages": [event.message.as_record() for event in self.batch],
        }
        return StoreRecord(key, record, "/".join(key))

    def _on_stored(self, event: Stored) -> list[Effect]:
        key = log_key(self.order + 1)
        if event.token != "/".join(key):
            return self._on_checkpoint_stored(event)
        if not event.ok:
            return [self._log()]
        self.kept[key] = self.order + len(self.batch)
        # Pessimistic logging: the application sees a message only now, so no state and no send depends on one that a
        # crash can lose.
        batch, self.batch = self.batch, []
        return [*self._deliver(batch), *self._next_record()]

    def _deliver(self, events: list[Received]) -> list[Effect]:
        """Deliver messages, all of which are durable."""
        for event in events:
            self.order += 1
            self.received[event.channel] = event.message.seq
            # A replayed message does not pass `_see`.
            self.seen[event.channel] = max(self._seen(event.channel), event.message.seq)
        delivered: list[Effect] = [Deliver(event) for event in events]
        return [*delivered, *self._show()]

    def _show(self) -> list[Effect]:
        # G6: a delivered message is in the log and never undone, so a sink waits for no checkpoint.
        return self._publish(self.order, f"{self.me}/{self.order}")

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _on_early_timer(self, event: TimerElapsed) -> list[Effect]:
        return [self._set_timer()]

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        return [*self._checkpoint(), self._set_timer()]

    def _receipts_in(self, record: Record) -> int:
        return number(record["order"])

    def _kept(self, index: int, saved: Record) -> list[Effect]:
        return self._erase(index)

    def _erase_again(self) -> list[Effect]:
        # The newest checkpoint may have become durable after its writer failed, which erased nothing then.
        found = [int(key[1]) for key in self.kept if key[0] == "checkpoint"]
        return self._erase(max(found)) if found else []

    def _erase(self, index: int) -> list[Effect]:
        """Erase older checkpoints, and the part of the log that this checkpoint includes."""
        needless = tuple(sorted(key for key, last in self.kept.items() if last <= index))
        self.kept = {key: last for key, last in self.kept.items() if last > index}
        # The checkpoint itself has this position, too, and stays: a failed process begins from it.
        self.kept[checkpoint_key(index)] = index
        needless = tuple(key for key in needless if key not in self.kept)
        return [Erase(needless)] if needless else []


def _first_of_each(events: Iterable[Received]) -> tuple[list[Received], list[Received]]:
    """Split the events into the first of every message, and the rest."""
    first: dict[tuple[ChannelId, int], Received] = {}
    rest = [event for event in events if first.setdefault((event.channel, event.message.seq), event) is not event]
    return list(first.values()), rest


def log_key(first: int) -> Key:
    """Return the key of the record whose first message has this place in the order."""
    return ("log", f"{first:012d}")


def logged(records: Records, order: int) -> tuple[Envelope, ...]:
    """Return the logged messages after `order`, in order. A torn record ends the log: its messages were never delivered."""
    found: list[Envelope] = []
    while (record := records.get(log_key(order + len(found) + 1))) is not None:
        found.extend(envelopes(record["messages"]))
    return tuple(found)


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: failed processes restore their newest checkpoints and replay their logs; no other process acts."""
    return replay_of_the_failed(
        failure,
        lambda process: _order(failure, process),
        lambda process: logged(failure.records[process], _order(failure, process)),
    )


def _order(failure: Failure, process: ProcessId) -> int:
    """Return the number of receipts in the newest checkpoint of a failed process."""
    kept = checkpoints(failure.records[process])
    return number(kept[max(kept)]["order"]) if kept else 0


PROTOCOL = Protocol(
    name="synchronous-logging",
    title="Every message is logged before it is delivered; only the failed process goes back",
    source="seed 004, Synchronous Logging (pessimistic receiver-based logging)",
    needs=Needs(deterministic=True),
    output=Output(at_once=True),
    worker=LoggingWorker,
    plan=plan,
)

__all__ = ["PROTOCOL", "LoggingPhase", "LoggingWorker", "log_key", "logged", "plan"]
