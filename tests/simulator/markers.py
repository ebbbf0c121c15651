"""A small protocol that the simulator's own tests run: Chandy-Lamport snapshots, one at a time, and full recovery.

It is simple on purpose; its bugs are planted in subclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import ChannelId, Epoch, ProcessId, TimerId
from checkpoint_protocols.machine import IGNORE_STALE, Effect, rows
from checkpoint_protocols.message_machine import APP, MessageMachine
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Needs,
    Part,
    Protocol,
    Record,
    RecoveryPlan,
    checkpoint_key,
    checkpoints,
)
from checkpoint_protocols.vocabulary import (
    AppSent,
    CaptureState,
    CheckpointKind,
    Commanded,
    Deliver,
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


class Phase(Enum):
    RUNNING = "runs"


EVENTS = (Commanded, Received, AppSent, TimerElapsed, Stored)


class Worker(MessageMachine[Phase]):
    PHASES = Phase
    EVENTS = EVENTS
    TABLE = rows(
        {
            Phase.RUNNING: {
                Commanded: "_on_start",
                Received: "_on_received",
                AppSent: "_on_sent",
                TimerElapsed: IGNORE_STALE,
                Stored: "_on_stored",
            }
        },
        EVENTS,
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(Phase.RUNNING, birth)
        now: Mapping[str, Any] = birth.checkpoint or {}
        self.index = int(now.get("index", 0))
        self.sent = dict(now.get("sent", {}))
        self.received = dict(now.get("received", {}))
        self.delivered = int(now.get("delivered", 0))
        self.cuts = {int(index): rows for index, rows in now.get("cuts", {}).items()}
        self.shown = birth.shown
        self.kept = [int(key[1]) for key in birth.records]
        self.recording: set[ChannelId] = set()
        self.captured: list[Envelope] = []
        self.open: dict[str, Any] | None = None
        self.writing: Effect = Note("nothing is being written")

    def validate(self) -> None:
        self._ensure(self.index >= 0, "indices grow from 0")

    def record(self) -> Record:
        return {
            "incarnation": self.incarnation,
            "index": self.index,
            "sent": dict(self.sent),
            "received": dict(self.received),
            "delivered": self.delivered,
            "cuts": {str(index): rows for index, rows in self.cuts.items()},
        }

    def _on_start(self, event: Commanded) -> list[Effect]:
        return []

    def _on_sent(self, event: AppSent) -> list[Effect]:
        return [self._send_app(event.channel, event.body, self.index)]

    def _on_received(self, event: Received) -> list[Effect]:
        message = event.message
        if message.kind == "mark":
            return self._mark(message.index, event.channel)
        if message.kind == "commit":
            return self._publish(message)
        if event.channel in self.recording and not event.replayed:
            self.captured.append(message)
        self.received[event.channel] = self.received.get(event.channel, 0) + 1
        self.delivered += 1
        return [Deliver(event)]

    def _mark(self, index: int, channel: ChannelId) -> list[Effect]:
        effects = self._begin(index) if index > self.index else []
        self.recording.discard(channel)
        return [*effects, *self._finish()]

    def _begin(self, index: int) -> list[Effect]:
        self.index = index
        self.cuts[index] = self.delivered
        self.open = {**self.record(), "index": index}
        self.recording = set(self.graph.inputs[self.me])
        self.captured = []
        marks = [self._send_on(channel, "mark", index) for channel in self.graph.outputs[self.me]]
        return [CaptureState(Epoch(index), CheckpointKind.BASIC), *marks]

    def _finish(self) -> list[Effect]:
        if self.recording or self.open is None:
            return []
        record = {**self.open, "messages": [message.as_record() for message in self.captured]}
        self.open = None
        self.writing = StoreRecord(checkpoint_key(self.index), record, f"checkpoint {self.index}")
        return [self.writing]

    def _on_stored(self, event: Stored) -> list[Effect]:
        """Repeat a failed write."""
        if not event.ok:
            return [self.writing]
        index = int(event.token.split()[1])
        self.kept.append(index)
        return [self._send_control(COORDINATOR, "done", index)]

    def _publish(self, message: Envelope) -> list[Effect]:
        """Publish rows before the committed cut and erase older checkpoints."""
        old = [index for index in self.kept if index < message.index]
        self.kept = [index for index in self.kept if index >= message.index]
        erased: list[Effect] = [Erase(tuple(map(checkpoint_key, old)))] if old else []
        first, last = self.shown, self.cuts.get(message.index, 0)
        if self.graph.outputs[self.me] or last <= first:
            return erased
        self.shown = last
        return [*erased, self._rows(message.index, first, last)]

    def _rows(self, index: int, first: int, last: int) -> SinkTransaction:
        return SinkTransaction(f"rows {index}", first, last)


class Coordinator(MessageMachine[Phase]):
    PHASES = Phase
    EVENTS = EVENTS
    TABLE = rows(
        {
            Phase.RUNNING: {
                Commanded: "_on_start",
                Received: "_on_received",
                TimerElapsed: "_on_timer",
                Stored: "_on_stored",
            }
        },
        EVENTS,
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(Phase.RUNNING, birth)
        now: Mapping[str, Any] = birth.checkpoint or {}
        self.commits = [int(key[1]) for key in birth.records if key[0] == "commit"]
        self.index = max([int(now.get("index", 0)), *self.commits])
        self.missing: set[ProcessId] = set()
        self.open = 0

    def validate(self) -> None:
        self._ensure(self.index >= self.open, "the open one is the newest")

    def record(self) -> Record:
        return {"incarnation": self.incarnation, "index": self.index}

    def _on_start(self, event: Commanded) -> list[Effect]:
        """Send the newest commit again, for workers that missed it."""
        return [self._timer(1), *self._announce()]

    def _announce(self) -> list[Effect]:
        if not self.commits:
            return []
        *old, newest = sorted(self.commits)
        self.commits = [newest]
        erased: list[Effect] = [Erase(tuple(("commit", f"{index:012d}") for index in old))] if old else []
        return [*(self._send_control(process, "commit", newest) for process in self.graph.processes), *erased]

    def _timer(self, number: int) -> SetTimer:
        elapsed = TimerElapsed("checkpoint", TimerId(number), 0)
        return SetTimer("checkpoint", self.settings.interval_ms, TimerId(number), elapsed)

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        again = self._timer(event.timer + 1)
        if self.open:
            return [again]
        self.index += 1
        self.open = self.index
        self.missing = set(self.graph.processes)
        return [*(self._send_control(source, "mark", self.index) for source in self.graph.sources), again]

    def _on_received(self, event: Received) -> list[Effect]:
        message = event.message
        if message.index != self.open:
            return []
        self.missing.discard(message.source)
        return [] if self.missing else self._commit()

    def _commit(self) -> list[Effect]:
        record = {"incarnation": self.incarnation, "index": self.open}
        return [StoreRecord(("commit", f"{self.open:012d}"), record, f"commit {self.open}")]

    def _on_stored(self, event: Stored) -> list[Effect]:
        index, self.open = self.open, 0
        if not event.ok:
            return []
        self.commits.append(index)
        return [Note("complete", str(index)), *self._announce()]


def plan(failure: Failure) -> RecoveryPlan:
    """All processes restore the newest commit."""
    commits = [int(key[1]) for key in failure.records[COORDINATOR] if key[0] == "commit"]
    index = max(commits, default=0)
    parts = {process: _part(failure, process, index) for process in failure.graph.processes}
    return RecoveryPlan(failure.incarnation, Epoch(index), parts)


def _part(failure: Failure, process: ProcessId, index: int) -> Part:
    if not index:
        return Part(None, initial=True)
    record: Mapping[str, Any] = checkpoints(failure.records[process])[Epoch(index)]
    return Part(checkpoint_key(index), tuple(Envelope.of(each) for each in record["messages"]))


def protocol(
    worker: type[Worker] = Worker, coordinator: type[Coordinator] = Coordinator, fifo: bool = True
) -> Protocol:
    return Protocol("markers", "Chandy-Lamport", "test", Needs(fifo=fifo), worker, plan, coordinator)


assert APP == "app"
