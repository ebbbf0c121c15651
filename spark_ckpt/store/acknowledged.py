"""What tells an acknowledged row of the log from one that was under way: a small file per row, outside of the log.

It is made after the row's commit is durable and before its author is told.  So a commit that a power loss tore is in
doubt only as long as nothing stands here for it: then nobody built on it.  And a log whose newest commits are gone,
emptied or from an older backup ends below what stands here.  Only names count, so there is nothing inside to be
damaged; older ones are removed by whoever folds the log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_ckpt.store.location import Location

_FOLDER = "_acknowledged"
_NAME = re.compile(rf"{_FOLDER}/(\d{{20}})-([a-z-]+)-(\d+)-([0-9a-f]{{16}})")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A row that its author was told about. `seal`: the first 16 digits of the row's."""

    seq: int
    kind: str
    epoch: int
    seal: str

    def __str__(self) -> str:
        return f"row {self.seq} (epoch {self.epoch})" if self.kind == "epoch" else f"row {self.seq} ({self.kind})"

    @property
    def path(self) -> str:
        """Its file, relative to the log."""
        return f"{_FOLDER}/{self.seq:020d}-{self.kind}-{self.epoch}-{self.seal}"


def newest_acknowledged(log: Location) -> Acknowledged | None:
    """The newest row of the log at `log` that was acknowledged; None if that is not known (format 1)."""
    return max(_all(log), key=lambda each: each.seq, default=None)


def acknowledge(log: Location, row: Acknowledged) -> None:
    """Durable when it returns."""
    log.write_bytes(row.path, b"")


def forget_older(log: Location, than: Acknowledged) -> None:
    """Remove what stands for rows before `than`."""
    log.delete(each.path for each in _all(log) if each.seq < than.seq)


def _all(log: Location) -> list[Acknowledged]:
    found = (_NAME.fullmatch(info.path) for info in log.list(_FOLDER))
    return [Acknowledged(int(each[1]), each[2], int(each[3]), each[4]) for each in found if each]
