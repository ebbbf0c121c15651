"""Who may still write: a store, or a sink, that knows the newest incarnation of its writer (rule G4, the fence).

A process that is declared dead may live, and what a dead one wrote may be under way.  Recovery therefore raises the fence of
a writer before it reads what the writer left: what is admitted afterwards was written by whoever continues, and what was read
does not change any more.  A store has this as a conditional write on a number, a log as an epoch (Kafka's producer epoch), a
table as compare-and-swap.
"""

from __future__ import annotations

from checkpoint_protocols.ids import Incarnation


class WriterFence:
    """One writer's. It only rises."""

    def __init__(self) -> None:
        self.newest = Incarnation(0)

    def raise_to(self, incarnation: Incarnation) -> None:
        """From now on nothing of an older incarnation is admitted."""
        self.newest = max(self.newest, incarnation)

    def admits(self, incarnation: Incarnation) -> bool:
        """Whether a writer of that incarnation may still write, erase or show."""
        return incarnation >= self.newest
