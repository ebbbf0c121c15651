"""Base of the workers over plain messages: what a process of the graph does under every protocol.

It dispatches messages by kind, sets numbered timers, publishes the rows of a sink, and erases older checkpoints. Two
narrower bases follow: a worker that takes one checkpoint at a time, and a coordinator that stores nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeVar

from checkpoint_protocols.ids import ChannelId, Epoch, ProcessId, TimerId
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.message_machine import MessageMachine
from checkpoint_protocols.record_fields import counts
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Part,
    Record,
    Records,
    RecoveryPlan,
    checkpoint_key,
    checkpoints,
)
from checkpoint_protocols.vocabulary import (
    AppSent,
    CaptureState,
    CheckpointKind,
    Commanded,
    Envelope,
    Erase,
    Note,
    Received,
    SetTimer,
    SinkTransaction,
    Stored,
    StoreRecord,
    TimerElapsed,
)

PhaseT = TypeVar("PhaseT", bound=Enum)

PERIODIC = "checkpoint"
"""Name of the timer of periodic checkpoints."""

WORKER_EVENTS: tuple[type[Event], ...] = (Commanded, Received, AppSent, TimerElapsed, Stored)
"""Events of a worker with a timer."""

WORKING = {Received: "_on_received", AppSent: "_on_sent", TimerElapsed: "_on_timer", Stored: "_on_stored"}
"""Handlers of a worker that accepts all of them."""


class MessageWorker(MessageMachine[PhaseT]):
    """One process of the graph. `shown`: number of its rows that are visible, at a sink."""

    EVENTS = WORKER_EVENTS

    def __init__(self, phase: PhaseT, birth: Birth) -> None:
        super().__init__(phase, birth)
        self.shown = birth.shown
        self._timer = 0

    @property
    def inputs(self) -> tuple[ChannelId, ...]:
        """Channels of the graph into this process; none at a source."""
        return self.graph.inputs[self.me]

    @property
    def outputs(self) -> tuple[ChannelId, ...]:
        """Channels of the graph out of this process; none at a sink."""
        return self.graph.outputs[self.me]

    @property
    def is_source(self) -> bool:
        """True if no process sends to this one."""
        return not self.inputs

    @property
    def is_sink(self) -> bool:
        """True if this process sends to no other."""
        return not self.outputs

    def _call(self, handler: object, event: Received) -> list[Effect]:
        """Call a handler that a table of messages names. Raises `InvalidTransition` if it names none."""
        if not isinstance(handler, str):
            raise self._invalid(event, f"there is no such message as {event.message.kind} now")
        effects: list[Effect] = getattr(self, handler)(event)
        return effects

    def _set(self, name: str, delay_ms: int) -> SetTimer:
        """Return a timer with the next number: an elapsed timer with an older number is stale."""
        self._timer += 1
        timer = TimerId(self._timer)
        return SetTimer(name, delay_ms, timer, TimerElapsed(name, timer, 0))

    def _set_timer(self) -> SetTimer:
        return self._set(PERIODIC, self.settings.interval_ms)

    def _publish(self, last: int, transaction: str) -> list[Effect]:
        """Publish a sink's rows up to `last`. The caller knows that no recovery undoes them (rule G6)."""
        # A replay delivers rows that are visible already. The sink's own marker (`Birth.shown`) knows them, no record does.
        if not self.is_sink or last <= self.shown:
            return []
        first, self.shown = self.shown, last
        return [SinkTransaction(transaction, first, last)]


def erase_before(kept: set[int], number: int) -> list[Effect]:
    """Erase the checkpoints of `kept` before `number`, and remove them from the set."""
    old = sorted(each for each in kept if each < number)
    kept.difference_update(old)
    return [Erase(tuple(map(checkpoint_key, old)))] if old else []


class CheckpointingWorker(MessageWorker[PhaseT]):
    """A worker that takes checkpoints of new work, one at a time. `captured` numbers them."""

    def __init__(self, phase: PhaseT, birth: Birth) -> None:
        super().__init__(phase, birth)
        self.captured = 0
        self._storing: int | None = None
        self._saving: Record = {}
        # A checkpoint that was being stored at the end of the last incarnation may be lost.
        self._saved = self._work_in(birth.records)
        """Work in the newest durable checkpoint."""

    @property
    @abstractmethod
    def receipts(self) -> int:
        """Number of messages received."""

    @abstractmethod
    def _receipts_in(self, record: Record) -> int:
        """Return the number of messages received in a checkpoint."""

    @abstractmethod
    def _kept(self, index: int, saved: Record) -> list[Effect]:
        """Return the effects that follow when the checkpoint is durable."""

    @property
    def index(self) -> int:
        """The receipt that began the present state; a source counts its checkpoints."""
        return self.captured if self.is_source else self.receipts

    def _work_in(self, records: Records) -> int:
        known = checkpoints(records)
        if not known:
            return 0
        newest = known[max(known)]
        # A source receives nothing: its work is the messages that it has sent.
        return sum(counts(newest["sent"]).values()) if self.is_source else self._receipts_in(newest)

    def _checkpoint(self) -> list[Effect]:
        """Take a checkpoint of new work, unless one is being stored."""
        work = sum(self.sent.values()) if self.is_source else self.receipts
        if self._storing is not None or work <= self._saved:
            return []
        self._saved = work
        # A source may checkpoint twice without a receipt between, so its checkpoints count themselves. Other processes need no
        # second number.
        self.captured = self._storing = self.captured + 1 if self.is_source else self.receipts
        self._saving = self.record()
        return [CaptureState(Epoch(self.captured), CheckpointKind.BASIC), self._store(self.captured)]

    def _store(self, index: int) -> Effect:
        key = checkpoint_key(index)
        return StoreRecord(key, self._saving, "/".join(key))

    def _on_checkpoint_stored(self, event: Stored) -> list[Effect]:
        if self._storing is None or event.token != "/".join(checkpoint_key(self._storing)):
            raise self._invalid(event, "nothing of that name is being stored")
        if not event.ok:
            # The record of the capture is written again. The present state has moved on since.
            return [self._store(self._storing)]
        index, self._storing = self._storing, None
        return [Note("checkpoint", str(index)), *self._kept(index, self._saving)]


class ReportedCoordinator(MessageMachine[PhaseT]):
    """A coordinator that stores nothing: workers report everything again in every incarnation."""

    EVENTS = (Commanded, Received)

    def record(self) -> Record:
        """Return an empty record."""
        return {"incarnation": self.incarnation, "index": 0}

    def _on_start(self, event: Commanded) -> list[Effect]:
        return []


def replay_of_the_failed(
    failure: Failure,
    receipts: Callable[[ProcessId], int],
    logged: Callable[[ProcessId], tuple[Envelope, ...]],
) -> RecoveryPlan:
    """Return a plan: failed processes restore their newest checkpoint and replay their log; no other process acts.

    `receipts`: number of receipts in that checkpoint. Receipts after the replay are unknown, so the row undoes the sends
    that follow them.
    """
    parts: Mapping[ProcessId, Part] = {
        process: _restored(failure.records[process], logged(process))
        if process in failure.failed
        else Part(None, because="it lives and keeps its state")
        for process in failure.graph.processes
    }
    # Sources receive nothing. They read their input again and send the same messages with the same numbers.
    receivers = (process for process in failure.graph.processes if failure.graph.inputs[process])
    # A message carries the number of the receipt that it follows, and a row names the first undone one: one past the
    # replay.
    row = {p: Epoch(receipts(p) + len(parts[p].replay) + 1) for p in receivers if p in failure.failed}
    return RecoveryPlan(failure.incarnation, row, parts)


def _restored(records: Records, replay: tuple[Envelope, ...]) -> Part:
    newest = max(checkpoints(records), default=None)
    key = None if newest is None else checkpoint_key(newest)
    return Part(key, replay, initial=key is None, because="it failed")
