"""Chooses the partition of each row as Kafka's Java client does, so that a key stays where other producers put it."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow.compute as pc

from spark_ckpt_kafka.record_batches import Chunk, Column
from spark_ckpt_kafka.record_rules import Int64s, numbers_of

UInt32s: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"

_SEED, _FACTOR = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFFFFFF)
_FEW = 100
"""Number of keys up to which hashing one after the other is faster than a word of each at a time."""


class UnknownPartition(ValueError):
    """A row names a partition that its topic does not have."""


def choose_partitions(chunk: Chunk, count: int, keyless: int) -> Int64s:
    """Return the partition of each row of a topic with `count` partitions.

    A row's own partition comes first, then the hash of its key; rows with neither go to `keyless`. Raises
    `UnknownPartition`.
    """
    key, own = chunk.column("key"), chunk.column("partition")
    chosen = np.full(len(chunk), keyless, np.int64)
    if key is not None:
        # Java clears the sign bit (`Utils.toPositive`); the absolute value would be another partition.
        hashed = (hash_keys(key) & _POSITIVE).astype(np.int64) % count
        chosen = np.where(pc.is_valid(key).to_numpy(zero_copy_only=False), hashed, chosen)
    if own is not None:
        named = numbers_of(pc.fill_null(own, -1))
        has = pc.is_valid(own).to_numpy(zero_copy_only=False)
        wrong = has & ((named < 0) | (named >= count))
        if wrong.any():
            raise UnknownPartition(f"topic {chunk.topic} has no partition {named[wrong][0]}")
        chosen = np.where(has, named, chosen)
    return chosen


def hash_keys(keys: Column) -> UInt32s:
    """Return MurmurHash2 of each key, with the seed of Kafka's Java client. The hash of null means nothing."""
    _, ends, data = keys.buffers()
    offsets = np.frombuffer(ends, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    # Four zero bytes: a word that begins at the last key's end can be read.
    content = np.frombuffer(b"".join((data or b"", bytes(4))), np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    words = lengths >> 2
    hashed = _SEED ^ lengths.astype(np.uint32)
    # Every key has these words, so that no key has to be chosen.
    number = int(words.min()) if len(words) > _FEW else 0
    for at in range(number):
        hashed = (hashed * _FACTOR) ^ _mixed(_word(content, starts + 4 * at))
    left = np.flatnonzero(words > number)
    while len(left) > _FEW:
        word = _mixed(_word(content, starts[left] + 4 * number))
        hashed[left] = (hashed[left] * _FACTOR) ^ word
        number += 1
        left = left[words[left] > number]
    # A step costs the same for one key as for some dozens: a single key of 1 MiB would take seconds.
    for row in left.tolist():
        hashed[row] = _after_words(int(hashed[row]), content[starts[row] + 4 * number : starts[row] + 4 * words[row]])
    rest = lengths & 3
    # The word that begins with the rest has bytes of the next key, too: the mask clears them.
    last = _word(content, starts + 4 * words) & ((np.uint32(1) << (8 * rest).astype(np.uint32)) - np.uint32(1))
    hashed = np.where(rest > 0, (hashed ^ last) * _FACTOR, hashed)
    hashed ^= hashed >> np.uint32(13)
    hashed *= _FACTOR
    return hashed ^ (hashed >> np.uint32(15))


def _after_words(hashed: int, content: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """Return a key's hash after these words, from its hash before them."""
    factor = int(_FACTOR)
    for word in _mixed(np.frombuffer(content.tobytes(), "<u4")).tolist():
        # Python's integers do not overflow, numpy's do.
        hashed = (hashed * factor & 0xFFFFFFFF) ^ word
    return hashed


def _word(content: np.ndarray[Any, np.dtype[np.uint8]], at: Int64s) -> UInt32s:
    """Return four bytes from each place on, little-endian."""
    word = content[at].astype(np.uint32)
    for byte in (1, 2, 3):
        word |= content[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _mixed(word: UInt32s) -> UInt32s:
    word = word * _FACTOR
    word ^= word >> np.uint32(24)
    return word * _FACTOR
