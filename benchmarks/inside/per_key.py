"""Per-key state at 100,000 rows and 10,000 keys a batch, against plain PySpark `applyInPandasWithState`.

The same function, unchanged; the same function yielding tuples; vectorised; built-in.  Median milliseconds of a batch
(Spark's triggerExecution, warm), every contender reading the same Parquet files one per batch.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from benchmarks.inside.inputs import SCHEMA, write_files
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.result_line import result_line
from benchmarks.inside.sessions import BatchTimes, benchmark_session, median_and_spread

ROWS, KEYS = 100_000, 10_000
OUTPUT, STATE = "k string, total long, n long", "total long, n long"


def with_frames(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Total and count per key, one row per key and batch, as a Spark user writes it."""
    total, n = state.get if state.exists else (0, 0)
    for frame in frames:
        total += int(frame["v"].sum())
        n += len(frame)
    state.update((total, n))
    yield pd.DataFrame({"k": [key[0]], "total": [total], "n": [n]})


def with_tuples(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[tuple[str, int, int]]:
    """The same, yielding a tuple."""
    total, n = state.get if state.exists else (0, 0)
    for frame in frames:
        total += int(frame["v"].to_numpy().sum())
        n += len(frame)
    state.update((total, n))
    yield (key[0], total, n)


def vectorised(batch: ckpt.KeyBatch) -> ckpt.KeyResult:
    """The same for all keys of a key group at once."""
    import numpy as np

    total = batch.state_values("total") + np.bincount(batch.key_index, batch.values("v"), len(batch.keys)).astype(
        "int64"
    )
    n = batch.state_values("n") + np.bincount(batch.key_index, minlength=len(batch.keys))
    state = pa.table({"total": total, "n": n})
    return ckpt.KeyResult(pa.table({"k": batch.keys["k"], "total": total, "n": n}), state)


Grouped = Callable[[ckpt.GroupedStream], ckpt.Stream]
OURS: dict[str, Grouped] = {
    "per-key function, unchanged": lambda keys: keys.applyInPandasWithState(
        with_frames, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout
    ),
    "per-key function, tuples": lambda keys: keys.applyInPandasWithState(
        with_tuples, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout
    ),
    "vectorised": lambda keys: keys.applyVectorized(vectorised, OUTPUT, STATE),
    "built-in": lambda keys: keys.agg(total=ckpt.sum("v"), n=ckpt.count()),
}


def plain(spark: SparkSession, folder: Path, work: Path) -> list[int]:
    """Run plain PySpark on the same files."""
    times = BatchTimes(spark)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))
    grouped = rows.groupBy("k").applyInPandasWithState(
        with_frames, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout
    )
    query = (
        grouped.writeStream.format("noop")
        .option("checkpointLocation", str(work / "plain"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return times.full_batches_ms(ROWS)


def ours(spark: SparkSession, folder: Path, work: Path, operate: Grouped) -> list[int]:
    """Run spark_ckpt on the same files, with an epoch every 5 seconds."""
    times = BatchTimes(spark)
    store = work / "store"
    job = ckpt.Job(spark, "per-key", store=str(store), interval="5 seconds", key_groups=16)
    source = job.source("input", FilesSource(str(folder), "parquet", SCHEMA, maxFilesPerTrigger=1))
    operate(source.groupBy("k")).to(NullSink())
    job.start(availableNow=True).awaitTermination()
    shutil.rmtree(store)
    return times.full_batches_ms(ROWS, warm_up=10)


def main() -> list[str]:
    """Print a result line; return the rows of a Markdown table."""
    spark = benchmark_session()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        few, many = write_files(work / "few", 6, ROWS, KEYS), write_files(work / "many", 40, ROWS, KEYS)
        base = plain(spark, few, work / "before")
        measured = {label: ours(spark, many, work, operate) for label, operate in OURS.items()}
        base += plain(spark, few, work / "after")
        reference = statistics.median(base)
        lines = [f"| plain PySpark, before and after the others | {median_and_spread(base)} | 1.0 |"]
        for label, times in measured.items():
            ratio = reference / statistics.median(times)
            lines.append(f"| spark_ckpt, {label} | {median_and_spread(times)} | **{ratio:.1f}** |")
    medians = [reference, *(statistics.median(times) for times in measured.values())]
    values = dict(zip(("plain_ms", "unchanged_ms", "tuples_ms", "vectorised_ms", "built_in_ms"), medians, strict=True))
    return [
        result_line("per_key", "100k rows, 10k keys", 5, 0, values),
        "| 100k rows, 10k keys a batch | ms per batch, median (min-max) | times plain PySpark |",
        "|---|---|---|",
        *lines,
    ]


if __name__ == "__main__":
    print("\n".join(main()))
