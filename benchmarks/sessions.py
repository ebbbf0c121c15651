"""One Spark session for all measurements of a run, and Spark's own account of a query's batches."""

from __future__ import annotations

import statistics
from typing import Any

from pyspark.sql import SparkSession

import spark_ckpt as ckpt

WARM_UP_BATCHES = 2


def benchmark_session(*bundles: Any, cores: int = 2) -> SparkSession:
    """`local[cores]`, shuffle partitions = cores, no UI; the same settings for every contender."""
    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.driver.memory": "3g",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    }
    spark = ckpt.session("benchmarks", *bundles, master=f"local[{cores}]", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class BatchTimes:
    """Remembers every batch of every query: rows and milliseconds, from Spark's progress events."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.sql.streaming import StreamingQueryListener

        batches: list[tuple[int, int]] = []

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None: ...

            def onQueryIdle(self, event: Any) -> None: ...

            def onQueryTerminated(self, event: Any) -> None: ...

            def onQueryProgress(self, event: Any) -> None:
                progress = event.progress
                batches.append((progress.numInputRows, progress.durationMs["triggerExecution"]))

        self._spark = spark
        self._listener = Listener()
        self.batches = batches
        spark.streams.addListener(self._listener)

    def full_batches(self, rows: int) -> list[tuple[int, int]]:
        """(rows, milliseconds) of the batches with about `rows` rows, without the first ones."""
        return [(count, ms) for count, ms in self.batches if count >= 0.9 * rows][WARM_UP_BATCHES:]

    def full_batches_ms(self, rows: int) -> list[int]:
        """Their milliseconds."""
        return [ms for _, ms in self.full_batches(rows)]

    def close(self) -> None:
        self._spark.streams.removeListener(self._listener)


def median_and_spread(values: list[float]) -> str:
    """`median (min-max)`."""
    if not values:
        return "-"
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"
