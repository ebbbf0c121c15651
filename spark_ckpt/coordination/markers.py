"""Control markers in the stream; they tell which batch ends an epoch.

Each marker is one row of the control stream, so Spark's offset of that stream counts markers. Spark's offset log
fixes which batch holds which marker before the batch runs, and also when the batch is replayed. A batch has the
newest marker up to its end; later batches keep it until another marker arrives.

A prefetched barrier enters the stream before its epoch is open. If every batch ends an epoch, the next batch starts
while the previous epoch is still being committed. The protocol opens one epoch at a time, so the barrier of the next
epoch cannot wait for its opening. The protocol offers it as soon as the previous epoch is complete. The batch that
carries it ends the next epoch, which waits in the cut (`cut.Prefetched`) until it is opened. So commits keep their order.

In an idle stream a prefetched barrier ends nothing. No other one is prefetched until rows arrive again.
"""

from __future__ import annotations

from dataclasses import dataclass

OPEN, BARRIER, PREFETCHED = 1, 2, 3
"""Kinds of control rows; data rows are 0.

- OPEN: every key group restores its state and arms its timers.
- BARRIER: ends an epoch.
- PREFETCHED: the prefetched barrier, of an epoch that is not open yet. A key group without changes votes for it but does
  not advance: the barrier of the same epoch may come again.
"""

BARRIERS = (BARRIER, PREFETCHED)


@dataclass(frozen=True, slots=True)
class ControlMarker:
    """One control row for every key group. `number` grows by one per marker of an incarnation; 0: no marker yet.

    `full`: the key groups that write full snapshots at this barrier, as `full_snapshots.asking` writes them.
    """

    number: int
    kind: int
    epoch: int
    full: str = ""


NO_MARKER = ControlMarker(0, 0, 0)


class ControlMarkers:
    """Markers of one incarnation, and the newest one that a batch has reached."""

    def __init__(self) -> None:
        self.offered = {NO_MARKER.number: NO_MARKER}
        """Markers that a batch may still reach, and the reached one, by number."""
        self.newest = self.reached = NO_MARKER
        """The newest marker, and the newest one that a batch has reached."""

    @property
    def are_reached(self) -> bool:
        """True if a batch has reached every marker, so that no barrier is on its way."""
        return self.reached == self.newest

    def offer(self, kind: int, epoch: int, full: str = "") -> ControlMarker:
        """Return the next marker for the stream."""
        self.newest = ControlMarker(self.newest.number + 1, kind, epoch, full)
        self.offered[self.newest.number] = self.newest
        return self.newest

    def ended_by(self, markers: int, open_epoch: int | None) -> int | None:
        """Return the epoch that a batch ends; None if it ends none.

        `markers`: the batch's offset of the control stream. `open_epoch`: the open epoch, or that of the prefetched
        barrier. Only a batch with a new marker can end an epoch, and only that one. The barrier of an aborted epoch
        ends nothing: its snapshots stay in the chains, and its rows belong to the next epoch.
        """
        # A batch may reach the barrier of an aborted epoch together with the next one. Only the newest marker counts.
        before, self.reached = self.reached, self.offered[markers]
        # Spark's offset never goes back within an incarnation. A job that ends an epoch with each batch has millions of them.
        for number in range(before.number, self.reached.number):
            del self.offered[number]
        # A batch without a new marker, or with one that only opens key groups, ends nothing.
        if self.reached.number <= before.number or self.reached.kind not in BARRIERS:
            return None
        return self.reached.epoch if self.reached.epoch == open_epoch else None
