"""Customers as they are, and as they were: a table with one row per customer (merged), one with every version and its times.

A slowly changing dimension of type 1 and one of type 2, from the same changes, in the same epoch.

python customer_history.py FOLDER [drain]      FOLDER/inbox/*.json: customer string, city string, at timestamp
"""

import sys

from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt


def versions(key, frames, state):
    """State: the version that is in force. A row per version that is over, and one for the new one, which has no end."""
    current = state.get if state.exists else None
    changes = sorted((at, city) for frame in frames for city, at in zip(frame["city"], frame["at"], strict=True))
    for at, city in changes:
        if current and (city == current[0] or at <= current[1]):
            continue  # nothing new, or older than what is known
        if current:
            yield (*key, *current, at)
        current = (city, at)
        yield (*key, *current, None)
    state.update(current)


def build(spark: SparkSession, folder: str) -> ckpt.Job:
    job = ckpt.Job(spark, "customers", store=f"{folder}/store", interval="5 seconds")
    changes = job.source(
        "changes", FilesSource(f"{folder}/inbox", "json", "customer string, city string, at timestamp")
    )
    version = "city string, since timestamp"
    told = changes.groupBy("customer").applyInPandasWithState(
        versions, f"customer string, {version}, until timestamp", version, "append", "NoTimeout"
    )
    current = told.filter("until IS NULL").drop("until")
    current.to(DeltaSink(f"{folder}/customers", engine="spark", keys=["customer"]), name="customers")
    told.to(DeltaSink(f"{folder}/history", engine="spark", keys=["customer", "since"]), name="history")
    return job


if __name__ == "__main__":
    folder, *drain = sys.argv[1:]
    build(ckpt.session("customers", "delta"), folder).start(availableNow="drain" in drain).awaitTermination()
