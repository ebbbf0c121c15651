"""The prefetched barrier: a barrier that enters the stream before its epoch is open.

If every batch ends an epoch, the next batch starts while the previous epoch is still being committed. The machine
opens one epoch at a time, so the barrier of the next epoch cannot wait for the machine. The rules offer it as soon as
the votes of the previous epoch are complete. The batch that carries it ends the next epoch, and its votes wait here
until the machine opens that epoch. The machine still decides the order of commits.

In an idle stream a prefetched barrier ends nothing. The rules prefetch no other one until rows arrive again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint_protocols.ids import Epoch
from checkpoint_protocols.machine import Event


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
