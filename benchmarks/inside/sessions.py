"""One Spark session for all measurements of a run, and Spark's own account of a query's batches."""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Sequence
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
    """Every batch of the next query: rows and milliseconds, from Spark's progress records.

    Records are read when the query is over: a Python listener would cost as much as a small batch (60 ms in the JVM and
    60 ms in the driver for each, measured).
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._query: Any = None
        self._found = threading.Event()
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
        threading.Thread(target=self._find, daemon=True).start()

    def _find(self) -> None:
        while self._query is None:
            self._query = next(iter(self._spark.streams.active), None)
            self._found.wait(0.05)
        self._found.set()

    @property
    def batches(self) -> list[tuple[int, int]]:
        """(rows, milliseconds) of every batch so far."""
        if not self._found.wait(60):
            raise RuntimeError("no query was started")
        records = [json.loads(record.json()) for record in self._query._jsq.recentProgress()]
        executed = [each for each in records if "addBatch" in each["durationMs"]]
        return [(each["numInputRows"], each["durationMs"]["triggerExecution"]) for each in executed]

    def full_batches(self, rows: int, warm_up: int = WARM_UP_BATCHES) -> list[tuple[int, int]]:
        """(rows, milliseconds) of the batches with about `rows` rows, without the first ones."""
        return [(count, ms) for count, ms in self.batches if count >= 0.9 * rows][warm_up:]

    def full_batches_ms(self, rows: int, warm_up: int = WARM_UP_BATCHES) -> list[int]:
        """Their milliseconds."""
        return [ms for _, ms in self.full_batches(rows, warm_up)]


def median_and_spread(values: Sequence[float], digits: int = 0) -> str:
    """`median (min-max)`, with `digits` digits after the point."""
    if not values:
        return "-"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"
