"""Operations that keep rows outside of epochs would lose them at every restart. They are refused where they are written, and again
in the plan before it runs; operations without such memory are accepted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from runtime_kit import Bench, drain, totals

import spark_ckpt as ckpt
from spark_ckpt.plan import stateless

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

SCHEMA = "k string, v long, at timestamp"
ROW = "k string, v long"


def states(key, frames, state) -> Iterator[object]:
    yield from ()


class Remembers(StatefulProcessor):
    """A processor that never runs."""

    def init(self, handle) -> None: ...

    def handleInputRows(self, key, rows, timerValues): ...

    def close(self) -> None: ...


def static(frame: DataFrame) -> DataFrame:
    """A small table, made by operations that a stream may not have."""
    rows = frame.sparkSession.createDataFrame([("a", 10), ("a", 10), ("b", 20)], "k string, factor long")
    return rows.groupBy("k").agg(F.max("factor").alias("factor")).dropDuplicates().orderBy("k").limit(5)


def viewed(frame: DataFrame, query: str) -> DataFrame:
    frame.createOrReplaceTempView("viewed")
    return frame.sparkSession.sql(query)


def with_functions(frame: DataFrame) -> DataFrame:
    """Define a function of a value and a function of a table, in SQL."""
    for text in (
        "twice(x bigint) returns bigint return x * 2",
        "upto(x bigint) returns table(n bigint) return select x",
    ):
        frame.sparkSession.sql(f"create or replace temporary function {text}")
    return frame


REFUSED: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "limit": ("GlobalLimit", lambda frame: frame.limit(2)),
    "offset": ("Offset", lambda frame: frame.offset(2)),
    "orderBy": ("Sort", lambda frame: frame.orderBy("v")),
    "sortWithinPartitions": ("Sort", lambda frame: frame.sortWithinPartitions("v")),
    "window function": (
        "Window",
        lambda frame: frame.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("at"))),
    ),
    "intersect": ("Intersect", lambda frame: frame.intersect(frame)),
    "exceptAll": ("Except", lambda frame: frame.select("k").exceptAll(static(frame).select("k"))),
    "applyInPandas": (
        "FlatMapGroupsInPandas",
        lambda frame: frame.select("k", "v").groupBy("k").applyInPandas(lambda rows: rows, ROW),
    ),
    "applyInArrow": (
        "FlatMapGroupsInArrow",
        lambda frame: frame.select("k", "v").groupBy("k").applyInArrow(lambda rows: rows, ROW),
    ),
    "cogroup": (
        "FlatMapCoGroupsInPandas",
        lambda frame: frame.groupBy("k").cogroup(static(frame).groupBy("k")).applyInPandas(lambda a, b: a, ROW),
    ),
    "sample": ("Sample", lambda frame: frame.sample(0.5)),
    "withWatermark": ("EventTimeWatermark", lambda frame: frame.withWatermark("at", "1 minute")),
}

SPARKS: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "dropDuplicates": ("Deduplicate", lambda frame: frame.dropDuplicates(["k"])),
    "dropDuplicatesWithinWatermark": (
        "DeduplicateWithinWatermark",
        lambda frame: frame.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["k"]),
    ),
    "distinct": ("Deduplicate", lambda frame: frame.select("k").distinct()),
    "distinct in SQL": ("Distinct", lambda frame: viewed(frame, "select distinct k from viewed")),
    "groupBy.count": ("Aggregate", lambda frame: frame.groupBy("k").count()),
    "windowed aggregate": (
        "Aggregate",
        lambda frame: frame.withWatermark("at", "1 minute").groupBy(F.window("at", "10 seconds")).count(),
    ),
    "aggregate in SQL": (
        "Aggregate",
        lambda frame: viewed(frame, "with x as (select sum(v) from viewed) select * from x"),
    ),
    "global aggregate": ("Aggregate", lambda frame: frame.select(F.sum("v").alias("v"))),
    "cube": ("Aggregate", lambda frame: frame.cube("k").count()),
    "applyInPandasWithState": (
        "FlatMapGroupsInPandasWithState",
        lambda frame: frame.groupBy("k").applyInPandasWithState(states, ROW, "n long", "append", "NoTimeout"),
    ),
    "transformWithStateInPandas": (
        "TransformWithStateInPySpark",
        lambda frame: frame.groupBy("k").transformWithStateInPandas(Remembers(), ROW, "append", "none"),
    ),
}
"""Refused after an operator of the job only: elsewhere their state is part of an epoch."""

ALLOWED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "expressions": lambda frame: frame.select("k", (F.col("v") + 1).alias("v")).where("v > 0").fillna(0).dropna(),
    "values that differ when they are computed again": lambda frame: frame.withColumn("u", F.uuid()).where(
        F.rand() < 2
    ),
    "the batch's time": lambda frame: frame.withColumn("now", F.current_timestamp()),
    "explode": lambda frame: frame.withColumn("x", F.explode(F.array("k", "k"))),
    "event-time windows as columns": lambda frame: frame.withColumn("w", F.window("at", "10 seconds", "5 seconds")),
    "unpivot": lambda frame: frame.unpivot("k", ["v"], "name", "value"),
    "a static join": lambda frame: frame.join(F.broadcast(static(frame)), "k", "left"),
    "a static semi join": lambda frame: frame.join(static(frame), "k", "left_semi"),
    "a static anti join": lambda frame: frame.join(static(frame), "k", "left_anti"),
    "a static cross join": lambda frame: frame.crossJoin(static(frame).select("factor")),
    "a static subquery": lambda frame: viewed(frame, "select * from viewed where v in (select count(*) from range(1))"),
    "a lateral join": lambda frame: viewed(frame, "select * from viewed, lateral (select explode(array(viewed.v)))"),
    "a common table expression": lambda frame: viewed(frame, "with x as (select k from viewed) select * from x"),
    "SQL's pipes": lambda frame: viewed(frame, "from viewed |> where v > 0 |> extend v + 1 as w |> select k, w"),
    "functions in SQL": lambda frame: viewed(
        with_functions(frame), "select k, twice(v) v, n from viewed, lateral upto(v)"
    ),
    "repartition": lambda frame: frame.repartition(3).repartition("k").coalesce(1),
    "mapInPandas": lambda frame: frame.mapInPandas(lambda frames: frames, frame.schema),
    "mapInArrow": lambda frame: frame.mapInArrow(lambda batches: batches, frame.schema),
    "user's functions": lambda frame: frame.withColumn("u", F.udf(lambda text: text)("k")),
    "names and hints": lambda frame: frame.alias("x").select("x.k", "x.v").hint("rebalance").toDF("a", "b"),
    "observe": lambda frame: frame.observe("rows", F.count(F.lit(1)).alias("n")),
}


@pytest.fixture
def stream(bench: Bench) -> ckpt.Stream:
    bench.schema = SCHEMA
    return bench.job().source("in", bench.files_source())


def check_refused(stream: ckpt.Stream, node: str, function: Callable[[DataFrame], DataFrame]) -> None:
    with pytest.raises(ckpt.CkptError, match="no epoch has its state") as refused:
        stream.transform(function)
    assert refused.value.condition == "CKPT_OPERATION_REFUSED"
    assert refused.value.context["operation"] == node
    assert "test_stateless.py:" in refused.value.context["line"]
    assert refused.value.hint


@pytest.mark.parametrize("operation", REFUSED)
def test_an_operation_that_remembers_rows_is_refused_on_its_line(stream: ckpt.Stream, operation: str) -> None:
    check_refused(stream, *REFUSED[operation])


@pytest.mark.parametrize("operation", SPARKS)
def test_sparks_own_state_is_refused_after_an_operator(stream: ckpt.Stream, operation: str) -> None:
    behind = stream.groupBy("k").applyInPandasWithState(states, SCHEMA, "n long", "append", "NoTimeout", "echo")
    check_refused(behind, *SPARKS[operation])


FILE_NAMES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a column": lambda frame: frame.select(F.input_file_name().alias("file")),
    "a filter": lambda frame: frame.where(F.upper(F.input_file_name()).contains("A")),
    "SQL": lambda frame: viewed(frame, "select struct(input_file_block_start() as at) as place from viewed"),
    "behind a static join": lambda frame: frame.join(static(frame), "k").withColumn("file", F.input_file_name()),
}


@pytest.mark.parametrize("operation", FILE_NAMES)
def test_the_name_of_the_file_is_refused_and_leads_to_the_positions_of_a_source(
    stream: ckpt.Stream, operation: str
) -> None:
    with pytest.raises(ckpt.CkptError) as refused:
        stream.transform(FILE_NAMES[operation])
    assert refused.value.condition == "CKPT_OPERATION_REFUSED"
    assert str(refused.value.context["operation"]).startswith("input_file_")
    assert "test_stateless.py:" in str(refused.value.context["line"])
    assert "positions=True" in refused.value.hint


def test_the_name_of_the_file_is_refused_after_an_operator(stream: ckpt.Stream) -> None:
    with pytest.raises(ckpt.CkptError) as refused:
        totals(stream).withColumn("file", F.input_file_name())
    assert refused.value.context["operation"] == "input_file_name"


def test_the_name_of_the_file_is_available_from_a_static_table_and_from_sparks_own_source(
    bench: Bench, stream: ckpt.Stream, tmp_path: Path
) -> None:
    stream.transform(lambda frame: frame.crossJoin(static(frame).select(F.input_file_name().alias("file"))))
    rate = ckpt.Job(bench.spark, "rate", str(tmp_path / "rate")).source("rate", ckpt.SparkSource("rate"))
    assert rate.select(F.input_file_name().alias("file")).columns == ["file"]


@pytest.mark.parametrize("operation", ALLOWED)
def test_an_operation_without_memory_is_accepted(stream: ckpt.Stream, operation: str) -> None:
    assert stream.transform(ALLOWED[operation]).columns


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda frame: frame.count(), "must be executed with writeStream"),
        (lambda frame: frame.withColumn("n", F.monotonically_increasing_id()), "monotonically_increasing_id"),
        (lambda frame: frame.join(static(frame), "k", "right"), "not supported"),
        (lambda frame: None, "the result is a NoneType"),
        (lambda frame: frame.groupBy("k"), "the result is a GroupedData"),
        (lambda frame: static(frame), "the result is a static DataFrame"),
        (lambda frame: frame.where("v > 0").union(frame.where("v <= 0")), "read more than once"),
        (lambda frame: frame.sparkSession.readStream.format("rate").load(), "another stream than the one given"),
        (
            lambda frame: frame.select("k").union(
                frame.sparkSession.readStream.format("rate").load().selectExpr("string(value)")
            ),
            "another stream than the one given",
        ),
    ],
)
def test_a_result_that_is_no_stream_of_the_argument_is_refused_on_its_line(
    stream: ckpt.Stream, function, message: str
) -> None:
    with pytest.raises(ckpt.CkptError, match=message) as refused:
        stream.transform(function)
    assert "test_stateless.py:" in refused.value.context["line"]


def test_an_aggregate_in_a_select_is_refused_as_in_a_transform(stream: ckpt.Stream) -> None:
    with pytest.raises(ckpt.CkptError, match=r"select: .*Aggregate") as refused:
        stream.select(F.sum("v"))
    assert refused.value.context["operation"] == "Aggregate"


def once(operation: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    """A function that is harmless when it is recorded, and `operation` when it is built again."""
    calls: list[None] = []

    def function(frame: DataFrame) -> DataFrame:
        calls.append(None)
        return frame if len(calls) == 1 else operation(frame)

    return function


@pytest.mark.parametrize("behind", [False, True], ids=["before the operator", "behind it"])
def test_a_function_whose_result_changes_is_refused_at_the_start_with_its_line(bench: Bench, behind: bool) -> None:
    bench.put(("a", 1))
    job = bench.job()
    rows = job.source("in", bench.source()).filter("v > 0")
    limited = once(lambda frame: frame.limit(2))
    rows = totals(rows).transform(limited) if behind else totals(rows.transform(limited))
    rows.filter("total > 0").to(bench.sink(), name="out")
    with pytest.raises(ckpt.CkptError, match=r"transform: GlobalLimit") as refused:
        job.start()
    assert "test_stateless.py:" in refused.value.context["line"]


def test_a_hidden_read_of_a_stream_is_refused_at_the_start(bench: Bench) -> None:
    """Its offset would not be in any cursor."""
    job = bench.job()
    sly = once(
        lambda frame: frame.unionByName(bench.source("more").read(bench.spark, bench.source("more").start(bench.spark)))
    )
    bench.input("more")
    job.source("in", bench.source()).transform(sly).to(bench.sink(), name="out")
    with pytest.raises(ckpt.CkptError, match="transform: the stream reads 2 streaming inputs, the job declares 1"):
        job.start()


def test_accepted_operations_emit_every_row_once_over_a_restart(bench: Bench) -> None:
    def allowed(frame: DataFrame) -> DataFrame:
        known = frame.repartition(2).join(static(frame), "k").where(F.rand() < 2)
        return known.mapInPandas(lambda frames: frames, known.schema).select("k", "v", "factor")

    for number in range(2):
        bench.put(("a", 2 * number), ("b", 2 * number + 1), ("c", 9))
        job = bench.job()
        job.source("in", bench.source()).transform(allowed).to(bench.sink(), name="out")
        drain(job)
    assert bench.values() == [("a", 0, 10), ("a", 2, 10), ("b", 1, 20), ("b", 3, 20)]


# -- why ----------------------------------------------------------------------------------------------------------------


def without_duplicates(bench: Bench, distinct: Callable[[ckpt.Stream], ckpt.Stream]) -> list[tuple[object, ...]]:
    """Output when the same id arrives before and after a restart."""
    for rows in ([("a", 1), ("a", 2)], [("a", 3), ("b", 4)]):
        bench.put(*rows)
        job = bench.job()
        distinct(job.source("in", bench.source())).select("k").to(bench.sink(), name="out")
        drain(job)
    return bench.values()


def test_without_the_refusal_a_restart_would_emit_duplicates(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stateless, "check_node", lambda node: None)
    shown = without_duplicates(bench, lambda rows: totals(rows).transform(lambda frame: frame.dropDuplicates(["k"])))
    assert shown == [("a",), ("a",), ("b",)]


@pytest.mark.long  # in the gate: integration_tests/runtime/test_deduplication_is_sparks.py
def test_the_advised_operation_keeps_the_first_row_of_every_id_over_a_restart(bench: Bench) -> None:
    advised = without_duplicates(bench, lambda rows: rows.dropDuplicates(["k"]))
    assert advised == [("a",), ("b",)]
