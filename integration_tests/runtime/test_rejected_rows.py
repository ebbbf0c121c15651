"""Records that cannot be parsed are counted and kept in a side table once, for any computation on the others."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from runtime_kit import Bench, drain, some
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

upper = F.udf(lambda name: name.upper(), StringType())
"""A function that fails for the nulls of a record that could not be parsed."""


CASES: dict[str, tuple[Callable[[ckpt.Stream], ckpt.Stream], list[tuple[object, ...]]]] = {
    "columns": (lambda rows: rows.select("name"), [("ann",)]),
    "explode": (lambda rows: rows.select("id", F.explode("items").alias("item")), [(1, "a"), (1, "b")]),
    "explode in withColumn": (
        lambda rows: rows.withColumn("item", F.explode("items")).select("item"),
        [("a",), ("b",)],
    ),
    "stack": (lambda rows: rows.select(F.expr("stack(2, id, id + 1)")), [(1,), (2,)]),
    "inline": (lambda rows: rows.selectExpr("inline(array(struct(id), struct(id)))"), [(1,), (1,)]),
    "function": (lambda rows: rows.select(upper("name")), [("ANN",)]),
    "function in a filter": (lambda rows: rows.filter(upper("name") == "ANN").select("id"), [(1,)]),
    "error for nulls": (lambda rows: rows.select(F.expr("10 / coalesce(id, 0)")), [(10.0,)]),
    "struct of columns": (lambda rows: rows.select(F.to_csv(F.struct("id", "name"))), [("1,ann",)]),
    "struct of all columns": (lambda rows: rows.drop("items").select(F.to_csv(F.struct("*"))), [("1,ann",)]),
    "struct in withColumn": (
        lambda rows: rows.drop("items").withColumn("all", F.struct("*")).select("all"),
        [({"id": 1, "name": "ann"},)],
    ),
    "fillna": (lambda rows: rows.fillna("none").filter("name = 'none'").select("id"), []),
    "key": (lambda rows: rows.groupBy(F.expr("10 / coalesce(id, 0)").alias("k")).agg(n=ckpt.count()), [(10.0, 1)]),
}


# in the gate: one of each kind; tests/runtime/test_rejects.py judges the hidden column
@pytest.mark.parametrize("case", some(CASES, "explode", "function", "struct of all columns", "error for nulls", "key"))
def test_a_bad_record_is_counted_and_kept_in_the_side_table_once(
    bench: Bench, case: tuple[Callable[[ckpt.Stream], ckpt.Stream], list[tuple[object, ...]]]
) -> None:
    compute, wanted = case
    bench.put_lines('{"id": 1, "name": "ann", "items": ["a", "b"]}', "no json", '{"id": "x", "items": ["z"]}')
    job = bench.job()
    schema = "id int, name string, items array<string>"
    rows = job.source("in", FilesSource(str(bench.input()), "json", schema, on_error="drop"))
    job.rejectsTo(bench.sink("rejected"))
    compute(rows).to(bench.sink(), name="out")

    run = drain(job)

    assert bench.values() == wanted
    assert run.lastProgress["totals"]["rejected"] == 2
    assert len(bench.values("rejected")) == 2


def test_bad_records_of_all_batches_are_kept_with_a_whole_result(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.put_lines(json.dumps({"k": name}), f"not json {name}")
        job = bench.job()
        rows = job.source("in", FilesSource(str(bench.input()), "json", "k string", on_error="drop"))
        job.rejectsTo(bench.sink("rejected"))
        rows.transform(lambda frame: frame.groupBy("k").count(), outputMode="complete").to(bench.sink(), name="out")
        drain(job)

    assert bench.values() == [("a", 1), ("b", 1)]
    assert sorted(row["record"] for row in bench.rows("rejected")) == ["not json a", "not json b"]


def test_a_decimal_out_of_range_is_a_bad_record(bench: Bench) -> None:
    bench.put_lines('{"id": 1, "m": 1.5}', '{"id": 2, "m": 100000000}')
    job = bench.job()
    rows = job.source("in", FilesSource(str(bench.input()), "json", "id int, m decimal(10,2)", on_error="drop"))
    rows.select("id").to(bench.sink(), name="out")

    run = drain(job)

    assert bench.values() == [(1,)]
    assert run.lastProgress["totals"]["rejected"] == 1
