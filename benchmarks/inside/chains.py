"""What a second and a third operator cost behind a first one: per record, and per idle epoch.

Run: python -m benchmarks.inside.chains [--quick]. Files to nowhere, running sums over 10,000 keys, all in one query. Prints a
table; ratios matter, absolute numbers are this machine's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from benchmarks.inside.inputs import SCHEMA, write_files
from benchmarks.inside.null_sink import NullSink

KEYS, LENGTHS = 10_000, (0, 1, 2, 3)
WARM_BATCHES = 3


def chain(rows: ckpt.Stream, length: int) -> ckpt.Stream:
    """`length` running sums, each of the one before."""
    for number in range(length):
        rows = (
            rows.groupBy("k").agg("append", f"sums{number}", total=ckpt.sum("v")).select("k", F.col("total").alias("v"))
        )
    return rows


def job(spark: SparkSession, folder: Path, inbox: Path, length: int) -> ckpt.Job:
    """A job of its own store, whose every file is a batch."""
    made = ckpt.Job(spark, f"chain{length}", str(folder / f"store{length}"), interval="1 hour", local_dir=folder)
    source = FilesSource(str(inbox), "parquet", SCHEMA, files_per_batch=1)
    chain(made.source("in", source), length).to(NullSink(), name="out")
    return made


def batch_ms(run: ckpt.Run) -> float:
    """Median of the warm batches with rows."""
    batches = [each for each in run.recentProgress if each["numInputRows"]][WARM_BATCHES:]
    return median(float(each["durationMs"]["batch"]) for each in batches)  # type: ignore[index, call-overload, arg-type]


def idle_epoch_ms(run: ckpt.Run, times: int) -> float:
    """Median from asking for an epoch to its commit, without any row."""
    took = []
    for number in range(times):
        began_s = time.monotonic()
        run.savepoint(f"idle-{number}")
        took.append((time.monotonic() - began_s) * 1000)
    return median(took)


def measured(spark: SparkSession, folder: Path, inbox: Path, length: int, epochs: int) -> tuple[float, float]:
    """ms of a batch, and of an idle epoch behind it."""
    made = job(spark, folder, inbox, length)
    drained = made.start(availableNow=True)
    drained.awaitTermination()
    run = made.start()
    try:
        return batch_ms(drained), idle_epoch_ms(run, epochs)
    finally:
        run.stop()


def told(found: Mapping[int, list[tuple[float, float]]]) -> None:
    """The table."""
    batches = {length: median(batch for batch, _ in each) for length, each in found.items()}
    idle = {length: median(epoch for _, epoch in each) for length, each in found.items()}
    first = batches[1] - batches[0]
    print("| operators | batch, ms | what the last one costs, of the first | idle epoch, ms | of one operator's |")
    print("|---:|---:|---:|---:|---:|")
    for length in found:
        share = f"{(batches[length] - batches[length - 1]) / first:.0%}" if length else ""
        print(f"| {length} | {batches[length]:.0f} | {share} | {idle[length]:.0f} | {idle[length] / idle[1]:.2f} |")


def main() -> None:
    quick = "--quick" in sys.argv
    rows, files, rounds, epochs = (50_000, 6, 1, 3) if quick else (300_000, 12, 3, 9)
    spark = ckpt.session("chains", master="local[2]", conf={"spark.ui.enabled": "false"})
    found: dict[int, list[tuple[float, float]]] = {length: [] for length in LENGTHS}
    try:
        for number in range(rounds):
            with tempfile.TemporaryDirectory() as place:
                inbox = write_files(Path(place) / "in", files, rows, KEYS, number)
                for length in LENGTHS:
                    found[length].append(measured(spark, Path(place), inbox, length, epochs))
    finally:
        spark.stop()
    told(found)


if __name__ == "__main__":
    main()
