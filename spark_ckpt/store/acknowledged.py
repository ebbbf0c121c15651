"""Acknowledgements of log rows: a small file per row, outside of the log, tells an acknowledged row from one under way.

It is written after the row's commit is durable and before its author may rely on it. So a commit that a power loss tore
is in doubt only while its file is missing: then nothing was built on it. A log whose newest commits are gone, emptied
or from an older backup ends before the newest file here. Only file names count, so that no content can be damaged.
Folds of the log delete the older files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_ckpt.store.location import Location

_FOLDER = "_acknowledged"
_NAME = re.compile(rf"{_FOLDER}/(\d{{20}})-([a-z-]+)-(\d+)-([0-9a-f]{{16}})")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledged row. `seal`: the first 16 digits of the row's seal."""

    seq: int
    kind: str
    epoch: int
    seal: str

    def __str__(self) -> str:
        return f"row {self.seq} (epoch {self.epoch})" if self.kind == "epoch" else f"row {self.seq} ({self.kind})"

    @property
    def path(self) -> str:
        """Path of its file, relative to the log."""
        # The name says all: a listing finds the newest row without a read.
        return f"{_FOLDER}/{self.seq:020d}-{self.kind}-{self.epoch}-{self.seal}"


def newest_acknowledged(log: Location) -> Acknowledged | None:
    """Return the newest acknowledged row of the log at `log`; None if there is none."""
    return max(_all(log), key=lambda each: each.seq, default=None)


def acknowledge(log: Location, row: Acknowledged) -> None:
    """Write the file of `row`. It is durable when the call returns. Raises a `StoreOutage`."""
    log.write_bytes(row.path, b"")


def forget_older(log: Location, than: Acknowledged) -> None:
    """Delete the files of rows before `than`."""
    # The newest one stays: by it a log from an older backup is recognised.
    log.delete(each.path for each in _all(log) if each.seq < than.seq)


def _all(log: Location) -> list[Acknowledged]:
    found = (_NAME.fullmatch(info.path) for info in log.list(_FOLDER))
    return [Acknowledged(int(each[1]), each[2], int(each[3]), each[4]) for each in found if each]
