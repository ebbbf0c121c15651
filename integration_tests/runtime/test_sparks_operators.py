"""Spark's own stateful operators inside `transform` emit the rows of a plain query, after any number of restarts, and again from an
older epoch.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import reduce

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from runtime_kit import ENOUGH_S, Bench, drain
from spark_ckpt_kafka import KafkaSink

import spark_ckpt as ckpt

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

SCHEMA = "k string, v long, at timestamp"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FILES = [
    [("a", 1, 1), ("b", 2, 2), ("a", 1, 3), ("c", 1, 3)],
    [("a", 4, 25), ("b", 2, 22), ("a", 1, 4)],
    [("a", 5, 40), ("d", 6, 41), ("a", 4, 26)],
    [("b", 7, 3), ("c", 8, 60), ("c", 8, 61), ("d", 6, 44)],
    [("a", 1, 100), ("e", 1, 94)],
    [("z", 0, 1000)],
    [("z", 0, 1000)],  # the watermark stays: no window closes after the last batch
]


def at(seconds: float) -> dt.datetime:
    return dt.datetime(2024, 7, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


class Running(StatefulProcessor):
    """The running sum of a key, in a value state."""

    def init(self, handle) -> None:
        self._sum = handle.getValueState("sum", "total long")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        total = self._sum.get()[0] if self._sum.exists() else 0
        total += sum(int(frame["v"].sum()) for frame in rows)
        self._sum.update((total,))
        yield pd.DataFrame({"k": [key[0]], "total": [total]})

    def close(self) -> None: ...


def add_up(key, frames, state) -> Iterator[pd.DataFrame]:
    total = (state.get[0] if state.exists else 0) + sum(int(frame["v"].sum()) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"k": [key[0]], "total": [total]})


def late(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("at", "10 seconds")


def windows(frame: DataFrame) -> DataFrame:
    return windows_of(late(frame))


def windows_of(timed: DataFrame) -> DataFrame:
    summed = timed.groupBy("k", F.window("at", "10 seconds")).agg(F.count("*").alias("n"), F.sum("v").alias("t"))
    return summed.select("k", F.unix_timestamp("window.start").alias("w"), "n", "t")


def sessions(frame: DataFrame) -> DataFrame:
    summed = late(frame).groupBy("k", F.session_window("at", "5 seconds")).agg(F.sum("v").alias("t"))
    return summed.select("k", F.unix_timestamp("session_window.end").alias("w"), "t")


def chained(frame: DataFrame) -> DataFrame:
    return windows_of(late(frame).dropDuplicatesWithinWatermark(["k", "v"]))


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    ours = late(left).selectExpr("k", "v", "at")
    theirs = right.withWatermark("at", "5 seconds").selectExpr("k as rk", "v as rv", "at as rat")
    near = F.expr("k = rk AND rat BETWEEN at - interval 5 seconds AND at + interval 5 seconds")
    return ours.join(theirs, near, "leftOuter").select("k", "v", "rv", F.unix_timestamp("at").alias("w"))


def keyed(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").transformWithStateInPandas(Running(), "k string, total long", "append", "none")


def folded(frame: DataFrame) -> DataFrame:
    by_key = frame.groupBy("k")
    return by_key.applyInPandasWithState(add_up, "k string, total long", "total long", "append", "NoTimeout")


Program = Callable[..., DataFrame]
APPENDING: dict[str, Program] = {
    "windows": windows,
    "sessions": sessions,
    "first": lambda frame: late(frame).dropDuplicates(["k", "at"]).select("k", "v"),
    "within": lambda frame: late(frame).dropDuplicatesWithinWatermark(["k"]).select("k", "v"),
    "distinct": lambda frame: frame.select("k").distinct(),
    "chained": chained,
    "joined": joined,
    "folded": folded,
}
ON_ROCKSDB: dict[str, Program] = {"keyed": keyed, "chained": chained}
UPDATING: dict[str, Program] = {"counted": lambda frame: frame.groupBy("k").count()}


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.schema = SCHEMA
    return bench


@pytest.fixture
def rocksdb(bench: Bench) -> Iterator[None]:
    bench.spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    yield
    bench.spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


def put(bench: Bench, number: int) -> None:
    bench.put(*[(key, value, at(second)) for key, value, second in FILES[number]], into="left")
    bench.put(*[(key, value * 10, at(second + 2)) for key, value, second in FILES[number]], into="right")


class Plain:
    """The rows of a plain query, which reads the present input and runs its batches without rows before it gets more."""

    def __init__(self, bench: Bench, name: str, program: Program, mode: str) -> None:
        reader = bench.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        sides = ("left", "right") if program is joined else ("left",)
        frames = [reader.parquet(str(bench.input(side))) for side in sides]
        self.shown: Counter[tuple[object, ...]] = Counter()
        writer = program(*frames).writeStream.foreachBatch(self._keep).outputMode(mode)
        self._query = writer.option("checkpointLocation", str(bench.folder / "plain" / name)).start()

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.shown.update(map(tuple, frame.collect()))

    def catch_up(self) -> None:
        self._query.processAllAvailable()

    def stop(self) -> None:
        self._query.stop()


def job_of(bench: Bench, programs: Mapping[str, Program], mode: str = "append") -> ckpt.Job:
    job = bench.job()
    names = ("left", "right") if joined in programs.values() else ("left",)
    sides = {name: job.source(name, bench.source(name)) for name in names}
    for name, program in programs.items():
        others = [sides["right"]] if program is joined else []
        sides["left"].transform(program, *others, outputMode=mode).to(bench.sink(name), name)
    return job


def check(bench: Bench, programs: Mapping[str, Program], mode: str = "append") -> None:
    plain = {name: Plain(bench, name, program, mode) for name, program in programs.items()}
    try:
        for number in range(len(FILES)):
            put(bench, number)
            for each in plain.values():
                each.catch_up()
            drain(job_of(bench, programs, mode))
    finally:
        for each in plain.values():
            each.stop()
    for name, each in plain.items():
        assert Counter(bench.values(name)) == each.shown, name


# Long: integration_tests/programs/test_drawn_programs.py compares thirty drawn programs in less time.


@pytest.mark.long
def test_a_job_restarted_after_every_file_emits_the_rows_of_plain_queries(bench: Bench) -> None:
    check(bench, APPENDING)


@pytest.mark.long
def test_with_rocksdb_a_restarted_job_emits_the_rows_of_plain_queries(bench: Bench, rocksdb: None) -> None:
    check(bench, ON_ROCKSDB)


@pytest.mark.long
def test_in_update_mode_a_restarted_job_emits_the_rows_of_plain_queries(bench: Bench) -> None:
    check(bench, UPDATING, "update")


def test_a_running_job_has_published_the_rows_of_a_plain_query_after_all_input(bench: Bench) -> None:
    plain = Plain(bench, "windows", windows, "append")
    put(bench, 0)
    run = job_of(bench, {"windows": windows}).start()
    try:
        for number in range(1, 4):
            put(bench, number)
            plain.catch_up()
            assert run.processAllAvailable(ENOUGH_S)
            assert Counter(bench.values("windows")) == plain.shown
    finally:
        plain.stop()
    assert len(plain.shown) > 3, "windows have closed"
    assert run.stop(ENOUGH_S)


@pytest.mark.long
def test_an_older_epoch_shows_the_same_rows_again(bench: Bench) -> None:
    programs = {"chained": chained}
    for number in range(2):
        put(bench, number)
        drain(job_of(bench, programs))
    back, shown = bench.store().log.state().latest, Counter(bench.values("chained"))
    for number in range(2, len(FILES)):
        put(bench, number)
    drain(job_of(bench, programs))
    once = Counter(bench.values("chained"))
    drain(job_of(bench, programs), restore=back)
    assert Counter(bench.values("chained")) == once + (once - shown)


def first_of(*columns: str) -> Program:
    return lambda frame: late(frame).dropDuplicates([*columns, "at"]).select("k", "v")


# Six tasks with two partitions; in two tasks they would meet.
SIDE_BY_SIDE = (lambda frame: windows(frame).select("k", F.col("t").alias("v")), first_of("k"), first_of("k", "v"))


def side_by_side(bench: Bench, job: ckpt.Job) -> ckpt.Stream:
    rows = job.source("left", bench.source("left"))
    return reduce(ckpt.Stream.union, [rows.transform(function) for function in SIDE_BY_SIDE])


def test_an_operator_of_the_job_gets_the_rows_of_several_of_sparks(bench: Bench, rocksdb: None) -> None:
    for number in range(2):
        put(bench, number)
    job = bench.job()
    side_by_side(bench, job).groupBy("k").agg("each row", n=F.count("*")).to(bench.sink())
    drain(job)
    newest: dict[object, int] = {}
    for row in bench.rows():
        newest[row["k"]] = max(newest.get(row["k"], 0), int(str(row["n"])))
    assert newest == {"a": 9, "b": 5, "c": 3}  # the windows of the first ten seconds are closed


@pytest.mark.long
def test_several_of_sparks_operators_in_one_task_are_refused_where_plain_spark_fails(
    bench: Bench, rocksdb: None
) -> None:
    # Long: tests/runtime/test_query_failures.py judges the error by Spark's text.
    put(bench, 0)
    united = lambda frame: reduce(DataFrame.union, [function(frame) for function in SIDE_BY_SIDE]).coalesce(1)  # noqa: E731
    plain = Plain(bench, "one task", united, "append")
    try:
        with pytest.raises(Exception, match="Can only upgrade readStore to writeStore"):
            plain.catch_up()
    finally:
        plain.stop()
    job = bench.job()
    side_by_side(bench, job).transform(lambda frame: frame.coalesce(1)).to(bench.sink())
    with pytest.raises(ckpt.CkptError, match="one task runs several of Spark's stateful operators") as found:
        drain(job)
    assert found.value.condition == "CKPT_GRAPH_INVALID"


WHOLE: dict[str, Program] = {
    "by window": windows,
    "best": lambda frame: frame.groupBy("k").agg(F.sum("v").alias("t")).orderBy(F.desc("t"), "k").limit(2),
    "few": lambda frame: frame.groupBy("k").count().where("count < 3"),  # rows also leave the result
}


def whole_job(bench: Bench, name: str, **sink: object) -> ckpt.Job:
    job = bench.job()
    rows = job.source("left", bench.source("left"))
    rows.transform(WHOLE[name], outputMode="complete").to(bench.sink(name, **sink), "whole")
    return job


@pytest.mark.parametrize(
    "name", ["best", *(pytest.param(each, marks=pytest.mark.long) for each in ("by window", "few"))]
)
def test_the_table_is_the_whole_result_after_every_file(bench: Bench, name: str) -> None:
    epochs: list[tuple[int, Counter[tuple[object, ...]]]] = []
    for number in range(4):
        put(bench, number)
        drain(whole_job(bench, name))
        rows = bench.spark.read.schema(SCHEMA).parquet(str(bench.input("left")))
        shown = Counter(map(tuple, WHOLE[name](rows).collect()))
        assert Counter(bench.values(name)) == shown
        epochs.append((bench.store().log.state().latest, shown))
    assert len({str(shown) for _, shown in epochs}) > 1
    back, _ = epochs[1]
    drain(whole_job(bench, name), restore=back)
    assert Counter(bench.values(name)) == epochs[-1][1]


def test_a_whole_result_goes_into_a_sink_that_replaces_its_rows(bench: Bench) -> None:
    put(bench, 0)
    job = bench.job()
    whole = job.source("left", bench.source("left")).transform(WHOLE["few"], outputMode="Complete")
    whole.through("again").to(bench.sink())
    with pytest.raises(ckpt.CkptError, match="edge 'again' would take all its rows again") as found:
        job.start(availableNow=True)
    assert "update" in found.value.hint
    topic = bench.job()
    whole = topic.source("left", bench.source("left")).transform(WHOLE["few"], outputMode="complete")
    whole.selectExpr("k AS key", "string(count) AS value").to(KafkaSink("localhost:9", "counts"))
    with pytest.raises(ckpt.CkptError, match="sink 'kafka' cannot replace its rows in one step"):
        topic.start(availableNow=True)
