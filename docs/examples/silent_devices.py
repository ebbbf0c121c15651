"""Alerts, Kafka to Kafka: a device that is too hot three times in a row, one that is silent for ten minutes of event time.

Each alert is told once: a hot device is told again after it has been cool, a silent one after it has spoken.

python silent_devices.py SERVERS STORE [drain]      topics readings (JSON: device, celsius, at) and alerts
"""

import sys

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt as ckpt

HOT_CELSIUS, TIMES = 90.0, 3
SILENT_MS = 10 * 60 * 1000


def watch(key, frames, state):
    """State: how often in a row the device was hot, when it spoke last."""
    hot, last = state.get if state.exists else (0, None)
    if state.hasTimedOut:
        state.remove()
        yield (*key, "silent", last)
        return
    for reading in pd.concat(frames).sort_values("at").itertuples():
        hot = hot + 1 if reading.celsius >= HOT_CELSIUS else 0
        last = reading.at if last is None else max(last, reading.at)
        if hot == TIMES:
            yield (*key, "hot", reading.at)
    state.update((hot, last))
    state.setTimeoutTimestamp(int(last.timestamp() * 1000) + SILENT_MS)


def build(spark: SparkSession, servers: str, store: str) -> ckpt.Job:
    job = ckpt.Job(spark, "alerts", store=store, interval="1 second")
    records = job.source("readings", KafkaSource(servers, "readings"))
    reading = "device string, celsius double, at timestamp"
    readings = records.parse("value", reading, alias="r", on_error="drop").select("r.*").dropna()
    alerts = (
        readings.withWatermark("at", "1 minute")
        .groupBy("device")
        .applyInPandasWithState(
            watch,
            "device string, alert string, at timestamp",
            "hot int, last timestamp",
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )
    alerts.select(F.col("device").alias("key"), F.to_json(F.struct("*")).alias("value")).to(
        KafkaSink(servers, "alerts")
    )
    return job


if __name__ == "__main__":
    servers, store, *drain = sys.argv[1:]
    run = build(ckpt.session("alerts", "kafka"), servers, store).start(availableNow="drain" in drain)
    run.awaitTermination()
