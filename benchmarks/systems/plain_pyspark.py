"""Plain PySpark, Kafka to Kafka through Spark's own sink, which is at-least-once.

Per-key state in Python by either of Spark's two interfaces, or an aggregation in the JVM. The aggregation in update mode emits
a key's newest values once per batch, not one record per input.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from benchmarks.systems import Environment, Run, System

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

HERE = Environment("plain_pyspark")
# Spark's Python workers speak protobuf with the state store of `transformWithStateInPandas`; pip does not install it with PySpark.
WITH_PROTOBUF = Environment(
    "plain_pyspark_protobuf", ("pyspark==4.2.0", "pandas==2.3.3", "pyarrow==26.0.1", "protobuf==6.33.6")
)
MODULE = "benchmarks.systems.plain_pyspark"
SYSTEMS = (
    System(
        "pyspark-pandas", "PySpark, applyInPandasWithState", "pyspark_pandas", "at-least-once", HERE, MODULE,
        note="its batches of 1.5 million records take some 10 s, which is the interval of its checkpoints."
    ),
    System(
        "pyspark-pandas-5s", "PySpark, applyInPandasWithState, smaller batches", "pyspark_pandas_5s", "at-least-once", HERE,
        MODULE, note="batches of 200,000 records, which take some 5 s: the interval that is asked of the others."
    ),
    System(
        "pyspark-transform", "PySpark, transformWithStateInPandas", "pyspark_transform", "at-least-once",
        WITH_PROTOBUF, MODULE,
    ),
    System(
        "pyspark-native", "PySpark, JVM aggregation", "pyspark_native", "at-least-once", HERE, MODULE,
        every_input=False, tells=True,
    ),
)  # fmt: skip
# Large enough that a batch's fixed cost (log, shuffle, state commit) is small, small enough that a batch takes seconds.
# Python pays per key and batch: 10 records of a key in a batch share one call.
RECORDS_PER_BATCH = 1_500_000
# A Python call per key and batch takes half a millisecond: 10,000 keys alone take 2.5 s on two cores, for any size of batch.
RECORDS_IN_5_S = 200_000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "3g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
# transformWithState runs on RocksDB only. With a changelog a batch uploads its changes, not whole SST files.
STATE_STORE = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def main() -> None:
    """Run one job until killed."""
    run = Run.of_command_line()
    start(run, session(run))


def session(run: Run) -> SparkSession:
    """Rows per batch: a batch costs a third of a second before its first record, so large batches suit a backlog best."""
    from pyspark.sql import SparkSession

    from spark_ckpt import connectors

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = SETTINGS | (STATE_STORE if run.hook == "pyspark_transform" else {})
    settings["spark.jars"] = ",".join(map(str, connectors.jar_paths([connectors.named("kafka")])))
    spark = SparkSession.builder.master("local[2]").appName(run.job).config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(run: Run, spark: SparkSession) -> None:
    """Start the query: source, the job's frame, sink.

    A Spark batch is its own checkpoint, so `interval_ms` sets nothing: a trigger interval would only leave the cores idle between
    batches. The default trigger starts a batch when the last one has ended. The sink has no transactions: records are readable as
    soon as they are written, before their batch has ended.
    """
    from benchmarks.systems.telling import write_progress

    express: Callable[[DataFrame], DataFrame] = run.implementation  # type: ignore[assignment]
    writer = express(records(run, spark)).writeStream.format("kafka").outputMode("update")
    writer = writer.option("kafka.bootstrap.servers", run.servers).option("topic", run.target)
    # The producer's defaults favour latency: without a wait it sends many small requests.
    writer = writer.option("kafka.linger.ms", 20).option("kafka.batch.size", 128 * 1024)
    query = writer.option("checkpointLocation", f"{run.folder}/checkpoint").start()
    if run.records_file:
        write_progress(query, run.records_file)
    query.awaitTermination()


def records(run: Run, spark: SparkSession) -> DataFrame:
    """`key`, `value` (both strings), `amount`, `event_ms`. Parsed in the JVM."""
    from pyspark.sql import functions as F

    source = (
        spark.readStream.format("kafka").option("kafka.bootstrap.servers", run.servers).option("subscribe", run.source)
    )
    source = source.option("startingOffsets", "earliest")
    batch = RECORDS_IN_5_S if run.hook == "pyspark_pandas_5s" else RECORDS_PER_BATCH
    raw = source.option("maxOffsetsPerTrigger", batch).load()
    texts = raw.select(F.col("key").cast("string"), F.col("value").cast("string"))
    parts = F.split("value", ",")
    return texts.select("key", "value", parts[2].cast("long").alias("amount"), parts[3].cast("long").alias("event_ms"))


def joined(rows: DataFrame) -> DataFrame:
    """`key`, and all columns as one string. In the JVM: for a key's ten rows, pandas takes several times as long as their sum."""
    from pyspark.sql import functions as F

    return rows.select("key", F.concat_ws(",", *rows.columns).alias("value"))


if __name__ == "__main__":
    main()
