"""Programs that write several tables, and aggregates that are merged into a table."""

from __future__ import annotations

import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.ported.input_files import Row, of_one_input, stamp
from integration_tests.ported.program import Ported

READING = "id string, device string, at timestamp, celsius long"


def reading(draw: random.Random, at: float) -> Row:
    """A reading of a device; some have no value."""
    row: Row = {"id": f"r{draw.randrange(10**6)}", "device": draw.choice("abc"), "at": stamp(at)}
    return row | {"celsius": draw.choice((None, 4, 21, 37, 85, 91))}


def plain_totals(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `examples/python/streaming.py` of delta-io/delta, streaming aggregates in update mode."""
    table = f"{outputs}/totals"
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{table}` (device string, readings long, total long) USING delta")

    def upsert(batch, number):
        batch.createOrReplaceTempView("updates")
        batch.sparkSession.sql(
            f"""
            MERGE INTO delta.`{table}` AS t USING updates AS s ON s.device = t.device
            WHEN MATCHED THEN UPDATE SET *
            WHEN NOT MATCHED THEN INSERT *
            """
        )

    readings = spark.readStream.schema(READING).json(f"{inputs}/readings")
    totals = readings.groupBy("device").agg(F.count("*").alias("readings"), F.sum("celsius").alias("total"))
    writer = totals.writeStream.foreachBatch(upsert).outputMode("update").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start().awaitTermination()


def job_totals(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """The sink merges by key."""
    table = f"{outputs}/totals"
    job = ckpt.Job(spark, "totals", store=state)
    readings = job.source("readings", FilesSource(f"{inputs}/readings", "json", READING))
    totals = readings.groupBy("device").agg(F.count("*").alias("readings"), F.sum("celsius").alias("total"))
    totals.to(DeltaSink(table, engine="spark", keys=["device"]))
    job.start(availableNow=True).awaitTermination()


def plain_layers(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `scripts/streaming_gold_merge.py` of sandeepnayan/DataEngineeringProject-Leadpulse-PySpark."""
    bronze, silver, gold = (f"{outputs}/{layer}" for layer in ("bronze", "silver", "gold"))
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{gold}` (device string, readings long, hottest long) USING delta")

    def upsert(batch, number):
        batch.createOrReplaceTempView("updates")
        batch.sparkSession.sql(
            f"""
            MERGE INTO delta.`{gold}` AS t USING updates AS s ON s.device = t.device
            WHEN MATCHED THEN UPDATE SET *
            WHEN NOT MATCHED THEN INSERT *
            """
        )

    raw = spark.readStream.schema(READING).json(f"{inputs}/readings")
    writer = raw.writeStream.format("delta").option("checkpointLocation", f"{state}/bronze")
    writer.trigger(availableNow=True).start(bronze).awaitTermination()
    readings = spark.readStream.format("delta").load(bronze)
    clean = readings.filter("celsius IS NOT NULL").dropDuplicates(["id"])
    writer = clean.writeStream.format("delta").option("checkpointLocation", f"{state}/silver")
    writer.trigger(availableNow=True).start(silver).awaitTermination()
    readings = spark.readStream.format("delta").load(silver)
    hottest = readings.groupBy("device").agg(F.count("*").alias("readings"), F.max("celsius").alias("hottest"))
    writer = hottest.writeStream.foreachBatch(upsert).outputMode("update")
    writer = writer.option("checkpointLocation", f"{state}/gold")
    writer.trigger(availableNow=True).start().awaitTermination()


def job_layers(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """One job writes all layers, each from the stream of the layer before."""
    bronze, silver, gold = (f"{outputs}/{layer}" for layer in ("bronze", "silver", "gold"))
    job = ckpt.Job(spark, "layers", store=state)
    raw = job.source("readings", FilesSource(f"{inputs}/readings", "json", READING))
    readings = raw.to(DeltaSink(bronze), name="bronze")
    clean = readings.filter("celsius IS NOT NULL").dropDuplicates(["id"])
    readings = clean.to(DeltaSink(silver), name="silver")
    hottest = readings.groupBy("device").agg(F.count("*").alias("readings"), F.max("celsius").alias("hottest"))
    hottest.to(DeltaSink(gold, engine="spark", keys=["device"]), name="gold")
    job.start(availableNow=True).awaitTermination()


def plain_two(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `docs/streaming/apis-on-dataframes-and-datasets.md` of apache/spark, `foreachBatch` to several locations."""
    readings = spark.readStream.schema(READING).json(f"{inputs}/readings")

    def write(batch, number):
        batch.persist()
        batch.write.format("delta").mode("append").save(f"{outputs}/all")
        hot = batch.filter("celsius > 80").select("device", "at", "celsius")
        hot.write.format("delta").mode("append").save(f"{outputs}/hot")
        batch.unpersist()

    writer = readings.writeStream.foreachBatch(write).option("checkpointLocation", state)
    writer.trigger(availableNow=True).start().awaitTermination()


def job_two(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """Each table is a sink of the stream. Both are exactly-once; the plain function may write a batch twice."""
    job = ckpt.Job(spark, "two_tables", store=state)
    readings = job.source("readings", FilesSource(f"{inputs}/readings", "json", READING))
    readings.to(DeltaSink(f"{outputs}/all"), name="all")
    hot = readings.filter("celsius > 80").select("device", "at", "celsius")
    hot.to(DeltaSink(f"{outputs}/hot"), name="hot")
    job.start(availableNow=True).awaitTermination()


PROGRAMS = (
    Ported(
        "totals by MERGE",
        plain_totals,
        job_totals,
        of_one_input("readings", reading),
        ("totals",),
        'the function with the MERGE becomes `DeltaSink(keys=["device"])`',
    ),
    Ported(
        "bronze, silver, gold",
        plain_layers,
        job_layers,
        of_one_input("readings", reading),
        ("bronze", "silver", "gold"),
        "three queries become one job with three named sinks",
    ),
    Ported(
        "two tables",
        plain_two,
        job_two,
        of_one_input("readings", reading),
        ("all", "hot"),
        "the function becomes two named sinks",
    ),
)
