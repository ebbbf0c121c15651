"""Three plain queries: files -> bronze -> a state that drops duplicates -> silver -> gold, each a Delta table.

`rows` keeps the input of each batch from the queries' progress, so that these tests read no checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

STATE = "spark.sql.streaming.stateStore"
FIRST_S = 1_700_000_000
POISON = 72
"""An id that `publish` fails on: its batch begins and never ends."""


def ids_of_file(number: int) -> list[int]:
    """Ten new ids a file, and three of the previous file."""
    return [*range(10 * number, 10 * number + 10), *range(max(10 * number - 3, 0), 10 * number)]


@dataclass
class Lake:
    """Folders of the queries, and their progress, batch by batch. `sign`: of the ids that `ingest` writes, -1 is a bug.

    `poison`: an id that kills `publish`.
    """

    root: Path
    spark: SparkSession
    conf: Mapping[str, str]
    files: int = 0
    sign: int = 1
    poison: int | None = POISON
    rows: dict[str, dict[int, int]] = field(default_factory=dict)
    held: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def checkpoint(self, name: str) -> Path:
        return self.root / "checkpoints" / name

    def table(self, name: str) -> Path:
        return self.root / name

    def drop(self, count: int) -> None:
        """Add files atomically, each a batch of its own. Spark orders them by their times."""
        inbox = self.root / "inbox"
        inbox.mkdir(parents=True, exist_ok=True)
        for number in range(self.files, self.files + count):
            part = inbox / f".{number}.json"
            part.write_text("".join(json.dumps({"id": each}) + "\n" for each in ids_of_file(number)))
            os.utime(part, (FIRST_S + number,) * 2)
            part.rename(inbox / f"{number}.json")
        self.run("ingest")
        self.files += count

    def run(self, name: str) -> str | None:
        """Run one query until it has read all input; return the error that ended it, if any."""
        with self.settings():
            query = self.started(name)
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                return str(error)
            finally:
                known = self.rows.setdefault(name, {})
                known |= {each["batchId"]: each["numInputRows"] for each in query.recentProgress}
        return None

    @contextmanager
    def settings(self) -> Iterator[None]:
        for key, value in self.conf.items():
            self.spark.conf.set(key, value)
        try:
            yield
        finally:
            for key in self.conf:
                self.spark.conf.unset(key)

    def started(self, name: str, *, once: bool = True) -> StreamingQuery:
        """Start a query that ends when it has read all input, or one that continues."""
        frame, table = getattr(self, f"_{name}")()
        writer = frame.writeStream.format("delta").option("checkpointLocation", str(self.checkpoint(name)))
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")
        return writer.start(str(self.table(table)))

    def _ingest(self) -> tuple[DataFrame, str]:
        read = self.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        return read.json(str(self.root / "inbox")).select((F.col("id") * self.sign).alias("id")), "bronze"

    def _dedup(self) -> tuple[DataFrame, str]:
        return self.stream("bronze").dropDuplicates(["id"]), "silver"

    def _publish(self) -> tuple[DataFrame, str]:
        poisoned = F.when(F.col("id") == F.lit(self.poison), F.raise_error(F.lit("poison")).cast("long")).otherwise(
            F.col("id")
        )
        return self.stream("silver").select(poisoned.alias("id")), "gold"

    def stream(self, table: str) -> DataFrame:
        return self.spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(self.table(table)))

    def ids(self, table: str, version: int) -> list[int]:
        """Ids of a table at a version, which no later version changes."""
        if version < 0:
            return []
        if (table, version) not in self.held:
            read = self.spark.read.format("delta").option("versionAsOf", version).load(str(self.table(table)))
            self.held[table, version] = sorted(row.id for row in read.collect())
        return self.held[table, version]

    def state(self, name: str, batch: int) -> list[int]:
        """Keys of a query's state after a batch, by Spark's own reader, which depends on the session's settings."""
        with self.settings():
            read = self.spark.read.format("statestore").option("batchId", batch).load(str(self.checkpoint(name)))
            return sorted(row.id for row in read.select("key.id").collect())


def made_lake(root: Path, spark: SparkSession, conf: Mapping[str, str]) -> Lake:
    """Queries at different positions: `ingest` has all 10 files, `dedup` 9, `publish` failed on a row of file 7."""
    lake = Lake(root, spark, conf)
    for count in (2, 3, 4):
        lake.drop(count)
        lake.run("dedup")
        if count != 3:
            lake.run("publish")
    lake.drop(1)
    return lake
