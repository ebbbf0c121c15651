"""A stream whose batches are drawn rows: batch number n has the rows of file n, and no file is a batch without rows.

Rows are in the plan, and Spark's own source counts the batches, so a start reads no files and starts no Python process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ckpt.connector import Cursor

Row = tuple[str, int, float]
"""Key, value, and event time in seconds since `BEGAN_S`."""
File = Mapping[str, Sequence[Row]]
"""Rows of one batch by the input's name."""
BEGAN_S = 1_719_792_000
_FORM = "map<string, array<struct<k: string, v: bigint, at: double>>>"


@dataclass
class Tape:
    """Files by the number of their batch. `end`: the number after the last one."""

    files: dict[int, File] = field(default_factory=dict)
    end: int = 0

    def put(self, files: Sequence[File], at: int | None = None) -> None:
        """Add files from batch `at` on, by default after the last one."""
        self.end = self.end if at is None else at
        for file in files:
            self.files[self.end] = file
            self.end += 1

    def source(self, name: str) -> TapeSource:
        """Return one input in its present form."""
        return TapeSource({number: tuple(file[name]) for number, file in self.files.items()}, self.end)


@dataclass(frozen=True)
class TapeSource:
    """Implements `spark_ckpt.connector.Source`: (k string, v long, at timestamp)."""

    rows: Mapping[int, Sequence[Row]]
    until: int

    def check(self, spark: SparkSession) -> None: ...

    def start(self, spark: SparkSession) -> Cursor:
        return {"rows": 0}

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """Spark's source counts from 0 at every start. Its clock, which is part of its offset, continues to count batches."""
        first = int(str(cursor["rows"]))
        reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
        reader = reader.option("startTimestamp", str(first)).option("advanceMillisPerBatch", 1)
        content = json.dumps(
            {str(n): [dict(zip("kva", row, strict=True)) for row in rows] for n, rows in self.rows.items()}
        )
        file = F.expr(
            f"try_element_at(from_json('{content}', '{_FORM.replace('at:', 'a:')}'), cast(value + {first} AS string))"
        )
        numbered = reader.option("numPartitions", 1).load().select(F.explode(file).alias("row"))
        return numbered.selectExpr(
            "row.k", "row.v", f"timestamp_millis(cast(1000 * (row.a + {BEGAN_S}) AS bigint)) AS at"
        )

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        return {"rows": int(json.loads(offset)["timestamp"])}

    def end(self, spark: SparkSession) -> Cursor:
        return {"rows": self.until}

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        return int(str(cursor["rows"])) >= int(str(end["rows"]))

    def describe(self) -> Mapping[str, str]:
        return {"kind": "tape"}
