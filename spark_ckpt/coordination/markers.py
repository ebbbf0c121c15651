"""Control markers in the stream, and which batch ends an epoch.

Each marker is one row of the control stream, so Spark's offset of that stream counts markers, and its offset log fixes,
before a batch runs and also when it is replayed, which batch holds which marker.  The newest marker up to a batch's end is
the batch's; it stays so for the batches after it, until another one comes.
"""

from __future__ import annotations

from dataclasses import dataclass

OPEN, BARRIER, AHEAD = 1, 2, 3
"""Kinds of control rows: OPEN lets every key group restore and arm its timers, BARRIER ends an epoch. AHEAD is the barrier of an
epoch that is not open yet: a key group in which nothing has changed votes for it and stays where it is, so that the epoch's barrier
may come again. Data rows are 0."""

BARRIERS = (BARRIER, AHEAD)


@dataclass(frozen=True, slots=True)
class ControlMarker:
    """One control row for every key group. `number` grows by one per marker of an incarnation; 0 is none yet."""

    number: int
    kind: int
    epoch: int


NO_MARKER = ControlMarker(0, 0, 0)


class ControlMarkers:
    """The markers of one incarnation, and how far batches have come in them."""

    def __init__(self) -> None:
        self._offered = [NO_MARKER]
        self._reached = NO_MARKER

    def offer(self, kind: int, epoch: int) -> ControlMarker:
        """The next marker for the stream."""
        marker = ControlMarker(len(self._offered), kind, epoch)
        self._offered.append(marker)
        return marker

    def ended_by(self, markers: int, open_epoch: int | None) -> int | None:
        """The epoch that a batch ends whose offset counts `markers`; None if it ends none.

        Only a batch that holds a new marker can end an epoch, and only the open one. A barrier that comes after its epoch
        was given up ends nothing: its snapshots stay in the chains, its rows belong to the next epoch.
        """
        before, self._reached = self._reached, self._offered[markers]
        if self._reached.number <= before.number or self._reached.kind not in BARRIERS:
            return None
        return self._reached.epoch if self._reached.epoch == open_epoch else None
