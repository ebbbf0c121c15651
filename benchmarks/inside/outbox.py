"""Milliseconds a batch: plain `foreachBatch` to Kafka, and the same query with an outbox in each form, in turns.

Run: `python -m benchmarks.inside.outbox [rounds]`. One session, one broker. The first two batches of each query are left out.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from spark_ckpt_kafka import KafkaSink

import spark_ckpt as ckpt
from integration_tests.broker import running_broker
from integration_tests.survival.ledger import create_topic

BATCHES, SIZES = 12, (10_000, 200_000)
MODULE = """import spark_ckpt as ckpt
from spark_ckpt_kafka import KafkaSink
sink = KafkaSink({servers!r}, topic={topic!r})
out = ckpt.Outbox({store!r}, name="bench", sinks={{"records": sink}})
"""
"""The module that defines the outbox for `format("outbox")`."""
RECORD = ("CAST(k AS STRING) AS key", "to_json(struct(*)) AS value")


def write_input(spark: SparkSession, folder: Path, rows: int) -> None:
    """One Parquet file for each batch."""
    for number in range(BATCHES):
        frame = spark.range(number * rows, (number + 1) * rows, 1, 1).selectExpr("id", "id % 1000 AS k", "uuid() AS v")
        frame.write.mode("append").parquet(str(folder))


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """The input, one file a batch."""
    reader = spark.readStream.schema("id long, k long, v string").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def batch_ms(query: object) -> list[int]:
    """Durations of the batches with rows, without the first two."""
    query.awaitTermination()  # type: ignore[attr-defined]
    progress = query.recentProgress  # type: ignore[attr-defined]
    return [int(each["durationMs"]["triggerExecution"]) for each in progress if each["numInputRows"]][2:]


def plain(spark: SparkSession, servers: str, topic: str, inbox: Path, folder: Path) -> list[int]:
    """Write at least once, as Spark's own sink does."""

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.selectExpr(*RECORD).write.format("kafka").option("kafka.bootstrap.servers", servers)
        rows.option("topic", topic).save()

    writer = stream(spark, inbox).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    return batch_ms(writer.foreachBatch(write).trigger(availableNow=True).start())


def outbox(
    spark: SparkSession, servers: str, topic: str, inbox: Path, folder: Path, overlap: bool = False
) -> list[int]:
    """Write exactly once. `overlap`: publish a batch while the next one runs."""
    sink = KafkaSink(servers, topic=topic).rows(*RECORD)
    out = ckpt.Outbox(
        str(folder / "store"),
        name="bench",
        checkpoint=str(folder / "checkpoint"),
        sinks={"records": sink},
        overlap=overlap,
    )
    try:
        return batch_ms(out.start(stream(spark, inbox).writeStream.trigger(availableNow=True)))
    finally:
        out.close()


def data_source(spark: SparkSession, servers: str, topic: str, inbox: Path, folder: Path) -> list[int]:
    """Write exactly once with the data source, without a function."""
    module = f"outbox_of_{topic.replace('-', '_')}"
    text = MODULE.format(servers=servers, topic=topic, store=str(folder / "store"))
    (inbox.parent / f"{module}.py").write_text(text)
    writer = stream(spark, inbox).selectExpr(*RECORD).writeStream.format("outbox").option("outbox", f"{module}:out")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return batch_ms(writer.trigger(availableNow=True).start())


def main(rounds: int) -> None:
    """Print a line for each size and kind: medians, ratio and difference."""
    with tempfile.TemporaryDirectory() as name, running_broker(Path(name) / "broker") as broker:
        # Java passes it on to the Python processes of the data source.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [name, os.environ.get("PYTHONPATH")]))
        conf = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.showConsoleProgress": "false",
        }
        spark = ckpt.session("bench", "kafka", master="local[2]", conf=conf)
        spark.sparkContext.setLogLevel("ERROR")
        for rows in SIZES:
            inbox = Path(name) / str(rows)
            write_input(spark, inbox, rows)
            kinds = {"plain": plain, "outbox": outbox, "overlap": partial(outbox, overlap=True), "format": data_source}
            found: dict[str, list[int]] = {kind: [] for kind in kinds}
            for turn in range(rounds):
                for kind, run in kinds.items():
                    topic = create_topic(broker.servers, "bench")
                    found[kind] += run(spark, broker.servers, topic, inbox, Path(name) / f"{rows}-{turn}-{kind}")
            before, *others = (statistics.median(each) for each in found.values())
            for kind, after in zip([*found][1:], others, strict=True):
                shown = f"{after:.0f} ms, {after / before:.2f}, {after - before:+.0f} ms"
                print(f"{rows} rows a batch: plain {before:.0f} ms, {kind} {shown}")
        spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
