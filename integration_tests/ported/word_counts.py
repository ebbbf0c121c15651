"""Counts of words: the first programs that most users of Structured Streaming write."""

from __future__ import annotations

import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.ported.input_files import Row, in_time, stamp
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
)
