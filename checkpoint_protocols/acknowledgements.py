"""What a writer was told is durable, kept beside the records: who reads them later sees when one is missing.

A disk, or who tidies it, may lose what was acknowledged, or leave a part of it.  A reader that knows only what is whole takes
such a record for one that was never finished, and goes back further than what others have already seen.  So the acknowledgement is
durable itself, before the writer hears of it, and recovery compares: what is missing is damage, and is told.  The epoch log
does it with an empty file for each acknowledged row (`epochs/_acknowledged`).
"""

from __future__ import annotations

from collections.abc import Collection

from checkpoint_protocols.recovery import Key


class Acknowledgements:
    """One writer's."""

    def __init__(self) -> None:
        self.keys: set[Key] = set()

    def give(self, key: Key) -> None:
        """Its writer is told next that the record is durable."""
        self.keys.add(key)

    def take_back(self, keys: Collection[Key]) -> None:
        """These records may go: they were erased, or are of an undone future."""
        self.keys.difference_update(keys)

    def missing(self, whole: Collection[Key]) -> list[Key]:
        """Acknowledged records that are not among those that a reader finds `whole`."""
        return sorted(self.keys.difference(whole))
