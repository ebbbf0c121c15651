"""Where readers of a table stand after it went back. Decisions only, no reading or writing.

A table goes back by new versions: one, R, holds what version p held, and the versions p + 1 to the line follow, each with the
actions that it had. So a reader that stood in version v, with its base at p or later, goes on in version v + R - p: it meets
what it had not read yet, in the same order, and never the versions that are undone. `index` counts files of a version, or of
the table as of a version; both are the same there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from spark_rewind.positions import DeltaPosition


@dataclass(frozen=True, slots=True)
class Shift:
    """A table that goes back. `base`: p, -1 for the table before its first version. `line`: the newest version that stays.

    `first`: R, the number of the first new version.
    """

    base: int
    line: int
    first: int

    @property
    def last(self) -> int:
        """The newest new version: the table as it is at the line."""
        return self.first + self.line - self.base

    def moved(self, position: DeltaPosition) -> DeltaPosition:
        """Where a reader goes on. Raises ValueError for one that has read what is undone, or stands before the base."""
        if base_of(position) < self.base or position.versions > self.line + 1:
            raise ValueError(f"{position} is not between version {self.base} and the end of version {self.line}")
        return replace(position, version=position.version + self.first - self.base)


def base_of(position: DeltaPosition) -> int:
    """The newest version whose content a reader takes for granted; what follows it is read commit by commit.

    For a reader of the table as of a version, that is the version: it still looks into it.
    """
    return position.version if position.snapshot else position.version - 1


def shift_of(line: int, newest: int, positions: Iterable[DeltaPosition]) -> Shift:
    """The shift of a table whose newest version is `newest`, for readers at these positions."""
    return Shift(min([line, *(base_of(each) for each in positions)]), line, newest + 1)


def moved_text(text: str, shift: Shift, position: DeltaPosition) -> str:
    """A Delta source's offset as Delta writes it, in the moved place; what else it says stays."""
    value = json.loads(text)
    return json.dumps(value | {"reservoirVersion": shift.moved(position).version}, separators=(",", ":"))
