"""What epochs cost: the same job with an epoch every 5 seconds and with none but the last, in turn.

Rows per second over the warm batches.  Also the epochs' length, from the log.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from benchmarks.inside.inputs import SCHEMA, write_files
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.sessions import BatchTimes, benchmark_session

ROWS, KEYS, FILES, PAIRS = 200_000, 10_000, 30, 3


def rate(spark: SparkSession, folder: Path, store: Path, interval: str) -> tuple[float, list[int]]:
    """Rows per second of the warm part, and the epochs' lengths in ms."""
    times = BatchTimes(spark)
    job = ckpt.Job(spark, "epochs", store=str(store), interval=interval, key_groups=16)
    source = job.source("input", FilesSource(str(folder), "parquet", SCHEMA, files_per_batch=1))
    source.groupBy("k").agg("append", total=ckpt.sum("v"), n=ckpt.count()).to(NullSink())
    run = job.start(availableNow=True)
    run.awaitTermination()
    warm = [ms for rows, ms in times.batches if rows >= ROWS][4:]
    everything_ms = sum(ms for rows, ms in times.batches[4:])
    lengths = [brief.duration_ms for brief in run.epochs() if brief.reason == "interval"]
    shutil.rmtree(store)
    return ROWS * len(warm) / everything_ms * 1000, lengths


def main() -> list[str]:
    """Rows of a Markdown table."""
    spark = benchmark_session()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = write_files(work / "in", FILES, ROWS, KEYS)
        ratios, lengths, rates = [], [], []
        for _ in range(PAIRS):
            without, _ = rate(spark, folder, work / "off", "1 hour")
            with_epochs, taken = rate(spark, folder, work / "on", "5 seconds")
            ratios.append(with_epochs / without)
            rates.append(with_epochs)
            lengths += taken
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
    return [
        "| epochs every 5 s against none | |",
        "|---|---|",
        f"| throughput ratio, median of {PAIRS} pairs | **{statistics.median(ratios):.2f}** ({spread}) |",
        f"| rows/s with epochs, median | {statistics.median(rates):,.0f} |",
        f"| barrier offered to manifest committed, median | {statistics.median(lengths) if lengths else 0:.0f} ms |",
    ]


if __name__ == "__main__":
    print("\n".join(main()))
