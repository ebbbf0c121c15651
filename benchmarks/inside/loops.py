"""Cost of rows that pass a loop: an iteration against a micro-batch that gets the same rows from files.

Run: python -m benchmarks.inside.loops [--quick]. Source files, a null sink, a running sum over 10,000 keys. In the loop, the
rows of one file iterate. Two jobs are compared with it: one with the sums' sink alone, and one that writes the rows which would
iterate to a second sink, as the loop's close does. Prints the time between batches; ratios matter, absolute numbers belong to
this machine.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from benchmarks.inside.inputs import SCHEMA, write_files
from benchmarks.inside.null_sink import NullSink

KEYS = 10_000
WARM_BATCHES = 3
KINDS = ("files", "files to two sinks", "loop")


def job(spark: SparkSession, folder: Path, inbox: Path, kind: str, times: int) -> ckpt.Job:
    """A job with its own store: every file is a batch, or all rows of one file iterate `times` times."""
    name = kind.replace(" ", "_")
    made = ckpt.Job(spark, name, str(folder / f"store-{name}"), interval="1 hour", local_dir=folder)
    rows = made.source("in", FilesSource(str(inbox), "parquet", SCHEMA, maxFilesPerTrigger=1))
    numbered = rows.withColumn("round", F.lit(1))
    if kind == "files":
        _sums(rows).to(NullSink(), name="out")
    elif kind == "loop":
        loop = made.feedback("loop", f"{_ddl(rows)}, round int")
        loop.close(_onward(_sums(numbered.union(loop)).to(NullSink(), name="out"), times, loop.columns))
    else:
        _onward(_sums(numbered).to(NullSink(), name="out"), times, numbered.columns).to(NullSink(), name="on")
    return made


def _onward(sums: ckpt.Stream, times: int, columns: Sequence[str]) -> ckpt.Stream:
    """Rows of the next iteration."""
    return sums.filter(f"round < {times}").withColumn("round", F.expr("round + 1")).select(*columns)


def _sums(rows: ckpt.Stream) -> ckpt.Stream:
    return rows.groupBy("k").agg("each row", "sums", total=ckpt.sum("v"))


def _ddl(rows: ckpt.Stream) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema.fields)


def between_batches_ms(run: ckpt.Run) -> float:
    """Median of the time from one warm batch's end to the next one's."""
    ends = [datetime.fromisoformat(str(each["timestamp"])) for each in run.recentProgress]
    return median((later - earlier).total_seconds() * 1000 for earlier, later in pairwise(ends[WARM_BATCHES:-1]))


def measured(spark: SparkSession, folder: Path, inbox: Path, kind: str, times: int) -> float:
    """Milliseconds between batches."""
    run = job(spark, folder, inbox, kind, times).start(availableNow=True)
    run.awaitTermination()
    return between_batches_ms(run)


def main() -> None:
    quick = "--quick" in sys.argv
    rows, times, rounds = (50_000, 8, 1) if quick else (300_000, 20, 3)
    spark = ckpt.session("loops", master="local[2]", conf={"spark.ui.enabled": "false"})
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    try:
        for number in range(rounds):
            with tempfile.TemporaryDirectory() as place:
                many = write_files(Path(place) / "many", times, rows, KEYS, number)
                one = write_files(Path(place) / "one", 1, rows, KEYS, number)
                for kind in KINDS if number % 2 else reversed(KINDS):
                    found[kind].append(measured(spark, Path(place), one if kind == "loop" else many, kind, times))
    finally:
        spark.stop()
    batch = median(found["files"])
    print("| rows from | a batch, ms | of a batch of files |")
    print("|---|---:|---:|")
    for kind in KINDS:
        print(f"| {kind} | {median(found[kind]):.0f} | {median(found[kind]) / batch:.2f} |")


if __name__ == "__main__":
    main()
