"""Control markers in the stream; they tell which batch ends an epoch.

Each marker is one row of the control stream, so Spark's offset of that stream counts markers. Spark's offset log
fixes which batch holds which marker before the batch runs, and also when the batch is replayed. A batch has the
newest marker up to its end; later batches keep it until another marker arrives.

A prefetched barrier enters the stream before its epoch is open. If every batch ends an epoch, the next batch starts
while the previous epoch is still being committed. The machine opens one epoch at a time, so the barrier of the next
epoch cannot wait for the machine. The rules offer it as soon as the votes of the previous epoch are complete. The batch
that carries it ends the next epoch, and its votes wait here until the machine opens that epoch. The machine still
decides the order of commits.

In an idle stream a prefetched barrier ends nothing. The rules prefetch no other one until rows arrive again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint_protocols.ids import Epoch
from checkpoint_protocols.machine import Event

OPEN, BARRIER, AHEAD = 1, 2, 3
"""Kinds of control rows; data rows are 0.

- OPEN: every key group restores its state and arms its timers.
- BARRIER: ends an epoch.
- AHEAD: the prefetched barrier, of an epoch that is not open yet. A key group without changes votes for it but does
  not advance: the barrier of the same epoch may come again.
"""

BARRIERS = (BARRIER, AHEAD)


@dataclass(frozen=True, slots=True)
class ControlMarker:
    """One control row for every key group. `number` grows by one per marker of an incarnation; 0: no marker yet."""

    number: int
    kind: int
    epoch: int


NO_MARKER = ControlMarker(0, 0, 0)


class ControlMarkers:
    """Markers of one incarnation, and the newest one that a batch has reached."""

    def __init__(self) -> None:
        self._offered = [NO_MARKER]
        self._reached = NO_MARKER

    def offer(self, kind: int, epoch: int) -> ControlMarker:
        """Return the next marker for the stream."""
        marker = ControlMarker(len(self._offered), kind, epoch)
        self._offered.append(marker)
        return marker

    def ended_by(self, markers: int, open_epoch: int | None) -> int | None:
        """Return the epoch that a batch ends; None if it ends none.

        `markers`: the batch's offset of the control stream. `open_epoch`: the open epoch, or that of the prefetched
        barrier. Only a batch with a new marker can end an epoch, and only that one. The barrier of an aborted epoch
        ends nothing: its snapshots stay in the chains, and its rows belong to the next epoch.
        """
        before, self._reached = self._reached, self._offered[markers]
        if self._reached.number <= before.number or self._reached.kind not in BARRIERS:
            return None
        return self._reached.epoch if self._reached.epoch == open_epoch else None


@dataclass(slots=True)
class Ahead:
    """The prefetched barrier of one incarnation, if there is one."""

    epoch: Epoch | None = None
    offered_ms: float = 0.0
    _votes: tuple[Event, ...] = ()

    @property
    def is_held(self) -> bool:
        """True if the batch of the barrier is over: the epoch is complete as soon as it opens."""
        return bool(self._votes)

    def offer(self, epoch: Epoch, now_ms: float) -> None:
        """Record that the barrier of `epoch` enters the stream at `now_ms`."""
        self.epoch, self.offered_ms, self._votes = epoch, now_ms, ()

    def hold(self, votes: Sequence[Event]) -> None:
        """Keep the votes of the barrier's batch, which ended before its epoch opened."""
        self._votes = tuple(votes)

    def opened(self) -> tuple[Event, ...]:
        """Return the votes that wait for the epoch, which is open now; empty if the barrier's batch is still to come."""
        votes = self._votes
        if votes:
            self.over()
        return votes

    def over(self) -> None:
        """Clear the prefetched barrier: it completed its epoch, or it can end no epoch any more."""
        self.epoch, self._votes = None, ()
