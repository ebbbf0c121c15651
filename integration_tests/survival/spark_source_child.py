"""A job in its own process: two of Spark's own sources into a Delta table, until some epochs are published."""

from __future__ import annotations

import sys
import threading

from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink

import spark_ckpt as ckpt

EPOCHS = 3


class Published(ckpt.RunListener):
    """Set after this incarnation has published some epochs."""

    def __init__(self) -> None:
        self.enough = threading.Event()
        self._count = 0

    def onEpochPublished(self, event: ckpt.EpochEvent) -> None:
        self._count += 1
        if self._count >= EPOCHS:
            self.enough.set()


def main(table: str, store: str) -> None:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    spark = ckpt.session("child", master="local[2]", conf=conf)
    job = ckpt.Job(spark, "sparks", store=store, interval="200 milliseconds", key_groups=4)
    batches = job.source("batches", ckpt.SparkSource("rate-micro-batch", {"rowsPerBatch": 10}))
    seconds = job.source("seconds", ckpt.SparkSource("rate", {"rowsPerSecond": 20}))
    both = batches.withColumn("s", F.lit("batches")).union(seconds.withColumn("s", F.lit("seconds")))
    rows = both.groupBy("s").agg("each row", "sums", n=ckpt.count(), total=ckpt.sum("value"))
    rows.to(DeltaSink(table), name="out")
    published = Published()
    job.addListener(published)
    run = job.start()
    while not published.enough.wait(0.1) and run.isActive:
        pass
    run.stop(120)


if __name__ == "__main__":
    main(*sys.argv[1:3])
