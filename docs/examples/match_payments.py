"""Orders beside their payments, whichever comes first: a join of two streams. What meets nothing for two days is told as unpaid.

python match_payments.py FOLDER [drain]      FOLDER/orders/*.json: id long, customer string, amount double
                                             FOLDER/payments/*.json: order_id long, paid double
"""

import sys

from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt


def build(spark: SparkSession, folder: str, patience: str = "2 days") -> ckpt.Job:
    job = ckpt.Job(spark, "matched", store=f"{folder}/store", interval="5 seconds")
    orders = job.source("orders", FilesSource(f"{folder}/orders", "json", "id long, customer string, amount double"))
    payments = job.source("payments", FilesSource(f"{folder}/payments", "json", "order_id long, paid double"))
    beside = orders.join(
        payments.withColumnRenamed("order_id", "id"), on="id", how="left", ttl=patience, name="matched"
    )
    beside.filter("paid IS NOT NULL").to(DeltaSink(f"{folder}/paid"), name="paid")
    beside.filter("paid IS NULL").select("id", "customer", "amount").to(DeltaSink(f"{folder}/unpaid"), name="unpaid")
    return job


if __name__ == "__main__":
    folder, *words = sys.argv[1:]
    drained = "drain" in words
    patience = [word for word in words if word != "drain"] or ["2 days"]
    build(ckpt.session("matched"), folder, *patience).start(availableNow=drained).awaitTermination()
