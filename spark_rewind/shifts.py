"""Positions of a table's readers after a rollback of the table. Pure rules, no I/O.

A table rolls back by new versions. Version R holds the content of version p. The versions p + 1 to the line follow, each
with its original actions. A reader at version v, with its base at p or later, continues at version v + R - p. It meets
unread data in the same order and skips the undone versions. `index` counts files of a version, or of the table as of
it; both stay the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from spark_rewind.positions import DeltaPosition


@dataclass(frozen=True, slots=True)
class Shift:
    """Version numbers of a table that rolls back.

    - `base`: p, -1 for the table before its first version.
    - `line`: newest version that stays.
    - `first`: R, the number of the first new version.
    """

    base: int
    line: int
    first: int

    @property
    def last(self) -> int:
        """The newest new version: the table as of the line."""
        return self.first + self.line - self.base

    def moved(self, position: DeltaPosition) -> DeltaPosition:
        """Return a reader's new position.

        Raises ValueError for a reader that has read undone data, or that is before the base.
        """
        if base_of(position) < self.base or position.versions > self.line + 1:
            raise ValueError(f"{position} is not between version {self.base} and the end of version {self.line}")
        return replace(position, version=position.version + self.first - self.base)


def base_of(position: DeltaPosition) -> int:
    """Return the newest version whose content a reader presumes. It reads later versions commit by commit.

    A reader of the table as of a version still reads that version, so this is its base.
    """
    return position.version if position.snapshot else position.version - 1


def shift_of(line: int, newest: int, positions: Iterable[DeltaPosition]) -> Shift:
    """Return the shift of a table with newest version `newest`, for readers at these positions."""
    # the base is early enough for every reader: each must find its unread versions among the new ones
    return Shift(min([line, *(base_of(each) for each in positions)]), line, newest + 1)


def moved_text(text: str, shift: Shift, position: DeltaPosition) -> str:
    """Return a Delta source's offset, as Delta writes it, at its new version. Other fields stay."""
    value = json.loads(text)
    return json.dumps(value | {"reservoirVersion": shift.moved(position).version}, separators=(",", ":"))
