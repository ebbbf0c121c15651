"""Restore of one million keys, and the driver's part of an epoch: commit time, memory.

A job fills the state and stops; a second run restores it. The restore ends when the first batch, which touches every key group,
has ended and a look-up in every group was answered. The driver's memory is its Python process's resident size, before and after.
"""

from __future__ import annotations

import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from benchmarks.inside.inputs import SCHEMA, write_every_key, write_files
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.sessions import benchmark_session
from spark_ckpt.store.existing import existing_store

KEYS, ROWS_PER_FILE = 1_000_000, 200_000


def run_over(spark: SparkSession, folder: Path, store: Path) -> tuple[ckpt.Run, float]:
    """Drain the folder; return the run and its duration in seconds."""
    job = ckpt.Job(spark, "restore", store=str(store), interval="5 seconds", key_groups=16)
    source = job.source("input", FilesSource(str(folder), "parquet", SCHEMA, maxFilesPerTrigger=1))
    source.groupBy("k").agg("each row", total=ckpt.sum("v"), n=ckpt.count()).to(NullSink())
    started_s = time.monotonic()
    run = job.start(availableNow=True)
    run.awaitTermination()
    return run, time.monotonic() - started_s


def batches_ms(run: ckpt.Run) -> list[int]:
    """Length of every batch's action."""
    return [int(str(record["durationMs"]["batch"])) for record in run.recentProgress]  # type: ignore[index]


def commit_ms(store: Path, repeats: int = 50) -> float:
    """Median milliseconds of one more commit to a store's log, with a manifest as large as the newest."""
    copy = store.with_name("commit-timing")
    shutil.copytree(store, copy)
    log = existing_store(str(copy)).log
    point = log.begin_incarnation(_new_owner(), "latest", 60_000, takeover=True)
    base, taken = point.manifest, []
    for number in range(repeats):
        epoch = point.last + 1 + number
        manifest = base.model_copy(
            update={"epoch": epoch, "base": epoch - 1 if number else base.epoch, "previous": epoch - 1, "attempt": f"a{number}",
                    "incarnation": point.incarnation}
        )  # fmt: skip
        started_s = time.perf_counter()
        log.commit_epoch(manifest)
        taken.append((time.perf_counter() - started_s) * 1000)
    return statistics.median(taken)


def _new_owner():
    from spark_ckpt.epochs.records import Holder

    return Holder(host="benchmark")


def main() -> list[str]:
    """Rows of a Markdown table."""
    spark = benchmark_session()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run_over(spark, write_files(work / "warm", 3, 1000, 100), work / "warm-store")
        few = _restored(spark, work, "few", 10_000)
        many = _restored(spark, work, "many", KEYS)
        after_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        commit = commit_ms(work / "many-store")
    return [
        "| one million keys of state | |",
        "|---|---|",
        f"| first batch of a new incarnation that restores and looks up 1M keys | {many} ms |",
        f"| the same with 10k keys | {few} ms |",
        f"| epoch commit on the driver, median of 50 | {commit:.1f} ms |",
        f"| driver's Python memory, largest before and after | {before_kb // 1024} MB, {after_kb // 1024} MB |",
    ]


def _restored(spark: SparkSession, work: Path, name: str, keys: int) -> int:
    folder, store = write_every_key(work / name, keys, ROWS_PER_FILE), work / f"{name}-store"
    run_over(spark, folder, store)
    write_files(folder, 1, 1000, keys, seed=2)
    shutil.move(folder / "f00000.parquet", folder / "z00000.parquet")
    run, _ = run_over(spark, folder, store)
    return max(batches_ms(run))


if __name__ == "__main__":
    print("\n".join(main()))
