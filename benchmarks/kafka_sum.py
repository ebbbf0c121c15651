"""Kafka to Kafka running sum, one output per input: spark_ckpt exactly-once against plain PySpark at-least-once.

One broker, one topic of 4 partitions, 10,000 keys; the same records for both.  Sustained input rate over the warm batches, from
Spark's own progress.  Every output is read back (read_committed, from offset 0) and compared with an independent sum.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt as ckpt
from benchmarks.sessions import BatchTimes, benchmark_session

KEYS, PARTITIONS = 10_000, 4


def fill(servers: str, records: int) -> str:
    """A fresh topic with `records` records, value an integer."""
    topic = f"numbers-{uuid.uuid4().hex[:8]}"
    create(servers, topic)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "partitioner": "murmur2_random",
        }
    )
    numbers = random.Random(1)
    for position in range(records):
        while True:
            try:
                producer.produce(topic, key=str(numbers.randrange(KEYS)), value=str(position % 1000))
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


def create(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result()


def ours(spark: SparkSession, servers: str, topic: str, per_batch: int, work: Path) -> tuple[float, str]:
    """Rate and output topic of the exactly-once job."""
    output = f"{topic}-ours"
    create(servers, output)
    times = BatchTimes(spark)
    job = ckpt.Job(spark, "sum", store=str(work / "store"), interval="5 seconds", key_groups=16)
    records = job.source("numbers", KafkaSource(servers, topic, options={"maxOffsetsPerTrigger": per_batch}))
    sums = records.selectExpr("CAST(key AS STRING) AS k", "CAST(CAST(value AS STRING) AS LONG) AS v").groupBy("k")
    totals = sums.agg("append", total=ckpt.sum("v"))
    totals.selectExpr("k AS key", "CAST(total AS STRING) AS value").to(KafkaSink(servers, output, lanes=2))
    job.start(availableNow=True).awaitTermination()
    shutil.rmtree(work / "store")
    return rate(times, per_batch), output


def add_up(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Running sum, one output per input, as a Spark user writes it."""
    total = state.get[0] if state.exists else 0
    for frame in frames:
        running = frame["v"].cumsum() + total
        total = int(running.iloc[-1])
        yield pd.DataFrame({"key": frame["k"], "value": running.astype(str)})
    state.update((total,))


def plain(spark: SparkSession, servers: str, topic: str, per_batch: int, work: Path) -> tuple[float, str]:
    """Rate and output topic of plain PySpark with its own Kafka sink."""
    output = f"{topic}-plain"
    create(servers, output)
    times = BatchTimes(spark)
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    records = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", per_batch).load()
    numbers = records.select(
        F.col("key").cast("string").alias("k"), F.col("value").cast("string").cast("long").alias("v")
    )
    sums = numbers.groupBy("k").applyInPandasWithState(
        add_up, "key string, value string", "total long", "append", GroupStateTimeout.NoTimeout
    )
    writer = sums.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", output)
    writer.option("checkpointLocation", str(work / "plain")).trigger(availableNow=True).start().awaitTermination()
    return rate(times, per_batch), output


def rate(times: BatchTimes, per_batch: int) -> float:
    """Records per second of the warm full batches."""
    full = times.full_batches(per_batch)
    return sum(rows for rows, _ in full) / (sum(ms for _, ms in full) / 1000) if full else float("nan")


def verify(servers: str, topic: str, output: str, records: int) -> str:
    """Read both topics and say whether the output is the running sum, every record once."""
    wanted: dict[str, list[int]] = defaultdict(list)
    for key, value in read(servers, topic, records):
        wanted[key].append((wanted[key][-1] if wanted[key] else 0) + int(value))
    found: dict[str, list[int]] = defaultdict(list)
    for key, value in read(servers, output, records):
        found[key].append(int(value))
    return (
        "exact"
        if all(sorted(found[key]) == sorted(wanted[key]) for key in wanted) and found.keys() == wanted.keys()
        else "DIFFERS"
    )


def read(servers: str, topic: str, expected: int) -> Iterator[tuple[str, str]]:
    """Committed records from offset 0 until the topic is quiet."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": uuid.uuid4().hex,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    seen = 0
    while messages := consumer.consume(10_000, timeout=5.0 if seen >= expected else 20.0):
        for message in messages:
            if message.error() is None:
                seen += 1
                yield message.key().decode(), message.value().decode()
    consumer.close()


def main(servers: str, per_batch_ours: int = 400_000, per_batch_plain: int = 50_000) -> list[str]:
    """Rows of a Markdown table."""
    spark = benchmark_session("kafka")
    many, few = per_batch_ours * 9, per_batch_plain * 6
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        large, small = fill(servers, many), fill(servers, few)
        plain_rate, plain_output = plain(spark, servers, small, per_batch_plain, work)
        our_rate, our_output = ours(spark, servers, large, per_batch_ours, work)
    exact_plain, exact_ours = verify(servers, small, plain_output, few), verify(servers, large, our_output, many)
    ratio = our_rate / plain_rate
    return [
        "| Kafka to Kafka running sum, one output per input | records/s, warm | output | ratio |",
        "|---|---|---|---|",
        f"| plain PySpark, at-least-once sink | {plain_rate:,.0f} | {exact_plain} | 1.0 |",
        f"| spark_ckpt, exactly-once | {our_rate:,.0f} | {exact_ours} | **{ratio:.1f}** |",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("servers")
    print("\n".join(main(parser.parse_args().servers)))
