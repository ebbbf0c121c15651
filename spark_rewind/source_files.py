"""Files that a file source has read, from its log. Logs of file sinks have the same format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_ckpt.spark_internals.query_logs import COMPACT, batch_number, parse_file_entries
from spark_rewind.positions import FilesPosition, Position
from spark_rewind.reading import file_of, names, parsing, text_of


@dataclass(frozen=True, slots=True)
class FileLog:
    """Files that a source took, each with the log entry that took it first."""

    entries: Mapping[str, int]

    def after(self, log_offset: int) -> list[str]:
        """Return files that a query would read again after a rollback to an entry."""
        return [path for path, entry in self.entries.items() if entry > log_offset]

    def up_to(self, log_offset: int) -> list[str]:
        """Return files that were read up to an entry."""
        return [path for path, entry in self.entries.items() if entry <= log_offset]

    def newest_gone(self, log_offset: int) -> tuple[int, str] | None:
        """Return the newest entry after `log_offset` with a missing file, and the file; None without one.

        A rollback to any earlier entry would read that file again. Files elsewhere count as present.
        """
        # Newest first: the first missing file ends the look, and each one asks the file system.
        for path in sorted(self.after(log_offset), key=self.entries.__getitem__, reverse=True):
            local = file_of(path)
            if local is not None and not local.exists():
                return self.entries[path], path
        return None


def read_file_logs(folder: Path, ends: Sequence[Mapping[str, Position | None]]) -> dict[str, FileLog]:
    """Read the logs of file sources, by source. Raises `CheckpointUnreadable`, `CheckpointDamaged`, `FormatUnknown`."""
    sources = {name for each in ends for name, position in each.items() if isinstance(position, FilesPosition)}
    return {name: _source_log(folder / name) for name in sorted(sources)}


def _source_log(folder: Path) -> FileLog:
    found: dict[str, int] = {}
    for taken, entry in raw_entries(folder):
        # A file that was read again has two entries: a rollback before the first one makes it unread.
        found[entry["path"]] = min(taken, found.get(entry["path"], taken))
    return FileLog(found)


def raw_entries(folder: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """Return (entry, content) of every file in a source's log, each once.

    Raises `CheckpointUnreadable`, `CheckpointDamaged`, `FormatUnknown`.
    """
    found: dict[tuple[int, str], Mapping[str, Any]] = {}
    for number, _, path in ordered(folder):
        for entry in entries_of(path):
            # in a compacted file, entries keep the number of the batch that took them
            batch = entry.get("batchId")
            taken = batch if isinstance(batch, int) else number
            found.setdefault((taken, entry["path"]), entry)
    return [(number, entry) for (number, _), entry in found.items()]


def ordered(folder: Path) -> list[tuple[int, bool, Path]]:
    """Return (number, compacted, path) of every file of such a log, in order."""
    found = [(batch_number(name), name.endswith(COMPACT), folder / name) for name in names(folder)]
    return sorted((number, compacted, path) for number, compacted, path in found if number is not None)


def entries_of(path: Path) -> list[Mapping[str, Any]]:
    """Return the entries of one file of a log, none for a missing file. Raises the errors of `raw_entries`."""
    try:
        return entries_in(path, text_of(path))
    except FileNotFoundError:
        return []


def entries_in(path: Path, text: str) -> list[Mapping[str, Any]]:
    """Return the entries in the text of one file. Raises the errors of `raw_entries`."""
    with parsing(path):
        return parse_file_entries(text)
