"""Avro orders in, the large ones out, Kafka to Kafka with a schema registry; what is no order goes to a topic of its own.

The reader's schema has a field that older writers do not know: it gets its default.

python typed_orders.py SERVERS REGISTRY STORE [drain]      topics orders, large-orders, broken-orders
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_kafka import Avro, KafkaSink, KafkaSource

import spark_ckpt as ckpt

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "customer", "type": "string"},
            {"name": "amount", "type": "double"},
            {"name": "currency", "type": "string", "default": "EUR"},
        ],
    }
)


def build(spark: SparkSession, servers: str, registry: str, store: str) -> ckpt.Job:
    job = ckpt.Job(spark, "typed-orders", store=store, interval="5 seconds")
    avro = Avro(registry, ORDER, on_error="null")
    records = job.source("orders", KafkaSource(servers, "orders", value=avro, shown_group="typed-orders"))
    large = records.filter("value_error IS NULL").select("value.*").filter("amount >= 100")
    key, value = F.col("customer").cast("binary"), avro.encoded(F.struct("*"), "large-orders")
    large.select(key.alias("key"), value.alias("value")).to(KafkaSink(servers, "large-orders"), name="large")
    broken = F.concat_ws("/", "topic", "partition", "offset").cast("binary").alias("key")
    why = F.col("value_error").cast("binary").alias("value")
    records.filter("value_error IS NOT NULL").select(broken, why).to(KafkaSink(servers, "broken-orders"), name="broken")
    return job


if __name__ == "__main__":
    servers, registry, store, *drain = sys.argv[1:]
    spark = ckpt.session("typed-orders", "kafka")
    build(spark, servers, registry, store).start(availableNow="drain" in drain).awaitTermination()
