"""A store in memory, rows with hashes, and a key group that runs batch by batch, for the tests of operators."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa

from spark_ckpt.epochs.records import StateRange
from spark_ckpt.tasks.rows import KEY_HASH, StateSchema
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.tasks.state.levels import LevelCache, OpenLevels, RangeRef


class MemoryStore:
    """State files by path, counting reads."""

    def __init__(self) -> None:
        self.files: dict[str, pa.Table] = {}
        self.reads: list[str] = []

    def read_range(self, file: RangeRef, rows: int, columns: Sequence[str] | None = None, **where: object) -> pa.Table:
        self.reads.append(file.path)
        return self.files[file.path]


def spread(key: object) -> int:
    """A hash of any key that is the same in each process; NaN and -0.0 as Spark's xxhash64 treats them."""
    canonical = tuple(0.0 if part == 0 else part for part in key) if isinstance(key, tuple) else key
    return (crc32(repr(canonical).encode()) * 0x9E3779B1) % (1 << 62)


def colliding(key: object) -> int:
    """A hash that is nearly always the same for different keys."""
    return spread(key) % 3


def with_hash(table: pa.Table, names: Sequence[str], hasher: Callable[[object], int] = spread) -> pa.Table:
    keys = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return table.append_column(KEY_HASH, pa.array([hasher(key) for key in keys], pa.int64()))


def hashes_of(keys: pa.Table, hasher: Callable[[object], int] = spread) -> np.ndarray:
    return with_hash(keys, keys.column_names, hasher).column(KEY_HASH).to_numpy()


OPENED: OpenLevels = OpenLevels()
"""The levels that this worker has open. A test clears it to simulate another worker."""


def cache_of(
    schema: StateSchema, folder: Path, store: MemoryStore | None = None, beside: Path | None = None
) -> LevelCache:
    return LevelCache(folder, store or MemoryStore(), schema, opened=OPENED, earlier=beside)


def group_of(schema: StateSchema, folder: Path, store: MemoryStore | None = None, key_group: int = 0) -> KeyGroupState:
    return KeyGroupState(schema, cache_of(schema, folder, store), key_group)


def snapshot(group: KeyGroupState, store: MemoryStore, epoch: int, full: bool = False) -> bool:
    """Capture and store as the stage does; return whether there was anything to write."""
    capture = group.capture_full(epoch) if full else group.capture(epoch)
    if capture is None:
        return False
    path = f"e{epoch}-{uuid.uuid4().hex}.parquet"
    store.files[path] = capture.table
    group.captured(path, StateRange(group.key_group, capture.table.num_rows, 0, capture.table.nbytes))
    return True
