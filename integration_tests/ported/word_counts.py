"""Counts of words: the first programs that most users of Structured Streaming write."""

from __future__ import annotations

import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource
from spark_ckpt_kafka import KafkaSource

import spark_ckpt as ckpt
from integration_tests.ported.input_files import Row, in_time, of_one_input, stamp
from integration_tests.ported.program import File, Ported

WORDS = ("apple", "pear", "plum", "fig")


def line(draw: random.Random, at: float) -> Row:
    """A line of words."""
    return {"value": " ".join(draw.choices(WORDS, k=draw.randrange(1, 4))), "at": stamp(at)}


def plain_word_count(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `examples/src/main/python/sql/streaming/structured_network_wordcount.py` of apache/spark."""
    lines = spark.readStream.schema("value string").json(f"{inputs}/lines")
    words = lines.select(F.explode(F.split("value", " ")).alias("word"))
    counts = words.groupBy("word").count()
    writer = counts.writeStream.format("delta").outputMode("complete").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/counts").awaitTermination()


def job_word_count(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """Write the whole result with each epoch."""
    job = ckpt.Job(spark, "word_count", store=state)
    lines = job.source("lines", FilesSource(f"{inputs}/lines", "json", "value string"))
    words = lines.select(F.explode(F.split("value", " ")).alias("word"))
    counts = words.transform(lambda words: words.groupBy("word").count(), outputMode="complete")
    counts.to(DeltaSink(f"{outputs}/counts"))
    job.start(availableNow=True).awaitTermination()


def plain_windows(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `examples/src/main/python/sql/streaming/structured_network_wordcount_windowed.py` of apache/spark."""
    lines = spark.readStream.schema("value string, at timestamp").json(f"{inputs}/lines")
    words = lines.select(F.explode(F.split("value", " ")).alias("word"), "at")
    counts = (
        words.groupBy(F.window("at", "60 seconds", "30 seconds"), "word")
        .count()
        .orderBy("window")
    )  # fmt: skip
    writer = counts.writeStream.format("delta").outputMode("complete").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/counts").awaitTermination()


def job_windows(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """The aggregation moves into a function."""

    def count(words):
        return (
            words.groupBy(F.window("at", "60 seconds", "30 seconds"), "word")
            .count()
            .orderBy("window")
        )  # fmt: skip

    job = ckpt.Job(spark, "windowed_word_count", store=state)
    lines = job.source("lines", FilesSource(f"{inputs}/lines", "json", "value string, at timestamp"))
    words = lines.select(F.explode(F.split("value", " ")).alias("word"), "at")
    counts = words.transform(count, outputMode="complete")
    counts.to(DeltaSink(f"{outputs}/counts"))
    job.start(availableNow=True).awaitTermination()


def plain_sessions(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `examples/src/main/python/sql/streaming/structured_sessionization.py` of apache/spark.

    With a watermark and append mode: the original emits changed sessions to the console.
    """
    lines = spark.readStream.schema("value string, at timestamp").json(f"{inputs}/lines")
    events = lines.select(F.explode(F.split("value", " ")).alias("session_id"), "at")
    sessions = (
        events.withWatermark("at", "30 seconds")
        .groupBy(F.session_window("at", "10 seconds").alias("session"), "session_id")
        .agg(F.count("*").alias("events"))
        .selectExpr("session_id", "session.start AS began", "session.end AS ended", "events")
    )
    writer = sessions.writeStream.format("delta").outputMode("append").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/sessions").awaitTermination()


def job_sessions(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """Session windows are Spark's own operator."""

    def close(events):
        return (
            events.withWatermark("at", "30 seconds")
            .groupBy(F.session_window("at", "10 seconds").alias("session"), "session_id")
            .agg(F.count("*").alias("events"))
            .selectExpr("session_id", "session.start AS began", "session.end AS ended", "events")
        )

    job = ckpt.Job(spark, "sessions", store=state)
    lines = job.source("lines", FilesSource(f"{inputs}/lines", "json", "value string, at timestamp"))
    events = lines.select(F.explode(F.split("value", " ")).alias("session_id"), "at")
    sessions = events.transform(close)
    sessions.to(DeltaSink(f"{outputs}/sessions"))
    job.start(availableNow=True).awaitTermination()


def plain_kafka(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `examples/src/main/python/sql/streaming/structured_kafka_wordcount.py` of apache/spark."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", inputs)
    lines = reader.option("subscribe", "lines").option("startingOffsets", "earliest").load()
    words = lines.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"))
    counts = words.groupBy("word").count()
    writer = counts.writeStream.format("delta").outputMode("complete").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/counts").awaitTermination()


def job_kafka(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """The columns of a record are those of Spark's source."""
    job = ckpt.Job(spark, "kafka_word_count", store=state)
    lines = job.source("lines", KafkaSource(inputs, "lines", start="earliest"))
    words = lines.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"))
    counts = words.transform(lambda words: words.groupBy("word").count(), outputMode="complete")
    counts.to(DeltaSink(f"{outputs}/counts"))
    job.start(availableNow=True).awaitTermination()


def texts(draw: random.Random) -> list[File]:
    """Lines without their times, as records have them."""
    return [{"lines": [{"value": row["value"]} for row in rows]} for rows in in_time(draw, line)]


PROGRAMS = (
    Ported(
        "word count",
        plain_word_count,
        job_word_count,
        texts,
        ("counts",),
        "the aggregation of the complete result goes into `transform`",
    ),
    Ported(
        "windowed word count",
        plain_windows,
        job_windows,
        of_one_input("lines", line),
        ("counts",),
        "the aggregation and its sort go into `transform`",
    ),
    Ported(
        "session windows",
        plain_sessions,
        job_sessions,
        of_one_input("lines", line),
        ("sessions",),
        "the session windows go into `transform`",
    ),
    Ported(
        "Kafka word count",
        plain_kafka,
        job_kafka,
        texts,
        ("counts",),
        "as the word count; `KafkaSource` reads the topic",
        kafka=True,
    ),
)
