"""Reads cursors of the first format: the last consumed name, and a fixed-size proof of everything consumed before it.

That format consumed files by name. The proof has four parts: a count, the bytes, the sum of one hash per (name, size),
the exclusive or of all names. It can *name* one file that appeared, vanished or changed its size. Such a cursor is read
once, when a job continues from it, and never written.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_ckpt.connector import Cursor
from spark_ckpt.errors import SourceInvalid
from spark_ckpt_files.ledger import Consumed
from spark_ckpt_files.listing import DataFile, grown

_FORMAT = 1
_log = logging.getLogger(__name__)
_SUM_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to and including file `name` is consumed. The empty name is the beginning."""

    name: str = ""
    count: int = 0
    bytes: int = 0
    sum: int = 0
    names: int = 0

    def after(self, files: Sequence[DataFile]) -> Position:
        """Return the position after `files`, which follow this one in name order."""
        total, names, size = self.sum, self.names, self.bytes
        for file in files:
            total += _digest(file.name, file.size)
            names ^= _number(file.name)
            size += file.size
        last = files[-1].name if files else self.name
        return Position(last, self.count + len(files), size, total & _SUM_MASK, names)

    @classmethod
    def of(cls, cursor: Cursor) -> Position:
        """Return the position of a cursor of the first format."""
        return cls(
            str(cursor["name"]),
            int(str(cursor["count"])),
            int(str(cursor["bytes"])),
            int(str(cursor["sum"]), 16),
            int(str(cursor["names"]), 16),
        )


def is_old(cursor: Cursor) -> bool:
    """Return True for a cursor of the first format."""
    return cursor.get("format") == _FORMAT


def present_of_old(path: str, cursor: Cursor, files: Sequence[DataFile]) -> Consumed:
    """Return the files that an old cursor has consumed and that still exist.

    Raises `SourceInvalid`, naming the file, for one that came too late or was changed: an old cursor cannot distinguish
    it from a consumed one. Missing files are accepted. The cursor does not tell if a file was read or skipped at the
    start.
    """
    position = Position.of(cursor)
    present = [replace(file, read=False) for file in files if file.name <= position.name]
    _prove(path, position, sorted(present, key=lambda file: file.name))
    newest_ms = max((file.modified_ms for file in present), default=0)
    return Consumed(position.count, position.bytes, newest_ms, files=tuple(present))


def _prove(path: str, expected: Position, consumed: Sequence[DataFile]) -> None:
    actual = Position().after(consumed)
    if replace(actual, name=expected.name) == expected:
        return
    found = _single_change(path, expected, actual, consumed)
    if found is not None:
        raise found
    if actual.count >= expected.count:
        raise SourceInvalid(
            f"{path} is not what was consumed: up to {expected.name} the job counted {expected.count} files with "
            f"{expected.bytes} bytes, now there are {actual.count} with {actual.bytes}",
            hint="move files that came late out of the directory, start the job once, then move them back",
            file=expected.name,
        )
    _log.warning(
        "%s: %d of the %d files up to %s are gone; the others count as consumed",
        path,
        expected.count - actual.count,
        expected.count,
        expected.name,
    )


def _single_change(
    path: str, expected: Position, actual: Position, consumed: Sequence[DataFile]
) -> SourceInvalid | None:
    name, more_bytes = _text(expected.names ^ actual.names), actual.bytes - expected.bytes
    more_sum = (actual.sum - expected.sum) & _SUM_MASK
    if actual.count == expected.count + 1 and name and _digest(name, more_bytes) == more_sum:
        return _late(path, name, expected)
    for file in consumed:
        before = file.size - more_bytes
        if before >= 0 and (_digest(file.name, file.size) - _digest(file.name, before)) & _SUM_MASK == more_sum:
            return grown(path, file.name, before, file.size)
    return None


def _late(path: str, name: str, expected: Position) -> SourceInvalid:
    return SourceInvalid(
        f"{path}: file {name} appeared before {expected.name}, the last consumed one; it would be skipped",
        hint="move it out of the directory, start the job once, then move it back: from then on names may be any",
        file=name,
    )


def _digest(name: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(_raw(name) + b"\0%d" % size, digest_size=8).digest())


def _number(name: str) -> int:
    return int.from_bytes(_raw(name), "little")


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _text(number: int) -> str | None:
    if number == 0:
        return None
    raw = number.to_bytes((number.bit_length() + 7) // 8, "little")
    try:
        return raw.decode("utf-8", "surrogateescape")
    except UnicodeDecodeError:
        return None
