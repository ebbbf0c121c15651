"""Durable storage of one process: its records, each written whole or not at all, and the cut of each checkpoint.

A record is text that follows its checksum. A torn write leaves a part of that text, which no reader accepts as a
record. An acknowledged record may be lost or torn later; the next reader finds it missing, and an operator restores its
copy.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from checkpoint_lab.executor import Snapshot
from checkpoint_protocols.ids import ChannelId, Incarnation, ProcessId
from checkpoint_protocols.incarnation import RollbackTable
from checkpoint_protocols.recovery import Key, Record, Records
from checkpoint_protocols.transport import Transport
from checkpoint_protocols.vocabulary import Envelope, Json
from checkpoint_protocols.writer_fence import Acknowledgements, WriterFence

# -- A process's application state, and the truth about its history: masks with a bit per message.
#
# The machines do not see the masks. Taking a `StateCut` costs the same for every length of the history.


class Item(NamedTuple):
    """A message on its way. `bit` names the sent message (0 for control messages), `uid` this one sending of it."""

    uid: int
    message: Envelope
    bit: int


class StateCut(NamedTuple):
    """A snapshot of a state: the application first, then the truth."""

    cursor: int
    have: int
    digest: int
    rows: tuple[list[int], int]
    outbox: tuple[tuple[ChannelId, str], ...]
    sent: int
    received: int
    taken: int
    pending: Mapping[int, tuple[ChannelId, Item]]
    lived: int
    clock: tuple[int, ...]
    snapshot: Snapshot


NOTHING: Mapping[int, tuple[ChannelId, Item]] = {}


class State:
    """The current state of a process."""

    __slots__ = (
        "clock",
        "cursor",
        "digest",
        "have",
        "lived",
        "outbox",
        "pending",
        "received",
        "rows",
        "sent",
        "snapshot",
        "taken",
    )

    def __init__(self, processes: int) -> None:
        self.cursor = 0
        """Number of inputs read; sources only."""
        self.have = 0
        """Mask of the lineages taken in."""
        self.digest = 0
        self.rows: list[int] = []
        """Bits of all delivered messages, in order. Append-only, because cuts share the list."""
        self.outbox: deque[tuple[ChannelId, str]] = deque()
        """Records that the application wants to send and has not handed to the machine yet."""
        self.sent = 0
        self.received = 0
        self.taken = 0
        """Mask of every message given to the machine, the protocol's messages included."""
        self.pending: dict[int, tuple[ChannelId, Item]] = {}
        """Messages given to the machine that it has neither delivered nor dropped."""
        self.lived = 0
        """Mask of the process's own events in this history."""
        self.clock = [0] * processes
        """Full vector clock: the newest event of each process that this state depends on."""
        self.snapshot = Snapshot()
        """The executor's snapshot of the operator at the latest capture; empty without an executor."""

    def cut(self) -> StateCut:
        """Return a snapshot of the state."""
        return StateCut(
            self.cursor,
            self.have,
            self.digest,
            (self.rows, len(self.rows)),
            tuple(self.outbox),
            self.sent,
            self.received,
            self.taken,
            dict(self.pending) if self.pending else NOTHING,
            self.lived,
            tuple(self.clock),
            self.snapshot,
        )

    def settle(self, message: Envelope) -> None:
        """Remove a message from `pending`: the machine has delivered or dropped it."""
        for bit, (_, item) in self.pending.items():
            if item.message is message or item.message == message:
                del self.pending[bit]
                return

    @classmethod
    def of(cls, cut: StateCut) -> State:
        """Return a state that continues from a cut."""
        state = cls(0)
        state.cursor, state.have, state.digest = cut.cursor, cut.have, cut.digest
        # A copy: other cuts share the list, and another history has appended to it since this cut.
        state.rows = cut.rows[0][: cut.rows[1]]
        state.outbox = deque(cut.outbox)
        state.sent, state.received, state.taken = cut.sent, cut.received, cut.taken
        state.pending = dict(cut.pending)
        state.lived, state.clock = cut.lived, list(cut.clock)
        state.snapshot = cut.snapshot
        return state

    def depend_on(self, clock: tuple[int, ...]) -> None:
        """Merge a message's vector clock."""
        self.clock = [mine if mine > theirs else theirs for mine, theirs in zip(self.clock, clock, strict=True)]


def initial_cut(processes: int) -> StateCut:
    """Return the state before the first event."""
    return State(processes).cut()


_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
CHECKPOINT = "checkpoint"


def frame(record: Json) -> str:
    """Return a record as it is written. Raises `TypeError` if it is not JSON."""
    text = _ENCODE(record)
    return f"{crc32(text.encode()):08x}{text}"


def unframe(framed: str) -> Record | None:
    """Return the record, or None if the text is not exactly what was written."""
    if framed[:8] != f"{crc32(framed[8:].encode()):08x}":
        return None
    record: Record = json.loads(framed[8:])
    return record


def as_stored(record: Record) -> Record:
    """Return the record as a reader gets it: plain JSON, shared with no writer."""
    read: Record = json.loads(_ENCODE(record))
    return read


class Write(NamedTuple):
    """A write under way. `cut` is the captured state of a checkpoint's index."""

    key: Key
    framed: str
    token: str
    cut: StateCut | None


class Storage:
    """Durable records of one process. Only the oracle that watches erasures can read `erased`."""

    def __init__(self, fence: WriterFence | None = None, acknowledgements: Acknowledgements | None = None) -> None:
        self.fence = fence or WriterFence()
        self.acknowledgements = acknowledgements or Acknowledgements()
        self.framed: dict[Key, str] = {}
        self.cuts: dict[Key, StateCut] = {}
        self.erased: dict[Key, str] = {}
        self.copies: dict[Key, str] = {}
        """Copies of acknowledged records that are lost or torn; an operator restores them."""
        self.found = 0
        """Number of lost and torn records that a reader missed."""
        self.version = 0
        """Grows with every change."""
        self._read: dict[Key, Record] | None = None
        self._fuller: dict[Key, Record] | None = None
        self._unframed: dict[Key, tuple[str, Record | None]] = {}
        """Parsed records with the text that they were parsed from: each record is parsed once."""
        self._standing: dict[bool, tuple[int, RollbackTable, Records]] = {}

    def _changed(self) -> None:
        self.version += 1
        self._read = self._fuller = None

    def write(self, write: Write) -> None:
        """Write the whole record."""
        self._changed()
        self.framed[write.key] = write.framed
        # A record that is written again is not an erased one any more, for the oracle of erasures (O12).
        self.erased.pop(write.key, None)
        self.copies.pop(write.key, None)
        if write.cut is not None:
            self.cuts[write.key] = write.cut

    def admit(self, incarnation: Incarnation, write: Write) -> str:
        """Write the record if the fence admits its writer. Return `ok` or `failed`."""
        # A replaced writer gets the answer of a failed write, as from a conditional write that lost.
        if not self.fence.admits(incarnation):
            return "failed"
        self.write(write)
        return "ok"

    def tear(self, write: Write) -> None:
        """Write a part of the record. An older record of the key stays, because files are replaced by renaming."""
        self._changed()
        # the whole checksum, eight characters, which half of the text does not match
        self.framed.setdefault(write.key, write.framed[: 8 + len(write.framed) // 2])

    def intact(self) -> list[Key]:
        """Return the acknowledged records that can still be damaged."""
        # a record with a copy is damaged already
        return sorted(self.acknowledgements.keys & (self.framed.keys() - self.copies.keys()))

    def damage(self, key: Key, how: str) -> None:
        """Lose or tear an acknowledged record (`how`: `lost` or `torn`), silently."""
        self._changed()
        framed = self.copies[key] = self.framed.pop(key)
        if how == "torn":
            self.framed[key] = framed[: 8 + len(framed) // 2]

    def _bring_back(self, keys: Collection[Key]) -> None:
        self.framed.update({key: self.copies.pop(key) for key in keys if key in self.copies})

    def erase(self, keys: tuple[Key, ...]) -> None:
        """Erase records."""
        self._changed()
        # the oracle of erasures needs the intact text of a damaged record
        self._bring_back(keys)
        self.acknowledgements.take_back(keys)
        for key in keys:
            if key in self.framed:
                self.erased[key] = self.framed.pop(key)

    def discard(self, keys: Collection[Key]) -> None:
        """Drop records and their cuts: their future is undone."""
        self._changed()
        self.acknowledgements.take_back(keys)
        for key in keys:
            del self.framed[key]
            self.cuts.pop(key, None)

    def readable(self) -> dict[Key, Record]:
        """Return every intact record by key. Until the next write it is the same object: do not change it.

        A reader that misses an acknowledged record restores it before it continues.
        """
        if self._read is None:
            self._read = self._readable(self.framed)
            if missing := self.acknowledgements.missing(self._read):
                self.found += len(missing)
                self._bring_back(missing)
                self._read = self._readable(self.framed)
        return self._read

    def readable_with_erased(self) -> dict[Key, Record]:
        """Return the records as if nothing had ever been erased."""
        if self._fuller is None:
            self.readable()
            self._fuller = self._readable({**self.framed, **self.erased})
        return self._fuller

    def standing(self, process: ProcessId, table: RollbackTable, erased_too: bool = False) -> Records:
        """Return the readable records without those of undone futures, computed once per change and table."""
        found = self.readable_with_erased() if erased_too else self.readable()
        kept = self._standing.get(erased_too)
        # by identity, since each recovery makes a new table; a comparison of all rows would cost more than it saves
        if kept is None or kept[0] != self.version or kept[1] is not table:
            kept = self._standing[erased_too] = (self.version, table, standing(process, found, table))
        return kept[2]

    def _readable(self, framed: Mapping[Key, str]) -> dict[Key, Record]:
        found: dict[Key, Record] = {}
        for key in sorted(framed):
            text = framed[key]
            read = self._unframed.get(key)
            # a damaged record has another text, so it is parsed again
            if read is None or read[0] != text:
                read = self._unframed[key] = (text, unframe(text))
            if read[1] is not None:
                found[key] = read[1]
        return found


def standing(process: ProcessId, records: Mapping[Key, Record], table: RollbackTable) -> dict[Key, Record]:
    """Return the records without those of undone futures.

    An undone record lies past the line of a recovery that followed its writing.
    """
    if not table:
        return dict(records)
    return {key: record for key, record in records.items() if not _undone(process, key, record, table)}


def _undone(process: ProcessId, key: Key, record: Record, table: RollbackTable) -> bool:
    # By its key: an index-based checkpoint is stored under the lowest index that it serves, and names the highest.
    index = int(key[1]) if key[0] == CHECKPOINT else _number(record, "index")
    written_in = _number(record, "incarnation")
    for number, row in table.items():
        # A checkpoint precedes the first message of its index, so the one at the row's own index is still valid.
        if number > written_in and index > (row if isinstance(row, int) else row.get(process, math.inf)):
            return True
    return False


def _number(record: Record, name: str) -> int:
    value = record[name]
    if not isinstance(value, int):
        raise TypeError(f"a durable record's {name} is {value!r}")
    return value


# -- The contract's parts between machines and an unreliable world; a test can plant wrong ones.


@dataclass(frozen=True)
class Surroundings:
    """Factories of each process's parts."""

    transport: Callable[[ProcessId, Incarnation], Transport] | None = Transport
    """Transport of control channels that lose and repeat messages. None: machines get every message as it comes."""
    fence: Callable[[], WriterFence] = WriterFence
    acknowledgements: Callable[[], Acknowledgements] = Acknowledgements

    def storage(self) -> Storage:
        """Return a process's durable storage."""
        return Storage(self.fence(), self.acknowledgements())


CONTRACT = Surroundings()
