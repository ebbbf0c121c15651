"""Orders with their price, by a join with a static table; what has no price goes to a table of its own.

The table is what it was when the run began. A new file of prices is seen by the next one.

python enrich.py FOLDER [drain]      FOLDER/inbox/*.json: id long, product string, quantity int
                                     FOLDER/prices/*.csv: product, price
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt


def build(spark: SparkSession, folder: str) -> ckpt.Job:
    prices = spark.read.schema("product string, price double").csv(f"{folder}/prices", header=True)
    job = ckpt.Job(spark, "prices", store=f"{folder}/store", interval="5 seconds")
    orders = job.source("orders", FilesSource(f"{folder}/inbox", "json", "id long, product string, quantity int"))
    priced = orders.join(F.broadcast(prices), "product", "left").withColumn("amount", F.expr("quantity * price"))
    priced.filter("price IS NOT NULL").to(DeltaSink(f"{folder}/orders"), name="orders")
    priced.filter("price IS NULL").select("id", "product").to(DeltaSink(f"{folder}/unknown"), name="unknown")
    return job


if __name__ == "__main__":
    folder, *drain = sys.argv[1:]
    build(ckpt.session("prices"), folder).start(availableNow="drain" in drain).awaitTermination()
