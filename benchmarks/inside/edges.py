"""What an edge between two stages costs over one query: rows per second of the last stage, and how long a row is on its way.

Run: python -m benchmarks.inside.edges [--rounds 3] [--seconds 20]. Both shapes have the same two running sums over 10,000 keys.
Rates: endless rows, a sink that forgets; the two take turns in one session on two cores, so the stages share the cores
that the one query has alone. Latency: a paced input of 1,000 rows/s and a Delta table, from the row's own time to the
commit of the table's version that shows it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from deltalake import DeltaTable
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from spark_ckpt_delta import DeltaSink

import spark_ckpt as ckpt
from benchmarks.inside.endless import EndlessSource
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.run_rate import end_of_batch, rows_per_s
from benchmarks.inside.sessions import benchmark_session
from spark_ckpt.config import EVERY_BATCH
from spark_ckpt.connector import Cursor, Sink, Source

ROWS, KEYS, PACED_ROWS_PER_S, WARM_UP_S = 100_000, 10_000, 1_000, 20.0
INTERVALS = {"an epoch per batch": EVERY_BATCH, "an epoch every 5 s": "5 seconds"}
SHAPES = ("one query", "two stages")


@dataclass(frozen=True, slots=True)
class PacedSource:
    """Implements `spark_ckpt.connector.Source`: (k string, v long) by the clock, `v` its row's milliseconds. For one run only."""

    def check(self, spark: SparkSession) -> None: ...

    def start(self, spark: SparkSession) -> Cursor:
        return {"seconds": 0}

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        reader = spark.readStream.format("rate").option("rowsPerSecond", PACED_ROWS_PER_S).option("numPartitions", 2)
        return reader.load().selectExpr(f"concat('k', pmod(hash(value), {KEYS})) AS k", "unix_millis(timestamp) AS v")

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        return {"seconds": int(json.loads(offset))}

    def end(self, spark: SparkSession) -> Cursor:
        return {"seconds": 0}

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        return True

    def describe(self) -> Mapping[str, str]:
        return {"kind": "paced"}


@contextmanager
def running(
    spark: SparkSession, shape: str, store: Path, interval: object, source: Source, sink: Sink
) -> Iterator[ckpt.Run]:
    """Run the shape; yield the run of its last stage."""
    job = ckpt.Job(spark, "edges", store=str(store), interval=interval, key_groups=4)
    first = job.source("input", source).groupBy("k").agg("each row", "first", sums=ckpt.sum("v"))
    passed = first if shape == SHAPES[0] else first.through("hop", stage="last")
    passed.groupBy("k").agg("each row", "second", counts=ckpt.count()).to(sink, name="out")
    if shape == SHAPES[0]:
        run = job.start()
        try:
            yield run
        finally:
            run.stop()
        return
    stages = job.start_stages()
    try:
        yield stages.stages["last"]
    finally:
        stages.stop()


def rate(spark: SparkSession, shape: str, store: Path, interval: object, seconds: float) -> float:
    """Rows per second of the last stage, behind a warm-up."""
    source = EndlessSource(ROWS, f"pmod(hash(n), {KEYS})")
    with running(spark, shape, store, interval, source, NullSink()) as run:
        end_of_batch(run)
        time.sleep(min(WARM_UP_S, seconds))
        return rows_per_s(run, seconds)


def latency_ms(spark: SparkSession, shape: str, folder: Path, seconds: float) -> tuple[float, float, float]:
    """p50 and p99 from a row's own time to the commit that shows it, and the last stage's median batch, in ms."""
    table = folder / "table"
    with running(spark, shape, folder / "store", EVERY_BATCH, PacedSource(), DeltaSink(str(table))) as run:
        end_of_batch(run)
        time.sleep(WARM_UP_S)
        began_ms = time.time_ns() // 10**6
        time.sleep(seconds)
        took_ms = [float(str(dict(each["durationMs"])["batch"])) for each in run.recentProgress if each["numInputRows"]]  # type: ignore[arg-type]
    shown = [record for record in DeltaTable(str(table)).history() if record["timestamp"] > began_ms]
    waited = np.concatenate([record["timestamp"] - row_times(table, int(record["version"])) for record in shown])
    return float(np.percentile(waited, 50)), float(np.percentile(waited, 99)), statistics.median(took_ms)


def row_times(table: Path, version: int) -> NDArray[np.int64]:
    """Return the own times, in ms, of the rows that a version of the table added."""
    actions = map(json.loads, (table / "_delta_log" / f"{version:020}.json").read_text().splitlines())
    added = [pq.read_table(table / action["add"]["path"], columns=["v"]) for action in actions if "add" in action]
    return np.concatenate([rows["v"].to_numpy() for rows in added]) if added else np.empty(0, np.int64)


def told(values: list[float], form: str = ",.0f") -> str:
    """Median and range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main(rounds: int, seconds: float) -> None:
    """Print two Markdown tables."""
    logging.getLogger("spark_ckpt").setLevel(logging.ERROR)
    spark = benchmark_session()
    with tempfile.TemporaryDirectory() as name:
        folders = (Path(name) / str(number) for number in itertools.count())
        print("| rows/s, median (range) | one query | two stages | of one query |\n|---|---|---|---|")
        for text, interval in INTERVALS.items():
            found: dict[str, list[float]] = {shape: [] for shape in SHAPES}
            for _ in range(rounds):
                for shape in SHAPES:
                    found[shape].append(rate(spark, shape, next(folders), interval, seconds))
            one, two = (found[shape] for shape in SHAPES)
            shares = [stages / query for query, stages in zip(one, two, strict=True)]
            print(f"| {text} | {told(one)} | {told(two)} | {told(shares, '.2f')} |", flush=True)
        print("\n| ms, median (range) | p50 | p99 | batch of the last stage |\n|---|---|---|---|")
        for shape in SHAPES:
            rows = [latency_ms(spark, shape, next(folders), seconds) for _ in range(rounds)]
            print(f"| {shape} | {' | '.join(told(list(column)) for column in zip(*rows, strict=True))} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    main(options.rounds, options.seconds)
