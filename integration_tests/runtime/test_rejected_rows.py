"""Records that cannot be parsed are counted and put aside once, whatever a job computes from the others."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from runtime_kit import Bench, drain
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not see the tests' folder

upper = F.udf(lambda name: name.upper(), StringType())
"""It fails for the nulls of a record that could not be parsed."""


@pytest.mark.parametrize(
    ("compute", "wanted"),
    [
        (lambda rows: rows.select("name"), [("ann",)]),
        (lambda rows: rows.select("id", F.explode("items").alias("item")), [(1, "a"), (1, "b")]),
        (lambda rows: rows.withColumn("item", F.explode("items")).select("item"), [("a",), ("b",)]),
        (lambda rows: rows.select(F.expr("stack(2, id, id + 1)")), [(1,), (2,)]),
        (lambda rows: rows.selectExpr("inline(array(struct(id), struct(id)))"), [(1,), (1,)]),
        (lambda rows: rows.select(upper("name")), [("ANN",)]),
        (lambda rows: rows.filter(upper("name") == "ANN").select("id"), [(1,)]),
        (lambda rows: rows.select(F.expr("10 / coalesce(id, 0)")), [(10.0,)]),
        (lambda rows: rows.select(F.to_csv(F.struct("id", "name"))), [("1,ann",)]),
        (lambda rows: rows.drop("items").select(F.to_csv(F.struct("*"))), [("1,ann",)]),
        (
            lambda rows: rows.drop("items").withColumn("all", F.struct("*")).select("all"),
            [({"id": 1, "name": "ann"},)],
        ),
        (lambda rows: rows.fillna("none").filter("name = 'none'").select("id"), []),
        (lambda rows: rows.groupBy(F.expr("10 / coalesce(id, 0)").alias("k")).agg(n=ckpt.count()), [(10.0, 1)]),
    ],
    ids=[
        "columns", "explode", "explode in withColumn", "stack", "inline", "function", "function in a filter", "error for nulls",
        "struct of columns", "struct of all columns", "struct in withColumn", "fillna", "key",
    ],
)  # fmt: skip
def test_a_bad_record_is_counted_and_kept_aside_once(
    bench: Bench, compute: Callable[[ckpt.Stream], ckpt.Stream], wanted: list[tuple[object, ...]]
) -> None:
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


def test_bad_records_of_all_batches_are_kept_beside_a_whole_result(bench: Bench) -> None:
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
