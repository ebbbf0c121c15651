"""Input data: Parquet files of (k string, v long, seq long), every file one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "k string, v long, seq long"


def write_files(folder: Path, files: int, rows: int | Sequence[int], keys: int, seed: int = 1) -> Path:
    """Write `files` files of `rows` rows (a sequence of row counts is cycled through) over `keys` uniformly distributed keys."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    sizes = cycle([rows] if isinstance(rows, int) else rows)
    end = 0
    for number, size in zip(range(files), sizes, strict=False):
        names = np.char.add("k", random.integers(0, keys, size).astype(str))
        seq = np.arange(end, end + size)
        end += size
        table = pa.table({"k": pa.array(names.tolist()), "v": random.integers(0, 100, size), "seq": seq})
        pq.write_table(table, folder / f"f{number:05d}.parquet")
    return folder


def write_every_key(folder: Path, keys: int, rows_per_file: int) -> Path:
    """Write every key once, to fill a state of `keys` keys."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, keys, rows_per_file)):
        seq = np.arange(start, min(keys, start + rows_per_file))
        table = pa.table({"k": pa.array([f"k{each}" for each in seq]), "v": np.ones(len(seq), np.int64), "seq": seq})
        pq.write_table(table, folder / f"a{number:05d}.parquet")
    return folder
