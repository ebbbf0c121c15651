"""Streams that split after an operator: it runs once, and every branch gets each of its rows once."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import functions as F
from runtime_kit import Bench, drain, manifest_of

import spark_ckpt as ckpt
from integration_tests.survival.graphs import counting
from spark_ckpt import failpoints
from spark_ckpt.driver.query import frames, stage_query
from spark_ckpt.errors import EnvironmentUnfit, GraphInvalid

pytestmark = pytest.mark.spark
Rows = list[tuple[str, int]]
ROWS: Rows = [(f"k{number % 7}", number) for number in range(60)]


def parted(bench: Bench) -> ckpt.Job:
    """Two operators. After the second one the stream splits in two, one of which passes a sink; the source has another branch."""
    job = bench.job()
    rows = job.source("in", bench.source())
    first = counting(rows, "k", "first").select("key", "n").to(bench.sink("first"), name="first")
    second = counting(first.select(F.col("n").alias("was")), "was % 3", "second").select("key", "n")
    high = second.filter("n > 5").to(bench.sink("high"), name="high")
    high.filter("key = 1").select("n").to(bench.sink("ones"), name="ones")
    second.filter("n <= 5").selectExpr("key AS k", "n").to(bench.sink("low"), name="low")
    rows.filter("v > 50").select("v").to(bench.sink("large"), name="large")
    return job


def numbered(keys: list[object]) -> list[tuple[object, int]]:
    return sorted((key, n) for key, times in Counter(keys).items() for n in range(1, times + 1))


def assert_parted(bench: Bench, rows: Rows) -> None:
    first = numbered([key for key, _ in rows])
    second = numbered([n % 3 for _, n in first])
    assert sorted((row["key"], row["n"]) for row in bench.rows("first")) == first
    assert sorted((row["key"], row["n"]) for row in bench.rows("high")) == [row for row in second if row[1] > 5]
    assert sorted((row["k"], row["n"]) for row in bench.rows("low")) == [row for row in second if row[1] <= 5]
    assert sorted(row["n"] for row in bench.rows("ones")) == [n for key, n in second if n > 5 and key == 1]
    assert sorted(row["v"] for row in bench.rows("large")) == [value for _, value in rows if value > 50]


def test_every_branch_has_each_row_once_after_a_stop_at_any_point(bench: Bench) -> None:
    for start in range(0, 60, 30):
        bench.put(*ROWS[start : start + 15])
        bench.put(*ROWS[start + 15 : start + 30])
        failpoints.arm("STAGED:raise:3")
        try:
            run = drain(parted(bench))
        finally:
            failpoints.arm("")
        assert_parted(bench, ROWS[: start + 30])
    assert set(manifest_of(bench, run.epochs()[-1].epoch)["operators"]) == {"first", "second"}


@pytest.mark.long  # in the gate: test_every_branch_has_each_row_once_after_a_stop_at_any_point
def test_rows_of_a_key_come_in_order_to_every_branch(bench: Bench) -> None:
    job = bench.job(key_groups=8)
    counted = counting(job.source("in", bench.source()), "k", "counts")
    counted.select("key", "n").to(bench.sink("one"), name="one")
    counted.select("n", "key").to(bench.sink("two"), name="two")
    bench.put(*ROWS)

    drain(job)

    for table in ("one", "two"):
        seen: dict[object, list[object]] = {}
        for row in bench.rows(table):
            seen.setdefault(row["key"], []).append(row["n"])
        assert all(numbers == sorted(numbers, key=int) for numbers in seen.values())  # type: ignore[arg-type]
        assert len(seen) == 7


def test_a_sink_right_after_an_operator_needs_no_extra_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    exploder, tapper = frames.exploder, frames.tapper
    made: list[object] = []
    used: list[object] = []
    monkeypatch.setattr(frames, "tapper", lambda *of: made.append(tapper(*of)) or made[-1])
    monkeypatch.setattr(frames, "exploder", lambda schema, tap=None: used.append(tap) or exploder(schema, tap))
    job = bench.job()
    counted = counting(job.source("in", bench.source()), "k", "counts").to(bench.sink("way"), name="way")
    seconds = counted.filter("n > 2").select(F.col("n").alias("was"))
    second = counting(seconds, "was % 3", "second").to(bench.sink("second"), name="second")
    second.filter("n <= 5").to(bench.sink("low"), name="low")
    second.filter("n > 5").to(bench.sink("high"), name="high")
    bench.put(*ROWS)

    drain(job)

    assert made, "two sinks are on the way"
    assert [tap for tap in used if tap is not None] == made
    assert None in used, "the second branch after the second operator gets its rows without one"
    numbers = numbered([key for key, _ in ROWS])
    assert sorted((row["key"], row["n"]) for row in bench.rows("way")) == numbers
    wanted = numbered([n % 3 for _, n in numbers if n > 2])
    assert sorted((row["key"], row["n"]) for row in bench.rows("second")) == wanted
    assert sorted((row["key"], row["n"]) for name in ("low", "high") for row in bench.rows(name)) == wanted


@pytest.mark.long  # in the gate: integration_tests/runtime/test_graphs.py
def test_a_record_that_cannot_be_parsed_above_the_branches_is_rejected_once(bench: Bench) -> None:
    job = bench.job()
    counted = counting(job.source("in", bench.source()), "k", "counts")
    texts = counted.select("n", F.expr("if(n % 2 = 0, '{\"x\": 1}', 'broken')").alias("text"))
    parsed = texts.parse("text", "x long", on_error="drop")
    parsed.select("n").to(bench.sink("one"), name="one")
    parsed.filter("n > 2").select("n").to(bench.sink("two"), name="two")
    job.rejectsTo(bench.sink("rejected"))
    bench.put(*[("a", number) for number in range(7)])

    run = drain(job)

    assert run.lastProgress["totals"]["rejected"] == len(bench.rows("rejected")) == 4
    assert bench.values("one") == [(2,), (4,), (6,)]
    assert bench.values("two") == [(4,), (6,)]


@pytest.mark.long  # in the gate: test_every_branch_has_each_row_once_after_a_stop_at_any_point
def test_both_sides_of_a_union_may_read_one_operator(bench: Bench) -> None:
    job = bench.job()
    counted = counting(job.source("in", bench.source()), "k", "counts").select("n")
    counted.filter("n > 2").union(counted.selectExpr("-n AS n")).to(bench.sink(), name="out")
    bench.put(("a", 0), ("a", 0), ("a", 0))
    drain(job)
    assert sorted(row["n"] for row in bench.rows()) == [-3, -2, -1, 3]


@pytest.mark.long  # in the gate: test_every_branch_has_each_row_once_after_a_stop_at_any_point
def test_a_session_that_reuses_no_shuffle_reuses_this_one(bench: Bench) -> None:
    bench.put(*ROWS)
    bench.spark.conf.set("spark.sql.exchange.reuse", "false")
    try:
        drain(parted(bench))
        assert bench.spark.conf.get("spark.sql.exchange.reuse") == "false"
    finally:
        bench.spark.conf.unset("spark.sql.exchange.reuse")
    assert_parted(bench, ROWS)


def test_a_batch_that_would_run_the_operator_twice_does_not_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put(*ROWS)
    monkeypatch.setattr(stage_query, "PARTING_SETTINGS", {"spark.sql.exchange.reuse": "false"})
    run = parted(bench).start(availableNow=True)
    with pytest.raises(ckpt.CkptError, match="does not run operator 'second' once for all") as refused:
        run.awaitTermination(120)
    assert EnvironmentUnfit.condition in str(refused.value)
    assert bench.rows("high") == []


def test_streams_that_part_and_do_not_all_end_are_refused(bench: Bench) -> None:
    job = bench.job()
    counted = counting(job.source("in", bench.source()), "k", "counts").selectExpr("n AS was")
    with pytest.raises(GraphInvalid, match="two streams that part after operator 'counts'"):
        counting(counted.filter("was > 1").union(counted), "was", "again")
    counted.filter("was > 1").to(bench.sink("one"), name="one")
    counting(counted.filter("was < 1"), "was", "behind").to(bench.sink("two"), name="two")
    with pytest.raises(GraphInvalid, match="operator 'behind' reads one of them"):
        job.start()
