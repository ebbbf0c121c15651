"""The driver's memory while state and output grow: the JVM's live heap and the Python driver's resident memory.

One job over files whose keys never repeat, so every batch adds keys to the state and rows to the output.  The heap is
read after a full collection, at the same point of every eighth of the run.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from benchmarks.inside.inputs import SCHEMA, write_every_key
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.sessions import benchmark_session
from benchmarks.side_by_side.usage import status_kib
from spark_ckpt.spark_internals.jvm import jvm_of

KEYS_PER_BATCH, BATCHES, PARTS = 50_000, 80, 8
_MEBIBYTE = 1 << 20


def live_heap(spark: SparkSession) -> int:
    """Bytes in use in the JVM (driver and tasks, `local[2]`) after a collection."""
    jvm = jvm_of(spark)
    runtime = jvm.java.lang.Runtime.getRuntime()
    jvm.java.lang.System.gc()
    return int(runtime.totalMemory() - runtime.freeMemory())


def resident() -> int:
    """Resident bytes of this Python process, without memory that Arrow's pool could return."""
    pa.default_memory_pool().release_unused()
    return status_kib("self", "VmRSS") * 1024


def grow(spark: SparkSession, work: Path) -> list[tuple[int, float, float]]:
    """(keys in the state, JVM MiB, Python MiB) after every part of the input."""
    folder, store = work / "in", work / "store"
    folder.mkdir()
    everything = write_every_key(work / "all", KEYS_PER_BATCH * BATCHES, KEYS_PER_BATCH)
    files = sorted(everything.iterdir())
    measured = []
    for part in range(PARTS):
        for file in files[part * BATCHES // PARTS : (part + 1) * BATCHES // PARTS]:
            file.rename(folder / file.name)
        job = ckpt.Job(spark, "memory", store=str(store), interval="1 second", key_groups=16)
        source = job.source("input", FilesSource(str(folder), "parquet", SCHEMA, maxFilesPerTrigger=1))
        source.groupBy("k").agg(total=ckpt.sum("v"), n=ckpt.count()).to(NullSink())
        job.start(availableNow=True).awaitTermination()
        keys = (part + 1) * BATCHES // PARTS * KEYS_PER_BATCH
        measured.append((keys, live_heap(spark) / _MEBIBYTE, resident() / _MEBIBYTE))
    shutil.rmtree(store)
    return measured


def main() -> list[str]:
    """Rows of a Markdown table."""
    spark = benchmark_session()
    with tempfile.TemporaryDirectory() as name:
        measured = grow(spark, Path(name))
    return [
        "| keys in the state, all new in every batch | JVM live heap, MiB | Python driver, MiB |",
        "|---|---|---|",
        *(f"| {keys:,} | {heap:.0f} | {python:.0f} |" for keys, heap, python in measured),
    ]


if __name__ == "__main__":
    print("\n".join(main()))
