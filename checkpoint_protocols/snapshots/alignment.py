"""Alignment of inputs at barriers, shared by the barrier protocols over plain messages.

A barrier holds its input until barriers of the same snapshot have arrived on all awaited inputs (`regular`). Then the
task captures, forwards the barrier and releases the inputs, in one step. One snapshot is open at a time, so a barrier
of a newer one proves that the older was aborted.

The state alone determines the gate of each input (`_shut`); `_gate` returns the difference to the present gates.
"""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum
from typing import TypeVar

from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.recovery import Birth, Record
from checkpoint_protocols.snapshots.coordinator import BEGIN
from checkpoint_protocols.snapshots.worker import SnapshotWorker
from checkpoint_protocols.vocabulary import Commanded, Envelope, Hold, Note, Received, Release

BARRIER = "barrier"
"""Kind of a barrier. Its body is the number of application messages that the sender had sent on the channel."""

PhaseT = TypeVar("PhaseT", bound=Enum)


class AligningWorker(SnapshotWorker[PhaseT]):
    """A task that aligns. Subclasses set the phase (`_update_phase`) and process a captured state (`_keep`)."""

    def __init__(self, phase: PhaseT, birth: Birth) -> None:
        super().__init__(phase, birth)
        self.regular = frozenset(self.inputs)
        self.aligning: int | None = None
        self.held: set[ChannelId] = set()
        """Inputs on which the barrier of `aligning` has arrived."""
        self.closed: frozenset[ChannelId] = frozenset()
        """Inputs that the host holds at present."""

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        super().validate()
        self._ensure((self.aligning is not None) == bool(self.held), "inputs are held iff something is aligned")
        self._ensure(self.aligning is None or self.aligning > self.over, "what is over holds nothing")
        self._ensure(not self.held or self.held < self.regular, "never are all inputs held")
        self._ensure(self.closed == self._shut(), "the gates are as the state says")

    @abstractmethod
    def _update_phase(self) -> None:
        """Set the phase from the state."""

    @abstractmethod
    def _keep(self, number: int, captured: Record) -> list[Effect]:
        """Return the effects that store or complete the state captured for a snapshot."""

    def _stale(self, event: Event) -> str | None:
        match event:
            case Received(message=Envelope(kind=kind, index=number)) if kind in (BEGIN, BARRIER):
                if number <= self.over:
                    return f"snapshot {number} is over here"
                if self.aligning is not None and number < self.aligning:
                    return f"snapshot {number} is older than {self.aligning}, which is being aligned"
        return None

    def _on_start(self, event: Commanded) -> list[Effect]:
        self._update_phase()
        return []

    # -- barriers ------------------------------------------------------------------------------------------------

    def _on_begin(self, event: Received) -> list[Effect]:
        """Take the snapshot at a source: it has no input, so this request is its only barrier, the seed's Nil."""
        return self._take(event.message.index)

    def _on_barrier(self, event: Received) -> list[Effect]:
        number, channel = event.message.index, event.channel
        if channel not in self.regular or channel in self.held:
            raise self._invalid(event, f"barriers are awaited on {sorted(self.regular - self.held)}")
        # A lost or repeated message would make the cut inconsistent, so the sender's count is compared.
        self._ensure(self.received.get(channel, 0) == event.message.body, "what came before a barrier was delivered")
        abandoned = self._make_way(number)
        if self.held | {channel} == self.regular:
            return [*abandoned, *self._take(number)]
        self.aligning = number
        self.held.add(channel)
        self._update_phase()
        return [*abandoned, *self._gate()]

    def _make_way(self, number: int) -> list[Effect]:
        """Abandon an older snapshot under way here: a barrier of another one proves that it was aborted."""
        if self.aligning is None or self.aligning == number:
            return []
        return self._abandon(f"the barrier of {number} came")

    def _take(self, number: int) -> list[Effect]:
        """Capture, send the barrier before anything else is sent, release the inputs."""
        self._let_go()
        capture, captured = self._capture(number)
        kept = self._keep(number, captured)
        self._update_phase()
        return [capture, *self._forward(number), *self._gate(), *kept]

    def _forward(self, number: int) -> list[Effect]:
        return [self._send_on(channel, BARRIER, number, self.sent.get(channel, 0)) for channel in self.outputs]

    # -- aborted snapshots ---------------------------------------------------------------------------------------

    def _on_abort(self, event: Received) -> list[Effect]:
        number = event.message.index
        due = self.aligning is not None and self.aligning <= number
        abandoned = self._abandon("the coordinator gave it up") if due else []
        self.over = max(self.over, number)
        return abandoned

    def _abandon(self, why: str) -> list[Effect]:
        """End an alignment that will never complete here, and release its inputs."""
        note = Note("alignment abandoned", f"{self.aligning}: {why}")
        self.over = max(self.over, self.aligning or 0)
        self._let_go()
        self._update_phase()
        return [note, *self._gate()]

    # -- gates ---------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        self.aligning = None
        self.held.clear()

    def _shut(self) -> frozenset[ChannelId]:
        """Return the inputs from which nothing may be delivered now."""
        return frozenset(self.held)

    def _gate(self) -> list[Effect]:
        before, self.closed = self.closed, self._shut()
        opened = [Release(channel) for channel in sorted(before - self.closed)]
        return [*opened, *(Hold(channel) for channel in sorted(self.closed - before))]
