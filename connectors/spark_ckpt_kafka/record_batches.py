"""Encodes rows as Kafka's record batches, format v2, column by column: no row becomes a Python object.

Source: https://kafka.apache.org/documentation/#recordbatch. A batch belongs to one partition, and its records keep the
order in which the rows are sent.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.errors import RowsRefused
from spark_ckpt_kafka.library import crc32c, lz4_encode
from spark_ckpt_kafka.record_rules import BATCH_BYTES, Headers, Int64s, milliseconds, numbers_of

Column: TypeAlias = "pa.Array[Any]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Digits: TypeAlias = "list[tuple[np.ndarray[Any, np.dtype[np.uint8]], Flags]]"
"""The n-th byte of each row's varint, and which rows have it."""

_FRAME = struct.Struct(">qiibI")  # base offset, length, leader epoch, format, checksum
_SUMMED = struct.Struct(">hiqqqhii")  # attributes, last offset, first and last time, producer, epoch, sequence, count
_UNCOUNTED_BYTES = 12
"""Bytes of a frame that its length does not cover."""
_FORMAT = 2
_TRANSACTIONAL = 0x10
_GROWTH = 250
"""Compressed, content that is random grows by less than this part of it."""
_NO_PRODUCER = (-1, -1)
_VARINTS_BYTES = 40
"""A record has fewer bytes besides key, value and headers."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one topic in sending order.

    `rows` has a column `value`, and may have `key`, `partition`, `timestamp` and `headers`, with the types of Spark's
    Kafka sink. A null partition is chosen by the key's hash. A null timestamp is the time of sending. `stamp` is
    appended to the headers of each row.
    """

    topic: str
    rows: pa.RecordBatch
    stamp: Headers

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def column(self, name: str) -> Column | None:
        """Return a column, text as bytes; None if it is absent or all null."""
        if name not in self.rows.schema.names:
            return None
        column = self.rows.column(name)
        if column.null_count == len(column):
            return None
        return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


class Records(NamedTuple):
    """Records of one batch: the numbers of the chunk's rows, and the records' bytes before compression."""

    partition: int
    rows: Int64s
    first_ms: int
    last_ms: int
    data: pa.Buffer


class ProducerId(NamedTuple):
    """Identity that an init gave to a producer."""

    number: int
    epoch: int


class _Piece(NamedTuple):
    """A part of each record: an array of bytes, and which element each record has."""

    values: Column
    at: Int64s


def encode_records(chunk: Chunk, partitions: Int64s, now_ms: int, batch_bytes: int) -> list[Records]:
    """Return the batches of a chunk. As sent, each has at most `batch_bytes`, or one record.

    `partitions`: the partition of each row. Raises `RowsRefused` for a header that is null or has no key.
    """
    # Stable: the records of a partition keep the order of the rows.
    order = np.argsort(partitions.astype(np.int32), kind="stable")  # 32 bits: sorted by radix
    key, key_bytes = _taken(chunk.column("key"), order)
    value, value_bytes = _taken(chunk.column("value"), order)
    headers, header_bytes = _headers(chunk, order)
    # A length of -1 is null, which has no bytes.
    content = np.maximum(key_bytes, 0) + np.maximum(value_bytes, 0) + header_bytes
    # The topic's limit is checked after compression, which makes random content a little larger (_GROWTH).
    most = batch_bytes - BATCH_BYTES - batch_bytes // _GROWTH
    starts = _cut(partitions[order], content + _VARINTS_BYTES, most)
    stops = np.append(starts[1:], len(chunk))
    times, first_ms, last_ms = _times(chunk.column("timestamp"), order, starts, stops, now_ms)
    # Counted from 0 in each batch, as the times are.
    offsets = np.arange(len(chunk)) - np.repeat(starts, stops - starts)
    attributes = np.zeros(len(chunk), np.int64)
    # A record: length, attributes, time, offset, bytes of the key, key, bytes of the value, value, headers. Attributes
    # are an int8 in the format: zero is the same byte as a varint.
    before_key = [digit for each in (attributes, times, offsets, key_bytes) for digit in _varint(each)]
    before_value = _varint(value_bytes)
    # The length does not count its own bytes.
    length = _varint(content + _sizes([*before_key, *before_value]))
    data, ends = _interleaved([_packed([*length, *before_key]), key, _packed(before_value), value, *headers])
    # A batch ends with its last record: the batches are slices of one buffer.
    at = np.concatenate([[0], ends[stops - 1]])
    return [
        Records(
            partition=int(partitions[order[start]]),
            rows=order[start:stop],
            first_ms=int(first_ms[batch]),
            last_ms=int(last_ms[batch]),
            data=data.slice(int(at[batch]), int(at[batch + 1] - at[batch])),
        )
        for batch, (start, stop) in enumerate(zip(starts, stops, strict=True))
    ]


def frame_batch(records: Records, producer: ProducerId | None, sequence: int, compression: str) -> bytes:
    """Return the batch as a producer sends it. `sequence`: number of its first record in the partition, from 0.

    `producer`: of the transaction; None for records outside of one, whose sequence is -1.
    """
    code, compress = _CODECS[compression]
    count = len(records.rows)
    content = compress(records.data)
    attributes = code if producer is None else code | _TRANSACTIONAL
    identity = _NO_PRODUCER if producer is None else producer
    summed = _SUMMED.pack(attributes, count - 1, records.first_ms, records.last_ms, *identity, sequence, count)
    checksum = crc32c(content, crc32c(summed))
    length = _FRAME.size - _UNCOUNTED_BYTES + len(summed) + len(content)
    # The broker fills in base offset and leader epoch, which the checksum does not cover.
    return b"".join((_FRAME.pack(0, length, -1, _FORMAT, checksum), summed, content))


def _taken(column: Column | None, order: Int64s) -> tuple[_Piece, Int64s]:
    """Return a column in sending order, and the length of each element; -1 for null."""
    if column is None:
        return _constant(b"", len(order)), np.full(len(order), -1)
    return _Piece(column, order), _lengths(column)[order]


def _headers(chunk: Chunk, order: Int64s) -> tuple[list[_Piece], Int64s]:
    """Return the headers of each record with their count, and how many bytes they take."""
    column, stamp = chunk.column("headers"), _encoded(chunk.stamp)
    if column is None:
        counted = _varint(np.array([len(chunk.stamp)]))
        one = bytes(int(digit[0]) for digit, _ in counted) + stamp
        return [_constant(one, len(order))], np.full(len(order), len(one))
    elements = column.flatten()
    if elements.null_count or elements.field("key").null_count:
        raise RowsRefused("a row has a header that is null, or that has no key", hint="filter such rows")
    counts = numbers_of(pc.fill_null(pc.list_value_length(column), 0))
    data, ends = _header_bytes(elements.field("key").cast(pa.binary()), elements.field("value"))
    # The borders of the rows among the borders of their headers: one row may have several headers, or none.
    at = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(counts)])]
    values = pa.Array.from_buffers(pa.binary(), len(chunk), [None, pa.py_buffer(at.astype(np.int32)), data])
    count = _varint(counts[order] + len(chunk.stamp))
    pieces = [_packed(count), _Piece(values, order), _constant(stamp, len(order))]
    return pieces, np.diff(at)[order] + _sizes(count) + len(stamp)


def _header_bytes(keys: Column, values: Column) -> tuple[pa.Buffer, Int64s]:
    """Return the bytes of headers one behind another, and where each ends."""
    order = np.arange(len(keys))
    key, key_bytes = _Piece(keys, order), _lengths(keys)
    value, value_bytes = _taken(values, order)
    return _interleaved([_packed(_varint(key_bytes)), key, _packed(_varint(value_bytes)), value])


def _encoded(headers: Headers) -> bytes:
    if not headers:
        return b""
    keys = pa.array([key.encode() for key, _ in headers], pa.binary())
    data, _ = _header_bytes(keys, pa.array([value for _, value in headers], pa.binary()))
    return bytes(data)


def _cut(partitions: Int64s, sizes: Int64s, batch_bytes: int) -> Int64s:
    """Return the first row of each batch. Rows are sorted by partition; `sizes` are upper bounds in bytes."""
    ends = np.cumsum(sizes)
    borders = [0, *(np.flatnonzero(np.diff(partitions)) + 1), len(sizes)]
    starts: list[int] = []
    for start, stop in itertools.pairwise(borders):
        while start < stop:
            starts.append(int(start))
            most = batch_bytes + (ends[start - 1] if start else 0)
            # A record that is larger by itself still gets a batch.
            start = max(start + 1, min(stop, int(np.searchsorted(ends, most, side="right"))))
    return np.array(starts, np.int64)


def _times(
    column: Column | None, order: Int64s, starts: Int64s, stops: Int64s, now_ms: int
) -> tuple[Int64s, Int64s, Int64s]:
    """Return each record's distance to the first one of its batch, and the first and the last time of each batch."""
    if column is None:
        # One time for the whole chunk, so that every distance is 0.
        same = np.full(len(starts), now_ms)
        return np.zeros(len(order), np.int64), same, same
    at_ms = numbers_of(pc.fill_null(milliseconds(column), now_ms))[order]
    # The format has the first record's time as base, not the smallest one: earlier records have a negative distance.
    first_ms = at_ms[starts]
    return at_ms - np.repeat(first_ms, stops - starts), first_ms, np.maximum.reduceat(at_ms, starts)


def _varint(numbers: Int64s) -> Digits:
    """Return signed numbers as zigzag varints (Protocol Buffers)."""
    # Zigzag: small negative numbers, such as -1 for null, take one byte, too.
    rest = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
    digits, there = [], np.ones(len(rest), np.bool_)
    while True:
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        more = rest != 0
        digits.append((low | (more.astype(np.uint8) << 7), there))
        if not more.any():
            return digits
        there = more


def _sizes(digits: Digits) -> Int64s:
    sizes = np.zeros(len(digits[0][1]), np.int64)
    for _, there in digits:
        sizes += there
    return sizes


def _packed(digits: Digits) -> _Piece:
    """Return the bytes that each row has, one behind another."""
    count, width = len(digits[0][0]), len(digits)
    values, there = np.empty((count, width), np.uint8), np.empty((count, width), np.bool_)
    for at, (digit, has) in enumerate(digits):
        values[:, at], there[:, at] = digit, has
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(_sizes(digits), out=offsets[1:])
    # Row after row: `ravel` reads the matrix so, and leaves the bytes of a row together.
    data = np.compress(there.ravel(), values.ravel())
    column = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return _Piece(column, np.arange(count))


def _constant(value: bytes, count: int) -> _Piece:
    return _Piece(pa.array([value], pa.binary()), np.zeros(count, np.int64))


def _interleaved(pieces: Sequence[_Piece]) -> tuple[pa.Buffer, Int64s]:
    """Return the bytes of the records one behind another, and where each record ends. A null element has no bytes."""
    count, first = len(pieces[0].at), 0
    places = np.empty((count, len(pieces)), np.int64)
    for number, piece in enumerate(pieces):
        # A place counts through the elements of all pieces, as they are concatenated below.
        places[:, number] = piece.at + first
        first += len(piece.values)
    # `take` copies the elements one behind another in this order: its data buffer is the encoded records.
    records = pa.concat_arrays([piece.values for piece in pieces]).take(pa.array(places.ravel()))
    _, offsets, data = records.buffers()
    # 32 bits are enough: a chunk has some 8 MiB (`rows.CHUNK_BYTES`), or one record.
    ends = np.frombuffer(offsets, np.int32, len(records) + 1)[len(pieces) :: len(pieces)]
    return data if data is not None else pa.py_buffer(b""), ends.astype(np.int64)


def _lengths(column: Column) -> Int64s:
    return numbers_of(pc.fill_null(pc.binary_length(column), -1))


def _arrow(codec: str) -> Callable[[pa.Buffer], bytes]:
    return lambda data: pa.compress(data, codec=codec, asbytes=True)


_CODECS: Mapping[str, tuple[int, Callable[[pa.Buffer], bytes | pa.Buffer]]] = {
    "none": (0, lambda data: data),
    "gzip": (1, _arrow("gzip")),
    "snappy": (2, _arrow("snappy")),
    "lz4": (3, lz4_encode),  # Arrow's lz4 frames have linked blocks, which brokers refuse
    "zstd": (4, _arrow("zstd")),
}
