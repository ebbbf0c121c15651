"""Views per country and ten minutes, two minutes of grace. What comes later still is left out, and counted.

python windows.py FOLDER [drain]      FOLDER/inbox/*.json: country string, at timestamp
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt


class LateRows(ckpt.RunListener):
    """Says so when rows are left out. Metrics have the same: `spark_ckpt_late_rows_total`."""

    def onProgress(self, event: ckpt.ProgressEvent) -> None:
        if late := event.progress["lateRows"].get("views"):
            print(f"{late} row{'s' * (late > 1)} came too late")


def build(spark: SparkSession, folder: str) -> ckpt.Job:
    job = ckpt.Job(spark, "views", store=f"{folder}/store", interval="5 seconds")
    views = job.source(
        "views", FilesSource(f"{folder}/inbox", "json", "country string, at timestamp", maxFilesPerTrigger=1)
    )
    counted = (
        views.withWatermark("at", "2 minutes")
        .groupBy("country", F.window("at", "10 minutes"))
        .agg(name="views", views=ckpt.count())
    )
    counted.to(DeltaSink(f"{folder}/views"))  # a row for each change: of a window the one with the most views counts
    job.addListener(LateRows())
    return job


if __name__ == "__main__":
    folder, *drain = sys.argv[1:]
    build(ckpt.session("views"), folder).start(availableNow="drain" in drain).awaitTermination()
