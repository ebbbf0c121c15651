"""Fence of a writer: a store or sink that knows the newest incarnation of its writer (rule G4).

A process that was declared dead may still live, and its writes may still be in transit. So recovery raises the writer's
fence before it reads the writer's records. After that only the successor can write, and the records that recovery reads
no longer change.

A store implements the fence as a conditional write on a number. A log implements it as an epoch (Kafka's producer
epoch), a table as compare-and-swap.
"""

from __future__ import annotations

from checkpoint_protocols.ids import Incarnation


class WriterFence:
    """Fence of one writer. It only rises."""

    def __init__(self) -> None:
        self.newest = Incarnation(0)

    def raise_to(self, incarnation: Incarnation) -> None:
        """Reject every incarnation older than `incarnation` from now on."""
        self.newest = max(self.newest, incarnation)

    def admits(self, incarnation: Incarnation) -> bool:
        """Return True if a writer of that incarnation may still write, erase or publish."""
        return incarnation >= self.newest
