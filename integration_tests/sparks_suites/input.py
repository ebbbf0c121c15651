"""Files of a test as a source of a job: the batches of files have numbers, and a batch without a number has no records.

The records are in the plan, and Spark's own source counts the batches. So a start reads no file and starts no Python process; a
source in Python would need several.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from integration_tests.sparks_suites.plans import Leaf
from spark_ckpt.connector import Cursor

FORMATS = ("text", "csv", "parquet")


def records_of(spark: SparkSession, leaf: Leaf, files: Sequence[Path]) -> list[str]:
    """Return the records of a batch of files: lines, or JSON of the rows of Parquet files."""
    if leaf.format == "parquet":
        return spark.read.parquet(*map(str, files)).toJSON().collect()
    return [line for path in files for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class BatchesSource:
    """Implements `spark_ckpt.connector.Source` for the batches of a test's source `leaf`."""

    leaf: Leaf
    batches: Mapping[int, Sequence[str]]

    def check(self, spark: SparkSession) -> None: ...

    def start(self, spark: SparkSession) -> Cursor:
        return {"batches": 0}

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """Spark's source counts from 0 at every start. Its clock, which is part of its offset, continues to count."""
        first = int(str(cursor["batches"]))
        reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1)
        counted = reader.option("startTimestamp", first).option("advanceMillisPerBatch", 1).load()
        records = F.from_json(F.lit(json.dumps(self.batches)), "map<string, array<string>>")
        batch = F.try_element_at(records, (F.col("value") + first).cast("string"))
        return counted.select(F.explode(batch).alias("record")).select(*self._columns())

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        return {"batches": int(json.loads(offset)["timestamp"])}

    def end(self, spark: SparkSession) -> Cursor:
        return {"batches": max(self.batches, default=-1) + 1}

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        return int(str(cursor["batches"])) >= int(str(end["batches"]))

    def describe(self) -> Mapping[str, str]:
        return {"kind": "batches"}

    def _columns(self) -> list[Column]:
        leaf = self.leaf
        if leaf.format == "text":
            return [F.col("record").alias("value")]
        csv = leaf.format == "csv"
        sep = leaf.options.get("sep", ",")
        row = F.from_csv("record", leaf.ddl, {"sep": sep}) if csv else F.from_json("record", leaf.ddl)
        return [row.getField(name).alias(name) for name in leaf.columns]
