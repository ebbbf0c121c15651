"""Programs with Python functions and classes that keep a state per key."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.ported.input_files import Row, of_one_input, stamp
from integration_tests.ported.program import Ported

CLICK = "visitor string, page string, at timestamp"
VISIT = "visitor string, clicks long, began timestamp, ended timestamp"
QUIET_MS = 40_000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


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


class Visits(StatefulProcessor):
    """Three kinds of state per visitor: the clicks (a value), the pages (a map), the times (a list).

    A timer of event time emits them `QUIET_MS` after the last click, and the visitor begins again.
    """

    def init(self, handle) -> None:
        self._handle = handle
        self._clicks = handle.getValueState("clicks", "n long")
        self._pages = handle.getMapState("pages", "page string", "n long")
        self._times = handle.getListState("times", "ms long")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        clicks = self._clicks.get()[0] if self._clicks.exists() else 0
        for frame in rows:
            clicks += len(frame)
            for page, n in frame["page"].value_counts().items():
                before = self._pages.getValue((page,))[0] if self._pages.containsKey((page,)) else 0
                self._pages.updateValue((page,), (before + int(n),))
            for at in frame["at"]:
                self._times.appendValue((int(at.timestamp() * 1000),))
        self._clicks.update((clicks,))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        newest_ms = max(each[0] for each in self._times.get())
        self._handle.registerTimer(max(newest_ms + QUIET_MS, timerValues.getCurrentWatermarkInMs() + 1))
        yield from ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[pd.DataFrame]:
        clicks = self._clicks.get()[0]
        pages = ", ".join(sorted(f"{page[0]} {n[0]}" for page, n in self._pages.iterator()))
        first_ms = min(each[0] for each in self._times.get())
        for each in (self._clicks, self._pages, self._times):
            each.clear()
        yield pd.DataFrame({"visitor": [key[0]], "clicks": [clicks], "pages": [pages], "first_ms": [first_ms]})

    def close(self) -> None: ...


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


def plain_timers(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `docs/streaming/structured-streaming-transform-with-state.md` of apache/spark, the downtime detector.

    With timers of event time, and the three kinds of state of that page. Spark takes a TTL with processing time only.
    """
    clicks = spark.readStream.schema(CLICK).json(f"{inputs}/clicks")
    by_visitor = clicks.withWatermark("at", "30 seconds").groupBy("visitor")
    schema = "visitor string, clicks long, pages string, first_ms long"
    visits = by_visitor.transformWithStateInPandas(Visits(), schema, "append", "EventTime")
    writer = visits.writeStream.format("delta").outputMode("append").option("checkpointLocation", state)
    writer.trigger(availableNow=True).start(f"{outputs}/visits").awaitTermination()


def job_timers(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """`transformWithStateInPandas` is Spark's own operator."""

    def track(clicks):
        by_visitor = clicks.withWatermark("at", "30 seconds").groupBy("visitor")
        schema = "visitor string, clicks long, pages string, first_ms long"
        return by_visitor.transformWithStateInPandas(Visits(), schema, "append", "EventTime")

    job = ckpt.Job(spark, "timers", store=state)
    clicks = job.source("clicks", FilesSource(f"{inputs}/clicks", "json", CLICK))
    visits = clicks.transform(track)
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
    Ported(
        "transformWithState",
        plain_timers,
        job_timers,
        of_one_input("clicks", click),
        ("visits",),
        "the call goes into `transform`",
        shared=(Visits,),
        settings={"spark.sql.streaming.stateStore.providerClass": ROCKSDB},
    ),
)
