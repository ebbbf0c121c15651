"""A plain query with an outbox over Kafka and Delta, as a separate program: it ends when its input is read, or is killed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_kafka import KafkaSink

from integration_tests.outbox.outbox_query import Place, windows
from spark_ckpt.connector import Sink, SinkRows

STORES = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


def deduplicated(spark: SparkSession, inbox: Path) -> DataFrame:
    """The first row of each key and window, by Spark's own dropDuplicates: any row of them is correct here."""
    lines = spark.readStream.schema("k string, ts long, v long").option("maxFilesPerTrigger", 1).json(str(inbox))
    timed = lines.withColumn("at", F.timestamp_seconds("ts")).withWatermark("at", "30 seconds")
    keyed = timed.selectExpr("ts div 30 * 30 AS w", "k", "at")
    return (
        keyed.withColumn("start", F.timestamp_seconds("w"))
        .dropDuplicates(["w", "k"])
        .selectExpr("w", "k", "1L AS n", "0L AS s")
    )


QUERIES = {"windows": windows, "duplicates": deduplicated}


def sinks_of(place: Place, servers: str, topic: str) -> dict[str, Sink | SinkRows]:
    """Both sinks get the same rows, so that each is compared with the same ledger."""
    sinks: dict[str, Sink | SinkRows] = {"gold": DeltaSink(place.table("gold"))}
    if servers:
        sinks["alerts"] = KafkaSink(servers, topic=topic).rows(key="k", value="to_json(struct(*))")
    return sinks


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The program's options, from the command line unless `arguments` are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--servers", default="")
    parser.add_argument("--topic", default="")
    parser.add_argument("--query", choices=QUERIES, default="windows")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--outbox", default="", help='module:attribute of an outbox for format("outbox")')
    parser.add_argument("--state", choices=STORES, default="hdfs")
    parser.add_argument("--checkpoint", default="checkpoint", help="a folder below")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--restore", type=int, help="epoch to continue from")
    parser.add_argument("--remote", action="store_true", help="through Spark Connect")
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.streaming.stateStore.providerClass": STORES[options.state],
    }
    builder = SparkSession.builder.remote("local[2]") if options.remote else SparkSession.builder.master(options.master)
    spark = builder.config(map=settings).getOrCreate()
    if not options.remote:
        spark.sparkContext.setLogLevel("OFF")
    run_on(spark, options)
    spark.stop()
    return 0


def run_on(spark: SparkSession, options: argparse.Namespace) -> None:
    """Run the query from its start to its end."""
    place = Place(options.folder)
    place.checkpoint = place.folder / options.checkpoint
    rows = QUERIES[options.query](spark, place.inbox)
    if options.outbox:
        writer = rows.withColumn("json", F.to_json(F.struct("*"))).writeStream.format("outbox")
        writer = writer.option("outbox", options.outbox).option("checkpointLocation", str(place.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    outbox = place.outbox(sinks_of(place, options.servers, options.topic), overlap=options.overlap)
    outbox.start(rows.writeStream.trigger(availableNow=True), restore=options.restore).awaitTermination()
    outbox.close()


if __name__ == "__main__":
    sys.exit(main())
