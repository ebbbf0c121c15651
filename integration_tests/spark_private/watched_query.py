"""A query with a seeded checkpoint, and observations of Spark's internals in its first batch."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from spark_ckpt.spark_internals.checkpoint_files import batch_metadata, rate_start_file, seeded_checkpoint
from spark_ckpt.spark_internals.event_time import with_clock
from spark_ckpt.spark_internals.jvm import java_frame, kind_of
from spark_ckpt.spark_internals.memory_stream import MemoryStream
from spark_ckpt.spark_internals.running_query import Execution

SEEDED_AT, STARTED_S_AGO, ADDED = 5, 60, 3
CLOCK, LATEST_MS = 7, 4_102_444_800_000
SEED_ID = "0f0e0d0c-0b0a-4908-8706-050403020100"
_QUERY = "names"


@dataclass
class Seen:
    """Observations of a query that begins at second `SEEDED_AT` of the source `rate` and of a memory stream of `ADDED` rows."""

    checkpoint: Path
    execution: Execution | None = None
    java: JavaObject | None = None
    plan: JavaObject | None = None
    values: list[int | None] = field(default_factory=list)
    at_first_ms: dict[int, int] = field(default_factory=dict)
    newest_ms: dict[int, int] = field(default_factory=dict)
    seeded_ms: dict[int, int] = field(default_factory=dict)
    start_ms: int = 0
    delivered: int = 0
    unique_sources: int = 0
    planned_while_one_rests: int = 0
    planned_when_awake: int = 0
    batch_plan: str = ""
    batch_partitions: int = 0
    limited: str = ""


def watched_query(spark: SparkSession, checkpoint: Path) -> Seen:
    """Run the query for one batch."""
    seen = Seen(checkpoint)
    start_ms = seen.start_ms = (time.time_ns() // 1_000_000) - STARTED_S_AGO * 1000
    files = seeded_checkpoint(
        [str(SEEDED_AT), None], [rate_start_file(start_ms), {}], batch_metadata(spark, 2), SEED_ID
    )
    for path, text in files.items():
        (seen.checkpoint / path).parent.mkdir(parents=True, exist_ok=True)
        (seen.checkpoint / path).write_text(text)
    stream = MemoryStream(spark)
    for _ in range(ADDED):
        stream.add("row")
    rows = with_clock(spark.readStream.format("rate").load(), "timestamp", 1000, CLOCK).select("value")
    both = rows.union(stream.frame.selectExpr("CAST(NULL AS LONG) AS value"))
    writer = both.writeStream.queryName(_QUERY).option("checkpointLocation", str(seen.checkpoint))
    query = writer.foreachBatch(lambda frame, batch: _look(spark, seen, frame, batch)).start()
    committed = seen.checkpoint / "commits" / "0"  # written after the function's end
    while not (seen.limited and committed.exists()) and query.isActive:
        query.awaitTermination(0.1)
    query.stop()
    if (error := query.exception()) is not None and not seen.limited:
        raise error
    return seen


def _look(spark: SparkSession, seen: Seen, frame: DataFrame, batch: int) -> None:
    if batch:
        return
    seen.execution = Execution.of(spark, _QUERY)
    seen.java = seen.execution.java
    planned = java_frame(frame).queryExecution().logical()
    seen.batch_plan, seen.batch_partitions = kind_of(planned), planned.rdd().getNumPartitions()
    seen.at_first_ms = seen.execution.newest_event_times()
    seen.values = [row["value"] for row in frame.collect()]
    seen.newest_ms = seen.execution.newest_event_times()
    seen.execution.seed_clocks({CLOCK: LATEST_MS})
    seen.seeded_ms = seen.execution.newest_event_times()
    seen.delivered = seen.execution.rows_delivered([0])[0]
    seen.plan = seen.java.lastExecution().executedPlan()
    seen.unique_sources = seen.java.uniqueSources().size()
    seen.execution.rest([0])
    seen.planned_while_one_rests = seen.java.uniqueSources().size()
    seen.execution.wake()
    seen.planned_when_awake = seen.java.uniqueSources().size()
    seen.execution.limit_rows({0: 17})
    seen.limited = str(seen.java.uniqueSources().apply(seen.java.sources().apply(0)).toString())
