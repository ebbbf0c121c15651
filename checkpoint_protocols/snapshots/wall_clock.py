"""P2, snapshots at a moment of the clock: a counter-example. Do not use it; the oracles catch it.

Seed 000 (the first attempts, and "Impact of clock drifts"), seed 001 (the two diagrams of inconsistent cuts).

    STARTING -> RUNNING

Three variants, `settings.options["variant"]`:

- `broadcast`: the coordinator sends to all processes, and each captures at receipt.
- `clock` (default): each captures when its own clock passes a multiple of the interval.
- `counted`: as `clock`, with the in-flight capture and the deficit of `epochs` (seed 000's first algorithm).

With `broadcast` and `clock` no channel is captured. A snapshot counts as complete when every file is written, and all
processes go back to the newest. Messages between two processes are lost even with perfect clocks. `counted` loses none.
With any variant, if clocks differ by more than a message's delay, a message is received before it was sent (an orphan).
It is counted twice afterwards.

The protocol measures the error of "as of time t" for tables and offsets that are saved one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TypeVar

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.machine import Effect, rows
from checkpoint_protocols.message_machine import APP, AnyMessageMachine
from checkpoint_protocols.record_fields import number
from checkpoint_protocols.recovery import Birth, Failure, Needs, Option, Protocol, ProtocolSettings, RecoveryPlan
from checkpoint_protocols.snapshots.coordinator import (
    BEGIN,
    PERIODIC,
    Open,
    SnapshotCoordinator,
    SnapshotCoordinatorPhase,
    SnapshotStep,
    everybody_back,
)
from checkpoint_protocols.snapshots.epochs import EpochCoordinator, EpochWorker, SnapshotPhase, captured_in_flight
from checkpoint_protocols.snapshots.worker import ALWAYS, DECISIONS, SNAPSHOT_EVENTS, SnapshotWorker, messages
from checkpoint_protocols.vocabulary import (
    Commanded,
    Envelope,
    Received,
    SetTimer,
    TimerElapsed,
)

PhaseT = TypeVar("PhaseT", bound=Enum)

BROADCAST, CLOCK, COUNTED = "broadcast", "clock", "counted"


class ClockPhase(Enum):
    """Phase of a process."""

    STARTING = "before its first event"
    RUNNING = "after it"


P = ClockPhase

_EVENTS = (*SNAPSHOT_EVENTS, TimerElapsed)


class TickingWorker(SnapshotWorker[PhaseT]):
    """A process that captures when its clock passes a multiple of the interval. The multiple is the snapshot's number."""

    EVENTS = _EVENTS

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        return [*self._take(event.local_ms // self.settings.interval_ms), self._wait_until_next(event.local_ms)]

    def _wait_until_next(self, local_ms: int) -> SetTimer:
        return self._set(PERIODIC, self.settings.interval_ms - local_ms % self.settings.interval_ms)

    def _take(self, number: int) -> list[Effect]:
        return [] if number <= self.over else self._cut_at(number)

    def _on_abort(self, event: Received) -> list[Effect]:
        self.over = max(self.over, event.message.index)
        return []


class ClockWorker(TickingWorker[ClockPhase]):
    """One process."""

    PHASES = ClockPhase
    AT_REST = (P.RUNNING,)
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
        return [self._wait_until_next(number(event.arguments.get("local_ms", 0)))]

    def _on_begin(self, event: Received) -> list[Effect]:
        return self._take(event.message.index)


class CountedWorker(TickingWorker[SnapshotPhase], EpochWorker):
    """One process of `counted`: a worker of `epochs` whose epoch is advanced by its clock, and by nothing else."""

    TABLE = rows(
        {
            SnapshotPhase.STARTING: {Commanded: "_on_start"},
            SnapshotPhase.RUNNING: {**ALWAYS, TimerElapsed: "_on_timer"},
        },
        _EVENTS,
    )

    def _on_start(self, event: Commanded) -> list[Effect]:
        return [*super()._on_start(event), self._wait_until_next(number(event.arguments.get("local_ms", 0)))]

    def _on_abort(self, event: Received) -> list[Effect]:
        self.given_up.add(event.message.index)
        return super()._on_abort(event)

    def _advance(self, epoch: int) -> list[Effect]:
        # Seed 000, "Impact of clock drifts": the stamp of a message from the future is ignored. This is what goes
        # wrong.
        return []

    def _open_across(self, stamp: int) -> list[int]:
        # A clock that is behind at the start has numbers that this process never captures.
        return [number for number in super()._open_across(stamp) if number in self.cuts]


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
        self._open(message.index)
        return super()._on_ack(message)

    def _on_refuse(self, message: Envelope) -> list[Effect]:
        # The moment is over, so no process can capture it again: one missing file ends the snapshot.
        self._open(message.index)
        return super()._on_refuse(message)

    def _open(self, number: int) -> None:
        # No `begun` record: numbers come from the clocks, so this coordinator cannot use one twice.
        self.open.setdefault(number, Open(set(self.workers), SnapshotStep.COLLECTING))
        self.newest = max(self.newest, number)
        self._update_phase()


class CountedCoordinator(ClockCoordinator, EpochCoordinator):
    """Waits for all reports and a balance of zero, as with `epochs`."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self.limit = ClockCoordinator.limit

    def _on_late(self, message: Envelope) -> list[Effect]:
        self._open(message.index)
        return super()._on_late(message)


_WORKERS: Mapping[str, Callable[[Birth], AnyMessageMachine]] = {
    CLOCK: ClockWorker,
    BROADCAST: ClockWorker,
    COUNTED: CountedWorker,
}
_COORDINATORS = {CLOCK: ClockCoordinator, BROADCAST: BroadcastCoordinator, COUNTED: CountedCoordinator}


def worker(birth: Birth) -> AnyMessageMachine:
    """Return the worker of the configured variant."""
    return _WORKERS[_variant(birth.settings)](birth)


def coordinator(birth: Birth) -> AnyMessageMachine:
    """Return the coordinator of the configured variant."""
    return _COORDINATORS[_variant(birth.settings)](birth)


def _variant(settings: ProtocolSettings) -> str:
    return str(settings.options.get("variant", CLOCK))


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: all processes load the newest snapshot of which every process has a file.

    Only `counted` has messages in flight.
    """
    return everybody_back(failure, captured_in_flight)


PROTOCOL = Protocol(
    name="wall-clock",
    title="Snapshots at a moment of the clock (a counter-example)",
    source="seed 000 and seed 001: the cuts that go wrong",
    needs=Needs(fifo=True),
    worker=worker,
    plan=plan,
    coordinator=coordinator,
    sound=False,
    options={"variant": Option((CLOCK, BROADCAST, COUNTED))},
)
