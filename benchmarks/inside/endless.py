"""An endless input of numbered rows from the JVM, without files or a Python reader: a batch is only the operator and the epochs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from spark_ckpt.connector import Cursor


@dataclass(frozen=True, slots=True)
class EndlessSource:
    """Implements `spark_ckpt.connector.Source`: (k string, v long), `rows_per_batch` rows in every micro-batch.

    `key`: SQL over `n`, the row's number from 0. A run with `availableNow` ends soon after row number `until`.
    """

    rows_per_batch: int
    key: str
    until: int = 0

    def check(self, spark: SparkSession) -> None: ...

    def start(self, spark: SparkSession) -> Cursor:
        return {"rows": 0}

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """Spark's source counts from 0 at every start. Its clock, which is part of its offset, continues to count rows."""
        reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.rows_per_batch)
        reader = reader.option("startTimestamp", str(cursor["rows"])).option(
            "advanceMillisPerBatch", self.rows_per_batch
        )
        numbers = reader.option("numPartitions", 2).load().selectExpr(f"value + {cursor['rows']}L AS n")
        return numbers.selectExpr(f"concat('k', {self.key}) AS k", "n % 100 AS v")

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        return {"rows": int(json.loads(offset)["timestamp"])}

    def end(self, spark: SparkSession) -> Cursor:
        return {"rows": self.until}

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        return int(str(cursor["rows"])) >= int(str(end["rows"]))

    def describe(self) -> Mapping[str, str]:
        return {"kind": "endless"}
