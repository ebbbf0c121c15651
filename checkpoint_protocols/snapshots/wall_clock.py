"""P2, snapshots at a moment of the clock: a counter-example. Do not use it; the oracles catch it.

Seed 000 (the first attempts, and "Impact of clock drifts"), seed 001 (the two diagrams of inconsistent cuts).

    STARTING -> RUNNING

Two variants, `settings.options["variant"]`:

- `broadcast`: the coordinator sends to all processes, and each captures at receipt.
- `clock` (default): each captures when its own clock passes a multiple of the interval.

No channel is captured. A snapshot counts as complete when every file is written, and all processes go back to the
newest. Messages between two processes are lost even with perfect clocks. If clocks differ by more than a message's
delay, a message is received before it was sent (an orphan). It is counted twice afterwards.

The protocol measures the error of "as of time t" for tables and offsets that are saved one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.machine import Effect, rows
from checkpoint_protocols.message_machine import APP, AnyMessageMachine
from checkpoint_protocols.recovery import Birth, Failure, Needs, Option, Protocol, ProtocolSettings, RecoveryPlan
from checkpoint_protocols.snapshots.coordinator import (
    BEGIN,
    PERIODIC,
    Open,
    SnapshotCoordinator,
    SnapshotCoordinatorPhase,
    SnapshotStep,
    everybody_back,
    nothing_in_flight,
    number_in,
)
from checkpoint_protocols.snapshots.worker import ALWAYS, DECISIONS, SNAPSHOT_EVENTS, SnapshotWorker, messages
from checkpoint_protocols.vocabulary import (
    Commanded,
    Envelope,
    Received,
    SetTimer,
    TimerElapsed,
)

BROADCAST, CLOCK = "broadcast", "clock"


class ClockPhase(Enum):
    """Phase of a process."""

    STARTING = "before its first event"
    RUNNING = "after it"


P = ClockPhase

_EVENTS = (*SNAPSHOT_EVENTS, TimerElapsed)


class ClockWorker(SnapshotWorker[ClockPhase]):
    """One process."""

    PHASES = ClockPhase
    AT_REST = (P.RUNNING,)
    EVENTS = _EVENTS
    TABLE = rows(
        {
            P.STARTING: {Commanded: "_on_start"},
            P.RUNNING: {**ALWAYS, TimerElapsed: "_on_timer"},
        },
        _EVENTS,
    )
    MESSAGES = messages({P.RUNNING: {APP: "_deliver", BEGIN: "_on_begin", **DECISIONS}})

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.STARTING, birth)

    def _on_start(self, event: Commanded) -> list[Effect]:
        self.phase = P.RUNNING
        if _variant(self.settings) == BROADCAST:
            return []
        return [self._wait_until_next(number_in(event.arguments, "local_ms"))]

    def _on_begin(self, event: Received) -> list[Effect]:
        return self._take(event.message.index)

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        """Take the snapshot of this multiple of the interval, which is also its number."""
        taken = self._take(event.local_ms // self.settings.interval_ms)
        return [*taken, self._wait_until_next(event.local_ms)]

    def _wait_until_next(self, local_ms: int) -> SetTimer:
        return self._set(PERIODIC, self.settings.interval_ms - local_ms % self.settings.interval_ms)

    def _take(self, number: int) -> list[Effect]:
        if number <= self.over:
            return []
        capture, captured = self._capture(number)
        return [capture, self._write(number, captured)]

    def _on_abort(self, event: Received) -> list[Effect]:
        self.over = max(self.over, event.message.index)
        return []


class BroadcastCoordinator(SnapshotCoordinator):
    """Sends the begin to all processes, and treats the receipts as one moment."""

    def asked(self) -> Iterable[ProcessId]:
        """Return all processes."""
        return self.workers


class ClockCoordinator(SnapshotCoordinator):
    """Asks no process: a snapshot is open from its first file on, and complete with its last."""

    TABLE = {**SnapshotCoordinator.TABLE, (SnapshotCoordinatorPhase.IDLE, Received): "_on_received"}  # noqa: RUF012 - a table
    limit = 1_000_000
    """Practically unlimited, since clocks do not wait for the slowest writer."""

    def is_collecting(self, number: int) -> bool:
        """As there; a snapshot that no file has begun is collected as well."""
        opened = self.open.get(number)
        return number > self.committed if opened is None else opened.step is SnapshotStep.COLLECTING

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        return [self._next_period()]

    def _on_ack(self, message: Envelope) -> list[Effect]:
        self.open.setdefault(message.index, Open(set(self.workers), SnapshotStep.COLLECTING))
        self.newest = max(self.newest, message.index)
        self._update_phase()
        return super()._on_ack(message)

    def _on_refuse(self, message: Envelope) -> list[Effect]:
        """Abort the snapshot with a missing file: its moment is over, so no process can capture it again."""
        self.open.setdefault(message.index, Open(set(self.workers), SnapshotStep.COLLECTING))
        return super()._on_refuse(message)


def coordinator(birth: Birth) -> AnyMessageMachine:
    """Return the coordinator of the configured variant."""
    return BroadcastCoordinator(birth) if _variant(birth.settings) == BROADCAST else ClockCoordinator(birth)


def _variant(settings: ProtocolSettings) -> str:
    chosen = settings.options.get("variant", CLOCK)
    return BROADCAST if chosen == BROADCAST else CLOCK


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: all processes load the newest snapshot of which every process has a file."""
    return everybody_back(failure, nothing_in_flight)


PROTOCOL = Protocol(
    name="wall-clock",
    title="Snapshots at a moment of the clock (a counter-example)",
    source="seed 000 and seed 001: the cuts that go wrong",
    needs=Needs(fifo=True),
    worker=ClockWorker,
    plan=plan,
    coordinator=coordinator,
    sound=False,
    options={"variant": Option((CLOCK, BROADCAST))},
)
