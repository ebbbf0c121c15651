"""Raw lines become a typed table, a partition per day. A line that cannot be read goes to a table of rejects, with its place.

python clean.py FOLDER [drain]      FOLDER/inbox/*.json: sensor string, celsius double, at timestamp
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt


def build(spark: SparkSession, folder: str) -> ckpt.Job:
    job = ckpt.Job(spark, "readings", store=f"{folder}/store", interval="5 seconds")
    schema = "sensor string, celsius double, at timestamp"
    lines = job.source("lines", FilesSource(f"{folder}/inbox", "json", schema, on_error="drop"))
    readings = lines.dropna(subset=["sensor", "at"]).withColumn("day", F.to_date("at"))
    # A commit a minute, whatever the interval: few files a day.
    readings.to(DeltaSink(f"{folder}/readings", partition_by=["day"]), publish_every="1 minute")
    job.rejectsTo(DeltaSink(f"{folder}/rejects"))
    return job


if __name__ == "__main__":
    folder, *drain = sys.argv[1:]
    build(ckpt.session("readings"), folder).start(availableNow="drain" in drain).awaitTermination()
