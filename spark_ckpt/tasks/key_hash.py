"""Spark's `xxhash64` over whole Arrow columns, for rows that reach the next operator without Spark's expressions.

The algorithm is XXH64 of the xxHash specification (`XxHash64`, `XXH64.java` in Spark's catalyst). The hash of several
columns uses the previous column's hash as its seed and skips nulls. Each step handles all rows at once. Text takes as
many steps as its longest value has words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from spark_ckpt.tasks.rows import Int64s, column

if TYPE_CHECKING:
    from spark_ckpt.tasks.rows import Array

Words = npt.NDArray[np.uint64]
"""Unsigned, so that sums and products wrap as Java's do."""

_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(each)
    for each in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_STRIPE, _WORD = 32, 8  # bytes; a stripe has a word for each of four lanes
# By the form in which Spark hashes them: as an int, as a long.
_INTS = (ByteType, ShortType, IntegerType, BooleanType, DateType)
_LONGS = (LongType, TimestampType, TimestampNTZType)


def can_hash(kind: DataType) -> bool:
    """Return True if `key_hash` supports the type: all flat types except decimals and collated text."""
    if isinstance(kind, StringType):
        return kind == StringType()
    return isinstance(kind, (*_INTS, *_LONGS, FloatType, DoubleType, BinaryType))


def key_hash(table: pa.Table, keys: Sequence[str]) -> Int64s:
    """Return Spark's `xxhash64(keys...)` for each row, one int64 per row; -0.0 counts as 0.0."""
    # Spark's seed. With another hash a key would come to another group than its state has.
    found = np.full(table.num_rows, _SEED, np.uint64)
    for key in keys:
        values = column(table, key)
        known = values.is_valid().to_numpy(zero_copy_only=False)
        # a null keeps the seed: Spark skips it
        found = np.where(known, _hashed(values, found), found)
    return found.view(np.int64)


def _hashed(values: Array, seed: Words) -> Words:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _of_bytes(*_bytes_of(values), seed)
    if pa.types.is_floating(kind):
        # adding 0.0 turns -0.0 into 0.0; all NaN get the same bits, as in Spark
        numbers = cast("npt.NDArray[np.float64]", _filled(values)) + 0.0
        numbers = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers)
        return _of_ints(numbers.view(np.uint32), seed) if kind == pa.float32() else _of_longs(numbers.view("u8"), seed)
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
        return _of_longs(_filled(values.cast(pa.int64())).view("u8"), seed)
    # Spark hashes byte, short, boolean and date as an int
    small = values.cast(pa.int32())
    return _of_ints(_filled(small).view(np.uint32), seed)


def _filled(values: Array) -> npt.NDArray[np.generic]:
    whole = values.fill_null(0) if values.null_count else values
    return cast("npt.NDArray[np.generic]", whole.to_numpy(zero_copy_only=False))


def _of_ints(values: npt.NDArray[np.uint32], seed: Words) -> Words:
    # XXH64 mixes the length in: an int has four bytes, a long eight.
    found = (seed + _P5 + np.uint64(4)) ^ (values.astype(np.uint64) * _P1)
    return _mixed(_rotated(found, 23) * _P2 + _P3)


def _of_longs(values: Words, seed: Words) -> Words:
    return _mixed(_with_word(seed + _P5 + np.uint64(8), values))


def _of_bytes(data: npt.NDArray[np.uint8], start: Int64s, length: Int64s, seed: Words) -> Words:
    """Hash each value, which is `length` bytes from `start` in `data`.

    `data` has 8 padding bytes, so that `_read` may overrun.
    """
    stripes = length // _STRIPE
    found = np.where(stripes > 0, _striped(data, start, stripes, seed), seed + _P5) + length.astype(np.uint64)
    at, left = start + stripes * _STRIPE, length % _STRIPE
    # Less than a stripe is left: three words, a half word and three bytes at most.
    steps: tuple[tuple[int, int, Callable[[Words, Words], Words]], ...] = (
        (8, 3, _with_word),
        (4, 1, _with_half),
        (1, 3, _with_byte),
    )
    for size, times, step in steps:
        for _ in range(times):
            has = left >= size
            found = np.where(has, step(found, _read(data, np.where(has, at, 0), size)), found)
            at, left = np.where(has, at + size, at), np.where(has, left - size, left)
    return _mixed(found)


def _striped(data: npt.NDArray[np.uint8], start: Int64s, stripes: Int64s, seed: Words) -> Words:
    lanes = [seed + _P1 + _P2, seed + _P2, seed.copy(), seed - _P1]
    left, number = np.flatnonzero(stripes), 0
    # A long value takes a step per stripe: of the values that have one, not of all.
    while len(left):
        for lane, found in enumerate(lanes):
            word = _read(data, start[left] + number * _STRIPE + lane * _WORD, _WORD)
            found[left] = _rounded(found[left], word)
        number += 1
        left = left[stripes[left] > number]
    one, two, three, four = lanes
    found = _rotated(one, 1) + _rotated(two, 7) + _rotated(three, 12) + _rotated(four, 18)
    for each in lanes:
        found = (found ^ _rounded(np.zeros_like(each), each)) * _P1 + _P4
    return found


def _bytes_of(values: Array) -> tuple[npt.NDArray[np.uint8], Int64s, Int64s]:
    _, ends, data = values.buffers()
    if ends is None or not len(values):
        nothing = np.zeros(len(values), np.int64)
        return np.zeros(_WORD, np.uint8), nothing, nothing
    # A slice has the buffers of the whole array, and an offset into them.
    offsets = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    # a copy with padding: reads of eight bytes may pass the end of the last value
    own = np.zeros(last - first + _WORD, np.uint8)
    if data is not None:
        own[: last - first] = np.frombuffer(data, np.uint8)[first:last]
    return own, offsets[:-1] - first, np.diff(offsets)


def _read(data: npt.NDArray[np.uint8], at: Int64s, size: int) -> Words:
    """Read the `size` bytes from each of `at` as a little-endian number."""
    picked = np.zeros((len(at), _WORD), np.uint8)
    picked[:, :size] = data[at[:, None] + np.arange(size)]
    return picked.view("<u8").ravel().astype(np.uint64)


def _with_word(found: Words, word: Words) -> Words:
    return _rotated(found ^ _rounded(np.zeros_like(found), word), 27) * _P1 + _P4


def _with_half(found: Words, half: Words) -> Words:
    return _rotated(found ^ (half * _P1), 23) * _P2 + _P3


def _with_byte(found: Words, byte: Words) -> Words:
    return _rotated(found ^ (byte * _P5), 11) * _P1


def _rounded(lane: Words, word: Words) -> Words:
    return _rotated(lane + word * _P2, 31) * _P1


def _rotated(values: Words, by: int) -> Words:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))


def _mixed(values: Words) -> Words:
    values = (values ^ (values >> np.uint64(33))) * _P2
    values = (values ^ (values >> np.uint64(29))) * _P3
    return values ^ (values >> np.uint64(32))
