"""The keyed state of one key group, similar to an LSM tree.

It is a small delta in Spark's state, and sorted immutable levels in the store. A batch costs as much as its keys cost,
independent of the size of the state. Spark's state value contains only the rows that changed since the last snapshot.
Everything older is a state file of a committed or coming epoch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa

from spark_ckpt.epochs.records import StateRange
from spark_ckpt.errors import FormatUnknown, StateSchemaChanged
from spark_ckpt.tasks.blobs import from_blob, to_blob
from spark_ckpt.tasks.rows import (
    DELETE,
    KEY_HASH,
    NO_TIMEOUT,
    OP,
    PUT,
    TIMEOUT,
    Bools,
    Int64s,
    StateSchema,
    column,
    numbers,
    rows_at,
    taken,
)
from spark_ckpt.tasks.state.key_index import KeyTable
from spark_ckpt.tasks.state.levels import Files, LevelCache, RangeRef, to_stored
from spark_ckpt.tasks.state.merging import empty, key_table, merged, sorted_table

_HEADER = struct.Struct("<4sHI")  # magic, format, length of the JSON
_MAGIC = b"ckgs"
_FORMAT = 2
_BEFORE_ALL = int(np.iinfo(np.int64).min)


class _Head(TypedDict):
    """The JSON part of an encoded state."""

    epoch: int
    due_from: int
    outgrown: bool
    untimed_due: int | None
    levels: list[list[tuple[str, int, int, int, str, int, str]]]  # fields of `RangeRef`


class Resolved(NamedTuple):
    """State of some keys, aligned with them: nulls for a key without state."""

    exists: Bools
    state: pa.Table
    timeout_ms: Int64s
    """Epoch milliseconds; `NO_TIMEOUT` if none is set."""


class Expired(NamedTuple):
    """Keys found by their timeout, with their state."""

    keys: pa.Table
    hashes: Int64s
    resolved: Resolved


@dataclass(frozen=True, slots=True)
class Capture:
    """Content of a snapshot: a table in the stored form, sorted by hash."""

    kind: Literal["full", "changes"]
    table: pa.Table
    epoch: int


class KeyGroupState:
    """State of one key group. Made by `restored` or `decode`; written back by `encode`.

    - `levels` are newest first; each is a tuple of consecutive state files, oldest first.
    - `is_restored`: True in the group's first call in its incarnation.
    - `outgrown`: the files' columns have narrower types than the schema, so the next snapshot writes all rows again.
    """

    def __init__(self, schema: StateSchema, cache: LevelCache, key_group: int) -> None:
        self.schema = schema
        self.key_group = key_group
        self.epoch = 0
        self.late_rows = 0
        """Late rows of one call, for its report. No part of the state."""
        self.is_restored = False
        self._cache = cache
        self._levels: list[Files] = []
        self._delta = empty(schema)
        # Timeouts of levels before it were handled, in epoch ms. Negative ones count, too: a window may end before 1970.
        self._due_from = _BEFORE_ALL
        self._outgrown = False
        # Timeout in epoch ms for the keys of levels that have none; the next full snapshot writes it.
        self._untimed_due: int | None = None
        self._pending: tuple[Capture, KeyTable] | None = None  # between `capture` and `captured`

    @classmethod
    def restored(
        cls,
        schema: StateSchema,
        cache: LevelCache,
        key_group: int,
        files: Sequence[RangeRef],
        epoch: int = 0,
        *,
        outgrown: bool = False,
    ) -> KeyGroupState:
        """Return the state of a manifest's chain of files, oldest first. Files are read at the first look-up."""
        group = cls(schema, cache, key_group)
        group.epoch, group.is_restored, group._outgrown = epoch, True, outgrown and bool(files)
        # Joined as if they were written one after another, so that a restored group has the levels of one that lived on.
        for ref in files:
            group._joined((ref,))
        return group

    @classmethod
    def decode(cls, data: bytes | memoryview, schema: StateSchema, cache: LevelCache, key_group: int) -> KeyGroupState:
        """Read the result of `encode`. Raises `FormatUnknown` or `StateSchemaChanged`."""
        head, delta = _opened(data)
        group = cls(schema, cache, key_group)
        group.epoch, group._due_from, group._outgrown = head["epoch"], head["due_from"], head["outgrown"]
        group._untimed_due = head["untimed_due"]
        group._levels = [tuple(RangeRef(*ref) for ref in level) for level in head["levels"]]
        if delta is not None:
            # Within one incarnation the schema cannot change; another program's state must not be read as this one's.
            if not delta.schema.equals(schema.table):
                raise StateSchemaChanged(
                    "the running query's state has another schema than the operator",
                    hint="stop the job and start it again; it restores from the last epoch",
                )
            group._delta = key_table(delta, schema)
        return group

    def encode(self) -> bytes:
        """Return the Spark state value: format, levels, delta."""
        head = {
            "epoch": self.epoch,
            "due_from": self._due_from,
            "outgrown": self._outgrown,
            "untimed_due": self._untimed_due,
            "levels": [[list(ref) for ref in level] for level in self._levels],
        }
        text = json.dumps(head, separators=(",", ":")).encode()
        text += b" " * (-(_HEADER.size + len(text)) % 16)  # Arrow buffers of the delta start aligned
        delta = to_blob(self._delta.table) if len(self._delta) else b""
        return _HEADER.pack(_MAGIC, _FORMAT, len(text)) + text + delta

    def have_levels(self) -> list[Files]:
        """Ensure that every level's file is on this host. Return the state files of each level, newest level first."""
        for level in self._levels:
            self._cache.have(level)
        return list(self._levels)

    @property
    def files(self) -> Files:
        """The chain of state files below the delta, oldest first."""
        return tuple(ref for level in reversed(self._levels) for ref in level)

    @property
    def changed_rows(self) -> int:
        """Number of rows changed since the last snapshot."""
        return len(self._delta)

    @property
    def is_captured(self) -> bool:
        """True if a snapshot has nothing to write."""
        return not len(self._delta) and not self._writes_all

    @property
    def earliest_timeout_ms(self) -> int:
        """A time that no due timeout precedes, in epoch milliseconds; `NO_TIMEOUT` if none is set.

        It may be early, never late.
        """
        levels = (self._cache.open(level) for level in self._levels)
        open_ = (table.timeouts for table in levels if table.earliest_timeout != NO_TIMEOUT)
        # a newer row may have replaced this timeout, so the result can be early
        # Timeouts before the bound were handled: without it a group would be called in each batch for ever.
        later = (int(each[each >= self._due_from].min(initial=NO_TIMEOUT)) for each in open_)
        return min([self._delta.earliest_timeout, *later])

    def resolve(self, keys: pa.Table, hashes: Int64s) -> Resolved:
        """Return the state of distinct `keys` (a table of the key columns)."""
        places = _Places(len(hashes))
        for table in self._newest_first():
            # the first hit is the newest row of a key
            if not places.look(table, keys, hashes):
                break
        return places.resolved(self.schema)

    def put(
        self,
        keys: pa.Table,
        hashes: Int64s,
        state: pa.Table,
        *,
        removed: Bools | None = None,
        timeout_ms: Int64s | None = None,
    ) -> None:
        """Write the state of distinct keys; keys in the mask `removed` lose theirs.

        `timeout_ms` replaces any earlier timeout.
        """
        if not len(hashes):
            return
        rows = self._rows(keys, hashes, state, removed, timeout_ms)
        # deletions stay: an older level may still hold the key
        self._delta = merged([rows, self._delta], self.schema, drop_deletes=False)

    def _rows(
        self,
        keys: pa.Table,
        hashes: Int64s,
        state: pa.Table,
        removed: Bools | None,
        timeout_ms: Int64s | None,
    ) -> KeyTable:
        ops = np.full(len(hashes), PUT, np.int8) if removed is None else np.where(removed, DELETE, PUT).astype(np.int8)
        timeouts = np.full(len(hashes), NO_TIMEOUT) if timeout_ms is None else timeout_ms
        # a deleted key is stored with nulls, not with its old state
        values = state if removed is None else rows_at(state, np.arange(len(hashes)), removed)
        columns = [pa.array(hashes), *keys.columns, *values.columns, pa.array(ops), pa.array(timeouts)]
        return sorted_table(pa.table(columns, schema=self.schema.table).combine_chunks(), self.schema)

    def expired(self, now_ms: int) -> Expired:
        """Return the keys whose newest timeout is before `now_ms`.

        The caller must `put` every one of them in this call.
        """
        places: list[tuple[KeyTable, Int64s]] = []
        newer: list[KeyTable] = []
        for table in self._newest_first():
            # levels are immutable: their timeouts before the last bound are already handled; the delta's are current
            since = self._due_from if newer else _BEFORE_ALL
            if table.earliest_timeout < now_ms:
                due = np.flatnonzero((table.timeouts >= since) & (table.timeouts < now_ms))
                places.append((table, _not_in(newer, table, due, self.schema)))
            newer.append(table)
        # The caller writes every key that is returned, so earlier timeouts of the levels need no second look.
        self._due_from = max(self._due_from, now_ms)
        return self._expired_rows([(table, at) for table, at in places if len(at)])

    def untimed(self) -> Expired:
        """Return the keys that have state and no timeout."""
        places: list[tuple[KeyTable, Int64s]] = []
        newer: list[KeyTable] = []
        for table in self._newest_first():
            live = np.flatnonzero((table.timeouts == NO_TIMEOUT) & _live(table))
            places.append((table, _not_in(newer, table, live, self.schema)))
            newer.append(table)
        return self._expired_rows([(table, at) for table, at in places if len(at)])

    def time_untimed(self, due_ms: int) -> None:
        """Give the keys that have state and no timeout one at `due_ms` (epoch milliseconds), with the next snapshot.

        That one writes all rows: changes of so many keys might not fit Spark's state.
        """
        if any(((table.timeouts == NO_TIMEOUT) & _live(table)).any() for table in self._newest_first()):
            self._untimed_due = due_ms

    def _expired_rows(self, places: list[tuple[KeyTable, Int64s]]) -> Expired:
        parts = [rows_at(table.table, at) for table, at in places]
        rows = pa.concat_tables([self.schema.table.empty_table(), *parts]).combine_chunks()
        exists = numbers(rows, OP) == PUT
        resolved = Resolved(exists, rows.select(self.schema.state.names), numbers(rows, TIMEOUT))
        return Expired(rows.select(self.schema.key.names), numbers(rows, KEY_HASH), resolved)

    def capture(self, epoch: int) -> Capture | None:
        """Return the rows that a snapshot at `epoch` must write; None if nothing changed since the last one.

        The state stays unchanged until `captured`.
        """
        # Without changes no file: the group advances, and its chain stays as it is.
        if self.is_captured:
            self._pending, self.epoch = None, epoch
            return None
        return self.capture_full(epoch) if self._writes_all else self._capture("changes", self._delta, epoch)

    def capture_full(self, epoch: int) -> Capture:
        """Return all live rows; deleted keys are left out."""
        rows = merged(list(self._newest_first()), self.schema, drop_deletes=True)
        return self._capture("full", rows if self._untimed_due is None else self._timed(rows, self._untimed_due), epoch)

    @property
    def _writes_all(self) -> bool:
        """True if the next snapshot has to write all live rows."""
        return self._outgrown or self._untimed_due is not None

    def _timed(self, rows: KeyTable, due_ms: int) -> KeyTable:
        timeouts = np.where(rows.timeouts == NO_TIMEOUT, due_ms, rows.timeouts)
        at = rows.table.column_names.index(TIMEOUT)
        return key_table(rows.table.set_column(at, self.schema.table.field(TIMEOUT), pa.array(timeouts)), self.schema)

    def _capture(self, kind: Literal["full", "changes"], rows: KeyTable, epoch: int) -> Capture:
        capture = Capture(kind, to_stored(rows, self.schema, self.key_group, epoch), epoch)
        self._pending = (capture, rows)
        return capture

    def captured(self, path: str, of: StateRange) -> RangeRef:
        """Make the capture the newest level and empty the delta.

        It is the range `of` the file `path`. That must be durable before the new state counts: before the task ends.
        """
        if self._pending is None:
            raise RuntimeError("captured() without a capture()")
        capture, rows = self._pending
        ref = RangeRef(path, of.offset, of.size_bytes, len(rows), capture.kind, capture.epoch, of.sha256)
        self._pending, self.epoch = None, capture.epoch
        # the delta becomes a level, so its timeouts must stay at or above the bound
        # They may be below it if the clock went back since.
        self._due_from = min(self._due_from, self._delta.earliest_timeout)
        self._delta = empty(self.schema)
        # a full file replaces all levels
        if capture.kind == "full":
            # The time that it has given may have passed before this snapshot; its keys are still to be handled.
            self._due_from = min(self._due_from, NO_TIMEOUT if self._untimed_due is None else self._untimed_due)
            self._outgrown, self._untimed_due = False, None
            # If this task fails, Spark keeps the state before, which names these levels. They are made from the store again
            # then.
            for level in self._levels:
                self._cache.discard(level)
            self._levels = []
        older = self._joined((ref,))
        if older:
            # Alone it is the oldest level: no deleted key can appear again from below.
            rows = merged([rows, *map(self._cache.open, older)], self.schema, drop_deletes=len(self._levels) == 1)
        self._cache.put(self._levels[0], rows)  # at hand for the next batch, which else would read the store
        for level in older:
            self._cache.discard(level)
        return ref

    def _joined(self, newest: Files) -> list[Files]:
        """Make `newest` the newest level, joined with the one below while it is at least half as large.

        Return the levels it was joined with, newest first.
        """
        gone: list[Files] = []
        # So sizes at least double with age, and the number of levels is logarithmic.
        while self._levels and 2 * _rows_in(newest) >= _rows_in(self._levels[0]):
            gone.append(self._levels.pop(0))
            newest = gone[-1] + newest
        self._levels.insert(0, newest)
        return gone

    def _newest_first(self) -> list[KeyTable]:
        return [self._delta, *(self._cache.open(level) for level in self._levels)]


def _live(table: KeyTable) -> Bools:
    live: Bools = numbers(table.table, OP) == PUT
    return live


def _rows_in(level: Files) -> int:
    return sum(ref.rows for ref in level)


class _Places:
    """Position of each key's newest row, found level after level."""

    def __init__(self, keys: int) -> None:
        self._open = np.arange(keys)
        self._at = np.full(keys, -1, np.int64)
        self._parts: list[pa.Table] = []
        self._found = 0

    def look(self, table: KeyTable, keys: pa.Table, hashes: Int64s) -> int:
        """Look up the keys not found yet; return the number of keys that are still open."""
        if not len(table) or not len(self._open):
            return len(self._open)
        # The first table is asked for all keys, and most keys of a batch are in it: no copy then.
        everything = len(self._open) == len(hashes)
        wanted = keys if everything else rows_at(keys, self._open)
        at = table.find(hashes[self._open], wanted)
        hit = at >= 0
        rows = at[hit]
        self._parts.append(rows_at(table.table, rows))
        self._at[self._open[hit]] = np.arange(self._found, self._found + len(rows))
        self._found += len(rows)
        self._open = self._open[~hit]
        return len(self._open)

    def resolved(self, schema: StateSchema) -> Resolved:
        rows = pa.concat_tables([schema.table.empty_table(), *self._parts]).combine_chunks()
        ops = numbers(rows, OP)
        hit = self._at >= 0
        exists = np.zeros(len(self._at), np.bool_)
        exists[hit] = ops[self._at[hit]] == PUT
        timeouts = np.full(len(self._at), NO_TIMEOUT)
        timeouts[hit] = numbers(rows, TIMEOUT)[self._at[hit]]
        # A key that was not found has position -1; the mask covers it.
        state = rows_at(rows.select(schema.state.names), self._at, ~exists)
        return Resolved(exists, state.combine_chunks(), timeouts)


def _not_in(newer: Sequence[KeyTable], table: KeyTable, rows: Int64s, schema: StateSchema) -> Int64s:
    """Return those of `rows` whose key has no row in a newer table."""
    for other in newer:
        if len(rows) and len(other):
            keys = pa.table([taken(column(table.table, name), rows) for name in schema.key.names], schema=schema.key)
            rows = rows[other.find(table.hashes[rows], keys) < 0]
    return rows


def _opened(data: bytes | memoryview) -> tuple[_Head, pa.Table | None]:
    buffer = pa.py_buffer(data)
    if buffer.size < _HEADER.size or bytes(buffer.slice(0, 4)) != _MAGIC:
        raise FormatUnknown("this is not a key group's state", hint="start the job from its last epoch")
    _, version, length = _HEADER.unpack(buffer.slice(0, _HEADER.size))
    if version != _FORMAT:
        raise FormatUnknown(f"key group state of format {version}", hint="start the job from its last epoch")
    body = buffer.slice(_HEADER.size)
    delta = body.slice(length)
    return json.loads(bytes(body.slice(0, length))), from_blob(delta) if delta.size else None
