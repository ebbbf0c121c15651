"""Checks that a restore to an older cursor can read again the files consumed after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_ckpt.connector import Cursor, Folder
from spark_ckpt.errors import SourceInvalid
from spark_ckpt_files.cleaning import Cleaning
from spark_ckpt_files.ledger import FORMAT, Consumed, FileLedger, segment_bytes
from spark_ckpt_files.listing import DataFile, Directory

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Replay:
    """The files that a restore reads again: `files` in `path`; `missing` are gone, the names of `forgotten` are
    lost.
    """

    path: str
    files: int
    missing: tuple[str, ...]
    forgotten: int


def replay(folder: Folder, before: Cursor | None, newest: Cursor) -> Replay | None:
    """Return the files that a restore from `newest` to `before` (None: the beginning) reads again.

    None for cursors that do not list files. `folder`: the source's folder in the store. Raises `SourceInvalid` if
    ledger or directory cannot be read.
    """
    if newest.get("format") != FORMAT or (before is not None and before.get("format") != FORMAT):
        return None
    first, last = Consumed() if before is None else Consumed.of(before), Consumed.of(newest)
    # The program's setting of recursiveFileLookup is not known here. It matters to listings only, and this looks for
    # names.
    return _replay(FileLedger(folder), Directory(str(newest["path"]), recursive=True), first, last)


def memory_damage(folder: Folder, cursors: Sequence[Cursor]) -> list[SourceInvalid | None]:
    """Return the damage of the ledger that each cursor needs, or None. Every segment is read once."""
    seen: dict[str, SourceInvalid | None] = {}
    return [_damage(folder, cursor, seen) for cursor in cursors]


def _damage(folder: Folder, cursor: Cursor, seen: dict[str, SourceInvalid | None]) -> SourceInvalid | None:
    try:
        for name in Consumed.of(cursor).segments:
            if name not in seen:
                seen[name] = _segment_damage(folder, name)
            if (error := seen[name]) is not None:
                return error
    except SourceInvalid as error:
        return error
    return None


def _segment_damage(folder: Folder, name: str) -> SourceInvalid | None:
    try:
        segment_bytes(folder, name)
    except SourceInvalid as error:
        return error
    return None


def _replay(ledger: FileLedger, directory: Directory, before: Consumed, newest: Consumed) -> Replay:
    wanted = read_again(ledger, before, newest)
    there = directory.stat(file.name for file in wanted) if wanted else {}
    missing = tuple(file.name for file in wanted if file.name not in there)
    # The counts include files that the ledger has forgotten; its list does not.
    return Replay(directory.path, len(wanted), missing, max(0, newest.count - before.count - len(wanted)))


def read_again(ledger: FileLedger, before: Consumed, newest: Consumed) -> list[DataFile]:
    """Return the known files consumed after `before`, oldest first."""
    behind = ledger.files(before)
    after = (file for name, file in ledger.files(newest).items() if name not in behind)
    return sorted(after, key=lambda file: file.age_order)


def check_readable(
    ledger: FileLedger, directory: Directory, before: Consumed, newest: Consumed, cleaning: Cleaning
) -> SourceInvalid | None:
    """Return the error that names files a restore would miss, or that says that their list is damaged; else None.

    Raises `SourceInvalid` if the ledger of `before` itself is damaged.
    """
    if newest.count <= before.count and newest.segments == before.segments:
        return None
    ledger.files(before)  # raises: without it nothing can be read
    try:
        again = _replay(ledger, directory, before, newest)
    except SourceInvalid as damaged:
        # Returned, and not raised: with ignoreMissingFiles the job continues without these files.
        return damaged
    if not again.missing and not again.forgotten:
        return None
    return SourceInvalid(
        f"{directory.path}: {how_many(again)} of the files that this epoch would read again are gone",
        hint=_hint(cleaning, again.missing),
        files=named(again.missing) or None,
    )


def named(names: Sequence[str]) -> str:
    """Return some of the names, and the number of the others."""
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def how_many(again: Replay) -> str:
    """Return the number of missing and forgotten files as the subject of a sentence."""
    missing = len(again.missing)
    return f"{missing}, and {again.forgotten} whose names are forgotten," if again.forgotten else str(missing)


def _hint(cleaning: Cleaning, missing: Sequence[str]) -> str:
    back = "put them back"
    if cleaning.mode == "archive" and missing:
        back = f"move them back from {Path(cleaning.place_of(missing[0])).parent}"
    return f"{back}, restore a newer epoch, or do without their rows: FilesSource(..., ignoreMissingFiles=True)"
