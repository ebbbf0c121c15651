"""Orders look for a warehouse that has what they want: the nearest one first, the next one if it has too little, three at most.

A loop: what a warehouse cannot serve comes out of the feedback again, under the next warehouse's key. What a driver that dies has
going round is part of the epoch.

python route_orders.py FOLDER [drain]      FOLDER/orders/*.json: id long, product string, quantity int, warehouses array<string>
                                           FOLDER/deliveries/*.json: warehouse string, product string, quantity int
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt

ORDER = "id long, product string, quantity int, warehouses array<string>"
MOST_TRIES = 3


def reserve(key, frames, state):
    """State of a warehouse's product: how many are left. Deliveries of a batch come before its orders."""
    warehouse, product = key
    left = (state.get[0] if state.exists else 0) + int(frames["deliveries"]["quantity"].sum())
    for order in frames["orders"].itertuples():
        if order.quantity <= left:
            left, outcome = left - order.quantity, "reserved"
        else:
            outcome = "again" if order.tries < min(MOST_TRIES, len(order.warehouses)) else "refused"
        yield order.id, product, order.quantity, list(order.warehouses), order.tries, warehouse, outcome
    state.update((left,))


def build(spark: SparkSession, folder: str) -> ckpt.Job:
    job = ckpt.Job(spark, "orders", store=f"{folder}/store", interval="5 seconds")
    orders = job.source("orders", FilesSource(f"{folder}/orders", "json", ORDER))
    stock = "warehouse string, product string, quantity int"
    deliveries = job.source("deliveries", FilesSource(f"{folder}/deliveries", "json", stock))
    elsewhere = job.feedback("elsewhere", f"{ORDER}, tries int")

    asking = orders.withColumn("tries", F.lit(1)).union(elsewhere)
    asking = asking.withColumn("warehouse", F.get("warehouses", F.col("tries") - 1))
    place = ("warehouse", "product")
    answers = job.cogroup(
        {"orders": asking.groupBy(*place), "deliveries": deliveries.groupBy(*place)}
    ).applyInPandasWithState(
        reserve, f"{ORDER}, tries int, warehouse string, outcome string", "available int", "append", "NoTimeout"
    )
    again = answers.filter("outcome = 'again'")
    elsewhere.close(again.select("id", "product", "quantity", "warehouses", (F.col("tries") + 1).alias("tries")))
    decided = answers.filter("outcome <> 'again'")
    decided.select("id", "warehouse", "tries", "outcome").to(DeltaSink(f"{folder}/decided"))
    return job


if __name__ == "__main__":
    folder, *drain = sys.argv[1:]
    build(ckpt.session("orders"), folder).start(availableNow="drain" in drain).awaitTermination()
