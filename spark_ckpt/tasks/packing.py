"""Many rows into few: one Arrow blob per key group before the shuffle, rows again after the operator.

Spark then shuffles tens of rows instead of hundreds of thousands, and the operator reads Arrow without a
pandas copy. The generators are made for `DataFrame.mapInArrow`. Spark converts every column of packed rows for every key
group, 0.2 ms each, so there are few: what a row is, and when it came, is one number, its tag.
"""

from __future__ import annotations

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
"""Up to so many key groups are sorted as sixteen-bit numbers, by radix."""

_KINDS = 4
PACKED = pa.schema([pa.field(SHUFFLE_KEY, pa.int32()), pa.field(TAG, pa.int64()), pa.field(BLOB, pa.binary())])
"""What `pack` yields. A tag from 0 is a blob's, ascending in the order of arrival; below 0 it is a control row's."""
PACKED_DDL = f"{SHUFFLE_KEY} int, {TAG} long, {BLOB} binary"
"""The same for Spark."""


def control_tag(kind: Number, epoch: Number) -> Number:
    """The tag of a control row; kinds (`control_source`) are 1 to 3."""
    return -(epoch * _KINDS + kind)


def _blob_tags(task: int, first: int, count: int) -> Int64s:
    return (np.int64(task) << 32) + np.arange(first, first + count)


def pack(
    batches: Iterable[pa.RecordBatch],
    task: int | Callable[[], int],
    shuffle_keys: Sequence[int],
    *,
    flush_rows: int = FLUSH_ROWS,
    flush_bytes: int = FLUSH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Turn rows (user columns, ckpt_key_hash) into packed rows, one blob per key group and buffer-full.

    A row's key group is its hash modulo the number of `shuffle_keys`, which say under which number each group's blobs go
    (`shuffle_keys.py`). `task` is the partition id of the Spark task (or a callable giving it).
    """
    packer = _Packer(task() if callable(task) else task, np.asarray(shuffle_keys, np.int32))
    buffered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            buffered.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= flush_rows or size >= flush_bytes:
            yield packer.blobs(buffered)
            buffered, rows, size = [], 0, 0
    if buffered:
        yield packer.blobs(buffered)


@dataclass(slots=True)
class _Packer:
    """Counts what one task has packed."""

    task: int
    shuffle_keys: npt.NDArray[np.int32]
    seq: int = 0

    def blobs(self, buffered: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        table = pa.Table.from_batches(buffered).combine_chunks()
        groups, parts = _by_group(table, len(self.shuffle_keys))
        tags = _blob_tags(self.task, self.seq, len(groups))
        self.seq += len(groups)
        columns = [pa.array(self.shuffle_keys[groups]), pa.array(tags), pa.array(map(to_blob, parts), pa.binary())]
        return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def _by_group(table: pa.Table, key_groups: int) -> tuple[Int64s, list[pa.Table]]:
    """The groups that occur, ascending, and the rows of each in their order of arrival."""
    groups = np.mod(numbers(table, KEY_HASH), key_groups)
    order = np.argsort(groups.astype(np.uint16) if key_groups <= _SHORT else groups, kind="stable")
    table, groups = rows_at(table, order), groups[order]
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    ends = np.r_[starts[1:], len(groups)]
    return groups[starts], [table.slice(a, b - a) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What one key group got in one micro-batch."""

    rows: pa.Table | None
    """The user's columns and `ckpt_key_hash`, in order of arrival."""
    controls: list[tuple[int, int]] = field(default_factory=list)
    """(kind, epoch) of control rows, distinct, ascending by epoch."""


def unpack_ordered(frames: Iterable[pd.DataFrame]) -> Unpacked:
    """Restore rows and control rows from the packed rows of one key group, in whatever order the shuffle left
    them.
    """
    blobs: list[tuple[int, bytes]] = []
    controls: set[tuple[int, int]] = set()
    for frame in frames:
        for tag, blob in zip(frame[TAG].tolist(), frame[BLOB], strict=True):
            epoch, kind = divmod(-tag, _KINDS)
            if tag >= 0:
                blobs.append((tag, blob))
            else:
                controls.add((kind, epoch))
    blobs.sort(key=lambda item: item[0])
    return Unpacked(joined(blob for _, blob in blobs), sorted(controls, key=lambda item: item[::-1]))


def tables_of_blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The tables in the blobs that an operator puts out."""
    for batch in batches:
        for cell in batch.column(BLOB):
            yield from_blob(cell.as_buffer())


def explode_blobs(batches: Iterable[pa.RecordBatch], schema: pa.Schema | StructType) -> Iterator[pa.RecordBatch]:
    """Rows of `schema` again, for `mapInArrow` after the operator."""
    arrow = schema if isinstance(schema, pa.Schema) else arrow_schema(schema)
    for table in tables_of_blobs(batches):
        yield from table.cast(arrow).to_batches()
