"""Fence of a writer: a store or sink that knows the newest incarnation of its writer (rule G4).

A process that was declared dead may still live, and its writes may still be in transit. So recovery raises the writer's
fence before it reads the writer's records. After that only the successor can write, and the records that recovery reads
no longer change.

A store implements the fence as a conditional write on a number. A log implements it as an epoch (Kafka's producer
epoch), a table as compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Collection

from checkpoint_protocols.ids import Incarnation
from checkpoint_protocols.recovery import Key

# -- Durable acknowledgements of a writer's records, so that recovery detects a lost or damaged record.
#
# A disk, or a tool that cleans it up, can lose an acknowledged record or leave a part of it. A reader that knows only
# whole records takes such a record for one that was never finished. It then goes back further than other processes have
# already seen.
#
# So the acknowledgement itself is durable before the writer receives it. Recovery compares: a missing record is damage,
# and recovery reports it. The epoch log keeps an empty file for each acknowledged row (`epochs/_acknowledged`).


class Acknowledgements:
    """Acknowledged keys of one writer."""

    def __init__(self) -> None:
        self.keys: set[Key] = set()

    def give(self, key: Key) -> None:
        """Record `key` as acknowledged. Call this before the writer learns that the record is durable."""
        self.keys.add(key)

    def take_back(self, keys: Collection[Key]) -> None:
        """Forget `keys`: their records were erased, or belong to an undone future."""
        self.keys.difference_update(keys)

    def missing(self, whole: Collection[Key]) -> list[Key]:
        """Return the acknowledged keys that a reader does not find among the `whole` records, sorted."""
        return sorted(self.keys.difference(whole))


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
