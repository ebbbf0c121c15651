"""Cost of a job over the plain query, for a window aggregation of Spark itself: in turns, each ratio of two neighbours.

Both read the same endless rows and compute the same windows; the plain query writes to `noop`, the job to a null sink. 10,000
keys on the HDFS-backed store, a million on RocksDB with a changelog. The job commits an epoch per batch, which is the plain
query's own interval of checkpoints, or one every 5 seconds. Wall-clock times include other work on the machine, so processor
time per row is reported too. Restarts: from the start of a process, whose predecessor was killed, to the end of its first
batch; both create the same Spark session.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_ckpt as ckpt
from benchmarks.inside.endless import EndlessSource
from benchmarks.inside.metrics import Rate, used_s
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.sessions import benchmark_session, median_and_spread
from spark_ckpt.config import EVERY_BATCH

ROUNDS, WINDOW_S = 3, 20.0
_STORE = "spark.sql.streaming.stateStore"
ROCKSDB = {
    f"{_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}
INTERVALS = {"an epoch per batch": EVERY_BATCH, "an epoch every 5 s": "5 seconds"}
POLL_S = 0.02


@dataclass(frozen=True)
class Setup:
    """One kind of state. `rows`: rows per batch."""

    name: str
    keys: int
    rows: int
    settings: Mapping[str, str]


SETUPS = (
    Setup("10k keys, HDFS-backed", 10_000, 100_000, {}),
    Setup("1M keys, RocksDB, changelog", 10**6, 200_000, ROCKSDB),
)


def windows(frame: DataFrame) -> DataFrame:
    """Count and sum by key and minute of the rows' own time: 10,000 rows are a second."""
    timed = frame.withColumn("at", F.timestamp_millis((F.col("n") / 10).cast("long"))).withWatermark("at", "10 seconds")
    counted = timed.groupBy("k", F.window("at", "1 minute")).agg(F.count("*").alias("n"), F.sum("v").alias("v"))
    return counted.selectExpr("k", "window.start AS start", "n", "v")


@dataclass(frozen=True, slots=True)
class NumberedSource(EndlessSource):
    """The same rows with their numbers."""

    def read(self, spark: SparkSession, cursor: Mapping[str, object]) -> DataFrame:  # type: ignore[override]
        """As `EndlessSource.read`, with the column `n`."""
        reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.rows_per_batch)
        reader = reader.option("startTimestamp", str(cursor["rows"]))
        reader = reader.option("advanceMillisPerBatch", self.rows_per_batch).option("numPartitions", 2)
        numbers = reader.load().selectExpr(f"value + {cursor['rows']}L AS n")
        return numbers.selectExpr(f"concat('k', {self.key}) AS k", "n % 100 AS v", "n")


def source_of(setup: Setup) -> NumberedSource:
    """Return the input of both."""
    return NumberedSource(setup.rows, f"pmod(hash(n), {setup.keys})")


Rows = Callable[[], int]
"""Rows of all batches that have ended."""


@contextmanager
def plain(spark: SparkSession, setup: Setup, folder: Path) -> Iterator[Rows]:
    """Run the plain query; yield its count of rows."""
    frame = windows(source_of(setup).read(spark, {"rows": 0}))
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder)).start()
    seen: dict[int, int] = {}

    def rows() -> int:
        for record in query._jsq.recentProgress():
            found = json.loads(record.json())
            seen[found["batchId"]] = found["numInputRows"]
        return sum(seen.values())

    try:
        yield rows
    finally:
        query.stop()


@contextmanager
def job(spark: SparkSession, setup: Setup, folder: Path, interval: object) -> Iterator[Rows]:
    """Run the job; yield its count of rows."""
    made = ckpt.Job(spark, "windows", store=str(folder), interval=interval, key_groups=2)
    made.source("input", source_of(setup)).transform(windows).to(NullSink())
    run = made.start()

    def rows() -> int:
        last = run.lastProgress
        return 0 if last is None else int(str(dict(last["totals"])["numInputRows"]))  # type: ignore[call-overload]

    try:
        yield rows
    finally:
        run.stop()


KINDS: Mapping[str, Callable[[SparkSession, Setup, Path], AbstractContextManager[Rows]]] = {
    "job": partial(job, interval=EVERY_BATCH),
    "plain": plain,
}
ENDED = b"ended"


def next_end(rows: Rows) -> tuple[float, int]:
    """Return the moment at which the next batch has ended, and the rows up to then."""
    known = found = rows()
    while found == known:
        time.sleep(POLL_S)
        found = rows()
    return time.monotonic(), found


def rate(rows: Rows, seconds: float) -> Rate:
    """Measure between two ends of batches, after two batches of warm-up."""
    next_end(rows)
    began_s, before = next_end(rows)
    used = used_s()
    time.sleep(max(0.0, began_s + seconds - time.monotonic()))
    ended_s, after = next_end(rows)
    per_s = (after - before) / (ended_s - began_s)
    return Rate(per_s, 1e6 * (used_s() - used) / (after - before))


def compare(spark: SparkSession, setup: Setup, folder: Path, rounds: int, seconds: float) -> Iterator[str]:
    """Yield a row of the table per interval."""
    numbers = itertools.count()
    clock: dict[str, list[float]] = {name: [] for name in INTERVALS}
    cpu: dict[str, list[float]] = {name: [] for name in INTERVALS}
    for _ in range(rounds):
        with plain(spark, setup, folder / str(next(numbers))) as rows:
            native = rate(rows, seconds)
        for name, interval in INTERVALS.items():
            with job(spark, setup, folder / str(next(numbers)), interval) as rows:
                ours = rate(rows, seconds)
            clock[name].append(native.rows_per_s / ours.rows_per_s)
            cpu[name].append(ours.cpu_s / native.cpu_s)
    for name in INTERVALS:
        yield f"| {setup.name}, {name} | {median_and_spread(clock[name], 2)} | {median_and_spread(cpu[name], 2)} |"


def until_batch(kind: str, number: int, folder: Path, batches: int) -> float:
    """Run a driver in its own process and kill it. Return seconds from its start to the end of `batches` batches."""
    command = [sys.executable, "-m", "benchmarks.inside.sparks_windows", "--driver", kind, "--folder", str(folder)]
    command += ["--setup", str(number), "--batches", str(batches)]
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as driver:
        assert driver.stdout is not None
        line = driver.stdout.readline()
        took_s = time.monotonic() - began_s
        os.killpg(driver.pid, signal.SIGKILL)
    assert line.strip() == ENDED, "the driver has failed"
    return took_s


def drive(kind: str, setup: Setup, folder: Path, batches: int) -> None:
    """Be that driver: print a line when the batches have ended, and wait for the kill."""
    with KINDS[kind](session_for(setup), setup, folder) as rows:
        for _ in range(batches):
            next_end(rows)
        os.write(1, ENDED + b"\n")
        signal.pause()


def restarts(number: int, folder: Path, rounds: int) -> str:
    """Return the row of the table about restarts: each continues a driver that was killed after three batches."""
    ratios, seconds = list[float](), list[float]()
    for turn in range(rounds):
        took: dict[str, float] = {}
        for kind in KINDS:
            until_batch(kind, number, folder / f"{kind}-{turn}", 3)
            took[kind] = until_batch(kind, number, folder / f"{kind}-{turn}", 1)
        ratios.append(took["job"] / took["plain"])
        seconds.append(took["job"])
    shown = f"{median_and_spread(seconds, 2)} s | {median_and_spread(ratios, 2)}"
    return f"| {SETUPS[number].name}, restart of the process to its first batch, {shown} | |"


def session_for(setup: Setup) -> SparkSession:
    """Return a session with the settings of a setup."""
    spark = benchmark_session()
    for key, value in setup.settings.items():
        spark.conf.set(key, value)
    return spark


def main(rounds: int, seconds: float, setups: list[int]) -> None:
    """Print a Markdown table of ratios, job over plain query."""
    print("| job over plain query, same rows and windows | time for a row, median (range) | processor time for a row |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for number in setups:
            print(restarts(number, Path(name) / f"restarts-{number}", rounds), flush=True)
        for number in setups:
            setup = SETUPS[number]
            for line in compare(session_for(setup), setup, Path(name) / str(number), rounds, seconds):
                print(line, flush=True)


if __name__ == "__main__":
    logging.getLogger("spark_ckpt").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=WINDOW_S)
    parser.add_argument("--setup", type=int, action="append", choices=range(len(SETUPS)))
    parser.add_argument("--driver", choices=KINDS, help="be a driver that the benchmark restarts")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--batches", type=int, default=1)
    options = parser.parse_args()
    if options.driver:
        drive(options.driver, SETUPS[options.setup[0]], options.folder, options.batches)
    else:
        main(options.rounds, options.seconds, options.setup or list(range(len(SETUPS))))
