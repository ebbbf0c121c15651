"""Orders in, running totals per customer out, Kafka to Kafka, exactly once.

spark-submit --jars "$(spark-ckpt jars kafka)" totals.py localhost:9092 /data/stores/totals
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt as ckpt


def build(spark: SparkSession, servers: str, store: str) -> ckpt.Job:
    job = ckpt.Job(spark, "totals", store=store, interval="5 seconds")
    orders = job.source("orders", KafkaSource(servers, "orders"))
    totals = (
        orders.parse("value", "customer string, amount double", alias="o", on_error="drop")
        .select("o.*")
        .groupBy("customer")
        .agg(outputMode="each row", total=ckpt.sum("amount"), orders=ckpt.count())
    )
    records = totals.select(F.col("customer").alias("key"), F.to_json(F.struct("*")).alias("value"))
    records.to(KafkaSink(servers, "totals"))
    return job


if __name__ == "__main__":
    servers, store, *drain = sys.argv[1:]
    run = build(SparkSession.builder.appName("totals").getOrCreate(), servers, store).start(
        availableNow="drain" in drain
    )
    run.awaitTermination()
