"""Each snapshot protocol here has one planted bug, and an oracle condemns some random schedule for it.

Invariants of the machines are switched off, as they would find the bug first: the tests are of the oracles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from checkpoint_lab import GRAPHS, NO_FAULTS, MessageWorld, ScheduleOutcome
from checkpoint_lab.scripted import JOIN
from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.message_machine import AnyMessageMachine
from checkpoint_protocols.recovery import Birth, Failure, Protocol, Record, RecoveryPlan
from checkpoint_protocols.snapshots.acyclic import PROTOCOL as SNAPSHOTS
from checkpoint_protocols.snapshots.acyclic import SnapshotTask
from checkpoint_protocols.snapshots.coordinator import (
    ACK,
    Open,
    SnapshotCoordinator,
    back_to,
    decided,
    nothing_in_flight,
)
from checkpoint_protocols.snapshots.cyclic import PROTOCOL as CYCLIC
from checkpoint_protocols.snapshots.cyclic import CyclicTask
from checkpoint_protocols.snapshots.epochs import PROTOCOL as EPOCHS
from checkpoint_protocols.snapshots.epochs import EpochCoordinator, EpochWorker
from checkpoint_protocols.snapshots.markers import MARKER, MarkerWorker
from checkpoint_protocols.snapshots.markers import PROTOCOL as MARKERS
from checkpoint_protocols.snapshots.partial_recovery import PROTOCOL as PARTIAL
from checkpoint_protocols.snapshots.partial_recovery import PartialTask
from checkpoint_protocols.snapshots.stop_the_world import PROTOCOL as STOP
from checkpoint_protocols.snapshots.stop_the_world import StoppingWorker
from checkpoint_protocols.vocabulary import (
    AppSent,
    Deliver,
    Envelope,
    Erase,
    Hold,
    Note,
    Received,
    Release,
    Send,
    Stored,
    StoreRecord,
)
from tests.protocol.audited import play, play_long
from tests.protocol.literal import cyclic_snapshots, epochs, markers, partial_recovery, snapshots
from tests.simulator.measured import seeds_for

SEEDS = 400
"""Long schedules until a bug counts as missed; most are found within ten."""


def _off(machine: type) -> type:
    """The machine without its invariants."""
    return type(machine.__name__, (machine,), {"_ensure": lambda self, holds, what: None})


# -- workers -----------------------------------------------------------------------------------------------------------


class DeliversBeforeItAdvances(_off(EpochWorker)):  # type: ignore[misc]
    """P1: a message of the new epoch is in the state of the old one."""

    def _on_message(self, event: Received) -> list[Effect]:
        effects = super()._on_message(event)
        early = [effect for effect in effects if isinstance(effect, Deliver)]
        return [*early, *(effect for effect in effects if effect not in early)]


class DoesNotStoreLateMessages(_off(EpochWorker)):  # type: ignore[misc]
    """P1: a late message counts as captured and is never written."""

    def _on_message(self, event: Received) -> list[Effect]:
        effects = super()._on_message(event)
        stored = [effect for effect in effects if isinstance(effect, StoreRecord) and effect.key[0] == "captured"]
        reports = [self._send_control(COORDINATOR, "late", int(effect.key[1]), 1) for effect in stored]
        return [*reports, *(effect for effect in effects if effect not in stored)]


class StoresLateMessagesForTheOldestCut(_off(EpochWorker)):  # type: ignore[misc]
    """P1: a message that crosses several cuts is stored for one of them, and the others wait for it."""

    def _open_across(self, stamp: int) -> list[int]:
        return super()._open_across(stamp)[:1]  # type: ignore[no-any-return]


class StoresLateMessagesForTheNewestCut(_off(EpochWorker)):  # type: ignore[misc]
    """P1: a message that crosses several cuts is stored for one of them, and the others wait for it."""

    def _open_across(self, stamp: int) -> list[int]:
        return super()._open_across(stamp)[-1:]  # type: ignore[no-any-return]


class ErasesMessagesInFlight(_off(EpochWorker)):  # type: ignore[misc]
    """P1, O12: erases the messages in flight of the newest decided epoch, which are part of it."""

    def _erase_in_flight(self) -> list[Effect]:
        self.decided += 1
        effects: list[Effect] = super()._erase_in_flight()
        self.decided -= 1
        return effects


class AcksBeforeItIsDurable(_off(SnapshotTask)):  # type: ignore[misc]
    """P5a, rule G2: the worker acknowledges before the write is durable."""

    def _keep(self, number: int, captured: Record) -> list[Effect]:
        return [*super()._keep(number, captured), self._send_control(COORDINATOR, ACK, number)]


class CapturesAtTheFirstBarrier(_off(SnapshotTask)):  # type: ignore[misc]
    """P5a: the worker does not wait for its other inputs."""

    def _on_barrier(self, event: Received) -> list[Effect]:
        return self._take(event.message.index)


class ForwardsBeforeTheCapture(_off(SnapshotTask)):  # type: ignore[misc]
    """P5a: a message between barrier and capture is in the sender's state, and not in the receiver's."""

    def _on_app_sent(self, event: AppSent) -> list[Effect]:
        barrier = self._send_on(event.channel, "barrier", self.index + 1)
        return [barrier, *super()._on_app_sent(event)] if self.delivered == 1 else super()._on_app_sent(event)


class AbortsWithoutRelease(_off(SnapshotTask)):  # type: ignore[misc]
    """P5a: an abort forgets the held channels, and the host continues to hold them."""

    def _abandon(self, why: str) -> list[Effect]:
        return [effect for effect in super()._abandon(why) if not isinstance(effect, Release)]


class NeverHolds(_off(SnapshotTask)):  # type: ignore[misc]
    """P5a: messages after a barrier are delivered before the other barriers arrive."""

    def _gate(self) -> list[Effect]:
        return [effect for effect in super()._gate() if not isinstance(effect, Hold | Release)]


class PublishesCapturedRows(_off(SnapshotTask)):  # type: ignore[misc]
    """Rule G6: publishes after the capture, before the decision."""

    def _keep(self, number: int, captured: Record) -> list[Effect]:
        return [*super()._keep(number, captured), *self._show(number)]


class ErasesDecidedCheckpoints(_off(SnapshotTask)):  # type: ignore[misc]
    """O12: erases the newest decided checkpoint, which the next recovery needs."""

    def _erase_before(self, number: int) -> list[Effect]:
        effects: list[Effect] = super()._erase_before(number + 1)
        return effects


class ForgetsItsNumbers(_off(PartialTask)):  # type: ignore[misc]
    """P5c: a record without `sent`, so that a replay gives its messages other numbers."""

    def record(self) -> Record:
        return {**super().record(), "sent": {}}


class LogsNothing(_off(CyclicTask)):  # type: ignore[misc]
    """P5b: messages in the loop are in no state."""

    def _on_logged_message(self, event: Received) -> list[Effect]:
        effects: list[Effect] = self._deliver(event)
        return effects


class KeepsTheLogOfTheAborted(_off(CyclicTask)):  # type: ignore[misc]
    """P5b: keeps the log of an aborted snapshot and extends it."""

    def _drop_log(self, why: str) -> list[Effect]:
        return []


class KeepsRecordingTheAborted(_off(MarkerWorker)):  # type: ignore[misc]
    """P0: records channels for an aborted snapshot."""

    def _on_abort(self, event: Received) -> list[Effect]:
        self.over = max(self.over, event.message.index)
        return []


class StopsRecordingAtTheFirstMarker(_off(MarkerWorker)):  # type: ignore[misc]
    """P0: takes the other channels to be empty."""

    def _on_recorded_message(self, event: Received) -> list[Effect]:
        effects: list[Effect] = self._deliver(event)
        return effects


class SendsBeforeTheMarker(_off(MarkerWorker)):  # type: ignore[misc]
    """P0: the next message overtakes the marker. Runs without loops, where the marker would wait for itself."""

    unsent: tuple[Effect, ...] = ()

    def _take(self, number: int, came_on: ChannelId | None) -> list[Effect]:
        effects = super()._take(number, came_on)
        self.unsent = tuple(effect for effect in effects if isinstance(effect, Send) and effect.message.kind == MARKER)
        return [effect for effect in effects if effect not in self.unsent]

    def _on_app_sent(self, event: AppSent) -> list[Effect]:
        return [*super()._on_app_sent(event), *self._send_late()]

    def _on_stored(self, event: Stored) -> list[Effect]:
        return [*super()._on_stored(event), *self._send_late()]

    def _send_late(self) -> tuple[Effect, ...]:
        unsent, self.unsent = self.unsent, ()
        return unsent


class TakesPartWhileItReplays(_off(PartialTask)):  # type: ignore[misc]
    """P5c: a replaying worker takes the barrier of a sender that still repeats its messages."""

    def _on_untimely_barrier(self, event: Received) -> list[Effect]:
        return self._take(event.message.index)


class DeliversBeforeTheOrderIsDurable(_off(PartialTask)):  # type: ignore[misc]
    """P5c: a crash between the two loses the order of the merge."""

    def _on_message(self, event: Received) -> list[Effect]:
        effects = super()._on_message(event)
        if self.waiting is None:
            return effects
        self.waiting = None
        return [effects[-1], *self._deliver_in_order(event)]

    def _on_stored(self, event: Stored) -> list[Effect]:
        return [] if event.token.startswith("order") else super()._on_stored(event)


class ErasesTheOrderTooEarly(_off(PartialTask)):  # type: ignore[misc]
    """P5c, O12: erases the order of receipts after the decided cut, which a replay needs."""

    def _erase_order(self, number: int) -> list[Effect]:
        self.positions[number] = self.position
        effects: list[Effect] = super()._erase_order(number)
        return effects


def only_the_failed_go_back(failure: Failure) -> RecoveryPlan:
    """P5c: the ancestors of the failed stay, so that no process sends again what the failed have lost."""
    failed = failure.failed & frozenset(failure.graph.processes)
    return back_to(failure, decided(failure), failed, nothing_in_flight)


class CapturesAtOnce(_off(StoppingWorker)):  # type: ignore[misc]
    """Stop-the-world: the worker does not wait until its channels are empty."""

    def _capture_when_drained(self) -> list[Effect]:
        effects: list[Effect] = super()._capture_when_drained() if self.stopped_for > self.index else []
        return effects

    def _stop(self, number: int) -> list[Effect]:
        stopped = super()._stop(number)
        self.awaited.clear()
        return [*stopped, *self._capture_when_drained()]

    def _on_marker(self, event: Received) -> list[Effect]:
        return self._stop(event.message.index)


class SendsAfterItsCapture(_off(StoppingWorker)):  # type: ignore[misc]
    """Stop-the-world: the worker sends again while others still drain."""

    def _capture_when_drained(self) -> list[Effect]:
        number, effects = self.stopped_for, super()._capture_when_drained()
        return [*effects, *self._resume(number)] if effects else []


class StaysStoppedAfterAnAbort(_off(StoppingWorker)):  # type: ignore[misc]
    """Stop-the-world: only a commit lets the worker send."""

    def _on_abort(self, event: Received) -> list[Effect]:
        self.over = max(self.over, event.message.index)
        return []


# -- coordinators ------------------------------------------------------------------------------------------------------


class DecidesWithoutTheLast(_off(SnapshotCoordinator)):  # type: ignore[misc]
    def _complete(self, opened: Open) -> bool:
        return len(opened.missing) <= 1


class DecidesWithoutTheBalance(_off(EpochCoordinator)):  # type: ignore[misc]
    """P1: decides with all reports, while messages are in flight."""

    def _complete(self, opened: Open) -> bool:
        return not opened.missing


class AnnouncesBeforeItIsDurable(_off(SnapshotCoordinator)):  # type: ignore[misc]
    """G2: sends the decision before it is written."""

    def _decide_if_complete(self, number: int) -> list[Effect]:
        effects = super()._decide_if_complete(number)
        return (
            [*effects, *self._send_control_to_all("commit", number), Note("complete", str(number))] if effects else []
        )


class CountsAcksOfOthers(_off(SnapshotCoordinator)):  # type: ignore[misc]
    """Takes answers for an older snapshot as answers for this one."""

    def _on_ack(self, message: Envelope) -> list[Effect]:
        self.open[message.index].missing.clear()
        effects: list[Effect] = super()._on_ack(message)
        return effects


class BeginsBeforeTheIdIsDurable(_off(SnapshotCoordinator)):  # type: ignore[misc]
    """G3: asks processes while the id is being written, so that its successor may use the id again."""

    def _name(self) -> list[Effect]:
        return [*super()._name(), *self._begin(self.newest)]

    def _on_stored(self, event: Stored) -> list[Effect]:
        effects: list[Effect] = [] if event.token.startswith("begun") else super()._on_stored(event)
        return effects


class ForgetsUsedIds(_off(EpochCoordinator)):  # type: ignore[misc]
    """G3: continues from the newest decision, and not from the newest id."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self.newest = self.committed


class ErasesItsDecision(_off(SnapshotCoordinator)):  # type: ignore[misc]
    """O12: erases the newest decision, which a recovery needs."""

    def _collect_garbage(self) -> list[Effect]:
        return [Erase(tuple(key for key in self.old_keys if int(key[1]) <= self.committed))]


def _worker(protocol: Protocol, worker: Callable[[Birth], AnyMessageMachine]) -> Protocol:
    return replace(protocol, worker=worker)


def _coordinator(protocol: Protocol, coordinator: Callable[[Birth], AnyMessageMachine]) -> Protocol:
    return replace(protocol, coordinator=coordinator)


BUGS: dict[str, tuple[Protocol, str]] = {
    "P1 delivers before it advances": (_worker(EPOCHS, DeliversBeforeItAdvances), "O1"),
    "P1 does not store what is late": (_worker(EPOCHS, DoesNotStoreLateMessages), "O2"),
    "P1 erases what was in flight": (_worker(EPOCHS, ErasesMessagesInFlight), "O2 O12"),
    "P1 decides without the balance": (_coordinator(EPOCHS, DecidesWithoutTheBalance), "O2"),
    "stop: captures at once": (_worker(STOP, CapturesAtOnce), "O2"),
    "stop: sends after its capture": (_worker(STOP, SendsAfterItsCapture), "O1 O2"),
    "stop: stays stopped after an abort": (_worker(STOP, StaysStoppedAfterAnAbort), "O10"),
    "P5a acks before it is durable": (_worker(SNAPSHOTS, AcksBeforeItIsDurable), "O6 O7"),
    "P5a captures at the first barrier": (_worker(SNAPSHOTS, CapturesAtTheFirstBarrier), "O1 O2"),
    "P5a forwards before the capture": (_worker(SNAPSHOTS, ForwardsBeforeTheCapture), "O1 O2 O8"),
    "P5a aborts without release": (_worker(SNAPSHOTS, AbortsWithoutRelease), "O10"),
    "P5a never holds": (_worker(SNAPSHOTS, NeverHolds), "O1"),
    "P5a shows what is captured": (_worker(SNAPSHOTS, PublishesCapturedRows), "O11"),
    "P5a erases what is decided": (_worker(SNAPSHOTS, ErasesDecidedCheckpoints), "O6 O7 O12"),
    "P5a decides without the last": (_coordinator(SNAPSHOTS, DecidesWithoutTheLast), "O6 O7"),
    "P5a announces before it is durable": (_coordinator(SNAPSHOTS, AnnouncesBeforeItIsDurable), "O5 O6 O7 O11"),
    "P5a erases its decision": (_coordinator(SNAPSHOTS, ErasesItsDecision), "O5 O7 O12"),
    "P5a begins before the id is durable": (_coordinator(SNAPSHOTS, BeginsBeforeTheIdIsDurable), "O8"),
    "P1 forgets used ids": (_coordinator(EPOCHS, ForgetsUsedIds), "O8"),
    "P5a counts acks of others": (_coordinator(SNAPSHOTS, CountsAcksOfOthers), "O6 O7"),
    "P5b logs nothing": (_worker(CYCLIC, LogsNothing), "O2"),
    "P5b keeps the log of the aborted": (_worker(CYCLIC, KeepsTheLogOfTheAborted), "O10"),
    "P0 keeps recording the aborted": (_worker(MARKERS, KeepsRecordingTheAborted), "O10"),
    "P0 stops recording at the first marker": (_worker(MARKERS, StopsRecordingAtTheFirstMarker), "O2"),
    "P0 sends before the marker": (replace(MARKERS, worker=SendsBeforeTheMarker, needs=SNAPSHOTS.needs), "O1"),
    "P5c takes part while it replays": (_worker(PARTIAL, TakesPartWhileItReplays), "O1 O2"),
    "P5c only the failed go back": (
        replace(_worker(PARTIAL, _off(PartialTask)), plan=only_the_failed_go_back),
        "O2 O3 O10 O15",
    ),
    "P5c forgets its numbers": (_worker(PARTIAL, ForgetsItsNumbers), "O2 O3 O8 O10"),
    "P5c delivers before the order is durable": (_worker(PARTIAL, DeliversBeforeTheOrderIsDurable), "O3"),
    "literal P0 state of the last marker": (markers.STATE_OF_THE_LAST_MARKER, "O1 O2"),
    "literal P1 only one is asked": (epochs.ONLY_ONE_IS_ASKED, "O10 O16"),
    "literal P1 zero is enough": (epochs.ZERO_IS_ENOUGH, "O2 O6 O7"),
    "literal P5a Nil is an input": (snapshots.NIL_IS_AN_INPUT, "O10"),
    "literal P5a no ids": (snapshots.NO_IDS, "O8 O10"),
    "literal P5b Nil is marked": (cyclic_snapshots.NIL_IS_MARKED, "O10"),
    "literal P5b one set for all": (cyclic_snapshots.ONE_SET_FOR_ALL, "O8 O10"),
    "literal P5c smaller than the last": (partial_recovery.SMALLER_THAN_THE_LAST, "O3"),
    "literal P5c source sequence": (partial_recovery.SOURCE_SEQUENCE, "O2 O3"),
    "literal P5c no order": (partial_recovery.NO_ORDER, "O3"),
}
"""Planted bug to the oracles that may find it."""

ORDER_ERASED_TOO_EARLY = _worker(PARTIAL, ErasesTheOrderTooEarly)


def first_failure(bug: str) -> ScheduleOutcome:
    """The first of many schedules that an oracle condemns."""
    protocol, _ = BUGS[bug]
    outcomes = (play_long(protocol, seed) for seed in seeds_for("snapshots", bug, range(SEEDS)))
    return next(outcome for outcome in outcomes if outcome.condemned)


@pytest.mark.parametrize("bug", BUGS)
def test_the_oracles_see(bug: str) -> None:
    found = str(first_failure(bug).error)

    assert found.split(":")[0] in BUGS[bug][1].split(), found


def test_the_order_of_receipts_after_the_decided_cut_is_needed() -> None:
    """Long runs on a merge: it takes a crash after the erased receipts and before the next snapshot."""
    outcomes = (play(ORDER_ERASED_TOO_EARLY, JOIN, seed, inputs=8, steps=250) for seed in range(100, 200))

    assert "the replay is another run" in str(next(outcome for outcome in outcomes if outcome.condemned).error)


def completed_across_a_message(worker: Callable[[Birth], AnyMessageMachine]) -> int:
    """Return how many of two overlapping snapshots complete if a message crosses both cuts and nothing fails."""
    world = MessageWorld(_worker(EPOCHS, worker), GRAPHS["pair"], NO_FAULTS, inputs=1)

    def work(delivers: bool) -> None:
        while choices := [each for each in world.choices() if delivers or "->" not in str(each[1:2])]:
            world.do(choices[0])

    for _ in range(2):
        work(delivers=False)
        world.do(world.periodic()[0])
    work(delivers=False)
    work(delivers=True)
    return world.counts().get("complete", 0)


def test_a_late_message_is_in_every_snapshot_whose_cut_it_crosses() -> None:
    """In random schedules the next snapshot replaces one that waits for ever, so this order is played."""
    assert completed_across_a_message(EpochWorker) == 2


@pytest.mark.parametrize("worker", [StoresLateMessagesForTheOldestCut, StoresLateMessagesForTheNewestCut])
def test_a_late_message_that_is_in_one_snapshot_only_is_found(worker: Callable[[Birth], AnyMessageMachine]) -> None:
    assert completed_across_a_message(worker) == 1


def test_counts_that_are_not_in_the_checkpoint_break_an_invariant_after_a_recovery() -> None:
    """E1; the coordinator's invariant finds it: more messages are captured than were in flight."""
    outcomes = (play_long(epochs.COUNTS_ARE_FORGOTTEN, seed) for seed in range(SEEDS))

    assert "no more is captured than was in flight" in str(next(each for each in outcomes if each.condemned).error)
