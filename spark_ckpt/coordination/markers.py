"""Control markers in the stream; they tell which batch ends an epoch.

Each marker is one row of the control stream, so Spark's offset of that stream counts markers. Spark's offset log
fixes which batch holds which marker before the batch runs, and also when the batch is replayed. A batch has the
newest marker up to its end; later batches keep it until another marker arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

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
