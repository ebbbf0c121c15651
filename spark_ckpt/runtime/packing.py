"""Many rows into few: one Arrow blob per key group before the shuffle, rows again after the operator.

Spark then shuffles tens of rows instead of hundreds of thousands, and the operator reads Arrow without a
pandas copy. The generators are made for `DataFrame.mapInArrow`; `(ckpt_task, ckpt_seq)` restores the order of
arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from spark_ckpt.runtime.blobs import from_blob, joined, to_blob
from spark_ckpt.runtime.rows import (
    BLOB,
    DATA,
    EPOCH,
    EVENT_TIME,
    KEY_GROUP,
    KEY_HASH,
    KIND,
    SEQ,
    TASK,
    TIME,
    Int64s,
    arrow_schema,
    numbers,
    rows_at,
)

if TYPE_CHECKING:
    import pandas as pd

    from spark_ckpt.runtime.rows import Array

FLUSH_ROWS = 200_000
FLUSH_BYTES = 64 << 20
_SHORT = 1 << 16
"""Up to so many key groups are sorted as sixteen-bit numbers, by radix."""

PACKED = pa.schema(
    [
        pa.field(KEY_GROUP, pa.int32()),
        pa.field(KIND, pa.int32()),
        pa.field(EPOCH, pa.int64()),
        pa.field(TASK, pa.int32()),
        pa.field(SEQ, pa.int64()),
        pa.field(EVENT_TIME, pa.timestamp("us", tz="UTC")),
        pa.field(BLOB, pa.binary()),
    ]
)
"""What `pack` yields. `ckpt_event_time` is set on rows of kind TIME only: Spark drops rows that are late, and a blob
holds many rows that may not be. Its operator looks at each row.
"""

PACKED_SCHEMA = (
    "ckpt_key_group int, ckpt_kind int, ckpt_epoch long, ckpt_task int, ckpt_seq long, "
    "ckpt_event_time timestamp, ckpt_blob binary"
)


def pack(
    batches: Iterable[pa.RecordBatch],
    task: int | Callable[[], int],
    key_groups: int,
    *,
    event_time: str | None = None,
    flush_rows: int = FLUSH_ROWS,
    flush_bytes: int = FLUSH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Turn rows (user columns, ckpt_key_hash) into rows of `PACKED`, one blob per key group and buffer-full.

    A row's key group is its hash modulo `key_groups`. `task` is the partition id of the Spark task (or a callable giving
    it). `event_time` names a timestamp column: every flush then has one row of kind TIME with the greatest time in it,
    which moves Spark's watermark.
    """
    packer = _Packer(task() if callable(task) else task, key_groups, event_time)
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
    key_groups: int
    event_time: str | None
    seq: int = 0

    def blobs(self, buffered: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        table = pa.Table.from_batches(buffered).combine_chunks()
        groups, parts = _by_group(table, self.key_groups)
        latest = self._latest(table)
        carriers = [] if latest is None else [groups[0]]  # a group that is called anyway
        kinds = np.r_[np.full(len(groups), DATA), np.full(len(carriers), TIME)]
        times = pa.array([None] * len(groups) + [latest] * len(carriers), PACKED.field(EVENT_TIME).type)
        blobs = pa.array([to_blob(part) for part in parts] + [b""] * len(carriers), pa.binary())
        return self._packed(np.r_[groups, np.array(carriers, np.int64)], kinds, times, blobs)

    def _latest(self, table: pa.Table) -> datetime | None:
        if self.event_time is None:
            return None
        latest: datetime | None = pc.max(table.column(self.event_time)).cast(PACKED.field(EVENT_TIME).type).as_py()
        return latest

    def _packed(self, groups: Int64s, kinds: Int64s, times: Array, blobs: Array) -> pa.RecordBatch:
        count = len(groups)
        seqs = np.arange(self.seq, self.seq + count)
        self.seq += count
        numbers = (groups, kinds, np.zeros(count, np.int64), np.full(count, self.task), seqs)
        columns = [*map(pa.array, numbers), times, blobs]
        return pa.RecordBatch.from_arrays(
            [each.cast(to.type) for each, to in zip(columns, PACKED, strict=True)], schema=PACKED
        )


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
    blobs: list[tuple[int, int, bytes]] = []
    controls: set[tuple[int, int]] = set()
    for frame in frames:
        for kind, epoch, task, seq, blob in zip(*(frame[name] for name in (KIND, EPOCH, TASK, SEQ, BLOB)), strict=True):
            if kind == DATA:
                blobs.append((int(task), int(seq), blob))
            elif kind != TIME:
                controls.add((int(kind), int(epoch)))
    blobs.sort(key=lambda item: item[:2])
    return Unpacked(joined(blob for _, _, blob in blobs), sorted(controls, key=lambda item: item[::-1]))


def tables_of_blobs(batches: Iterable[pa.RecordBatch], *, kind: int = DATA) -> Iterator[pa.Table]:
    """The tables in the blobs of rows (ckpt_kind, ckpt_blob) whose kind is `kind`; other rows are skipped."""
    for batch in batches:
        for cell in batch.filter(pc.equal(batch.column(KIND), pa.scalar(kind, pa.int32()))).column(BLOB):
            yield from_blob(cell.as_buffer())


def explode_blobs(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema | StructType, *, kind: int = DATA
) -> Iterator[pa.RecordBatch]:
    """Rows of `schema` again, for `mapInArrow` after the operator."""
    arrow = schema if isinstance(schema, pa.Schema) else arrow_schema(schema)
    for table in tables_of_blobs(batches, kind=kind):
        yield from table.cast(arrow).to_batches()
