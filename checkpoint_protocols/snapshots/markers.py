"""P0, Chandy and Lamport's markers: capture at the first marker, record every channel until its own marker.

Seed 001 ("Distributed Snapshots"), Chandy and Lamport 1985, section 3; Carbone et al. 2015 (seed 003) start from it.

    STARTING -> IDLE <-> RECORDING

Errata corrected:

- E3: the state written is the one at the *first* marker. "Once it has barriers on all inputs it is free to write its
  snapshot" can be read otherwise: write the state at the last marker together with the recorded messages. That counts
  those messages twice. A strongly connected graph is sufficient, but not needed: initiators must reach all processes.
  Initiators here are the sources.
- Markers carry the snapshot's id. One snapshot is open at a time; a marker of a newer one proves that the older was
  aborted.
"""

from __future__ import annotations

from enum import Enum

from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import Effect, Event, rows
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Birth, Failure, Needs, Protocol, Record, RecoveryPlan
from checkpoint_protocols.snapshots.coordinator import BEGIN, SnapshotCoordinator, everybody_back, kept_with_checkpoint
from checkpoint_protocols.snapshots.worker import ALWAYS, DECISIONS, SNAPSHOT_EVENTS, SnapshotWorker, messages
from checkpoint_protocols.vocabulary import Commanded, Envelope, Note, Received

MARKER = "marker"


class MarkerPhase(Enum):
    """Phase of a process."""

    STARTING = "before its first event"
    IDLE = "no channel is recorded"
    RECORDING = "captured; some inputs are recorded until their markers come"


P = MarkerPhase


class MarkerWorker(SnapshotWorker[MarkerPhase]):
    """One process."""

    PHASES = MarkerPhase
    AT_REST = (P.IDLE,)
    TABLE = rows(
        {
            P.STARTING: {Commanded: "_on_start"},
            P.IDLE: ALWAYS,
            P.RECORDING: ALWAYS,
        },
        SNAPSHOT_EVENTS,
    )
    MESSAGES = messages(
        {
            P.IDLE: {APP: "_deliver", BEGIN: "_on_begin", MARKER: "_on_first_marker", **DECISIONS},
            P.RECORDING: {APP: "_on_recorded_message", MARKER: "_on_marker", **DECISIONS},
        }
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.STARTING, birth)
        self.recorded: set[ChannelId] = set()
        """Inputs whose marker has not arrived."""
        self.channel_states: list[Envelope] = []
        self.captured: Record = {}

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        super().validate()
        self._ensure((self.phase is P.RECORDING) == bool(self.recorded), "channels are recorded iff recording")
        self._ensure(self.phase is P.RECORDING or not self.channel_states, "nothing is kept but for a snapshot")

    def _stale(self, event: Event) -> str | None:
        match event:
            case Received(message=Envelope(kind=kind, index=number)) if kind in (BEGIN, MARKER):
                # The process has captured the open snapshot, so it is over by number. Its markers on the other inputs still end
                # their recording.
                open_here = self.phase is P.RECORDING and number == self.index
                return f"snapshot {number} is over here" if number <= self.over and not open_here else None
        return None

    def _on_start(self, event: Commanded) -> list[Effect]:
        self.phase = P.IDLE
        return []

    # -- markers -------------------------------------------------------------------------------------------------

    def _on_begin(self, event: Received) -> list[Effect]:
        return self._take(event.message.index, None)

    def _on_first_marker(self, event: Received) -> list[Effect]:
        return self._take(event.message.index, event.channel)

    def _on_marker(self, event: Received) -> list[Effect]:
        number = event.message.index
        if number == self.index:
            return self._end_channel(event.channel)
        return [*self._give_up(f"the marker of {number} came"), *self._take(number, event.channel)]

    def _take(self, number: int, came_on: ChannelId | None) -> list[Effect]:
        capture, self.captured = self._capture(number)
        # In one step with the capture: a message sent between both would be before the cut at its receiver, after it at
        # its sender.
        markers = [self._send_on(channel, MARKER, number) for channel in self.outputs]
        self.recorded = set(self.inputs)
        self.phase = P.RECORDING if self.recorded else P.IDLE
        # The channel of the first marker is empty: every message before the marker was delivered.
        ended = self._end_channel(came_on) if came_on else [self._write(number, self.captured)]
        return [capture, *markers, *ended]

    def _end_channel(self, channel: ChannelId) -> list[Effect]:
        self.recorded.discard(channel)
        if self.recorded:
            return []
        self.phase = P.IDLE
        kept, self.channel_states = self.channel_states, []
        # E3: the state of the first marker. The present one contains the recorded messages, and a recovery would
        # deliver them again.
        return [self._write(self.index, self.captured, kept)]

    def _on_recorded_message(self, event: Received) -> list[Effect]:
        if event.channel in self.recorded:
            # A copy: seed 001 keeps it for the snapshot only, and the application does not wait ("process those messages
            # immediately").
            self.channel_states.append(event.message)
        return self._deliver(event)

    # -- aborted snapshots ---------------------------------------------------------------------------------------

    def _on_abort(self, event: Received) -> list[Effect]:
        number = event.message.index
        self.over = max(self.over, number)
        if self.phase is P.RECORDING and number >= self.index:
            return self._give_up(f"the {COORDINATOR} gave it up")
        return []

    def _give_up(self, why: str) -> list[Effect]:
        self.recorded, self.channel_states = set(), []
        self.phase = P.IDLE
        return [Note("recording abandoned", f"{self.index}: {why}")]


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: all processes restore the newest decided snapshot; messages in its channels are delivered first."""
    return everybody_back(failure, kept_with_checkpoint)


PROTOCOL = Protocol(
    name="markers",
    title="Markers: states and the messages between them (Chandy-Lamport)",
    source="seed 001; Chandy and Lamport 1985, section 3; errata E3",
    needs=Needs(fifo=True),
    worker=MarkerWorker,
    plan=plan,
    coordinator=SnapshotCoordinator,
)
