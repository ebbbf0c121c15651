"""A plain query that has run for a long time: Kafka, applyInPandasWithState, Delta. It runs until it is killed.

python -m integration_tests.adopt.plain_query --servers HOST:PORT --topic TOPIC --table DIR --checkpoint DIR --events FILE
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

import spark_ckpt as ckpt
from integration_tests.adopt.totals import OUTPUT, RECORD, STATE, add_up


def parsed(frame: DataFrame) -> DataFrame:
    return frame.select(F.from_json(F.col("value").cast("string"), RECORD).alias("r")).select("r.*")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("servers", "topic", "table", "checkpoint", "events"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    spark = ckpt.session("plain", "kafka", "delta", master="local[2]", conf=conf)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", options.servers)
    reader = reader.option("subscribe", options.topic).option("startingOffsets", "earliest")
    totals = (
        parsed(reader.option("maxOffsetsPerTrigger", 60).load())
        .groupBy("user")
        .applyInPandasWithState(add_up, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout)
    )
    writer = totals.writeStream.format("delta").option("checkpointLocation", options.checkpoint)
    writer.start(options.table).awaitTermination()


if __name__ == "__main__":
    main()
