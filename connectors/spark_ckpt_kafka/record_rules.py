"""Finds rows that a topic never accepts.

Tasks check rows while they stage them, so that such a row fails before its epoch commits. A publisher checks again,
with the topic's current settings, after the broker refused a record of a committed epoch.

Sizes are those of a batch with this record alone, in record format v2
(https://kafka.apache.org/documentation/#recordbatch).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.connector import RefusedRow

Column: TypeAlias = "pa.ChunkedArray[Any]"
Int64s: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_TOPIC = r"^[a-zA-Z0-9._-]{1,249}$"
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
BATCH_BYTES = 61
"""Bytes of a record batch without its records."""
_FILTER = "filter such rows, or give them to a sink of their own"


def audit_stamp(shard: str, epoch: int) -> Headers:
    """Return the audit headers of an epoch's records. `shard`: <store id>.<sink>.<lane>."""
    return (("ckpt-lane", shard.encode()), ("ckpt-epoch", str(epoch).encode()))


# A store id has 36 characters, a sink's name at most 128, a lane's number 2.
LONGEST_STAMP = audit_stamp("x" * (36 + 1 + 128 + 1 + 2), 2**63 - 1)
"""Audit headers of the largest size. Tasks do not know the epoch that will have their rows."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Settings of a topic. None: there is no bound, or it is unknown. Bounds of times are in ms before and after
    now.
    """

    partitions: int | None = None
    compacted: bool = False
    max_message_bytes: int | None = None
    before_ms: int | None = None
    after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RecordRules:
    """Checks rows against the limits of a sink's producer and topic. A call with a table returns the first refused row.

    `topic`: topic of every row; None if each row names its own. `max_request_bytes`: the producer's own limit of
    a record. `stamp`: headers that are added to those of the row.
    """

    topic: str | None
    max_request_bytes: int
    compression: str = "none"
    limits: TopicLimits = TopicLimits()
    stamp: Headers = ()

    def __call__(self, rows: pa.Table) -> RefusedRow | None:
        """Return the first row that is never accepted, or None."""
        columns = {name: rows.column(name) for name in rows.column_names}
        found = [*self._topics(columns), *self._keys(columns), *self._partitions(columns)]
        found += [*self._times(columns), *_header_rows(columns), *self._sizes(rows)]
        return min(found, key=lambda each: each.row, default=None)

    def _topics(self, columns: dict[str, Column]) -> Iterator[RefusedRow]:
        if self.topic is not None:
            return
        topics = columns["topic"]
        yield from _where(pc.is_null(topics), "topic", "the row names no topic", "fill the column 'topic' in every row")
        wrong = pc.or_(pc.invert(pc.match_substring_regex(topics, _TOPIC)), pc.is_in(topics, pa.array([".", ".."])))
        yield from _where(wrong, "topic", "that is no topic's name")

    def _keys(self, columns: dict[str, Column]) -> Iterator[RefusedRow]:
        value, key = columns["value"], columns.get("key")
        if self.limits.compacted:
            missing = pa.array([True] * len(value)) if key is None else pc.is_null(key)
            yield from _where(missing, "key", "a compacted topic takes no record without a key")

    def _partitions(self, columns: dict[str, Column]) -> Iterator[RefusedRow]:
        if (partition := columns.get("partition")) is None:
            return
        count = self.limits.partitions
        hint = f"{_FILTER}; null lets the key choose"
        yield from _where(pc.less(partition, 0), "partition", "partitions are numbered from 0", hint)
        if count is not None:
            why = f"the topic has partitions 0 to {count - 1}"
            again = f"{hint}; if the topic has more by now, start the job again"
            yield from _where(pc.greater_equal(partition, count), "partition", why, again)

    def _times(self, columns: dict[str, Column]) -> Iterator[RefusedRow]:
        if (times := columns.get("timestamp")) is None or times.null_count == len(times):
            return
        ms, now_ms = milliseconds(times), time.time_ns() // 1_000_000
        hint = "null is the time at which the record is sent"
        yield from _where(pc.equal(ms, -1), "timestamp", "in Kafka -1 ms means that there is no time", hint)
        before_ms, after_ms = self.limits.before_ms, self.limits.after_ms
        if before_ms is not None:
            why = f"the topic takes no times older than {before_ms} ms (message.timestamp.before.max.ms)"
            yield from _where(pc.less(ms, now_ms - before_ms), "timestamp", why, f"{_FILTER}; {hint}")
        if after_ms is not None:
            why = f"the topic takes no times later than {after_ms} ms from now (message.timestamp.after.max.ms)"
            yield from _where(pc.greater(ms, now_ms + after_ms), "timestamp", why, f"{_FILTER}; {hint}")

    def _sizes(self, rows: pa.Table) -> Iterator[RefusedRow]:
        most = self.limits.max_message_bytes
        # Cheap upper bound: if all rows together fit into one record, no single row is too large.
        each = 100 + _stamp_bytes(self.stamp)
        if rows.nbytes + each * rows.num_rows <= min(self.max_request_bytes, most or self.max_request_bytes):
            return
        sizes = _sizes_of(rows, self.stamp)
        for row in np.flatnonzero(sizes > self.max_request_bytes)[:1]:
            why = f"the record has {sizes[row]} bytes, the sink sends at most {self.max_request_bytes}"
            yield RefusedRow(int(row), "value", why, f"raise the sink's option max.request.size; or {_FILTER}")
        # Brokers compare the compressed batch with max.message.bytes, so that a row is compressed before it is
        # refused.
        for row in np.flatnonzero(sizes > (most or self.max_request_bytes)):
            if most is not None and (size := self._compressed(rows, int(row), int(sizes[row]))) > most:
                why = f"the record has {size} bytes, the topic takes at most {most} (max.message.bytes)"
                yield RefusedRow(int(row), "value", why, f"raise the topic's max.message.bytes; or {_FILTER}")
                return

    def _compressed(self, rows: pa.Table, row: int, size: int) -> int:
        """Return the bytes of the record's batch after compression."""
        if self.compression == "none":
            return size
        whole = rows.slice(row, 1).to_pylist()[0]
        parts = [
            whole.get("key"),
            whole["value"],
            *(part for each in whole.get("headers") or [] for part in each.values()),
            *(part for each in self.stamp for part in each),
        ]
        text = b"".join(part.encode() if isinstance(part, str) else part for part in parts if part is not None)
        return BATCH_BYTES + len(pa.compress(text, codec=self.compression, asbytes=True))


def milliseconds(times: Column | pa.Array[Any]) -> Any:
    """Return times as milliseconds since 1970, the unit of Kafka records."""
    return pc.cast(times, pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())


def _where(mask: Any, column: str, why: str, hint: str = _FILTER) -> Iterator[RefusedRow]:
    """Yield the first row of a mask; a null counts as False."""
    row = pc.index(mask, True).as_py()
    if row >= 0:
        yield RefusedRow(row, column, why, hint)


def _header_rows(columns: dict[str, Column]) -> Iterator[RefusedRow]:
    """Yield the first row with a header that no record can have."""
    if (headers := columns.get("headers")) is None or headers.null_count == len(headers):
        return
    column = headers.combine_chunks()
    elements, rows = column.flatten(), pc.list_parent_indices(column)
    no_key = pc.and_(pc.is_valid(elements), pc.is_null(elements.field("key")))
    for mask, why in ((pc.is_null(elements), "a header is null"), (no_key, "a header has no key")):
        at = pc.index(mask, True).as_py()
        if at >= 0:
            yield RefusedRow(rows[at].as_py(), "headers", why)


def _sizes_of(rows: pa.Table, stamp: Headers) -> Int64s:
    """Return the bytes of an uncompressed batch with one record, for each row."""
    # Attributes, and a zero delta of time and of offset.
    body = np.full(rows.num_rows, 3 + _stamp_bytes(stamp), np.int64)
    for name in ("key", "value"):
        if name in rows.column_names:
            lengths = numbers_of(pc.fill_null(pc.binary_length(rows.column(name)), 0))
            body += lengths + _varint(lengths)
        else:
            body += 1
    counts = np.full(rows.num_rows, len(stamp), np.int64)
    if "headers" in rows.column_names:
        column = rows.column("headers").combine_chunks()
        at, elements = numbers_of(pc.list_parent_indices(column)), column.flatten()
        for name in ("key", "value"):
            lengths = numbers_of(pc.fill_null(pc.binary_length(elements.field(name)), 0))
            np.add.at(body, at, lengths + _varint(lengths))
        np.add.at(counts, at, 1)
    body += _varint(counts)
    return BATCH_BYTES + body + _varint(body)


def _stamp_bytes(stamp: Headers) -> int:
    lengths = np.array([len(part or b"") for each in stamp for part in each], np.int64)
    return int((lengths + _varint(lengths)).sum())


def numbers_of(column: Any) -> Int64s:
    """Return a column of integers without null."""
    return np.asarray(
        column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy(), np.int64
    )


def _varint(numbers: Int64s) -> Int64s:
    """Return the bytes of each number as a zigzag varint."""
    # A byte has 7 bits, and zigzag takes one bit of the number: 2 ** 6, 2 ** 13, 2 ** 20 and 2 ** 27.
    bytes_of: Int64s = np.searchsorted(np.array([64, 8_192, 1_048_576, 134_217_728]), numbers, side="right") + np.int64(
        1
    )
    return bytes_of
