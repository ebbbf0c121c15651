"""Two streams joined in one job: their rows meet in any order of arrival, and both sides are in every epoch."""

from __future__ import annotations

import datetime as dt
import json
import math

import pytest
from pyspark.sql import functions as F
from runtime_kit import Bench, drain, manifest_of

import spark_ckpt as ckpt
from spark_ckpt.cli.app import exit_code
from spark_ckpt.driver import input_clock
from spark_ckpt.errors import GraphInvalid

pytestmark = pytest.mark.spark


def joined(bench: Bench, interval: str = "1 hour", **how: str) -> ckpt.Job:
    """`orders` and `payments`, both (k string, v long)."""
    job = bench.job(interval=interval)
    orders = job.source("orders", bench.source("orders")).select("k", F.col("v").alias("item"))
    payments = job.source("payments", bench.source("payments")).select("k", F.col("v").alias("paid"))
    orders.join(payments, on="k", **how).select("k", "item", "paid").to(bench.sink(), name="out")
    return job


def test_rows_of_two_streams_meet_in_any_order_and_after_a_stop(bench: Bench) -> None:
    bench.put(("a", 1), ("b", 2), (None, 3), into="orders")
    bench.put((None, 30), ("c", 30), into="payments")
    drain(joined(bench))
    assert not (bench.folder / "out").exists() or bench.values() == []

    bench.put(("b", 20), ("a", 10), into="payments")
    drain(joined(bench))
    bench.put(("c", 3), ("b", 4), into="orders")
    drain(joined(bench))

    assert bench.values() == [("a", 1, 10), ("b", 2, 20), ("b", 4, 20), ("c", 3, 30)]


def test_nan_is_a_key_as_in_sparks_own_join(bench: Bench) -> None:
    kinds, job = "k double, v long", bench.job()
    bench.put((math.nan, 1), (None, 2), (-0.0, 3), into="orders", schema=kinds)
    bench.put((math.nan, 10), (None, 20), (0.0, 30), into="payments", schema=kinds)
    orders = job.source("orders", bench.source("orders", kinds)).withColumnRenamed("v", "item")
    payments = job.source("payments", bench.source("payments", kinds)).withColumnRenamed("v", "paid")
    orders.join(payments, on="k").select("item", "paid").to(bench.sink(), name="out")

    drain(job)

    assert bench.values() == [(1, 10), (3, 30)]


@pytest.mark.long
def test_a_restore_of_an_older_epoch_restores_both_sides(bench: Bench) -> None:
    bench.put(("a", 1), into="orders")
    before = drain(joined(bench)).epochs()[-1].epoch
    bench.put(("a", 2), into="orders")
    bench.put(("a", 10), into="payments")
    drain(joined(bench))

    drain(joined(bench), restore=before)

    assert bench.values() == [("a", 1, 10), ("a", 1, 10), ("a", 2, 10), ("a", 2, 10)], "rows after the epoch, again"


def test_the_state_of_a_join_is_read_from_the_command_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.put(("a", 1), ("a", 2), into="orders")
    bench.put(("b", 10), into="payments")
    run = drain(joined(bench))
    assert list(manifest_of(bench, run.epochs()[-1].epoch)["operators"]) == ["join"]
    capsys.readouterr()

    assert exit_code(["state", str(bench.folder / "store"), "join", "--json"]) == 0

    rows = {row["k"]: (row["left_rows"], row["right_rows"]) for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows == {"a": ([{"item": 1}, {"item": 2}], []), "b": ([], [{"paid": 10}])}


@pytest.mark.long  # in the gate: tests/runtime/test_stream_join.py
def test_a_left_join_emits_unmatched_rows_after_their_time(bench: Bench) -> None:
    bench.put(("a", 1), ("b", 2), into="orders")
    bench.put(("a", 10), into="payments")
    drain(joined(bench, how="left", ttl="1 millisecond"))
    bench.put(("c", 3), into="payments")
    drain(joined(bench, how="left", ttl="1 millisecond"))

    assert bench.values() == [("a", 1, 10), ("b", 2, None)]


@pytest.mark.parametrize("interval", [pytest.param("1 hour", marks=pytest.mark.long), "every batch"])
def test_after_a_downtime_a_left_row_meets_a_match_that_comes_after_other_rows(
    bench: Bench, interval: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ttl ends during the downtime: waiting rows are read before a key is removed."""
    monkeypatch.setattr(
        input_clock, "LEAST_S", 3600.0
    )  # a run checks only at its start, so the first one removes nothing
    bench.put(("a", 1), ("b", 2), into="orders")
    drain(joined(bench, interval, how="left", ttl="1 millisecond"))
    bench.put(("other", 0), into="payments")  # a batch reads one file
    bench.put(("a", 10), into="payments")
    drain(joined(bench, interval, how="left", ttl="1 millisecond"))

    assert bench.values() == [("a", 1, 10), ("b", 2, None)]


@pytest.mark.long  # in the gate: tests/runtime/test_stream_join.py
def test_a_stream_is_joined_with_its_own_past(bench: Bench) -> None:
    """One source on both sides: every pair of rows of a key, in both orders."""
    job = bench.job()
    rows = job.source("in", bench.source())
    pairs = rows.select("k", F.col("v").alias("one")).join(rows.select("k", F.col("v").alias("other")), on="k")
    pairs.filter("one < other").to(bench.sink(), name="out")
    bench.put(("a", 1), ("a", 2), ("b", 5))
    bench.put(("a", 3))

    drain(job)

    assert bench.values() == [("a", 1, 2), ("a", 1, 3), ("a", 2, 3)]


@pytest.mark.long  # in the gate: tests/runtime/test_stream_join.py
def test_records_that_cannot_be_parsed_leave_before_a_join(bench: Bench) -> None:
    job = bench.job()
    texts = job.source("orders", bench.source("orders")).selectExpr("k", "if(v = 2, 'broken', '{\"x\": 1}') AS text")
    orders = texts.parse("text", "x long", on_error="drop").select("k", F.col("text.x").alias("x"))
    payments = job.source("payments", bench.source("payments"))
    orders.join(payments, on="k").to(bench.sink(), name="out")
    bench.put(("a", 1), ("a", 2), into="orders")
    bench.put(("a", 10), into="payments")

    run = drain(job)

    assert bench.values() == [("a", 1, 10)]
    assert run.lastProgress["totals"]["rejected"] == 1


@pytest.mark.long  # in the gate: test_handing_on.py, whose operators pass on the same types in another zone
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_times_of_a_session_in_another_zone_are_joined_as_instants(bench: Bench, zone: str) -> None:
    """As key and as value, by themselves and within structs, arrays and maps, including the hour that occurs twice."""
    first, second = (dt.datetime(2024, 11, 3, hour, 30, tzinfo=dt.UTC) for hour in (5, 6))
    bench.schema = "at timestamp, v long"
    nested = "at", "at as t", "struct(at as x) as s", "array(at) as a", "map(v, at) as m"
    before = bench.spark.conf.get("spark.sql.session.timeZone")
    bench.spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for side, when in (("left", first), ("right", first), ("right", second), ("left", second)):
            bench.put((round(when.timestamp() * 1_000_000), 1), into=side)
            job = bench.job()
            left = job.source("left", bench.source("left")).selectExpr(*nested)
            right = job.source("right", bench.source("right")).selectExpr("at", "at as other", "array(struct(at)) as b")
            joined = left.join(right, on="at", how="left", ttl="1 day")
            joined.selectExpr("at", "t", "s.x", "a[0] as a", "m[1] as m", "other", "b[0].at as b").to(
                bench.sink(), name="out"
            )
            drain(job)
    finally:
        bench.spark.conf.set("spark.sql.session.timeZone", before)

    assert bench.values() == [(first,) * 7, (second,) * 7]


def test_a_stream_with_a_watermark_is_not_joined(bench: Bench) -> None:
    bench.schema = "at timestamp, v long"
    job = bench.job()
    left, right = (job.source(name, bench.source(name)) for name in ("left", "right"))
    with pytest.raises(GraphInvalid, match="with a watermark cannot be joined"):
        left.withWatermark("at", "1 second").join(right.withColumnRenamed("v", "w"), on="at")


def test_a_ttl_is_not_for_a_static_table(bench: Bench) -> None:
    rows = bench.job().source("in", bench.source())
    with pytest.raises(GraphInvalid, match="ttl is for two streams"):
        rows.join(bench.spark.createDataFrame([("a", "Anna")], "k string, name string"), on="k", ttl="1 day")
