"""The cursor of a directory: the last consumed name, and a fixed-size proof of everything consumed before it.

The proof is a count, the bytes, the sum of one hash per (name, size), and the exclusive or of all names. One
file that appeared, vanished or changed its size can be *named* from it, without keeping a list of all files
in every epoch.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_ckpt.connector import Cursor
from spark_ckpt.errors import SourceInvalid
from spark_ckpt.wording import counted
from spark_ckpt_files.listing import DataFile, grown, vanished

_FORMAT = 1
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
        """The position after `files`, which follow this one in name order."""
        total, names, size = self.sum, self.names, self.bytes
        for file in files:
            total += _digest(file.name, file.size)
            names ^= _number(file.name)
            size += file.size
        last = files[-1].name if files else self.name
        return Position(last, self.count + len(files), size, total & _SUM_MASK, names)

    def cursor(self) -> Cursor:
        """JSON with a fixed order of keys: Spark compares offsets as text."""
        return {
            "format": _FORMAT,
            "name": self.name,
            "count": self.count,
            "bytes": self.bytes,
            "sum": f"{self.sum:016x}",
            "names": f"{self.names:x}",
        }

    @classmethod
    def of(cls, cursor: Cursor) -> Position:
        """The position in a cursor. Raises `SourceInvalid` on one that this version cannot read."""
        if cursor.get("format") != _FORMAT:
            raise SourceInvalid(f"a files cursor of format {cursor.get('format')!r}; this version reads {_FORMAT}")
        return cls(
            str(cursor["name"]),
            int(str(cursor["count"])),
            int(str(cursor["bytes"])),
            int(str(cursor["sum"]), 16),
            int(str(cursor["names"]), 16),
        )


def consumed_and_fresh(files: Sequence[DataFile], position: Position) -> tuple[list[DataFile], list[DataFile]]:
    """Split a listing (in name order) at the position; nothing is compared yet."""
    cut = bisect_right(files, position.name, key=lambda file: file.name)
    return list(files[:cut]), list(files[cut:])


def prove(path: str, expected: Position, consumed: Sequence[DataFile], seen: Sequence[DataFile] = ()) -> None:
    """Raise `SourceInvalid`, naming the file, unless exactly the consumed files are still there.

    `seen` is the whole listing as this process last saw it: it names a file even if more than one changed.
    """
    actual = Position().after(consumed)
    if replace(actual, name=expected.name) != expected:
        raise _difference(path, expected, actual, consumed, seen)


def _difference(
    path: str, expected: Position, actual: Position, consumed: Sequence[DataFile], seen: Sequence[DataFile]
) -> SourceInvalid:
    known, _ = consumed_and_fresh(seen, expected)
    found = None
    if known and Position().after(known) == expected:
        found = _first_change(path, expected, {file.name: file.size for file in known}, consumed)
    found = found or _single_change(path, expected, actual, consumed)
    if found is not None:
        return found
    return SourceInvalid(
        f"{path} is not what was consumed: up to {expected.name} the job counted {counted(expected.count, 'file')} with "
        f"{expected.bytes} bytes, now there are {actual.count} with {actual.bytes}",
        hint="restore the directory: it must be append-only, and new names must sort after all older ones",
        file=expected.name,
    )


def _first_change(
    path: str, expected: Position, known: Mapping[str, int], consumed: Sequence[DataFile]
) -> SourceInvalid | None:
    now = {file.name: file.size for file in consumed}
    for name in sorted(known.keys() | now.keys()):
        if name not in known:
            return _late(path, name, expected)
        if name not in now:
            return vanished(path, name)
        if known[name] != now[name]:
            return grown(path, name, known[name], now[name])
    return None


def _single_change(
    path: str, expected: Position, actual: Position, consumed: Sequence[DataFile]
) -> SourceInvalid | None:
    name, more_bytes = _text(expected.names ^ actual.names), actual.bytes - expected.bytes
    more_sum = (actual.sum - expected.sum) & _SUM_MASK
    if actual.count == expected.count + 1 and name and _digest(name, more_bytes) == more_sum:
        return _late(path, name, expected)
    if actual.count == expected.count - 1 and name and _digest(name, -more_bytes) == -more_sum & _SUM_MASK:
        return vanished(path, name)
    for file in consumed:
        before = file.size - more_bytes
        if before >= 0 and (_digest(file.name, file.size) - _digest(file.name, before)) & _SUM_MASK == more_sum:
            return grown(path, file.name, before, file.size)
    return None


def _late(path: str, name: str, expected: Position) -> SourceInvalid:
    return SourceInvalid(
        f"{path}: file {name} appeared before {expected.name}, the last consumed one; it would be skipped",
        hint=f"rename it so that it sorts after {expected.name}; names of new files must grow",
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
