"""Programs with Python functions that keep a state per key."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.ported.input_files import Row, of_one_input, stamp
from integration_tests.ported.program import Ported

CLICK = "visitor string, page string, at timestamp"
VISIT = "visitor string, clicks long, began timestamp, ended timestamp"
QUIET_MS = 40_000


def click(draw: random.Random, at: float) -> Row:
    """A visitor opens a page."""
    return {"visitor": draw.choice("abcd"), "page": draw.choice(("/", "/cart", "/help")), "at": stamp(at)}


def count_visit(key, frames, state) -> Iterator[pd.DataFrame]:
    """Count a visitor's clicks until event time has passed the last one by `QUIET_MS`; then emit the visit."""
    if state.hasTimedOut:
        clicks, began_ms, ended_ms = state.get
        state.remove()
        times = {name: [pd.Timestamp(ms, unit="ms")] for name, ms in (("began", began_ms), ("ended", ended_ms))}
        yield pd.DataFrame({"visitor": [key[0]], "clicks": [clicks], **times})
        return
    clicks, began_ms, ended_ms = state.get if state.exists else (0, 1 << 60, 0)
    for frame in frames:
        clicks += len(frame)
        began_ms = min(began_ms, int(frame["at"].min().timestamp() * 1000))
        ended_ms = max(ended_ms, int(frame["at"].max().timestamp() * 1000))
    state.update((clicks, began_ms, ended_ms))
    state.setTimeoutTimestamp(max(ended_ms + QUIET_MS, state.getCurrentWatermarkMs() + 1))


def plain_visits(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `examples/src/main/python/sql/streaming/structured_network_wordcount_session_window.py` of apache/spark.

    With timeouts of event time: those of processing time depend on the machine's clock.
    """
    clicks = spark.readStream.schema(CLICK).json(f"{inputs}/clicks")
    by_visitor = clicks.withWatermark("at", "30 seconds").groupBy("visitor")
    visits = by_visitor.applyInPandasWithState(
        count_visit, VISIT, "clicks long, began_ms long, ended_ms long", "append", "EventTimeTimeout"
    )
    writer = visits.writeStream.format("delta").outputMode("append").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/visits").awaitTermination()


def job_visits(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """The same call on a stream, with the same function."""
    job = ckpt.Job(spark, "visits", store=state)
    clicks = job.source("clicks", FilesSource(f"{inputs}/clicks", "json", CLICK))
    by_visitor = clicks.withWatermark("at", "30 seconds").groupBy("visitor")
    visits = by_visitor.applyInPandasWithState(
        count_visit, VISIT, "clicks long, began_ms long, ended_ms long", "append", "EventTimeTimeout"
    )
    visits.to(DeltaSink(f"{outputs}/visits"))
    job.start(availableNow=True).awaitTermination()


PROGRAMS = (
    Ported(
        "applyInPandasWithState",
        plain_visits,
        job_visits,
        of_one_input("clicks", click),
        ("visits",),
        "source and sink only",
        shared=(count_visit,),
    ),
)
