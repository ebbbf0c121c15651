"""Packing: one Arrow blob per key group before the shuffle, rows again after the operator.

Spark then shuffles tens of rows instead of hundreds of thousands, and the operator reads Arrow without a pandas copy.
The generators are made for `DataFrame.mapInArrow`. Spark converts every column of packed rows for every key group, 0.2
ms each. So one number, the tag, holds both the kind of a row and its order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ckpt.tasks.blobs import from_blob, joined, to_blob
from spark_ckpt.tasks.rows import (
    BLOB,
    KEY_HASH,
    SHUFFLE_KEY,
    TAG,
    Int64s,
    arrow_schema,
    numbers,
    rows_at,
)

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column

Number = TypeVar("Number", int, "Column")

FLUSH_ROWS = 200_000
FLUSH_BYTES = 64 << 20
_SHORT = 1 << 16
"""Up to this many key groups are sorted as sixteen-bit numbers, with numpy's radix sort."""

_KINDS, _FULL = 8, 4  # of a tag's number: two bits for the kind, one for "full", the rest for the epoch
PACKED = pa.schema([pa.field(SHUFFLE_KEY, pa.int32()), pa.field(TAG, pa.int64()), pa.field(BLOB, pa.binary())])
"""Schema of `pack`. Tags from 0 belong to blobs and ascend in order of arrival; tags below 0 belong to control rows."""
PACKED_DDL = f"{SHUFFLE_KEY} int, {TAG} long, {BLOB} binary"
"""`PACKED` as Spark's DDL."""


def control_tag(kind: Number, epoch: Number, full: Number) -> Number:
    """Return the tag of a control row. Kinds are 1 to 3 (`markers.py`); `full` is 1 if it asks for a full snapshot, else 0."""
    # Below zero, where no blob's tag is; the same formula runs on numbers and on Spark's columns.
    return -(epoch * _KINDS + full * _FULL + kind)


def pack(
    batches: Iterable[pa.RecordBatch],
    task: int | Callable[[], int],
    shuffle_keys: Sequence[int],
    *,
    flush_rows: int = FLUSH_ROWS,
    flush_bytes: int = FLUSH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Turn rows (user columns, ckpt_key_hash) into packed rows, one blob per key group and full buffer.

    - `task`: partition id of the Spark task, or a callable that returns it.
    - `shuffle_keys`: shuffle key of each key group (`shuffle_keys.py`); a row's group is its hash modulo their number.
    - `flush_rows`, `flush_bytes`: a buffer is full when it reaches one of these limits.
    """
    packer = _Packer(task() if callable(task) else task, np.asarray(shuffle_keys, np.int32))
    # Bounded by both: wide rows would pass Arrow's 2 GiB of one binary column, many narrow ones the task's memory.
    for table in large_tables(batches, flush_rows, flush_bytes):
        yield packer.blobs(table.combine_chunks())


def large_tables(batches: Iterable[pa.RecordBatch], full_rows: int, full_bytes: float = math.inf) -> Iterator[pa.Table]:
    """Combine batches into fewer, larger tables. A table is full when it reaches one of the limits."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= full_rows or size >= full_bytes:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


@dataclass(slots=True)
class _Packer:
    """Packs the buffers of one task and numbers their blobs."""

    task: int
    shuffle_keys: npt.NDArray[np.int32]
    seq: int = 0

    def blobs(self, table: pa.Table) -> pa.RecordBatch:
        groups, parts = _by_group(table, len(self.shuffle_keys))
        # The task's number in the high bits: tags of different tasks never collide.
        tags = (np.int64(self.task) << 32) + np.arange(self.seq, self.seq + len(groups))
        self.seq += len(groups)  # over all buffers of the task: tags ascend in order of arrival
        columns = [pa.array(self.shuffle_keys[groups]), pa.array(tags), pa.array(map(to_blob, parts), pa.binary())]
        return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def _by_group(table: pa.Table, key_groups: int) -> tuple[Int64s, list[pa.Table]]:
    """Return the groups that occur, ascending, and each group's rows in order of arrival."""
    groups = np.mod(numbers(table, KEY_HASH), key_groups)  # numpy's `mod` of a negative hash is not negative
    # Stable: the rows of a key stay in order of arrival.
    order = np.argsort(groups.astype(np.uint16) if key_groups <= _SHORT else groups, kind="stable")
    table, groups = rows_at(table, order), groups[order]
    # Each group is one run of rows now.
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    ends = np.r_[starts[1:], len(groups)]
    return groups[starts], [table.slice(a, b - a) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Rows and control rows of one key group in one micro-batch."""

    rows: pa.Table | None
    """The user's columns and `ckpt_key_hash`, in order of arrival; None without rows."""
    controls: list[tuple[int, int, bool]] = field(default_factory=list)
    """Control rows as (kind, epoch, True if the group is asked for a full snapshot), distinct, ascending by epoch."""


def unpack_ordered(frames: Iterable[pd.DataFrame]) -> Unpacked:
    """Restore the rows and control rows of one key group from its packed rows, which may arrive in any order."""
    blobs: list[tuple[int, bytes]] = []
    controls: set[tuple[int, int, bool]] = set()
    for frame in frames:
        for tag, blob in zip(frame[TAG].tolist(), frame[BLOB], strict=True):
            if tag >= 0:
                blobs.append((tag, blob))
                continue
            # the inverse of `control_tag`
            epoch, rest = divmod(-tag, _KINDS)
            full, kind = divmod(rest, _FULL)
            controls.add((kind, epoch, bool(full)))
    # the shuffle reorders blobs; tags restore the order of arrival
    blobs.sort(key=lambda item: item[0])
    return Unpacked(joined(blob for _, blob in blobs), sorted(controls, key=lambda item: (item[1], item[0])))


def tables_of_blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the tables in the blobs that an operator emits."""
    for batch in batches:
        for cell in batch.column(BLOB):
            yield from_blob(cell.as_buffer())  # the columns are views into the cell


def explode_blobs(batches: Iterable[pa.RecordBatch], schema: pa.Schema | StructType) -> Iterator[pa.RecordBatch]:
    """Yield the blobs' rows as batches of `schema`, for `mapInArrow` after the operator."""
    arrow = schema if isinstance(schema, pa.Schema) else arrow_schema(schema)
    for table in tables_of_blobs(batches):
        yield from table.cast(arrow).to_batches()
