"""Programs that depend on the watermark: late rows, duplicates, a join of two streams."""

from __future__ import annotations

import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.ported.input_files import Row, in_time, of_one_input, stamp
from integration_tests.ported.program import File, Ported


def event(draw: random.Random, at: float) -> Row:
    """An event with an identity."""
    return {"guid": f"g{draw.randrange(10**6)}", "word": draw.choice("abc"), "at": stamp(at)}


def ads(draw: random.Random) -> list[File]:
    """Impressions, and clicks on some of them, a few seconds or too long after. The newest rows are equally new."""
    files: list[File] = []
    for rows in in_time(draw, lambda draw, at: {"ad": f"ad{draw.randrange(10**6)}", "shown_at": at}):
        newest = float(str(rows[-1]["shown_at"]))
        clicks = [
            {"click_ad": row["ad"], "clicked_at": min(newest, float(str(row["shown_at"])) + draw.choice((1, 15, 200)))}
            for row in rows[:-1]
            if draw.random() < 0.7
        ]
        clicks.append({"click_ad": "none", "clicked_at": newest})
        shown = [row | {"shown_at": stamp(float(str(row["shown_at"])))} for row in rows]
        clicked = [row | {"clicked_at": stamp(float(str(row["clicked_at"])))} for row in clicks]
        files.append({"impressions": shown, "clicks": clicked})
    return files


def plain_late(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `docs/streaming/apis-on-dataframes-and-datasets.md` of apache/spark, handling late data and watermarking."""
    events = spark.readStream.schema("word string, at timestamp").json(f"{inputs}/events")
    counts = (
        events.withWatermark("at", "30 seconds")
        .groupBy(F.window("at", "20 seconds", "10 seconds"), "word")
        .agg(F.count("*").alias("count"))
    )
    writer = counts.writeStream.format("delta").outputMode("append").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/counts").awaitTermination()


def job_late(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """An operator of the job has the windows."""
    job = ckpt.Job(spark, "late_data", store=state)
    events = job.source("events", FilesSource(f"{inputs}/events", "json", "word string, at timestamp"))
    counts = (
        events.withWatermark("at", "30 seconds")
        .groupBy(F.window("at", "20 seconds", "10 seconds"), "word")
        .agg("append", F.count("*").alias("count"))
    )
    counts.to(DeltaSink(f"{outputs}/counts"))
    job.start(availableNow=True).awaitTermination()


def plain_once(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `docs/streaming/apis-on-dataframes-and-datasets.md` of apache/spark, streaming deduplication."""
    events = spark.readStream.schema("guid string, word string, at timestamp").json(f"{inputs}/events")
    once = events.withWatermark("at", "30 seconds").dropDuplicatesWithinWatermark(["guid"])
    writer = once.writeStream.format("delta").outputMode("append").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/once").awaitTermination()


def job_once(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """The same calls on a stream."""
    job = ckpt.Job(spark, "deduplicated", store=state)
    events = job.source("events", FilesSource(f"{inputs}/events", "json", "guid string, word string, at timestamp"))
    once = events.withWatermark("at", "30 seconds").dropDuplicatesWithinWatermark(["guid"])
    once.to(DeltaSink(f"{outputs}/once"))
    job.start(availableNow=True).awaitTermination()


def in_time_of(impressions, clicks):
    """Join each impression with its clicks within 20 seconds; an impression without a click comes with nulls."""
    shown = impressions.withWatermark("shown_at", "30 seconds")
    clicked = clicks.withWatermark("clicked_at", "30 seconds")
    soon = F.expr("ad = click_ad AND clicked_at BETWEEN shown_at AND shown_at + INTERVAL 20 SECONDS")
    return shown.join(clicked, soon, "leftOuter")


def plain_ads(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `docs/streaming/apis-on-dataframes-and-datasets.md` of apache/spark, stream-stream joins of ad impressions."""
    impressions = spark.readStream.schema("ad string, shown_at timestamp").json(f"{inputs}/impressions")
    clicks = spark.readStream.schema("click_ad string, clicked_at timestamp").json(f"{inputs}/clicks")
    joined = in_time_of(impressions, clicks)
    writer = joined.writeStream.format("delta").outputMode("append").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/joined").awaitTermination()


def job_ads(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """The second stream is an argument of `transform`."""
    job = ckpt.Job(spark, "ad_clicks", store=state)
    impressions = job.source(
        "impressions", FilesSource(f"{inputs}/impressions", "json", "ad string, shown_at timestamp")
    )
    clicks = job.source("clicks", FilesSource(f"{inputs}/clicks", "json", "click_ad string, clicked_at timestamp"))
    joined = impressions.transform(in_time_of, clicks)
    joined.to(DeltaSink(f"{outputs}/joined"))
    job.start(availableNow=True).awaitTermination()


PROGRAMS = (
    Ported(
        "late data",
        plain_late,
        job_late,
        of_one_input("events", event),
        ("counts",),
        'the output mode goes into `agg("append", ...)`',
    ),
    Ported(
        "deduplication",
        plain_once,
        job_once,
        of_one_input("events", event),
        ("once",),
        "source and sink only",
    ),
    Ported(
        "ad clicks",
        plain_ads,
        job_ads,
        ads,
        ("joined",),
        "`join(left, right)` becomes `left.transform(join, right)`",
        shared=(in_time_of,),
    ),
)
