"""Several operators in one job: one cut holds all of them, for any batches, and every input has its own position."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from functools import reduce

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import functions as F
from runtime_kit import Bench, drain, latest, manifest_of, totals
from spark_ckpt_delta import DeltaSource

import spark_ckpt as ckpt
from integration_tests.survival.graphs import chain, chains_output, counting
from spark_ckpt.cli.app import exit_code
from spark_ckpt.epochs.records import StateFile
from spark_ckpt.errors import GraphInvalid

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

Rows = list[tuple[str, int]]


def chained(bench: Bench, **options: object) -> ckpt.Job:
    job = bench.job(**options)
    chain(job, job.source("in", bench.source())).to(bench.sink(), name="out")
    return job


def shown(bench: Bench) -> Counter[tuple[object, object]]:
    return Counter((row["key"], row["n"]) for row in bench.rows())


ROWS: Rows = [(f"k{number % 7}", number) for number in range(60)]


@pytest.mark.long  # in the gate: integration_tests/survival/test_graphs_survive.py
def test_three_operators_in_a_row_continue_together_where_the_last_run_stopped(bench: Bench) -> None:
    for start in range(0, 60, 20):
        bench.put(*ROWS[start : start + 20])
        drain(chained(bench))

        assert shown(bench) == chains_output(key for key, _ in ROWS[: start + 20])


@pytest.mark.long  # in the gate: judge_restores in tests/simulator/test_spark_edges.py
def test_a_restore_of_an_older_epoch_restores_every_operator(bench: Bench) -> None:
    bench.put(*ROWS[:25])
    before = drain(chained(bench)).epochs()[-1].epoch
    seen = bench.rows()
    bench.put(*ROWS[25:])
    drain(chained(bench))
    later = bench.rows()

    drain(chained(bench), restore=before)

    again = Counter(map(repr, bench.rows())) - Counter(map(repr, later))
    assert again == Counter(map(repr, later)) - Counter(map(repr, seen)), "the rows after the epoch, once more"


def test_an_epoch_holds_the_state_of_every_operator_and_the_command_line_reads_it(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.put(*ROWS)
    run = drain(chained(bench))

    manifest = manifest_of(bench, run.epochs()[-1].epoch)
    operators = manifest["operators"].items()
    files = {name: [StateFile.model_validate(file) for file in each["files"]] for name, each in operators}
    assert {name: sum(file.rows for file in each) for name, each in files.items()} == {
        "first": 7, "second": 3, "third": 2,
    }  # fmt: skip
    store = str(bench.folder / "store")
    assert exit_code(["verify", store, "--deep"]) == 0
    capsys.readouterr()
    assert exit_code(["state", store, "second"]) == 0
    assert capsys.readouterr().out.count("\n") > 3


@pytest.mark.long  # in the gate: test_one_stream_feeds_several_operators_and_sinks_that_all_see_each_row_once
def test_a_function_per_key_reads_the_output_of_another_one(bench: Bench) -> None:
    job = bench.job()
    first = totals(job.source("in", bench.source()), "first")
    renamed = first.select(F.lit("all").alias("k"), F.col("total").alias("v"))
    totals(renamed, "second").to(bench.sink(), name="out")
    bench.put(("a", 1), ("b", 5))
    bench.put(("a", 2))

    drain(job)

    assert latest(bench.values()) == {"all": 1 + 5 + 3}


# -- trees ----------------------------------------------------------------------------------------------------------------


def joined(bench: Bench) -> ckpt.Job:
    """Two inputs, an operator each, and one that reads the outputs of both operators and a third input."""
    job = bench.job()
    left = counting(job.source("left", bench.source("left")), "k", "lefts").select(F.lit("left").alias("side"), "n")
    right = counting(job.source("right", bench.source("right")), "k", "rights").select(
        F.lit("right").alias("side"), "n"
    )
    plain = job.source("plain", bench.source("plain")).select(F.lit("plain").alias("side"), F.col("v").alias("n"))
    united = left.union(right).union(plain)
    counting(united.withColumn("was", F.col("n")).drop("n"), "side", "sides").to(bench.sink(), name="out")
    return job


@pytest.mark.long
def test_an_operator_reads_two_operators_and_a_source_each_from_its_own_position(bench: Bench) -> None:
    for into, count in (("left", 4), ("right", 6), ("plain", 3)):
        bench.put(*[("a", number) for number in range(count)], into=into)
    run = drain(joined(bench))
    bench.put(("a", 9), into="right")
    run = drain(joined(bench))

    numbers = {
        side: sorted(row["n"] for row in bench.rows() if row["side"] == side) for side in ("left", "right", "plain")
    }
    assert numbers == {"left": [1, 2, 3, 4], "right": [1, 2, 3, 4, 5, 6, 7], "plain": [1, 2, 3]}
    cursors = manifest_of(bench, run.epochs()[-1].epoch)["cursors"]
    assert {name: cursor["count"] for name, cursor in cursors.items()} == {"left": 1, "right": 2, "plain": 1}


@pytest.mark.long  # in the gate: test_one_stream_feeds_several_operators_and_sinks_that_all_see_each_row_once
def test_a_stream_may_end_after_a_union_of_an_operator_and_a_source(bench: Bench) -> None:
    def job() -> ckpt.Job:
        job = bench.job()
        counted = counting(job.source("in", bench.source()), "k", "counts").select("key", "n")
        plain = job.source("more", bench.source("more")).select(F.col("k").alias("key"), F.col("v").alias("n"))
        counted.union(plain).filter("n > 0").to(bench.sink(), name="out")
        return job

    bench.put(("a", 1), ("a", 1))
    bench.put(("z", 7), ("z", -1), into="more")
    drain(job())
    bench.put(("a", 1))
    drain(job())

    assert bench.values() == [("a", 1), ("a", 2), ("a", 3), ("z", 7)]


@pytest.mark.long  # in the gate: the same of two branches, below
def test_a_source_of_sparks_own_begins_at_its_cut_in_a_union_with_an_operator(bench: Bench) -> None:
    """Its offsets depend on its number in the plan, which control streams of other operators shift."""

    def job() -> ckpt.Job:
        job = bench.job()
        counted = counting(job.source("in", bench.source()), "k", "counts").select(F.col("n").alias("value"))
        ticks = job.source("ticks", ckpt.SparkSource("rate", {"rowsPerSecond": 5}))
        both = counted.withColumn("of", F.lit("files")).union(ticks.select("value").withColumn("of", F.lit("ticks")))
        counting(both, "of", "sides").select("of", "value", "n").to(bench.sink(), name="out")
        return job

    bench.put(*ROWS[:5])
    for _ in range(2):
        run = job().start()
        run.savepoint(f"at-{len(run.epochs())}", 120)
        assert run.stop(120)

    rows = bench.rows()
    ticks = sorted(row["value"] for row in rows if row["of"] == "ticks")
    assert ticks == list(range(len(ticks))), "no tick is missing or repeated"
    assert sorted(row["n"] for row in rows if row["of"] == "files") == [1, 2, 3, 4, 5]


# -- sinks on the way ----------------------------------------------------------------------------------------------------


@pytest.mark.long  # in the gate: integration_tests/runtime/test_parting_streams.py
def test_a_sink_gets_the_rows_of_a_stream_that_also_feeds_an_operator(bench: Bench) -> None:
    def job() -> ckpt.Job:
        job = bench.job()
        rows = job.source("in", bench.source()).filter("v % 2 = 0").to(bench.sink("even"), name="even")
        counted = counting(rows, "k", "counts").to(bench.sink("counted"), name="counted")
        counted.filter("n > 2").select("key", "n").to(bench.sink(), name="out")
        return job

    for part in (ROWS[:30], ROWS[30:]):
        bench.put(*part)
        run = drain(job())

    even = [row for row in ROWS if row[1] % 2 == 0]
    assert bench.values("even") == sorted(even, key=repr)
    numbers = Counter(key for key, _ in even)
    counted = sorted((key, n) for key, times in numbers.items() for n in range(1, times + 1))
    assert sorted((row["key"], row["n"]) for row in bench.rows("counted")) == counted
    assert bench.values() == [row for row in counted if row[1] > 2]
    outputs = manifest_of(bench, run.epochs()[-1].epoch)["outputs"]
    assert {sink: bool(output["files"]) for sink, output in outputs.items()} == {
        "even": True,
        "counted": True,
        "out": True,
    }


def test_in_a_job_without_operators_intermediate_sinks_get_no_rejected_record(
    bench: Bench,
) -> None:
    job = bench.job()
    texts = job.source("in", bench.source()).selectExpr("if(v = 3, 'broken', '{\"x\": 1}') AS text", "v")
    parsed = texts.parse("text", "x long", on_error="drop").to(bench.sink("all"), name="all")
    parsed.filter("v > 3").select("v").to(bench.sink(), name="out")
    bench.put(*[("a", number) for number in range(6)])

    run = drain(job)

    assert sorted(row["v"] for row in bench.rows("all")) == [0, 1, 2, 4, 5]
    assert bench.values() == [(4,), (5,)]
    assert run.lastProgress["totals"]["rejected"] == 1


# -- event time and rejected records -------------------------------------------------------------------------------------


@pytest.mark.long  # in the gate: integration_tests/runtime/test_windows_are_sparks.py
def test_windows_feed_the_next_operator(bench: Bench) -> None:
    bench.schema = "at timestamp, v long"

    def job() -> ckpt.Job:
        job = bench.job()
        timed = job.source("in", bench.source()).withWatermark("at", "0 seconds")
        windows = timed.groupBy(F.window("at", "10 seconds")).agg("update", "windows", n=ckpt.count())
        counting(windows.withColumn("was", F.col("n")).drop("n"), "1", "all").to(bench.sink(), name="out")
        return job

    def at(second: int) -> tuple[pd.Timestamp, int]:
        return pd.Timestamp(1_700_000_000 + second, unit="s", tz="UTC"), 1

    bench.put(at(1), at(2))
    bench.put(at(40))
    drain(job())
    bench.put(at(3))  # late: its window is closed
    run = drain(job())

    assert sorted((row["was"], row["n"]) for row in bench.rows()) == [(1, 2), (2, 1)]
    assert run.lastProgress["totals"]["late"] == 1


@pytest.mark.long  # in the gate: tests/runtime/test_rejects.py, and the first of them here
def test_records_that_cannot_be_parsed_after_an_operator_are_counted_once(bench: Bench) -> None:
    job = bench.job()
    counted = counting(job.source("in", bench.source()), "k", "counts")
    texts = counted.select(F.expr("if(n % 2 = 0, '{\"x\": 1}', 'broken')").alias("text"))
    parsed = texts.parse("text", "x long", on_error="drop").select(F.col("text.x").alias("x"))
    counting(parsed, "x", "good").to(bench.sink(), name="out")
    job.rejectsTo(bench.sink("rejected"))
    bench.put(*[("a", number) for number in range(7)])

    run = drain(job)

    assert run.lastProgress["totals"]["rejected"] == 4
    assert len(bench.rows("rejected")) == 4
    assert sorted(row["n"] for row in bench.rows()) == [1, 2, 3]


# -- any rows, any batches ------------------------------------------------------------------------------------------------


@pytest.mark.long  # in the gate: test_one_stream_feeds_several_operators_and_sinks_that_all_see_each_row_once
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=12), min_size=1, max_size=4
    )
)
def test_the_output_is_that_of_plain_python_for_any_batches(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory, batches: list[Rows]
) -> None:
    fresh = Bench(bench.spark, tmp_path_factory.mktemp("drawn"))
    for rows in batches:
        fresh.put(*rows)
    drain(chained(fresh))

    found = shown(fresh) if (fresh.folder / "out").exists() else Counter()
    assert found == chains_output(key for rows in batches for key, _ in rows)


# -- branches -----------------------------------------------------------------------------------------------------------


def parted(bench: Bench) -> ckpt.Job:
    """One input, read by two operators that meet again in a third, and by its own sink."""
    job = bench.job()
    rows = job.source("in", bench.source()).filter("v >= 0").to(bench.sink("all"), name="all")
    by_key = counting(rows, "k", "by_key").to(bench.sink("by_key"), name="by_key")
    by_value = counting(rows.filter("v % 2 = 0"), "v % 3", "by_value").to(bench.sink("by_value"), name="by_value")
    both = by_key.select(F.lit("k").alias("of"), "n").union(by_value.select(F.lit("v").alias("of"), "n"))
    counting(both.select("of", F.col("n").alias("was")), "of", "both").to(bench.sink(), name="out")
    rows.filter("v > 50").select("v").to(bench.sink("large"), name="large")
    return job


def numbered(keys: Iterable[object]) -> list[tuple[object, int]]:
    return sorted((key, n) for key, times in Counter(keys).items() for n in range(1, times + 1))


def counts(bench: Bench, table: str) -> list[tuple[object, int]]:
    return sorted((row["key"], row["n"]) for row in bench.rows(table))


def assert_parted(bench: Bench, rows: Rows) -> None:
    even = [value for _, value in rows if value % 2 == 0]
    assert bench.values("all") == sorted(rows, key=repr)
    assert counts(bench, "by_key") == numbered(key for key, _ in rows)
    assert counts(bench, "by_value") == numbered(value % 3 for value in even)
    assert counts(bench, "out") == numbered(["k"] * len(rows) + ["v"] * len(even))
    assert bench.values("large") == sorted(((value,) for _, value in rows if value > 50), key=repr)


def test_one_stream_feeds_several_operators_and_sinks_that_all_see_each_row_once(bench: Bench) -> None:
    for start in range(0, 60, 30):
        bench.put(*ROWS[start : start + 30])
        run = drain(parted(bench))
        assert_parted(bench, ROWS[: start + 30])
        assert run.lastProgress["totals"]["numInputRows"] == 30, "a row counts once, for any number of readers"
    assert list(manifest_of(bench, run.epochs()[-1].epoch)["cursors"]) == ["in"]


@pytest.mark.long
def test_a_restore_of_an_older_epoch_restores_all_branches(bench: Bench) -> None:
    bench.put(*ROWS[:25])
    before = drain(parted(bench)).epochs()[-1].epoch
    bench.put(*ROWS[25:])
    drain(parted(bench))
    tables = ("all", "by_key", "by_value", "out", "large")
    later = {table: Counter(map(repr, bench.rows(table))) for table in tables}

    drain(parted(bench), restore=before)

    for table in tables:
        again = Counter(map(repr, bench.rows(table))) - later[table]
        assert set(again.values()) <= {1}, "rows after the epoch, once more"
        assert sum(again.values()) == sum(1 for row in bench.rows(table)) - sum(later[table].values())
    assert sum(1 for _ in bench.rows("all")) == len(ROWS) + len(ROWS[25:])


@pytest.mark.long  # in the gate: test_one_stream_feeds_several_operators_and_sinks_that_all_see_each_row_once
def test_branches_without_operators_end_in_a_sink_each(bench: Bench) -> None:
    job = bench.job()
    rows = job.source("in", bench.source())
    rows.filter("v >= 30").select("v").to(bench.sink("high"), name="high")
    rows.filter("v < 30").select("k").to(bench.sink("low"), name="low")
    bench.put(*ROWS)

    run = drain(job)

    assert bench.values("high") == [(value,) for value in range(30, 60)]
    assert len(bench.rows("low")) == 30
    assert run.lastProgress["totals"]["numInputRows"] == 60


@pytest.mark.long  # in the gate: tests/runtime/test_rejects.py, and a job without operators, above
def test_a_record_that_cannot_be_parsed_is_rejected_once_for_any_number_of_branches(bench: Bench) -> None:
    job = bench.job()
    texts = job.source("in", bench.source()).selectExpr("k", "if(v % 3 = 0, 'broken', '{\"x\": 1}') AS text", "v")
    parsed = texts.parse("text", "x long", on_error="drop")
    counting(parsed, "k", "by_key").to(bench.sink("by_key"), name="by_key")
    counting(parsed.filter("v > 3"), "v", "by_value").to(bench.sink("by_value"), name="by_value")
    parsed.select("v").to(bench.sink(), name="out")
    job.rejectsTo(bench.sink("rejected"))
    bench.put(*[("a", number) for number in range(9)])

    run = drain(job)

    assert run.lastProgress["totals"]["rejected"] == len(bench.rows("rejected")) == 3
    assert counts(bench, "by_key") == [("a", n) for n in range(1, 7)]
    assert counts(bench, "by_value") == [(value, 1) for value in (4, 5, 7, 8)]
    assert bench.values() == [(value,) for value in (1, 2, 4, 5, 7, 8)]


def test_a_source_of_sparks_own_that_two_branches_read_begins_at_its_cut(bench: Bench) -> None:
    """The branch without an operator comes first, so the control stream is not the plan's first input."""

    def job() -> ckpt.Job:
        job = bench.job()
        ticks = job.source("ticks", ckpt.SparkSource("rate", {"rowsPerSecond": 5})).select("value")
        ticks.filter("value % 2 = 0").to(bench.sink("even"), name="even")
        counting(ticks, "value % 3", "thirds").to(bench.sink(), name="out")
        return job

    for _ in range(2):
        run = job().start()
        run.savepoint(f"at-{len(run.epochs())}", 120)
        assert run.stop(120)

    rows = bench.rows()
    ticks = sorted(row["value"] for row in rows)
    assert ticks == list(range(len(ticks))), "no tick is missing or repeated"
    assert sorted(row["value"] for row in bench.rows("even")) == [tick for tick in ticks if tick % 2 == 0]
    assert counts(bench, "out") == numbered(tick % 3 for tick in ticks)


@pytest.mark.long  # in the gate: tests/delta/test_delta_source.py and the branches above
def test_two_branches_read_the_same_versions_of_a_delta_table(bench: Bench) -> None:
    table = bench.folder / "versions"

    def job() -> ckpt.Job:
        job = bench.job()
        rows = job.source("in", DeltaSource(str(table), start=0, maxFilesPerTrigger=1))
        counting(rows, "k", "by_key").to(bench.sink("by_key"), name="by_key")
        counting(rows, "v % 3", "by_value").to(bench.sink(), name="out")
        return job

    for start in range(0, 40, 20):
        for at in (start, start + 10):
            part = pa.Table.from_pylist([{"k": key, "v": value} for key, value in ROWS[at : at + 10]])
            write_deltalake(str(table), part, mode="append")
        drain(job())

    assert counts(bench, "by_key") == numbered(key for key, _ in ROWS[:40])
    assert counts(bench, "out") == numbered(value % 3 for _, value in ROWS[:40])


# -- refusals of a job with several operators ------------------------------------------------------------------------------


def test_event_time_after_an_operator_is_refused_on_its_line(bench: Bench) -> None:
    job = bench.job()
    stamped = counting(job.source("in", bench.source()), "k", "counts").withColumn("at", F.lit(0).cast("timestamp"))
    with pytest.raises(GraphInvalid, match="follows operator 'counts'") as refused:
        stamped.withWatermark("at", "1 second")
    assert "input of 'counts'" in refused.value.hint


def shortened(bench: Bench, **options: object) -> ckpt.Job:
    """The chain's first operator alone."""
    job = bench.job(**options)
    first = counting(job.source("in", bench.source()), "k", "first")
    first.selectExpr("0L AS key", "0L AS b", "n").to(bench.sink(), name="out")
    return job


def test_a_removed_operator_is_refused_by_name_unless_its_state_is_dropped_on_purpose(bench: Bench) -> None:
    bench.put(*ROWS[:10])
    before = drain(chained(bench)).epochs()[-1].epoch
    with pytest.raises(GraphInvalid, match="state of operator 'second'") as refused:
        shortened(bench).start()
    assert "accept_dropped_operator='second'" in refused.value.hint

    bench.put(("k0", 0))
    run = shortened(bench).start(availableNow=True, accept_dropped_operator=["second", "third"])
    assert run.awaitTermination(120)

    assert max(row["n"] for row in bench.rows() if row["key"] == 0 and row["b"] == 0) == 3, "k0 came twice"
    assert list(manifest_of(bench, run.epochs()[-1].epoch)["operators"]) == ["first"]
    assert len(manifest_of(bench, before)["operators"]) == 3, "what was, stays"
    drain(shortened(bench))


def test_a_removed_source_is_refused_by_name_until_its_removal_is_confirmed_and_the_state_stays(bench: Bench) -> None:
    def job(*names: str) -> ckpt.Job:
        job = bench.job()
        rows = reduce(ckpt.Stream.union, [job.source(name, bench.source()) for name in names])
        counting(rows, "k", "counts").select("key", "n").to(bench.sink(), name="out")
        return job

    bench.put(("a", 0))
    drain(job("in", "old"))
    with pytest.raises(GraphInvalid, match="cursors of sources that the job no longer has: old") as refused:
        job("in").start()
    assert "accept_dropped_source='old'" in refused.value.hint

    bench.put(("a", 0))
    run = job("in").start(availableNow=True, accept_dropped_source="old")
    assert run.awaitTermination(120)
    assert sorted(bench.values()) == [("a", 1), ("a", 2), ("a", 3)]
    assert list(manifest_of(bench, run.epochs()[-1].epoch)["cursors"]) == ["in"]
    drain(job("in"))


def test_the_state_of_an_operator_that_the_job_has_cannot_be_dropped(bench: Bench) -> None:
    with pytest.raises(ckpt.CkptError, match="names 'first', which the job has"):
        shortened(bench, accept_dropped_operator="first").start()


@pytest.mark.long  # in the gate: tests/store/test_restoring.py, and the other one here
def test_an_operator_that_is_new_in_the_graph_begins_empty(bench: Bench) -> None:
    def job(longer: bool) -> ckpt.Job:
        job = bench.job()
        first = counting(job.source("in", bench.source()), "k", "first").select(F.col("n").alias("b"))
        last = (
            counting(first, "b % 2", "second")
            if longer
            else first.withColumn("key", F.lit(0)).withColumn("n", F.lit(0))
        )
        last.selectExpr("cast(key AS long) AS key", "cast(n AS long) AS n").to(bench.sink(), name="out")
        return job

    bench.put(*[("a", 0)] * 3)
    drain(job(longer=False))
    bench.put(*[("a", 0)] * 2)
    drain(job(longer=True))

    assert sorted(bench.values())[3:] == [(0, 1), (1, 1)], (
        "rows 4 and 5 of key a, the first ones that the new operator gets"
    )


def test_an_operator_that_is_new_in_the_graph_begins_with_the_state_of_an_epoch(bench: Bench) -> None:
    """Under another name it continues where the old one was."""

    def job(name: str) -> ckpt.Job:
        job = bench.job()
        counting(job.source("in", bench.source()), "k", name).select("key", "n").to(bench.sink(), name="out")
        return job

    bench.put(*[("a", 0)] * 3)
    drain(job("before"))
    store = str(bench.folder / "store")
    assert exit_code(["bootstrap", store, "after", "--of", "before"]) == 0
    bench.put(("a", 0), ("b", 0))
    run = job("after").start(availableNow=True, accept_dropped_operator="before")
    assert run.awaitTermination(120)

    assert sorted(bench.values()) == [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1)]
    assert list(manifest_of(bench, run.epochs()[-1].epoch)["operators"]) == ["after"]
