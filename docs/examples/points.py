"""Loyalty points per customer, in a merged table; a rule that was deployed by mistake is taken back with a savepoint.

python points.py FOLDER 1 drain                      a point per euro
spark-ckpt savepoint add FOLDER/store before-bonus
python points.py FOLDER 100 drain                    a hundred: a mistake
python points.py FOLDER 1 drain before-bonus         from the savepoint, by the old rule, as if nothing had been

FOLDER/inbox/*.json: customer string, euros double
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt


def build(spark: SparkSession, folder: str, per_euro: int) -> ckpt.Job:
    job = ckpt.Job(spark, "points", store=f"{folder}/store", interval="5 seconds")
    purchases = job.source("purchases", FilesSource(f"{folder}/inbox", "json", "customer string, euros double"))
    earned = purchases.select("customer", (F.col("euros") * per_euro).alias("points"))
    points = earned.groupBy("customer").agg(name="points", points=ckpt.sum("points"))
    # Merged by customer: what a restored job puts out again takes the place of the wrong rows.
    points.to(DeltaSink(f"{folder}/points", engine="spark", keys=["customer"]))
    return job


if __name__ == "__main__":
    folder, per_euro, *words = sys.argv[1:]
    savepoint = next((word for word in words if word != "drain"), "latest")
    job = build(ckpt.session("points", "delta"), folder, int(per_euro))
    job.start(restore=savepoint, availableNow="drain" in words).awaitTermination()
