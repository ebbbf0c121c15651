"""Immutable sorted levels of one key group's state: Parquet in the store, memory-mapped Arrow on the host.

A level is the group's ranges of one or more consecutive state files, merged. The local copy is derived data, named by
the ranges it was made from. If it is missing or damaged, it is rebuilt from the store. All Python workers of a host
share it through the page cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.content import damaged
from spark_ckpt.epochs.records import StateFile
from spark_ckpt.errors import StateSchemaChanged
from spark_ckpt.tasks.rows import (
    DELETE,
    EPOCH,
    KEY_GROUP,
    KEY_HASH,
    NO_TIMEOUT,
    OP,
    OP_NAMES,
    TIMEOUT,
    StateSchema,
    column,
    conform,
    numbers,
    taken,
)
from spark_ckpt.tasks.state.key_index import KeyTable
from spark_ckpt.tasks.state.merging import key_table, merged, sorted_table

if TYPE_CHECKING:
    from spark_ckpt.store.location import Location


class RangeRef(NamedTuple):
    """Reference of a key group to its range of a state file of the store. `kind` is "full" or "changes"."""

    path: str
    offset: int
    size_bytes: int
    rows: int
    kind: str
    epoch: int
    sha256: str = ""


def range_ref(file: StateFile, key_group: int) -> RangeRef:
    """Return the reference of a key group to its range of the file."""
    of = next(each for each in file.ranges if each.key_group == key_group)
    return RangeRef(file.path, of.offset, of.size_bytes, of.rows, file.kind, file.epoch, of.sha256)


Files = tuple[RangeRef, ...]

_TRAILER = struct.Struct("<8sHxxIQ40x")  # magic, format, checksum and size of the body; 64 bytes
_MAGIC = b"ckptlvl\0"
_FORMAT = 2
_OPEN_TABLES = 512
OpenLevels = OrderedDict[str, KeyTable]
_open: OpenLevels = OrderedDict()


def to_stored(keys: KeyTable, schema: StateSchema, key_group: int, epoch: int) -> pa.Table:
    """Return the rows in the form of a state file."""
    table, rows = keys.table, len(keys)
    columns = {name: column(table, name) for name in (*schema.key.names, *schema.state.names)}
    columns[KEY_GROUP] = pa.array(np.full(rows, key_group, np.int32))
    columns[KEY_HASH] = column(table, KEY_HASH)
    columns[EPOCH] = pa.array(np.full(rows, epoch, np.int64))
    columns[OP] = taken(pa.array(OP_NAMES), numbers(table, OP))
    columns[TIMEOUT] = pa.array(keys.timeouts, mask=keys.timeouts == NO_TIMEOUT)
    return pa.table(columns, schema=schema.stored)


def from_stored(table: pa.Table, schema: StateSchema) -> KeyTable:
    """Read the rows of a state file. State columns added since are null; columns dropped since are ignored.

    Raises `StateSchemaChanged` if a key column is missing or a stored type does not fit.
    """
    missing = [name for name in (*schema.key.names, KEY_HASH, OP) if name not in table.column_names]
    if missing:
        raise StateSchemaChanged(
            f"state files have no column {missing[0]!r}",
            hint="an operator's key columns cannot change; give the changed operator a new name, and drop the state of the old "
            "one: job.start(accept_dropped_operator='OLD_NAME')",
        )
    known = conform(table, schema.read)
    # True becomes 1, which is DELETE.
    ops = pc.equal(known.column(OP), pa.scalar(OP_NAMES[DELETE])).cast(pa.int8())
    timeouts = pc.fill_null(known.column(TIMEOUT), pa.scalar(NO_TIMEOUT, pa.int64()))
    columns = [known.column(name) for name in (KEY_HASH, *schema.key.names, *schema.state.names)]
    return sorted_table(pa.table([*columns, ops, timeouts], schema=schema.table).combine_chunks(), schema)


class LevelCache:
    """Opens levels through a local folder.

    Safe for concurrent processes: files appear by rename, so readers see complete files only. `opened`: the tables that
    the process has open, the most recently used last; one map serves all caches of a worker. `earlier`: folder of an
    earlier incarnation on this host, whose levels are linked instead of made. A level's file has the same name there,
    since it is made of the same files.
    """

    def __init__(
        self,
        folder: str | Path,
        source: Location,
        schema: StateSchema,
        operator: str = "",
        opened: OpenLevels | None = None,
        earlier: Path | None = None,
    ) -> None:
        self._operator = operator
        self._earlier = earlier
        self._opened = _open if opened is None else opened
        self._folder = Path(folder)
        self._source = source
        self._schema = schema
        self._types = hashlib.blake2b(str(schema.table).encode(), digest_size=8).hexdigest()  # in each level's name

    def open(self, files: Files) -> KeyTable:
        """Return the level made of `files` (consecutive, oldest first).

        Rebuild it from the store if no local copy is usable.

        Raises `EpochDamaged` if a state file does not hold its committed bytes.
        """
        path = self._path(files)
        known = self._opened.get(str(path))
        if known is not None:
            self._opened.move_to_end(str(path))
            return known
        table = self._mapped(path)
        if table is None and self._linked(path):
            table = self._mapped(path)
        return self._remember(path, table) if table is not None else self.put(files, self._rebuilt(files))

    def have(self, files: Files) -> None:
        """Ensure that the level's file is in the folder. An existing file is not read here: every `open` checks it."""
        path = self._path(files)
        if not (path.exists() or self._linked(path)):
            self.open(files)

    def put(self, files: Files, level: KeyTable) -> KeyTable:
        """Keep `level` as the local copy of `files`. A full disk costs speed, not the epoch."""
        path = self._path(files)
        with contextlib.suppress(OSError):
            level = key_table(_write(path, level.table), self._schema)  # views into the file, not the heap
        return self._remember(path, level)

    def discard(self, files: Files) -> None:
        """Delete a level that has no references. Open maps stay valid."""
        self._remove(self._path(files))

    def keep_only(self, levels: Iterable[Files]) -> None:
        """Delete all levels except `levels`."""
        kept = {self._path(files) for files in levels}
        for path in set(self._folder.glob("*.level")) - kept:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        self._opened.pop(str(path), None)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def _path(self, files: Files) -> Path:
        *_, name = self._names(files)  # the last one names the level of all files
        return self._folder / name

    def _names(self, files: Files) -> Iterator[str]:
        """Yield the names of the levels made of the first file, of the first two, and so on."""
        # the types are part of the name: a changed schema must not open levels of the old one
        made_of = hashlib.blake2b(self._types.encode(), digest_size=16)
        for ref in files:
            # A path is unique for ever, so name and content belong together, also between drivers.
            made_of.update(f"\0{ref.path}@{ref.offset}".encode())
            yield f"{made_of.hexdigest()}.level"

    def _remember(self, path: Path, level: KeyTable) -> KeyTable:
        self._opened[str(path)] = level
        # Each map costs address space; its pages are the system's to drop.
        while len(self._opened) > _OPEN_TABLES:
            self._opened.popitem(last=False)
        return level

    def _linked(self, path: Path) -> bool:
        """Hard-link the level's file of an earlier incarnation; False if there is none."""
        if self._earlier is None:
            return False
        try:
            _make_folder(path)
            # Level files are never rewritten, and a link survives the removal of the other.
            path.hardlink_to(self._earlier / path.name)
        except OSError:
            return False
        return True

    def _mapped(self, path: Path) -> KeyTable | None:
        try:
            table = _read(path)
        except (OSError, ValueError):
            return None
        # A file of another schema is rebuilt from the store, which converts the types.
        return key_table(table, self._schema) if table.schema.equals(self._schema.table) else None

    def _rebuilt(self, files: Files) -> KeyTable:
        """Build a level from the store and from local levels that make up parts of it."""
        # Local levels first: on a standby they make up most of a level, and only new files come from the store.
        tables, rest, at_hand = list[KeyTable](), files, self._at_hand()
        while rest:
            table, count = self._begin_of(rest, at_hand)
            tables.insert(0, table)  # the newest first, as `merged` takes them
            rest = rest[count:]
        # a full file is the oldest of its chain: no older row can reappear
        return tables[0] if len(tables) == 1 else merged(tables, self._schema, drop_deletes=files[0].kind == "full")

    def _at_hand(self) -> set[str]:
        with contextlib.suppress(OSError):
            return {path.name for path in self._folder.glob("*.level")}
        return set()

    def _begin_of(self, files: Files, at_hand: Set[str]) -> tuple[KeyTable, int]:
        """Return the longest local level that is a prefix of `files`, or else the first file.

        The second value is the number of files that it covers.
        """
        names = list(enumerate(self._names(files), start=1))
        for count, name in reversed(names):
            table = self._mapped(self._folder / name) if name in at_hand else None
            if table is not None:
                return table, count
        return self._stored(files[0]), 1

    def _stored(self, ref: RangeRef) -> KeyTable:
        where: dict[str, object] = {"epoch": ref.epoch, "operator": self._operator}
        stored = self._source.read_range(ref, ref.rows, self._schema.read.names, **where)
        level = from_stored(stored, self._schema)
        # Merging relies on one row per key, and a writer's bug would surface much later otherwise.
        if level.has_a_key_twice():
            raise damaged(ref.path, "has a key twice", **where)
        return level


def _make_folder(path: Path) -> None:
    # Only for the owner: the folder holds the users' state.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write(path: Path, table: pa.Table) -> pa.Table:
    """Write a level's file; return the table as views into the mapped file, whose pages all workers of the host share."""
    _make_folder(path)
    part = path.with_suffix(f".level-{uuid.uuid4().hex}")
    try:
        with pa.OSFile(str(part), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write(table)
        # Mapped before the trailer is written: the buffer is the body alone.
        body = _map(part)
        with part.open("ab") as out:
            out.write(_TRAILER.pack(_MAGIC, _FORMAT, zlib.crc32(body), body.size))
        # no fsync: a level damaged by a crash fails its checksum and is rebuilt
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return pa.ipc.open_file(body).read_all()


def _read(path: Path) -> pa.Table:
    """Return the table of a local level file, as views into the mapped file.

    Raises `ValueError` (as `ArrowInvalid`) if damaged.
    """
    whole = _map(path)
    if whole.size < _TRAILER.size:
        raise ValueError("short")
    body = whole.slice(0, whole.size - _TRAILER.size)
    magic, version, crc, size = _TRAILER.unpack(whole.slice(body.size))
    if (magic, version, size) != (_MAGIC, _FORMAT, body.size) or zlib.crc32(body) != crc:
        raise ValueError("damaged")
    return pa.ipc.open_file(body).read_all()


def _map(path: Path) -> pa.Buffer:
    # Closing the map keeps the buffer: Arrow holds the pages as long as a table uses them.
    with pa.memory_map(str(path)) as mapped:
        return mapped.read_buffer()
