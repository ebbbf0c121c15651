"""Operators without Spark: CPU per batch of 100,000 rows over 16 key groups, and its growth with the state.

Run: python benchmarks/operators.py [--quick]. Prints a table; ratios matter, absolute numbers are this machine's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import LongType, StringType, StructField, StructType

import spark_ckpt.tasks.operators.aggregations as agg
from spark_ckpt.epochs.records import StateRange
from spark_ckpt.tasks.blobs import outputs_to_blobs
from spark_ckpt.tasks.operators.keyed_function import KeyedFunction
from spark_ckpt.tasks.operators.operator import Clock, KeyedOperator
from spark_ckpt.tasks.operators.vectorized import KeyBatch, KeyResult, VectorizedOperator
from spark_ckpt.tasks.packing import pack, unpack_ordered
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.tasks.state.levels import LevelCache, RangeRef

GROUPS = 16
ROW = StructType([StructField("k", StringType()), StructField("v", LongType())])
STATE = StructType([StructField("total", LongType()), StructField("rows", LongType())])
OUT = StructType([StructField("k", StringType()), StructField("total", LongType())])


class Store:
    """State files in memory."""

    def __init__(self) -> None:
        self.files: dict[str, pa.Table] = {}

    def read_range(self, file: RangeRef, rows: int, columns: Sequence[str] | None = None, **where: object) -> pa.Table:
        return self.files[file.path]


@dataclass
class Job:
    """Sixteen key groups under one operator."""

    operator: KeyedOperator
    folder: Path
    store: Store = field(default_factory=Store)
    states: dict[int, bytes] = field(default_factory=dict)

    def group(self, number: int) -> KeyGroupState:
        cache = LevelCache(self.folder, self.store, self.operator.schema)
        if number in self.states:
            return KeyGroupState.decode(self.states[number], self.operator.schema, cache, number)
        return KeyGroupState(self.operator.schema, cache, number)

    def batch(self, frames: dict[int, pd.DataFrame]) -> None:
        for number, frame in frames.items():
            group = self.group(number)
            outputs_to_blobs(self.operator.process(unpack_ordered([frame]).rows, group, Clock(0)))
            self.states[number] = group.encode()

    def snapshot(self, epoch: int) -> None:
        for number in self.states:
            group = self.group(number)
            capture = group.capture(epoch)
            if capture is not None:
                path = f"{number}-{epoch}"
                self.store.files[path] = capture.table
                group.captured(path, StateRange(number, capture.table.num_rows, 0, capture.table.nbytes))
            self.states[number] = group.encode()


def batches(rows: int, keys: np.ndarray, seed: int) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(seed)
    chosen = keys[rng.integers(0, len(keys), rows)]
    hashes = (chosen.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    table = pa.table(
        {
            "k": pa.array(np.char.add("customer-", chosen.astype(str))),
            "v": rng.integers(0, 100, rows),
            "ckpt_key_hash": hashes,
        }
    )
    yield from table.to_batches(max_chunksize=10_000)


def packed(rows: int, keys: np.ndarray, seed: int) -> dict[int, pd.DataFrame]:
    frame = pd.concat([batch.to_pandas() for batch in pack(batches(rows, keys, seed), 0, GROUPS)])
    return {int(group): part for group, part in frame.groupby("ckpt_key_group")}


def yields_tuple(
    key: tuple[object, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[tuple[object, ...]]:
    state.update((1, 2))
    yield (key[0], 1)


def reads_frame(
    key: tuple[object, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[tuple[object, ...]]:
    rows = sum(len(frame) for frame in frames)
    state.update((1, rows))
    yield (key[0], rows)


def sums_frame(key: tuple[object, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    total, rows = state.getOption or (0, 0)
    for frame in frames:
        total, rows = total + int(frame["v"].sum()), rows + len(frame)
    state.update((total, rows))
    yield pd.DataFrame({"k": [key[0]], "total": [total]})


def vectorised(batch: KeyBatch) -> KeyResult:
    running = batch.cumulative_sum(batch.values("v"), batch.state_values("total"))
    rows = batch.cumulative_count(batch.state_values("rows"))
    state = pa.table({"total": batch.last_per_key(running), "rows": batch.last_per_key(rows)})
    return KeyResult(pa.table({"k": batch.rows.column("k"), "total": running}), state)


def operators() -> dict[str, Callable[[], KeyedOperator]]:
    two = {"n": agg.count(), "total": agg.sum("v")}
    six = two | {"mean": agg.mean("v"), "least": agg.min("v"), "most": agg.max("v"), "latest": agg.last("v")}
    return {
        "aggregates: 2, update": lambda: agg.RunningAggregates(two, ROW, ["k"], "update"),
        "aggregates: 2, each row": lambda: agg.RunningAggregates(two, ROW, ["k"], "each row"),
        "aggregates: 6, each row": lambda: agg.RunningAggregates(six, ROW, ["k"], "each row"),
        "vectorised function": lambda: VectorizedOperator(vectorised, ROW, ["k"], OUT, STATE),
        "keyed: tuples, frame untouched": lambda: KeyedFunction(yields_tuple, ROW, ["k"], OUT, STATE),
        "keyed: tuples, frame read": lambda: KeyedFunction(reads_frame, ROW, ["k"], OUT, STATE),
        "keyed: frame summed, frame out": lambda: KeyedFunction(sums_frame, ROW, ["k"], OUT, STATE),
    }


def cpu_ms(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3


def per_batch(job: Job, rows: int, keys: np.ndarray, rounds: int) -> float:
    """Median CPU of a batch; a snapshot follows each batch."""
    times = []
    for seed in range(rounds + 1):
        frames = packed(rows, keys, seed)
        times.append(cpu_ms(lambda frames=frames: job.batch(frames)))
        job.snapshot(seed + 1000)
    return float(np.median(times[1:]))


def by_operator(rounds: int) -> None:
    print(f"100,000 rows, 10,000 keys, {GROUPS} key groups: CPU per batch")
    arrived = [list(batches(100_000, np.arange(10_000), seed)) for seed in range(rounds)]
    pack_ms = np.median([cpu_ms(lambda batch=batch: list(pack(batch, 0, GROUPS))) for batch in arrived])
    print(f"  {'pack (before the shuffle)':34s} {pack_ms:8.1f} ms")
    for name, operator in operators().items():
        with tempfile.TemporaryDirectory() as folder:
            took = per_batch(Job(operator(), Path(folder)), 100_000, np.arange(10_000), rounds)
        print(f"  {name:34s} {took:8.1f} ms {took / 10_000 * 1e3:8.1f} us per key")


def by_state(rounds: int, sizes: tuple[int, ...]) -> None:
    print("\n100,000 rows over 10,000 keys of a state of N keys (2 aggregates, each row): CPU per batch")
    first = 0.0
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(operators()["aggregates: 2, each row"](), Path(folder))
            for start in range(0, size, 100_000):
                job.batch(packed(200_000, np.arange(start, min(start + 100_000, size)), start))
            job.snapshot(1)
            took = per_batch(job, 100_000, np.random.default_rng(1).permutation(size)[:10_000], rounds)
            value = sum(map(len, job.states.values())) / GROUPS
        first = first or took
        print(f"  {size:10,d} keys {took:8.1f} ms  x{took / first:.2f}  Spark state per group {value:9,.0f} bytes")


def main() -> None:
    quick = "--quick" in sys.argv
    by_operator(3 if quick else 9)
    by_state(3 if quick else 9, (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000))


if __name__ == "__main__":
    main()
