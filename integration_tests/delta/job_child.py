"""A job in its own process: a folder of CSV files into a Delta table, until all epochs are published."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt


def run_on(spark: SparkSession, folder: str, table: str, store: str) -> None:
    """Run the job from its start to its end."""
    job = ckpt.Job(spark, "copy", store=store, interval="200 milliseconds")
    rows = job.source("in", FilesSource(folder, "csv", "id long, city string", maxFilesPerTrigger=1))
    rows.filter("id >= 0").to(DeltaSink(table, partition_by=["city"]), name="out")
    run = job.start(availableNow=True)
    run.awaitTermination(300)
    error = run.exception()
    if error is not None:
        raise SystemExit(str(error))


if __name__ == "__main__":
    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    run_on(ckpt.session("child", master="local[2]", conf=conf), *sys.argv[1:4])
