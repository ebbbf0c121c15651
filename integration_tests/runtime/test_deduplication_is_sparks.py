"""`dropDuplicates` and `dropDuplicatesWithinWatermark` emit the same rows as Spark's own, and keep as many keys."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame
from runtime_kit import Bench, drain, progress_totals

import spark_ckpt as ckpt

pytestmark = pytest.mark.spark
SCHEMA = "k string, v double, at timestamp"
ZERO = dt.datetime(2024, 7, 1, tzinfo=dt.UTC)
MINUTES = [  # one batch a line; the delay is an hour
    [("a", 0), ("a", 1), ("b", 2), (None, 3)],
    [("c", 300), ("a", 0), (None, 4)],  # the watermark advances to 240
    [("d", 301), ("a", 290)],
    [("late", 2), ("a", 291), ("b", 240), ("b", 241), ("c", None)],
    [("c", 361), ("late", 241)],  # within the watermark the state drops c from here on
    [("c", 362), ("c", 363), (None, 400), ("late", 241)],
    [("e", 900)],
    [("a", 901), ("d", 850), ("c", None)],
]
SHAPES = {
    "ids": lambda rows, **name: rows.dropDuplicates(["k"], **name),
    "ids_and_times": lambda rows, **name: rows.dropDuplicates(["k", "at"], **name),
    "whole_rows": lambda rows, **name: rows.dropDuplicates(**name),
    "within_the_watermark": lambda rows, **name: rows.dropDuplicatesWithinWatermark(["k"], **name),
}


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.schema = SCHEMA
    return bench


def sparks(bench: Bench, shape: str, shown: Counter[str], timed: bool = True) -> int:
    """Run Spark's query to the end of the present input, and count its rows in `shown`. Return the keys in its state."""
    rows = bench.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(bench.input()))
    rows = rows.withWatermark("at", "1 hour") if timed else rows

    def keep(frame: DataFrame, batch: int) -> None:
        shown.update(f"{row.k} {row.at}" for row in frame.selectExpr("k", "cast(at as long)").collect())

    # the query reads the value, so that Spark does not prune the plan
    query = SHAPES[shape](rows).filter("v >= 0").writeStream.foreachBatch(keep)
    started = (
        query.option("checkpointLocation", str(bench.folder / f"sparks-{shape}")).trigger(availableNow=True).start()
    )
    started.awaitTermination()
    return int(started.lastProgress["stateOperators"][0]["numRowsTotal"])


def ours(bench: Bench, shapes: list[str], timed: bool = True) -> ckpt.Run:
    """A job with an operator for each shape."""
    job = bench.job()
    given = job.source("in", bench.source())
    given = given.withWatermark("at", "1 hour") if timed else given
    for shape in shapes:
        rows = SHAPES[shape](given, name=shape)
        rows.selectExpr("k", "cast(at as long) as at").to(bench.sink(shape), name=shape)
    return drain(job)


@pytest.mark.parametrize(  # in the gate: the other shapes in tests/runtime/test_first_rows.py
    "shapes",
    [["within_the_watermark"], pytest.param(["ids", "ids_and_times", "whole_rows"], marks=pytest.mark.long)],
    ids=", ".join,
)
def test_after_a_watermark_rows_and_state_are_sparks(bench: Bench, shapes: list[str]) -> None:
    shown: dict[str, Counter[str]] = {shape: Counter() for shape in shapes}
    for batches in (MINUTES[:4], MINUTES[4:]):
        for rows in batches:
            bench.put(*[(k, 1.0, None if at is None else ZERO + dt.timedelta(minutes=at)) for k, at in rows])
        run = ours(bench, shapes)  # later runs are restarts
    keys = {shape: sparks(bench, shape, shown[shape]) for shape in shapes}

    for shape in shapes:
        assert Counter(f"{row['k']} {row['at']}" for row in bench.rows(shape)) == shown[shape]
        assert len(ckpt.read_state(str(bench.folder / "store"), shape)) == keys[shape]
    assert progress_totals(run)["late"] > 0


def test_without_a_watermark_a_restart_shows_no_row_again(bench: Bench) -> None:
    for rows in ([("a", -0.0, None), ("a", 0.0, None), ("b", 1.0, None)], [("a", 0.0, None), ("b", 2.0, None)]):
        bench.put(*rows)
        job = bench.job()
        job.source("in", bench.source()).dropDuplicates(["k", "v"]).select("k", "v").to(bench.sink(), name="out")
        drain(job)
    assert bench.values() == [("a", -0.0), ("b", 1.0), ("b", 2.0)]


@pytest.mark.long  # in the gate: tests/runtime/test_first_rows.py
def test_a_watermark_that_a_later_version_adds_forgets_the_keys_from_before_as_in_spark(bench: Bench) -> None:
    shape, shown = "ids_and_times", Counter[str]()
    for batches, timed in ((MINUTES[:3], False), (MINUTES[3:], True)):
        for rows in batches:
            bench.put(*[(k, 1.0, None if at is None else ZERO + dt.timedelta(minutes=at)) for k, at in rows])
        ours(bench, [shape], timed)
        keys = sparks(bench, shape, shown, timed)
    assert Counter(f"{row['k']} {row['at']}" for row in bench.rows(shape)) == shown
    assert len(ckpt.read_state(str(bench.folder / "store"), shape)) == keys


@pytest.mark.parametrize("subset", ["k", ["none"], [1], []])
def test_an_argument_that_is_no_list_of_columns_is_refused(bench: Bench, subset: Any) -> None:
    with pytest.raises(ckpt.CkptError) as refused:
        bench.job().source("in", bench.source()).dropDuplicates(subset)
    assert refused.value.condition == "CKPT_GRAPH_INVALID"


def test_whole_rows_are_not_compared_without_one_of_two_columns_of_one_name(bench: Bench) -> None:
    """Rows that differ in this column only would be lost."""
    with pytest.raises(ckpt.CkptError) as refused:
        bench.job().source("in", bench.source()).selectExpr("k", "v AS K").dropDuplicates()
    assert refused.value.condition == "CKPT_GRAPH_INVALID"


def test_within_the_watermark_without_one_is_refused(bench: Bench) -> None:
    with pytest.raises(ckpt.CkptError) as refused:
        bench.job().source("in", bench.source()).dropDuplicatesWithinWatermark(["k"])
    assert (refused.value.condition, "withWatermark" in refused.value.hint) == ("CKPT_GRAPH_INVALID", True)
