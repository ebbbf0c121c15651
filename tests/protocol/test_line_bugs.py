"""Each protocol with a recovery line has one planted bug here, and an oracle condemns some schedule for it.

Invariants of the machines are off: the tests are of the oracles.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkpoint_lab import Faults, ScheduleOutcome
from checkpoint_lab.violations import Violation
from checkpoint_protocols.checkpoints.index_based import PROTOCOL as INDEX
from checkpoint_protocols.checkpoints.index_based import IndexWorker, KeptCheckpoint
from checkpoint_protocols.checkpoints.uncoordinated import PROTOCOL as UNCOORDINATED
from checkpoint_protocols.checkpoints.uncoordinated import LineCoordinator, UncoordinatedWorker
from checkpoint_protocols.ids import Epoch
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.message_logging.asynchronous_logging import PROTOCOL as ASYNCHRONOUS
from checkpoint_protocols.message_logging.asynchronous_logging import AsynchronousWorker
from checkpoint_protocols.recovery import Failure, Part, Protocol, ProtocolSettings, Record, RecoveryPlan
from checkpoint_protocols.vocabulary import (
    AppSent,
    CheckpointKind,
    Envelope,
    Hold,
    Received,
    Release,
    SinkTransaction,
    Stored,
)
from tests.protocol.audited import graph_in_turn
from tests.protocol.literal import adaptive_logging, asynchronous_logging, index_based, uncoordinated
from tests.simulator.eager import drive_long, long_world
from tests.simulator.measured import seeds_for

SETTINGS = ProtocolSettings(options={"checkpoint_every": 2})

SEEDS = 100
"""Schedules until a bug counts as missed."""


def _off(machine: type) -> type:
    """The machine without its invariants."""
    return type(machine.__name__, (machine,), {"_ensure": lambda self, holds, what: None})


# -- P6e: index-based --------------------------------------------------------------------------------------------------


class DeliversBeforeTheForcedCheckpoint(_off(IndexWorker)):  # type: ignore[misc]
    def _take(self, index: int, kind: CheckpointKind) -> list[Effect]:
        early = list(self._waiting.values()) if kind is CheckpointKind.FORCED else []
        received = [Received(f"{m.source}->{m.target}", m) for m in early]
        return [effect for event in received for effect in self._deliver(event)] + super()._take(index, kind)


class WorksWhileItSaves(_off(IndexWorker)):  # type: ignore[misc]
    """A survivor has events at an index whose checkpoint is not on disk."""

    def _gates(self, gate: type[Hold] | type[Release]) -> list[Effect]:
        return []

    TABLE = IndexWorker.TABLE | {
        (IndexWorker.PHASES.SAVING, event): "_on_any_while_saving" for event in (AppSent, Received)
    }

    def _on_any_while_saving(self, event: AppSent | Received) -> list[Effect]:
        before, self.index = self.index, self._saving.high
        effects = self._on_sent(event) if isinstance(event, AppSent) else self._on_received_early(event)
        self.index = before if self._saving else self.index
        return effects

    def _on_received_early(self, event: Received) -> list[Effect]:
        late = event.message.kind != "app" or event.message.index != self.index
        return self._on_received_while_saving(event) if late else self._deliver(event)


class DeliversBeforeTheLog(_off(IndexWorker)):  # type: ignore[misc]
    """A crash between delivery and write loses the message."""

    def _store_in_log(self, key: tuple[str, ...], message: Envelope) -> list[Effect]:
        store = super()._store_in_log(key, message)
        self._logging.discard(key)
        return [*store, *self._deliver(Received(f"{message.source}->{message.target}", message))]

    def _on_stored(self, event: Stored) -> list[Effect]:
        return super()._on_stored(event) if event.token == "checkpoint" else []


class ShowsItsOwnIndex(_off(IndexWorker)):  # type: ignore[misc]
    """Rule G6: publishes after its own checkpoint, before all others have theirs."""

    def _on_checkpoint_stored(self, event: Stored) -> list[Effect]:
        effects = super()._on_checkpoint_stored(event)
        first, last = self.shown, max((kept.delivered for kept in self._kept), default=0)
        if not event.ok or self.graph.outputs[self.me] or last <= first:
            return effects
        self.shown = last
        return [*effects, SinkTransaction("own", first, last)]


class ErasesTheLine(_off(IndexWorker)):  # type: ignore[misc]
    def _serving(self) -> KeptCheckpoint:
        return self._kept[-1]


class TakesWaitingMessagesUnjudged(_off(IndexWorker)):  # type: ignore[misc]
    """Rule G4: a recovery may undo the send of a message that waits for a checkpoint."""

    def _take_in_late(self, event: Received) -> list[Effect]:
        return self._take_in(event)


class ForgetsReceipts(_off(IndexWorker)):  # type: ignore[misc]
    """A checkpoint without receipts, so that replayed messages are delivered twice."""

    def record(self) -> Record:
        return {**super().record(), "received": {}}


# -- P6c: uncoordinated ------------------------------------------------------------------------------------------------


class ForgetsDependencies(_off(UncoordinatedWorker)):  # type: ignore[misc]
    def _on_received(self, event: Received) -> list[Effect]:
        effects = super()._on_received(event)
        self.seen.pop("s", None)
        return effects


class SaysTheOldInterval(_off(UncoordinatedWorker)):  # type: ignore[misc]
    """Sends after a checkpoint name the interval before it."""

    def _on_sent(self, event: AppSent) -> list[Effect]:
        return [self._send_app(event.channel, event.body, max(0, self.interval - 1))]


class ShowsWhatIsDurable(_off(UncoordinatedWorker)):  # type: ignore[misc]
    def _on_stored(self, event: Stored) -> list[Effect]:
        effects = super()._on_stored(event)
        return [*effects, *(self._show(self.interval) if event.ok else ())]


class KeepsTheNewestOnly(LineCoordinator):
    """GC without theorem 3."""

    def _decide(self) -> list[Effect]:
        effects = super()._decide()
        lines = []
        for process, seen in self._seen.items():
            old = [index for index in seen if 0 < index < max(seen)]
            lines += [self._line_for(process, old)] if old else []
        return [*effects, *lines]


def newest_of_all(failure: Failure) -> RecoveryPlan:
    """P2 in disguise: failed processes restore their newest checkpoint, and no other process rolls back."""
    decided = UNCOORDINATED.plan(failure)
    parts = {p: part for p, part in decided.parts.items() if p in failure.failed}
    return replace(decided, parts=parts, row={p: i for p, i in decided.row.items() if p in parts})


def back_to_the_beginning(failure: Failure) -> RecoveryPlan:
    """A usable line that is not the greatest: all processes restart from the beginning."""
    begin = Part(None, initial=True)
    processes = failure.graph.processes
    return RecoveryPlan(failure.incarnation, dict.fromkeys(processes, Epoch(0)), dict.fromkeys(processes, begin))


# -- P6g: asynchronous logging -----------------------------------------------------------------------------------------


class StableBeforeItIsStored(_off(AsynchronousWorker)):  # type: ignore[misc]
    """G2: reports intervals to the coordinator that a crash can still lose."""

    def _on_received(self, event: Received) -> list[Effect]:
        effects = super()._on_received(event)
        return [*effects, self._report({self.interval: self.ddv})]


class ShowsAtOnce(_off(AsynchronousWorker)):  # type: ignore[misc]
    def _on_received(self, event: Received) -> list[Effect]:
        effects = super()._on_received(event)
        return [*effects, *self._learn(self.interval)]


class TakesRepetitions(_off(AsynchronousWorker)):  # type: ignore[misc]
    """Receives messages again that a replay sends again."""

    def _on_received(self, event: Received) -> list[Effect]:
        self.received[event.channel] = min(self.received.get(event.channel, 0), event.message.seq - 1)
        return super()._on_received(event)


class ReusesOldNumbers(_off(AsynchronousWorker)):  # type: ignore[misc]
    """New messages have the numbers of undone ones."""

    def _on_sent(self, event: AppSent) -> list[Effect]:
        self.received_in = 1
        return super()._on_sent(event)


class ForgetsTheNewestReceipt(_off(AsynchronousWorker)):  # type: ignore[misc]
    """A batch that lists its last receipt and lacks it."""

    def _store(self) -> Effect:
        kept, self._flushing = self._flushing, self._flushing[:-1] or self._flushing
        store = super()._store()
        self._flushing = kept
        return store


class ErasesUpToNow(_off(AsynchronousWorker)):  # type: ignore[misc]
    """The log is trimmed to the newest checkpoint, recoverable or not."""

    def _erase(self) -> list[Effect]:
        self.recoverable = self.interval
        return super()._erase()

    def _checkpoint_stored(self, saved: Record) -> list[Effect]:
        return [*super()._checkpoint_stored(saved), *self._erase()]


def _worker(protocol: Protocol, worker: type) -> Protocol:
    return replace(protocol, worker=worker)


def without_invariants(protocol: Protocol) -> Protocol:
    """The literal variant with its coordinator's invariants off."""
    assert isinstance(protocol.coordinator, type)
    return replace(protocol, coordinator=_off(protocol.coordinator))


BUGS: dict[str, tuple[Protocol, str]] = {
    "P6e delivers before the forced checkpoint": (_worker(INDEX, DeliversBeforeTheForcedCheckpoint), "O1 O3"),
    "P6e works while it saves": (_worker(INDEX, WorksWhileItSaves), "O1 O2 O6 O9"),
    "P6e delivers before the log": (_worker(INDEX, DeliversBeforeTheLog), "O2"),
    "P6e shows its own index": (_worker(INDEX, ShowsItsOwnIndex), "O11"),
    "P6e erases the line": (_worker(INDEX, ErasesTheLine), "O1 O5 O6 O7 O11 O12"),
    "P6e takes waiting messages unjudged": (_worker(INDEX, TakesWaitingMessagesUnjudged), "O1 O2 O3 O9"),
    "P6e forgets receipts": (_worker(INDEX, ForgetsReceipts), "O3 O12"),
    "P6c forgets dependencies": (_worker(UNCOORDINATED, ForgetsDependencies), "O1"),
    "P6c says the old interval": (_worker(UNCOORDINATED, SaysTheOldInterval), "O1 O4 O9"),
    "P6c shows what is durable": (_worker(UNCOORDINATED, ShowsWhatIsDurable), "O11"),
    "P6c keeps the newest only": (replace(UNCOORDINATED, coordinator=KeepsTheNewestOnly), "O12"),
    "P6c newest of all": (replace(UNCOORDINATED, plan=newest_of_all), "O1"),
    "P6c goes back too far": (replace(UNCOORDINATED, plan=back_to_the_beginning), "O4 O5 O11"),
    "P6g stable before it is stored": (_worker(ASYNCHRONOUS, StableBeforeItIsStored), "O11 O12"),
    "P6g shows at once": (_worker(ASYNCHRONOUS, ShowsAtOnce), "O11 O12"),
    "P6g takes repetitions": (_worker(ASYNCHRONOUS, TakesRepetitions), "O3"),
    "P6g goes on with old numbers": (_worker(ASYNCHRONOUS, ReusesOldNumbers), "O3"),
    "P6g forgets the newest receipt": (_worker(ASYNCHRONOUS, ForgetsTheNewestReceipt), "O1 O2 O3 O11 O12"),
    "P6g erases up to now": (_worker(ASYNCHRONOUS, ErasesUpToNow), "O1 O2 O3 O6 O11 O12"),
    "literal P6a older is stale": (index_based.OLDER_IS_STALE, "O2"),
    "literal P6e remembers by checkpoint": (index_based.REMEMBERS_BY_CHECKPOINT, "O2"),
    "literal P6h sender ahead": (adaptive_logging.SENDER_AHEAD, "O2"),
    "literal P6c receiver to sender": (uncoordinated.RECEIVER_TO_SENDER, "O1"),
    "literal P6g index": (without_invariants(asynchronous_logging.LITERAL_INDEX), "O11 O12"),
}
"""Planted bug to the oracles that may find it."""


def play(protocol: Protocol, seed: int) -> ScheduleOutcome:
    """One long schedule, on each graph in turn."""
    return drive_long(long_world(protocol, graph_in_turn(protocol, seed), Faults(crashes=4), 4, SETTINGS), seed, 60)


def first_failure(bug: str) -> ScheduleOutcome:
    """The first of many schedules that an oracle condemns; in some a machine refuses first."""
    protocol, _ = BUGS[bug]
    outcomes = (play(protocol, seed) for seed in seeds_for("checkpoints", bug, range(SEEDS)))
    return next(outcome for outcome in outcomes if outcome.condemned and isinstance(outcome.error, Violation))


@pytest.mark.parametrize("bug", BUGS)
def test_the_oracles_see(bug: str) -> None:
    found = str(first_failure(bug).error)

    assert found.split(":")[0] in BUGS[bug][1].split(), found
