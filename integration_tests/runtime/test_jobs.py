"""Jobs through the public API: every input row is transformed, counted and output once, after failures at any point."""

from __future__ import annotations

import datetime as dt
import json
import sys
from functools import reduce

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from runtime_kit import Bench, Heard, drain, latest, manifest_of, progress_totals, totals

import spark_ckpt as ckpt

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder


@pytest.mark.smoke
def test_a_job_continues_where_the_last_run_ended_with_any_number_of_tasks(bench: Bench) -> None:
    bench.put(("a", 1), ("b", 2))
    bench.put(("a", 10))

    def job(**settings):
        job = bench.job(**settings)
        totals(job.source("in", bench.source())).to(bench.sink(), name="out")
        return job

    drain(job(shuffle_partitions=2))
    assert bench.values() == [("a", 1), ("a", 11), ("b", 2)]
    bench.put(("a", 100), ("c", 5))
    run = drain(job(shuffle_partitions=1))
    assert latest(bench.values()) == {"a": 111, "b": 2, "c": 5}
    assert progress_totals(run) == {"numInputRows": 2, "numOutputRows": 2, "rejected": 0, "late": 0}


def test_a_job_without_any_data_ends_on_an_epoch(bench: Bench) -> None:
    job = bench.job()
    totals(job.source("in", bench.source())).to(bench.sink())
    run = drain(job)
    assert [brief.reason for brief in run.epochs()] == ["initial", "drained"]
    assert bench.rows() == []


def test_rows_of_many_partitions_are_read_by_no_more_tasks_than_run_at_a_time(bench: Bench) -> None:
    for number in range(5):
        bench.put((f"k{number}", number), into=f"in{number}")
    job = bench.job(shuffle_partitions=1)
    first, *others = [job.source(f"in{number}", bench.source(f"in{number}")) for number in range(5)]
    totals(reduce(lambda all, one: all.union(one), others, first)).to(bench.sink(), name="out")
    heard, runs = Heard(), set()
    heard.onEpochCommitted = lambda _: runs.update(query.runId for query in bench.spark.streams.active)  # type: ignore[method-assign]
    job.addListener(heard)
    drain(job)
    assert len(bench.values()) == 5
    at_a_time = bench.spark.sparkContext.defaultParallelism
    assert at_a_time == 2
    assert max(tasks_of(bench, runs)) == at_a_time + 1, "two for the rows of five sources, one for the marker"


def tasks_of(bench: Bench, runs: set[str]) -> list[int]:
    """Number of tasks of each Spark stage that the queries have run."""
    tracker = bench.spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for run in runs for job in tracker.getJobIdsForGroup(run)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return [stage.numTasks for stage in stages if stage]


def vectorized_totals(batch: ckpt.KeyBatch) -> ckpt.KeyResult:
    sums = batch.state_values("total") + batch.sum_per_key(batch.values("v"))
    state = pa.table({"total": pa.array(sums, pa.int64())})
    return ckpt.KeyResult(output=pa.table({"k": batch.keys["k"], "total": state["total"]}), state=state)


def test_the_vectorized_operator_and_two_modes_of_agg_keep_their_state_over_a_restart(bench: Bench) -> None:
    summed = {"total": ckpt.sum("v"), "n": ckpt.count()}
    for rows in [("a", 1), ("a", 2), (None, 5)], [("a", 10), (None, None)]:
        bench.put(*rows)
        job = bench.job()
        keyed = job.source("in", bench.source()).groupBy("k")
        outputs = {
            "vectorized": keyed.applyVectorized(vectorized_totals, "k string, total long", "total long"),
            "update": keyed.agg(**summed, name="update"),
            "rows": keyed.agg(**summed, name="rows", outputMode="each row"),
        }
        for name, stream in outputs.items():
            stream.to(bench.sink(name), name=name)
        drain(job)
    assert bench.values("vectorized") == [("a", 13), ("a", 3), (None, 5), (None, 5)]
    assert bench.values("update") == [("a", 13, 3), ("a", 3, 2), (None, 5, 1), (None, 5, 2)]
    assert bench.values("rows") == [
        ("a", 1, 1, 1), ("a", 10, 13, 3), ("a", 2, 3, 2), (None, 5, 5, 1), (None, None, 5, 2),
    ]  # fmt: skip


def test_operations_before_and_after_the_operator_have_sparks_results(bench: Bench) -> None:
    bench.put(("a", 1), ("b", None), ("skip", 9))
    bench.put(("a", 3), into="more")
    names = bench.spark.createDataFrame([("a", "Anna"), ("b", "Bert")], "k string, name string")
    factors = bench.spark.createDataFrame([("a", 10), ("b", 20)], "k string, factor long")
    job = bench.job()
    one = job.source("one", bench.source()).filter("k <> 'skip'").join(factors, "k").withColumn("w", F.col("v") * 2)
    two = job.source("two", bench.source("more")).where(F.col("v") > 0).join(factors, "k").withColumn("w", F.lit(0))
    united = one.union(two).fillna(0, subset=["w"]).select("k", (F.col("w") + F.col("factor")).alias("v"))
    behind = totals(united).withColumnRenamed("total", "sum").filter("sum > 0").join(names, "k", "left")
    behind.selectExpr("*", "sum * 2 as twice").drop("k").to(bench.sink(), name="out")
    drain(job)
    assert {tuple(row) for row in bench.rows()} == {("sum", "name", "twice")}
    assert all(row["twice"] == 2 * row["sum"] for row in bench.rows())
    assert latest((row["name"], row["sum"]) for row in bench.rows()) == {"Anna": 22, "Bert": 20}


def test_both_sides_of_a_union_may_read_one_source(bench: Bench) -> None:
    bench.put(("a", 1), ("b", 2))
    job = bench.job()
    rows = job.source("one", bench.source())
    rows.filter("k = 'a'").union(rows.withColumn("k", F.concat("k", F.lit("!")))).to(bench.sink(), name="out")
    drain(job)
    assert bench.values() == [("a!", 1), ("a", 1), ("b!", 2)]


def test_every_sink_of_a_stream_gets_every_row_and_partitions_survive_odd_values(bench: Bench) -> None:
    odd = ["a/b", "a b", "ä=%25", "", None, "x'y\"z", "..", "a:b?c#d"]
    bench.put(*[(value, number) for number, value in enumerate(odd)])
    job = bench.job()
    stream = job.source("in", bench.source())
    stream.to(bench.sink("plain"), name="plain").to(bench.sink("parts", partition_by=["k"]), name="parts")
    drain(job)
    assert {(row["k"], row["v"]) for row in bench.rows("plain")} == set(zip(odd, range(8), strict=True))
    # Delta has no empty partition value: it is null there, also when Spark writes it.
    expected = {(value or None, number) for number, value in enumerate(odd)}
    assert {(row["k"], row["v"]) for row in bench.rows("parts")} == expected


def test_a_stream_whose_rows_are_all_filtered_out_still_advances(bench: Bench) -> None:
    """Otherwise a restart would read everything again."""
    bench.put(("a", 1))
    job = bench.job(interval="200 ms")
    job.source("in", bench.source()).filter("v > 5").to(bench.sink(), name="out")
    heard = Heard()
    job.addListener(heard)
    run = job.start()
    heard.wait("committed", 2)
    newest = max(event.epoch for event in heard.of("committed"))
    assert manifest_of(bench, newest)["cursors"]["in"]["count"] == 1
    run.stop()


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda one, two, static: one.filter("v > 1").union(two), marks=pytest.mark.long),
        pytest.param(
            lambda one, two, static: totals(one.filter("v > 1").union(two.filter("v > 100"))), marks=pytest.mark.long
        ),
        lambda one, two, static: one.union(two).join(static, "k", "left_semi"),
        lambda one, two, static: totals(one.union(two)).filter("total > 5").join(static, "k"),
    ],
    ids=["stateless", "operator", "stages that Spark adapts", "behind the operator"],
)
def test_input_rows_are_exactly_the_rows_of_the_sources_before_any_filter(bench: Bench, shape) -> None:
    """Neither control rows nor static tables count, nor rows that an operation makes of a row."""
    for rows in ([("a", 1), ("b", 2), ("c", 0)], [("a", 3), ("d", 1)]):
        bench.put(*rows)
        bench.put(*rows[:1], into="more")
    static = bench.spark.createDataFrame([("a", 1), ("b", 2)], "k string, f long").repartition("k")
    job = bench.job()
    one, two = job.source("one", bench.source()), job.source("two", bench.source("more"))
    shape(one, two, static).to(bench.sink(), name="out")
    run = drain(job)
    assert [each["numInputRows"] for each in run.recentProgress if each["numInputRows"]] == [4, 3]
    assert progress_totals(run)["numInputRows"] == 7
    assert sum(brief.rows_in for brief in run.epochs()) == 7


# -- records that cannot be parsed ------------------------------------------------------------------------------------

RECORD = "k string, v long"
GOOD, BAD = json.dumps({"k": "a", "v": 1}), '{"k": "b", "v": "no number"}'


def texts(bench: Bench, *lines: str) -> None:
    bench.put(*[(line,) for line in lines], schema="value string")


def parsed(job, bench: Bench, on_error: str):
    return job.source("in", bench.source(schema="value string")).parse("value", RECORD, alias="o", on_error=on_error)


def test_a_record_that_cannot_be_parsed_ends_the_run_by_its_name(bench: Bench) -> None:
    texts(bench, GOOD, BAD)
    job = bench.job()
    totals(parsed(job, bench, "fail").select("o.*")).to(bench.sink(), name="out")
    with pytest.raises(ckpt.CkptError, match="could not be parsed") as failed:
        drain(job)
    assert failed.value.condition == "CKPT_BAD_RECORD"
    assert "no number" in str(failed.value)
    assert bench.rows() == []


def test_dropped_records_before_and_after_the_operator_are_counted_and_kept(bench: Bench) -> None:
    texts(bench, GOOD, BAD, "nonsense", '{"k": "c", "v": 5}')

    def job():
        job = bench.job()
        rows = parsed(job, bench, "drop").select("*", "o.k", "o.v").filter("v < 5").drop("o")
        assert rows.columns == ["value", "k", "v"]
        behind = totals(rows).withColumn("text", F.when(F.col("k") == "z", "nonsense").otherwise(F.lit(GOOD)))
        behind.parse("text", RECORD, on_error="drop").select("k", "text.v").to(bench.sink(), name="out")
        job.rejectsTo(bench.sink("rejected"))
        return job

    run = drain(job())
    assert bench.values() == [("a", 1)]
    assert sorted(row["record"] for row in bench.rows("rejected")) == sorted([BAD, "nonsense"])
    assert {row["reason"] for row in bench.rows("rejected")} == {"not valid json for the declared schema"}
    assert progress_totals(run)["rejected"] == 2
    texts(bench, '{"k": "z", "v": 1}', BAD)
    run = drain(job())
    assert bench.values() == [("a", 1)]
    assert sorted(row["record"] for row in bench.rows("rejected")) == sorted([BAD, BAD, "nonsense", "nonsense"])
    newest = run.epochs()[-1].epoch
    assert manifest_of(bench, newest)["rejected"] == {"parse": 2}


def test_records_that_a_connector_drops_are_in_the_same_table(bench: Bench) -> None:
    bench.put_lines(GOOD, "nonsense")
    source = ckpt_files(bench, on_error="drop")
    job = bench.job()
    stream = job.source("in", source)
    assert stream.columns == ["k", "v"]
    stream.withColumn("w", F.col("v") + 1).to(bench.sink(), name="out")
    job.rejectsTo(bench.sink("rejected"))
    run = drain(job)
    assert bench.values() == [("a", 1, 2)]
    (rejected,) = bench.rows("rejected")
    assert rejected["record"] == "nonsense"
    assert json.loads(rejected["position"])["line"] == 2
    assert progress_totals(run) == {"numInputRows": 2, "numOutputRows": 1, "rejected": 1, "late": 0}


def ckpt_files(bench: Bench, **options: object):
    from spark_ckpt_files import FilesSource

    return FilesSource(str(bench.input()), "json", RECORD, **options)


# -- event time -----------------------------------------------------------------------------------------------------


def wait_for_quiet(key, frames, state):
    """Count rows; emit the count and remove it when the watermark is 10 s after the last row."""
    if state.hasTimedOut:
        yield (key[0], state.get[0])
        state.remove()
        return
    frame = next(iter(frames))
    count = (state.get[0] if state.exists else 0) + len(frame)
    state.update((count,))
    last_ms = int(frame["at"].max().tz_localize("America/New_York").timestamp() * 1000)
    state.setTimeoutTimestamp(last_ms + 10_000)


def at(seconds: float) -> dt.datetime:
    return dt.datetime(2024, 7, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def quiet_job(bench: Bench) -> ckpt.Job:
    job = bench.job(key_groups=1)  # so that the group is called in every batch and lateness is exactly Spark's
    rows = job.source("in", bench.source()).withWatermark("at", "5 seconds")
    quiet = rows.groupBy("k").applyInPandasWithState(
        wait_for_quiet, "k string, n long", "n long", "append", "EventTimeTimeout"
    )
    quiet.to(bench.sink(), name="out")
    return job


def test_late_rows_are_dropped_one_by_one_and_counted_and_timeouts_fire_over_restarts(bench: Bench) -> None:
    """As in Spark, a row is late when it is older than the watermark of the batch before."""
    bench.schema = "k string, at timestamp"
    bench.put(("a", at(0)), ("b", at(1)))
    bench.put(("a", at(100)))  # the watermark advances to 95: b has been quiet since 11
    bench.put(("c", at(101)))
    bench.put(("c", at(102)), ("c", at(1)), ("d", at(2)))  # one blob: a good row and two late ones
    bench.put(("d", at(3)))  # a late one alone
    run = drain(quiet_job(bench))
    assert bench.values() == [("b", 1)]
    assert progress_totals(run)["late"] == 3
    newest = run.epochs()[-1].epoch
    assert manifest_of(bench, newest)["watermark_ms"] == int(at(97).timestamp() * 1000)

    bench.put(("e", at(50)), ("f", at(200)))  # e is late by the watermark of the epoch before
    bench.put(("g", at(500)))
    bench.put(("g", at(501)))
    run = drain(quiet_job(bench))
    assert progress_totals(run)["late"] == 1
    assert bench.values() == [("a", 2), ("b", 1), ("c", 2), ("f", 1)]
