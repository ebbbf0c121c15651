"""Event-time windows in a grouping: keys that the watermark closes, and Spark's window struct as two columns.

As in Spark, a key is closed if its window ends at or before the watermark. Its state is removed, and rows for it are
late from the next batch on. A key of the watermarked column itself is closed in the same way. A grouping without either
is never closed by a watermark: Spark ignores it there, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.tasks.rows import NO_TIMEOUT, Int64s, column, rows_at

if TYPE_CHECKING:
    from spark_ckpt.tasks.rows import Array
    from spark_ckpt.tasks.state.group_state import KeyGroupState


@dataclass(frozen=True, slots=True)
class Closing:
    """Keys close `after_us` microseconds after their time in `column`."""

    column: str
    after_us: int = 0

    def ends_us(self, table: pa.Table) -> Array:
        """Return for each row the time that closes its key, in epoch microseconds; null for a key that is never closed."""
        times = column(table, self.column).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        return pc.add(times, self.after_us)

    def on_time(self, rows: pa.Table, limit_ms: int) -> pa.Table:
        """Return the rows whose keys a watermark of `limit_ms` leaves open."""
        # At the end as well: a window that ends at the watermark has been emitted.
        late = pc.less_equal(self.ends_us(rows), limit_ms * 1000)
        return rows.filter(pc.invert(pc.fill_null(late, pa.scalar(False))))

    def timeouts_ms(self, keys: pa.Table) -> Int64s:
        """Return for each key the last watermark that leaves it open, in epoch milliseconds, rounded up.

        It is `NO_TIMEOUT` for a key that no watermark closes.
        """
        ends = self.ends_us(keys)
        known = ends.is_valid().to_numpy(zero_copy_only=False)
        # Rounded up: a window that ends within a millisecond is closed by the next one only. One less: Spark calls an idle key
        # group when the watermark is past a timeout, and the next operator may take a row of a later batch as late.
        return np.where(known, -(-pc.fill_null(ends, 0).to_numpy() // 1000) - 1, NO_TIMEOUT)

    def time_restored(self, group: KeyGroupState) -> None:
        """Give the restored keys that have none their timeouts.

        A program without this watermark may have written the state: without timeouts its keys would never close.
        """
        found = group.untimed()
        timeouts = self.timeouts_ms(found.keys)
        at = np.flatnonzero(timeouts != NO_TIMEOUT)
        state = rows_at(found.resolved.state, at)
        group.put(rows_at(found.keys, at), found.hashes[at], state, timeout_ms=timeouts[at])


@dataclass(frozen=True, slots=True)
class WindowKey:
    """Spark's window struct `name` in the output, stored as the key columns `start` and `end`."""

    name: str
    start: str
    end: str


def nested_schema(schema: pa.Schema, windows: Sequence[WindowKey]) -> pa.Schema:
    """Return the schema with every window's two columns as one struct, at the place of the first."""
    structs = {window.start: pa.field(window.name, _struct(schema, window)) for window in windows}
    ends = {window.end for window in windows}
    return pa.schema([structs.get(field.name, field) for field in schema if field.name not in ends])


def nested(table: pa.Table, windows: Sequence[WindowKey]) -> pa.Table:
    """Return the table in the form of `nested_schema`."""
    for window in windows:
        parts = [column(table, window.start), column(table, window.end)]
        struct = pa.StructArray.from_arrays(parts, fields=list(_struct(table.schema, window)))
        at = table.column_names.index(window.start)
        table = table.set_column(at, window.name, struct).drop_columns([window.end])
    return table


def _struct(schema: pa.Schema, window: WindowKey) -> pa.StructType:
    return pa.struct([("start", schema.field(window.start).type), ("end", schema.field(window.end).type)])
