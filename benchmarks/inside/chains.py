"""Cost of a second and a third operator after a first one: per record, and per idle epoch.

Run: python -m benchmarks.inside.chains [--quick]. Source files, a null sink, running sums over 10,000 keys, all in one query.
Small and large batches take turns: the slope between them is the cost of a record, both contain the fixed cost of a batch. Each
round measures the lengths in another order, since Java gets faster for minutes. Prints a table; ratios matter, absolute numbers
belong to this machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from benchmarks.inside.inputs import SCHEMA, write_files
from benchmarks.inside.null_sink import NullSink

KEYS, LENGTHS = 10_000, (0, 1, 2, 3)
WARM_BATCHES = 4


class Measured(NamedTuple):
    """One drain and the idle epochs after it: ms of a small and of a large batch, of an idle epoch; us of a record."""

    small_ms: float
    large_ms: float
    record_us: float
    idle_ms: float


def chain(rows: ckpt.Stream, length: int) -> ckpt.Stream:
    """`length` running sums, each of the one before."""
    for number in range(length):
        rows = (
            rows.groupBy("k")
            .agg("each row", f"sums{number}", total=ckpt.sum("v"))
            .select("k", F.col("total").alias("v"))
        )
    return rows


def job(spark: SparkSession, folder: Path, inbox: Path, length: int) -> ckpt.Job:
    """A job with its own store; every file is a batch."""
    made = ckpt.Job(spark, f"chain{length}", str(folder / f"store{length}"), interval="1 hour", local_dir=folder)
    source = FilesSource(str(inbox), "parquet", SCHEMA, maxFilesPerTrigger=1)
    chain(made.source("in", source), length).to(NullSink(), name="out")
    return made


def batches_ms(run: ckpt.Run, rows: int) -> float:
    """Median duration of the warm batches with this many rows."""
    batches = [each for each in run.recentProgress if each["numInputRows"]][WARM_BATCHES:]
    return median(float(each["durationMs"]["batch"]) for each in batches if each["numInputRows"] == rows)  # type: ignore[index, call-overload, arg-type]


def idle_epoch_ms(run: ckpt.Run, times: int) -> float:
    """Median time from a requested epoch to its commit, without any row."""
    took = []
    for number in range(times):
        began_s = time.monotonic()
        run.savepoint(f"idle-{number}")
        took.append((time.monotonic() - began_s) * 1000)
    return median(took)


def measured(
    spark: SparkSession, folder: Path, inbox: Path, length: int, sizes: tuple[int, int], epochs: int
) -> Measured:
    """Measure a chain of `length` operators in batches of each of `sizes`, then `epochs` idle epochs."""
    made = job(spark, folder, inbox, length)
    drained = made.start(availableNow=True)
    drained.awaitTermination()
    small_ms, large_ms = (batches_ms(drained, rows) for rows in sizes)
    run = made.start()
    try:
        idle_ms = idle_epoch_ms(run, epochs)
    finally:
        run.stop()
    return Measured(small_ms, large_ms, (large_ms - small_ms) * 1000 / (sizes[1] - sizes[0]), idle_ms)


def print_table(found: Mapping[int, list[Measured]]) -> None:
    """Print the table."""
    middle = {length: Measured(*map(median, zip(*each, strict=True))) for length, each in found.items()}
    first_us = middle[1].record_us - middle[0].record_us
    print(
        "| operators | small batch, ms | large, ms | record, us | the last's, of the first's | idle epoch, ms | of one's |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for length, each in middle.items():
        share = f"{(each.record_us - middle[length - 1].record_us) / first_us:.0%}" if length else ""
        print(
            f"| {length} | {each.small_ms:.0f} | {each.large_ms:.0f} | {each.record_us:.2f} | {share}"
            f" | {each.idle_ms:.0f} | {each.idle_ms / middle[1].idle_ms:.2f} |"
        )


def main() -> None:
    """Measure and print."""
    quick = "--quick" in sys.argv
    sizes, files, rounds, epochs = ((20_000, 50_000), 8, 1, 3) if quick else ((100_000, 500_000), 16, 4, 7)
    spark = ckpt.session("chains", master="local[2]", conf={"spark.ui.enabled": "false"})
    found: dict[int, list[Measured]] = {length: [] for length in LENGTHS}
    try:
        for number in range(rounds):
            order = LENGTHS[number % len(LENGTHS) :] + LENGTHS[: number % len(LENGTHS)]
            with tempfile.TemporaryDirectory() as place:
                inbox = write_files(Path(place) / "in", files, sizes, KEYS, number)
                for length in order:
                    found[length].append(measured(spark, Path(place), inbox, length, sizes, epochs))
    finally:
        spark.stop()
    print_table(found)


if __name__ == "__main__":
    main()
