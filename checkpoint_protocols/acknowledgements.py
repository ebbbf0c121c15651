"""Durable acknowledgements of a writer's records, so that recovery detects a lost or damaged record.

A disk, or a tool that cleans it up, can lose an acknowledged record or leave a part of it. A reader that knows only
whole records takes such a record for one that was never finished. It then goes back further than other processes have
already seen.

So the acknowledgement itself is durable before the writer receives it. Recovery compares: a missing record is damage,
and recovery reports it. The epoch log keeps an empty file for each acknowledged row (`epochs/_acknowledged`).
"""

from __future__ import annotations

from collections.abc import Collection

from checkpoint_protocols.recovery import Key


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
