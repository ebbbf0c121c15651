"""Programs without state: alerts of two united streams, and a join with a table that changes slowly."""

from __future__ import annotations

import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.ported.input_files import Row, in_time, stamp
from integration_tests.ported.program import File, Ported

SIGNAL = "sensor string, celsius long, at timestamp"
SALE = "product string, amount long, at timestamp"


def signal(draw: random.Random, at: float) -> Row:
    """A temperature of a sensor."""
    return {"sensor": draw.choice("abc"), "celsius": draw.choice((20, 79, 80, 81, 95)), "at": stamp(at)}


def sale(draw: random.Random, at: float) -> Row:
    """A sale; one product is in no list of prices."""
    return {"product": draw.choice(("tea", "milk", "salt", "gift")), "amount": draw.randrange(1, 5), "at": stamp(at)}


def two_sites(draw: random.Random) -> list[File]:
    """Signals of two sites."""
    north, south = in_time(draw, signal), in_time(draw, signal)
    return [{"north": ours, "south": theirs} for ours, theirs in zip(north, south, strict=True)]


def sales_and_prices(draw: random.Random) -> list[File]:
    """Sales, and a list of prices that is replaced before each file."""
    return [
        {
            "prices": [{"product": name, "price": draw.randrange(1, 9)} for name in ("tea", "milk", "salt")],
            "sales": rows,
        }
        for rows in in_time(draw, sale)
    ]


def plain_alerts(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `consumer.py` of Araaa00/Kafka_Bigdata, with a second site."""
    north = spark.readStream.schema(SIGNAL).json(f"{inputs}/north")
    south = spark.readStream.schema(SIGNAL).json(f"{inputs}/south")
    signals = north.withColumn("site", F.lit("north")).union(south.withColumn("site", F.lit("south")))
    alerts = signals.filter("celsius > 80").withColumn("text", F.expr("concat(site, ' ', sensor, ': ', celsius)"))
    writer = alerts.writeStream.format("delta").outputMode("append").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/alerts").awaitTermination()


def job_alerts(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """The same calls on streams."""
    job = ckpt.Job(spark, "alerts", store=state)
    north = job.source("north", FilesSource(f"{inputs}/north", "json", SIGNAL))
    south = job.source("south", FilesSource(f"{inputs}/south", "json", SIGNAL))
    signals = north.withColumn("site", F.lit("north")).union(south.withColumn("site", F.lit("south")))
    alerts = signals.filter("celsius > 80").withColumn("text", F.expr("concat(site, ' ', sensor, ': ', celsius)"))
    alerts.to(DeltaSink(f"{outputs}/alerts"))
    job.start(availableNow=True).awaitTermination()


def plain_prices(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `docs/streaming/apis-on-dataframes-and-datasets.md` of apache/spark, stream-static joins."""
    sales = spark.readStream.schema(SALE).json(f"{inputs}/sales")
    prices = spark.read.format("delta").load(f"{inputs}/prices")
    priced = sales.join(prices, "product", "left").withColumn("cost", F.col("amount") * F.col("price"))
    writer = priced.writeStream.format("delta").outputMode("append").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/priced").awaitTermination()


def job_prices(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """The table is the same DataFrame."""
    job = ckpt.Job(spark, "prices", store=state)
    sales = job.source("sales", FilesSource(f"{inputs}/sales", "json", SALE))
    prices = spark.read.format("delta").load(f"{inputs}/prices")
    priced = sales.join(prices, "product", "left").withColumn("cost", F.col("amount") * F.col("price"))
    priced.to(DeltaSink(f"{outputs}/priced"))
    job.start(availableNow=True).awaitTermination()


PROGRAMS = (
    Ported(
        "device alerts of two streams",
        plain_alerts,
        job_alerts,
        two_sites,
        ("alerts",),
        "source and sink only",
    ),
    Ported(
        "join with a table that changes",
        plain_prices,
        job_prices,
        sales_and_prices,
        ("priced",),
        "source and sink only",
        tables=("prices",),
    ),
)
