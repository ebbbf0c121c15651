"""The interface is wide enough for protocols other than barriers: each is one module, without changes elsewhere.

`NEEDS` is the check on paper; the worker below is the check in code: index-based checkpointing (P6e), chosen
because it stores before it delivers, forces checkpoints, and filters older incarnations.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import pytest

from checkpoint_protocols import vocabulary as v
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, ProcessId, TimerId
from checkpoint_protocols.incarnation import Age, RollbackTable, age
from checkpoint_protocols.machine import Effect, Event, Machine, missing_cells, rows

COMMON = (v.Received, v.Send, v.Deliver, v.Drop, v.StoreRecord, v.Stored, v.Note)
NEEDS: dict[str, tuple[type[Event] | type[Effect], ...]] = {
    "Chandy-Lamport": (*COMMON, v.AppSent, v.Commanded, v.CaptureState),
    "epochs with deficit counting": (*COMMON, v.AppSent, v.Commanded, v.CaptureState, v.Restore, v.Erase),
    "cyclic barriers": (*COMMON, v.Commanded, v.CaptureState, v.Hold, v.Release, v.Restore),
    "sender-based logging": (*COMMON, v.AppSent, v.Hold, v.Release, v.Erase, v.SetTimer, v.TimerElapsed),
    "uncoordinated": (*COMMON, v.AppSent, v.CaptureState, v.SetTimer, v.TimerElapsed, v.Restore, v.Erase),
    "Koo-Toueg": (*COMMON, v.AppSent, v.Commanded, v.CaptureState, v.Erase, v.Hold, v.Release, v.Restore),
    "index-based": (*COMMON, v.AppSent, v.CaptureState, v.SetTimer, v.TimerElapsed, v.Restore),
    "receiver logging, both kinds": (*COMMON, v.Hold, v.Release, v.Erase, v.SinkTransaction, v.SinkReplied),
    "lease": (v.Received, v.Send, v.SetTimer, v.TimerElapsed, v.StoreRecord, v.Stored, v.Note),
}
"""Protocols with more than one incarnation use `Restore` and the incarnation in every envelope."""


def test_protocols_need_exactly_the_events_and_effects_of_the_interface() -> None:
    words = {word for words in NEEDS.values() for word in words}
    defined = {
        each
        for each in vars(v).values()
        if isinstance(each, type) and issubclass(each, Event | Effect) and each not in (Event, Effect)
    }

    assert words == defined


class Phase(Enum):
    RUNNING = "delivers"
    RESTORING = "joins a newer incarnation"


ME, PEER, CHANNEL = ProcessId("q"), ProcessId("p"), ChannelId("p->q")
_EVENTS = (v.Received, v.AppSent, v.TimerElapsed, v.Stored)


class IndexWorker(Machine[Phase]):
    """P6e: a higher index forces a checkpoint before the delivery, a lower one is logged before it."""

    PHASES = Phase
    EVENTS = _EVENTS
    TABLE = rows(
        {
            Phase.RUNNING: {
                v.Received: "_on_received",
                v.AppSent: "_on_sent",
                v.TimerElapsed: "_on_timer",
                v.Stored: "_on_stored",
            },
            Phase.RESTORING: {},
        },
        _EVENTS,
    )

    def __init__(self, incarnation: Incarnation, table: RollbackTable) -> None:
        super().__init__(Phase.RUNNING, incarnation)
        self.index = Epoch(0)
        self.table = table
        self.sent = 0
        self.pending: dict[str, v.Received] = {}

    def validate(self) -> None:
        self._ensure(self.index >= 0, "indices grow from 0")

    def _checkpoint(self, index: Epoch, kind: v.CheckpointKind) -> list[Effect]:
        self.index = index
        return [v.CaptureState(index, kind), v.StoreRecord(("checkpoint", str(index)), None, f"checkpoint {index}")]

    def _on_sent(self, event: v.AppSent) -> list[Effect]:
        self.sent += 1
        envelope = v.Envelope(ME, PEER, self.incarnation, self.sent, self.index, "app", {}, event.body)
        return [v.Send(event.channel, envelope)]

    def _on_timer(self, event: v.TimerElapsed) -> list[Effect]:
        again = v.SetTimer("tick", 1_000, TimerId(event.timer + 1), replace(event, timer=TimerId(event.timer + 1)))
        return [*self._checkpoint(Epoch(self.index + 1), v.CheckpointKind.BASIC), again]

    def _on_received(self, event: v.Received) -> list[Effect]:
        message = event.message
        index = Epoch(message.index)
        match age(ProcessId(message.source), message.incarnation, index, self.incarnation, self.table):
            case Age.NEWER:
                self.phase = Phase.RESTORING
                return [v.Restore(event)]
            case Age.UNDONE:
                return [v.Drop(event, "its send was undone")]
            case Age.CURRENT if index > self.index:
                return [*self._checkpoint(index, v.CheckpointKind.FORCED), v.Deliver(event)]
            case Age.CURRENT if index == self.index:
                return [v.Deliver(event)]
        token = f"log {message.seq}"
        self.pending[token] = event
        return [v.StoreRecord(("log", str(message.seq)), message.body, token)]

    def _on_stored(self, event: v.Stored) -> list[Effect]:
        logged = self.pending.pop(event.token, None)
        return [v.Deliver(logged)] if logged else [v.Note("durable", event.token)]


def received(index: int, sent_in: int = 3, seq: int = 1) -> v.Received:
    return v.Received(CHANNEL, v.Envelope(PEER, ME, Incarnation(sent_in), seq, index, "app", {}, "x"))


@pytest.fixture
def worker() -> IndexWorker:
    machine = IndexWorker(Incarnation(3), {Incarnation(2): Epoch(3), Incarnation(3): Epoch(6)})
    machine.handle(v.TimerElapsed("tick", TimerId(1), local_ms=1_000))
    return machine


def test_a_protocol_over_plain_messages_is_a_table_like_any_other() -> None:
    assert missing_cells(IndexWorker) == []


def test_a_message_from_a_higher_index_is_delivered_after_a_forced_checkpoint(worker: IndexWorker) -> None:
    effects = worker.handle(received(index=4))

    assert effects[0] == v.CaptureState(Epoch(4), v.CheckpointKind.FORCED)
    assert effects[-1] == v.Deliver(received(index=4))


def test_a_late_message_is_delivered_when_its_log_record_is_durable(worker: IndexWorker) -> None:
    assert [type(effect) for effect in worker.handle(received(index=0))] == [v.StoreRecord]
    assert worker.handle(v.Stored("log 1", ok=True)) == [v.Deliver(received(index=0))]
    assert worker.handle(v.Stored("checkpoint 1", ok=True)) == [v.Note("durable", "checkpoint 1")]


def test_an_equal_index_is_delivered_at_once_and_sends_carry_the_index(worker: IndexWorker) -> None:
    assert worker.handle(received(index=1)) == [v.Deliver(received(index=1))]
    sent = worker.handle(v.AppSent(CHANNEL, "y"))[0]
    assert isinstance(sent, v.Send)
    assert (sent.message.index, sent.message.incarnation) == (1, 3)


def test_messages_of_older_incarnations_are_judged_by_the_whole_rollback_table(worker: IndexWorker) -> None:
    """T14 inside a machine: the first recovery undid index 4 of incarnation 1; index 2 is valid."""
    assert worker.handle(received(index=4, sent_in=1)) == [v.Drop(received(index=4, sent_in=1), "its send was undone")]
    assert [type(effect) for effect in worker.handle(received(index=2, sent_in=1))] == [v.StoreRecord]


def test_a_message_of_a_newer_incarnation_restores_first(worker: IndexWorker) -> None:
    newer = received(index=7, sent_in=4)

    assert worker.handle(newer) == [v.Restore(newer)]
    assert worker.phase is Phase.RESTORING
