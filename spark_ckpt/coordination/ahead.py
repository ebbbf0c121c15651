"""A barrier that goes ahead of its epoch: it is in the stream before the epoch begins.

Where every batch ends an epoch, the next batch follows at once, while the last epoch is still being decided. The machine opens one
epoch at a time, so the next one's barrier cannot wait for it. It is offered when the last one's votes are complete; the batch that
carries it ends the next epoch, whose votes are held until the machine opens it. The order of decisions stays the machine's.

A stream that has become idle lets such a barrier pass: it ends nothing, and no other one goes ahead before there are rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint_protocols.ids import Epoch
from checkpoint_protocols.machine import Event


@dataclass(slots=True)
class Ahead:
    """Of one incarnation: the barrier that has gone ahead, if there is one."""

    epoch: Epoch | None = None
    offered_ms: float = 0.0
    _votes: tuple[Event, ...] = ()

    @property
    def is_held(self) -> bool:
        """Whether its batch is over, so that the epoch is complete once it is opened."""
        return bool(self._votes)

    def offer(self, epoch: Epoch, now_ms: float) -> None:
        """The barrier of `epoch` goes into the stream."""
        self.epoch, self.offered_ms, self._votes = epoch, now_ms, ()

    def hold(self, votes: Sequence[Event]) -> None:
        """Its batch is over before its epoch is open."""
        self._votes = tuple(votes)

    def opened(self) -> tuple[Event, ...]:
        """Its epoch is open now: the votes that are at hand. Without any, its batch is still to come."""
        votes = self._votes
        if votes:
            self.over()
        return votes

    def over(self) -> None:
        """It has ended its epoch, or ends nothing any more."""
        self.epoch, self._votes = None, ()
