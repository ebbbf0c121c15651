"""What survives crashes: one process's records, written whole or not at all, and the cut each checkpoint is.

A record is kept as text behind a checksum.  A torn write leaves a part of that text, which no reader takes for a
record.  An acknowledged record may be lost or torn later; who reads next finds it missing, and an operator brings back its copy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import NamedTuple
from zlib import crc32

from checkpoint_lab.state import Cut
from checkpoint_protocols.acknowledgements import Acknowledgements
from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.incarnation import RollbackTable
from checkpoint_protocols.recovery import Key, Record, Records
from checkpoint_protocols.vocabulary import Json
from checkpoint_protocols.writer_fence import WriterFence

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
CHECKPOINT = "checkpoint"


def frame(record: Json) -> str:
    """A record as it is written. Raises `TypeError` if it is not JSON."""
    text = _ENCODE(record)
    return f"{crc32(text.encode()):08x}{text}"


def unframe(framed: str) -> Record | None:
    """The record, or None if the text is not exactly what was written."""
    if framed[:8] != f"{crc32(framed[8:].encode()):08x}":
        return None
    record: Record = json.loads(framed[8:])
    return record


def as_stored(record: Record) -> Record:
    """What a reader would get of the record: plain JSON, nothing shared with the writer."""
    read: Record = json.loads(_ENCODE(record))
    return read


class Write(NamedTuple):
    """A write under way. `cut` is what a checkpoint's index was captured as."""

    key: Key
    framed: str
    token: str
    cut: Cut | None


class Storage:
    """Durable records of one process. `erased` are gone for everybody but the oracle that watches erasures."""

    def __init__(self, fence: WriterFence | None = None, acknowledgements: Acknowledgements | None = None) -> None:
        self.fence = fence or WriterFence()
        self.acknowledgements = acknowledgements or Acknowledgements()
        self.framed: dict[Key, str] = {}
        self.cuts: dict[Key, Cut] = {}
        self.erased: dict[Key, str] = {}
        self.copies: dict[Key, str] = {}
        """Of acknowledged records that are lost or torn: what an operator has to bring back."""
        self.found = 0
        """Lost and torn records that a reader missed."""
        self.version = 0
        """Grows with every change."""
        self._read: dict[Key, Record] | None = None
        self._fuller: dict[Key, Record] | None = None
        self._unframed: dict[Key, tuple[str, Record | None]] = {}
        """What was read, and the text that it was read from: a record is read once."""
        self._standing: dict[bool, tuple[int, RollbackTable, Records]] = {}

    def _changed(self) -> None:
        self.version += 1
        self._read = self._fuller = None

    def write(self, write: Write) -> None:
        """The whole record is there from now on."""
        self._changed()
        self.framed[write.key] = write.framed
        self.erased.pop(write.key, None)
        self.copies.pop(write.key, None)
        if write.cut is not None:
            self.cuts[write.key] = write.cut

    def admit(self, incarnation: Incarnation, write: Write) -> str:
        """The record is there, if its writer may still write: `ok` or `failed`."""
        if not self.fence.admits(incarnation):
            return "failed"
        self.write(write)
        return "ok"

    def tear(self, write: Write) -> None:
        """Only a part is there. What the key named before stays: files are replaced by renaming."""
        self._changed()
        self.framed.setdefault(write.key, write.framed[: 8 + len(write.framed) // 2])

    def intact(self) -> list[Key]:
        """Acknowledged records that can still be damaged."""
        return sorted(self.acknowledgements.keys & (self.framed.keys() - self.copies.keys()))

    def damage(self, key: Key, how: str) -> None:
        """An acknowledged record is `lost`, or `torn`. Nobody is told."""
        self._changed()
        framed = self.copies[key] = self.framed.pop(key)
        if how == "torn":
            self.framed[key] = framed[: 8 + len(framed) // 2]

    def _bring_back(self, keys: Collection[Key]) -> None:
        self.framed.update({key: self.copies.pop(key) for key in keys if key in self.copies})

    def erase(self, keys: tuple[Key, ...]) -> None:
        """The records are gone."""
        self._changed()
        self._bring_back(keys)
        self.acknowledgements.take_back(keys)
        for key in keys:
            if key in self.framed:
                self.erased[key] = self.framed.pop(key)

    def discard(self, keys: Collection[Key]) -> None:
        """The records are gone, and their cuts: what they are of is undone."""
        self._changed()
        self.acknowledgements.take_back(keys)
        for key in keys:
            del self.framed[key]
            self.cuts.pop(key, None)

    def readable(self) -> dict[Key, Record]:
        """Every record that is whole, by key. The same object until something is written: not to be changed.

        A reader that misses an acknowledged record does not go on without it.
        """
        if self._read is None:
            self._read = self._readable(self.framed)
            if missing := self.acknowledgements.missing(self._read):
                self.found += len(missing)
                self._bring_back(missing)
                self._read = self._readable(self.framed)
        return self._read

    def readable_with_erased(self) -> dict[Key, Record]:
        """As if nothing had ever been erased."""
        if self._fuller is None:
            self.readable()
            self._fuller = self._readable({**self.framed, **self.erased})
        return self._fuller

    def standing(self, process: ProcessId, table: RollbackTable, erased_too: bool = False) -> Records:
        """The readable records without those of undone futures: worked out once for every change and every table."""
        found = self.readable_with_erased() if erased_too else self.readable()
        kept = self._standing.get(erased_too)
        if kept is None or kept[0] != self.version or kept[1] is not table:
            kept = self._standing[erased_too] = (self.version, table, standing(process, found, table))
        return kept[2]

    def _readable(self, framed: Mapping[Key, str]) -> dict[Key, Record]:
        found: dict[Key, Record] = {}
        for key in sorted(framed):
            text = framed[key]
            read = self._unframed.get(key)
            if read is None or read[0] != text:
                read = self._unframed[key] = (text, unframe(text))
            if read[1] is not None:
                found[key] = read[1]
        return found


def standing(process: ProcessId, records: Mapping[Key, Record], table: RollbackTable) -> dict[Key, Record]:
    """Records without those of undone futures: behind the line of some recovery since they were written."""
    if not table:
        return dict(records)
    return {key: record for key, record in records.items() if not _undone(process, key, record, table)}


def _undone(process: ProcessId, key: Key, record: Record, table: RollbackTable) -> bool:
    index = int(key[1]) if key[0] == CHECKPOINT else _number(record, "index")
    written_in = _number(record, "incarnation")
    for number, row in table.items():
        if number > written_in and index > (row if isinstance(row, int) else row.get(process, math.inf)):
            return True
    return False


def _number(record: Record, name: str) -> int:
    value = record[name]
    if not isinstance(value, int):
        raise TypeError(f"a durable record's {name} is {value!r}")
    return value
