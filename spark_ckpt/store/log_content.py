"""The live files of the epoch log as one process knows them: rows by file, new rows, missing rows. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_ckpt.epochs import continuity
from spark_ckpt.errors import EpochDamaged, EpochNotFound

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ckpt.store.acknowledged import Acknowledged
    from spark_ckpt.store.log_table import LogRow

HINT_DAMAGED = (
    "put the folder epochs of the newest backup in place of this one and start the job: it says which sinks have more "
    "than the backup, and how to continue then; without a backup start with a new store"
)


@dataclass(slots=True)
class LogFile:
    """One live file of the log: its size in bytes and its rows in order."""

    size: int
    rows: list[LogRow]
    table: pa.Table | None = None
    """Rows with their bodies, for own rows that are not folded yet."""
    weight: int = field(init=False)
    by_seq: Mapping[int, LogRow] = field(init=False)

    def __post_init__(self) -> None:
        self.weight = continuity.weight(row.seal for row in self.rows)
        # A sweep looks for the row of each manifest: a search through the rows took 3 s for 10,000 epochs (measured).
        self.by_seq = {row.seq: row for row in self.rows}


class LogContent:
    """All live files of one version of the log, by path."""

    def __init__(self) -> None:
        self.files: Mapping[str, LogFile] = {}
        self._news: list[LogRow] | None = []

    @property
    def rows(self) -> list[LogRow]:
        """All rows in the log's order."""
        return sorted((row for file in self.files.values() for row in file.rows), key=lambda row: row.seq)

    @property
    def weight(self) -> int:
        """Sum of the seals of all rows."""
        return sum(file.weight for file in self.files.values())

    @property
    def small(self) -> list[str]:
        """Paths of the files with one row."""
        return [path for path, file in self.files.items() if len(file.rows) == 1]

    def newest_of(self, attempts: Collection[str]) -> LogRow | None:
        """Return the newest row of one of these attempts; None if the log has none of them."""
        # From the newest on: an author mostly asks for the row that it has just appended.
        files = sorted(self.files.values(), key=lambda file: file.rows[-1].seq, reverse=True)
        return next((row for file in files for row in reversed(file.rows) if row.attempt in attempts), None)

    def path_of(self, row: LogRow) -> str:
        """Return the path of the file that holds `row`. Raises `EpochNotFound` if the row was dropped."""
        found = next((path for path, file in self.files.items() if file.by_seq.get(row.seq) == row), None)
        if found is None:
            raise EpochNotFound(f"epoch {row.epoch} was removed from the log just now", hint="choose a kept epoch")
        return found

    def news(self) -> list[LogRow] | None:
        """Return the rows since the last call, in order.

        Return None if rows were dropped, so that all must be folded again.
        """
        news, self._news = self._news, []
        return news

    def replaced(self, files: Mapping[str, LogFile]) -> None:
        """Take `files` as the live files from now on."""
        loaded = [file for path, file in files.items() if path not in self.files]
        gone = {row.seq for path, file in self.files.items() if path not in files for row in file.rows}
        come = {row.seq: row for file in loaded for row in file.rows}
        self.files = files
        # Rows of deleted files that are in new files were folded. Any other row was dropped.
        if self._news is None or not gone <= come.keys():
            self._news = None
        else:
            self._news += [come[seq] for seq in sorted(come.keys() - gone)]


def refuse_if_lacking(files: Collection[LogFile], version: int, known: Acknowledged | None, log: str) -> None:
    """Raise `EpochDamaged` if rows of a table version are missing, or if the log ends before an acknowledged row.

    - `files`: the live files of `version`.
    - `known`: the newest acknowledged row; None if it is unknown.
    - `log`: URI of the log, for the error.
    """
    newest = max((file.rows[-1] for file in files), key=lambda row: row.seq, default=None)
    if not continuity.is_whole(newest, sum(file.weight for file in files), version):
        rows = sorted((row for file in files for row in file.rows), key=lambda row: row.seq)
        raise _damaged(continuity.missing(rows, version), log)
    if known is not None and (version < known.seq or newest is None):
        raise _damaged(f"the epoch log ends at row {version}, but {known} was acknowledged", log)
    # Same version, another row: the log was replaced by a backup and then continued.
    if known is not None and newest is not None and newest.seq == known.seq and newest.acknowledged != known:
        raise _damaged(f"the epoch log has another row {known.seq} than the one that was acknowledged", log)


def _damaged(what: str, log: str) -> EpochDamaged:
    return EpochDamaged(what, log=log, hint=HINT_DAMAGED)
