"""Visits: a visitor's clicks with less than half an hour between them, put out when the half hour is over in event time.

python sessions.py FOLDER [drain]      FOLDER/inbox/*.json: visitor string, page string, at timestamp
"""

import sys

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt

QUIET = pd.Timedelta(minutes=30)


def milliseconds(time: pd.Timestamp) -> int:
    return int(pd.Timestamp(time).timestamp() * 1000)


def visits(key, frames, state):
    """State: when the visit that is under way began, its last click so far, its clicks."""
    visit = state.get if state.exists else None
    if state.hasTimedOut:
        state.remove()
        yield key + visit
        return
    for at in sorted(at for frame in frames for at in frame["at"]):
        if visit and at - visit[1] > QUIET:
            yield key + visit
            visit = None
        began, last, clicks = visit or (at, at, 0)
        visit = (min(began, at), max(last, at), clicks + 1)  # a click may come late, but not behind the watermark
    state.update(visit)
    state.setTimeoutTimestamp(milliseconds(visit[1] + QUIET))


def build(spark: SparkSession, folder: str) -> ckpt.Job:
    job = ckpt.Job(spark, "visits", store=f"{folder}/store", interval="5 seconds")
    clicks = job.source("clicks", FilesSource(f"{folder}/inbox", "json", "visitor string, page string, at timestamp"))
    visit = "began timestamp, ended timestamp, clicks int"
    ended = (
        clicks.withWatermark("at", "5 minutes")
        .groupBy("visitor")
        .applyInPandasWithState(visits, f"visitor string, {visit}", visit, "append", GroupStateTimeout.EventTimeTimeout)
    )
    ended.to(DeltaSink(f"{folder}/visits"))
    return job


if __name__ == "__main__":
    folder, *drain = sys.argv[1:]
    build(ckpt.session("visits"), folder).start(availableNow="drain" in drain).awaitTermination()
