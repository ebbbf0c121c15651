"""Stop-the-world snapshots, the baseline of the seeds: nothing is sent from the request until the decision.

Seed 001, "Snapshotting State"; seed 003, section 2 (the three steps of Naiad); seed 004, the "freeze" of a checkpoint.

    STARTING -> RUNNING -> DRAINING -> STOPPED -> RUNNING

The coordinator asks all processes. A process stops at the request, or at the first marker if that overtakes it: it holds
the application's output and sends a marker on every channel. When a marker has arrived on every input, its channels are
empty and its state cannot change any more. It captures that state, and sends again at the decision.

Points that the seeds leave open:

- "All activity" is sends. Messages in transit are received while a process drains, or they would be in no snapshot.
- No process may send when its own file is written: another one that still drains would have the message in its state.
- An abort resumes as a commit does. A marker of a newer snapshot proves that the older one was aborted.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.machine import Effect, Event, rows
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Birth, Needs, Protocol
from checkpoint_protocols.snapshots.acyclic import plan
from checkpoint_protocols.snapshots.coordinator import BEGIN, SnapshotCoordinator
from checkpoint_protocols.snapshots.markers import MARKER
from checkpoint_protocols.snapshots.worker import ALWAYS, DECISIONS, SNAPSHOT_EVENTS, SnapshotWorker, messages
from checkpoint_protocols.vocabulary import OUT, AppSent, Commanded, Envelope, Hold, Received, Release


class StopPhase(Enum):
    """Phase of a process."""

    STARTING = "before its first event"
    RUNNING = "sends as the application asks"
    DRAINING = "sends nothing; markers of some inputs are missing"
    STOPPED = "captured; the decision is missing"


P = StopPhase

_HELD = {event: handler for event, handler in ALWAYS.items() if event is not AppSent}
"""The host requests no sends while the output is held."""

_TAKEN = {APP: "_deliver", BEGIN: "_on_begin", MARKER: "_on_marker", **DECISIONS}


class StoppingWorker(SnapshotWorker[StopPhase]):
    """One process."""

    PHASES = StopPhase
    AT_REST = (P.RUNNING,)
    TABLE = rows(
        {P.STARTING: {Commanded: "_on_start"}, P.RUNNING: ALWAYS, P.DRAINING: _HELD, P.STOPPED: _HELD},
        SNAPSHOT_EVENTS,
    )
    MESSAGES = messages({P.RUNNING: _TAKEN, P.DRAINING: _TAKEN, P.STOPPED: _TAKEN})

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.STARTING, birth)
        self.stopped_for = 0
        """The open snapshot; 0 if none is."""
        self.awaited: set[ChannelId] = set()
        """Inputs whose marker of it has not arrived."""

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        super().validate()
        self._ensure((self.stopped_for > 0) == (self.phase in (P.DRAINING, P.STOPPED)), "stopped for a snapshot")
        self._ensure((self.phase is P.DRAINING) == bool(self.awaited), "markers are awaited iff draining")

    def _stale(self, event: Event) -> str | None:
        match event:
            case Received(message=Envelope(kind=kind, index=number)) if kind in (BEGIN, MARKER):
                return f"snapshot {number} is over here" if number <= max(self.over, self.stopped_for - 1) else None
        return None

    def _on_start(self, event: Commanded) -> list[Effect]:
        self.phase = P.RUNNING
        return []

    # -- stopping ------------------------------------------------------------------------------------------------

    def _on_begin(self, event: Received) -> list[Effect]:
        return self._stop(event.message.index)

    def _on_marker(self, event: Received) -> list[Effect]:
        stopped = self._stop(event.message.index)
        if event.channel not in self.awaited:
            raise self._invalid(event, f"markers are awaited on {sorted(self.awaited)}")
        self.awaited.discard(event.channel)
        return [*stopped, *self._capture_when_drained()]

    def _stop(self, number: int) -> list[Effect]:
        if number == self.stopped_for:
            return []
        self.stopped_for, self.phase, self.awaited = number, P.DRAINING, set(self.inputs)
        markers = [self._send_on(channel, MARKER, number) for channel in self.outputs]
        # A source has nothing to drain.
        return [*self._gate(Hold), *markers, *([] if self.inputs else self._capture_when_drained())]

    def _capture_when_drained(self) -> list[Effect]:
        if self.awaited:
            return []
        self.phase = P.STOPPED
        return self._cut_at(self.stopped_for)

    # -- decisions -----------------------------------------------------------------------------------------------

    def _on_commit(self, event: Received) -> list[Effect]:
        return [*super()._on_commit(event), *self._resume(event.message.index)]

    def _on_abort(self, event: Received) -> list[Effect]:
        self.over = max(self.over, event.message.index)
        return self._resume(event.message.index)

    def _resume(self, number: int) -> list[Effect]:
        # A decision on an older snapshot may come late: this process is stopped for a newer one.
        if not 0 < self.stopped_for <= number:
            return []
        self.stopped_for, self.phase = 0, P.RUNNING
        self.awaited.clear()
        return self._gate(Release)

    def _gate(self, gate: type[Hold] | type[Release]) -> list[Effect]:
        return [gate(OUT)] if self.outputs else []


class StoppingCoordinator(SnapshotCoordinator):
    """Asks all processes."""

    def asked(self) -> Iterable[ProcessId]:
        """Return all processes: none may send."""
        return self.workers


PROTOCOL = Protocol(
    name="stop-the-world",
    title="Stop-the-world snapshots (the baseline)",
    source="seed 001, Snapshotting State; seed 003, section 2; seed 004, Introduction to Recovery",
    needs=Needs(fifo=True),
    worker=StoppingWorker,
    plan=plan,
    coordinator=StoppingCoordinator,
)
