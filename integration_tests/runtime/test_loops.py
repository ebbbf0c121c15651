"""Edges of a job's graph: loops, and streams that split and meet after an operator. They are part of every epoch."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from runtime_kit import ENOUGH_S, Bench, Heard, drain, manifest_of

import spark_ckpt as ckpt
from integration_tests.survival.graphs import counting
from integration_tests.survival.loops import Link, components, final_labels, labels_of, rounds
from spark_ckpt import Job, failpoints
from spark_ckpt.errors import EpochDamaged, GraphInvalid, StateSchemaChanged

pytestmark = pytest.mark.spark
LONG: list[Link] = [(number + 1, number) for number in range(9)]


def labelling(bench: Bench, **settings: object) -> Job:
    job = bench.job(**settings)
    labels = components(job, job.source("in", bench.source(schema="a long, b long")))
    labels.to(bench.sink("labels"), name="labels")
    return job


def put(bench: Bench, *links: Link) -> None:
    bench.put(*links, schema="a long, b long")


def cut_of(bench: Bench, epoch: int) -> dict[str, object]:
    return manifest_of(bench, epoch)["edges"]["labels"]  # type: ignore[index, no-any-return]


def labels(bench: Bench) -> dict[int, int]:
    return final_labels([(row["node"], row["label"]) for row in bench.rows("labels")])  # type: ignore[misc]


@pytest.mark.long  # in the gate: test_rows_in_the_loop_at_a_barrier_iterate_after_a_failure
def test_a_loop_runs_until_it_is_empty_and_the_job_drains(bench: Bench) -> None:
    chain: list[Link] = [(number, number + 1) for number in range(6)]
    put(bench, *reversed(chain))

    run = drain(labelling(bench))

    assert labels(bench) == dict.fromkeys(range(7), 0)
    last = run.lastProgress
    assert last is not None
    assert last["inFlightRows"] == {"labels": 0}
    cut = cut_of(bench, run.epochs()[-1].epoch)
    assert cut["consumed"] == cut["produced"] > 12
    assert not cut["files"]


def test_rows_in_the_loop_at_a_barrier_iterate_after_a_failure(bench: Bench) -> None:
    """Every batch ends an epoch, and incarnations end within the loop, before and after a commit."""
    put(bench, *LONG)
    for point in ("EPOCH_COMMITTED:raise:3", "EPOCH_COMMITTING:raise:3", "STAGED:raise:5"):
        failpoints.arm(point)
        try:
            run = labelling(bench, interval="10 ms").start(availableNow=True)
            with (
                nullcontext()  # a failed task is retried
                if point.startswith("STAGED")
                else pytest.raises(ckpt.CkptError, match="failpoint")
            ):
                assert run.awaitTermination(ENOUGH_S)
        finally:
            failpoints.arm("")

    assert labels(bench) == labels_of(LONG)
    held = [cut_of(bench, brief.epoch)["files"] for brief in run.epochs()]
    assert any(held), "no barrier found the loop at work: the test shows nothing"


@pytest.mark.long
def test_an_older_epoch_continues_with_the_rows_of_its_loop(bench: Bench) -> None:
    put(bench, *LONG)
    run = drain(labelling(bench, interval="10 ms"))
    inside = next(brief.epoch for brief in run.epochs() if cut_of(bench, brief.epoch)["files"])
    again = Bench(bench.spark, bench.folder)

    drain(labelling(again), restore=inside)

    assert labels(bench) == labels_of(LONG)


@pytest.mark.long  # in the gate: tests/store/test_retention.py and tests/simulator/test_spark_edges.py
def test_segments_that_no_epoch_names_do_not_stay(bench: Bench) -> None:
    put(bench, *LONG)

    drain(labelling(bench, interval="10 ms", keep_epochs=2))

    log = bench.store().log
    named = {
        file.path
        for brief in log.state().epochs
        for cut in log.manifest(brief.epoch).edges.values()
        for file in cut.files
    }
    there = {path.name for path in (bench.folder / "store" / "inflight" / "labels").glob("*.parquet")}
    assert there == named


def stopped_inside(bench: Bench) -> ckpt.Run:
    """A stopped job whose loop never ends: a row is in flight."""
    bench.put(("a", 0))
    heard = Heard()
    job = endless(bench)
    job.addListener(heard)
    run = job.start()
    heard.wait("committed", 3)
    run.stop(ENOUGH_S)
    assert manifest_of(bench, run.epochs()[-1].epoch)["edges"]["rounds"]["files"]  # type: ignore[index]
    return run


def endless(bench: Bench, name: str = "rounds", schema: str = "k string, v long") -> Job:
    job = bench.job(interval="10 ms")
    rounds(job, job.source("in", bench.source()), name, schema).to(bench.sink(), name="out")
    return job


@pytest.mark.long  # in the gate: tests/simulator/test_spark_edges.py
def test_a_loop_can_be_stopped_anywhere_and_continues_there(bench: Bench) -> None:
    for _ in range(2):
        stopped_inside(bench)

    values = sorted(int(row["v"]) for row in bench.rows())  # type: ignore[call-overload]
    assert values.count(0) == 2
    assert max(values) > 4
    assert all(0 < values.count(each) <= 2 for each in range(max(values) + 1))


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """For tests that leave its store unchanged."""
    bench = Bench(spark, tmp_path_factory.mktemp("stopped"))
    stopped_inside(bench)
    return bench


def test_a_damaged_segment_that_is_in_flight_is_found_before_anything_runs(stopped: Bench) -> None:
    store, before = stopped.store(), stopped.store().log.state()
    (file,) = store.log.manifest(before.latest).edges["rounds"].files
    segment = stopped.folder / "store" / "inflight" / "rounds" / file.path
    whole = segment.read_bytes()
    segment.write_bytes(b"x" * file.size_bytes)
    with pytest.raises(EpochDamaged, match="does not hold the bytes"):
        store.verify(store.log.manifest(before.latest), deep=True)
    with pytest.raises(EpochDamaged, match="does not hold the bytes that were committed"):
        endless(stopped).start().awaitTermination(ENOUGH_S)
    segment.write_bytes(whole)
    assert stopped.store().log.state().last == before.last


def test_an_edge_with_rows_in_flight_cannot_be_dropped(stopped: Bench) -> None:
    with pytest.raises(GraphInvalid, match="1 row in flight on edge 'rounds', which the job no longer has"):
        endless(stopped, "others").start()


def test_rows_in_flight_must_fit_the_edge(stopped: Bench) -> None:
    job = stopped.job()
    loop = job.feedback("rounds", "k string, v int")
    rows = job.source("in", stopped.source()).selectExpr("k", "CAST(v AS int) AS v").union(loop)
    loop.close(rows)
    rows.to(stopped.sink("other"), name="out")
    with pytest.raises(StateSchemaChanged, match="1 row in flight on edge 'rounds' with k string, v bigint") as refused:
        job.start()
    assert refused.value.context["difference"] == "column v was bigint, is int, which does not hold every bigint"


def annotated(bench: Bench, **settings: object) -> Job:
    """The loop with a wider type and one more column: rows marked `new` iterate once, those without a mark end."""
    job = bench.job(**settings)
    loop = job.feedback("rounds", "k string, v decimal(20,0), note string")
    read = job.source("in", bench.source()).selectExpr("k", "CAST(v AS decimal(20,0)) AS v", "'new' AS note")
    rows = read.union(loop)
    loop.close(rows.filter("note = 'new'").selectExpr("k", "CAST(v + 1 AS decimal(20,0)) AS v", "'again' AS note"))
    rows.to(bench.sink("other"), name="other")
    return job


@pytest.mark.long  # in the gate: tests/store/test_rows_in_flight_widen.py
def test_rows_in_flight_continue_in_the_wider_columns_of_a_changed_loop(bench: Bench) -> None:
    run = stopped_inside(bench)
    (row,) = bench.store().edge("rounds").read(run.epochs()[-1].epoch).to_pylist()
    bench.put(("b", 2**40))

    drain(annotated(bench))

    assert bench.values("other") == [("a", row["v"], None), ("b", 2**40, "new"), ("b", 2**40 + 1, "again")]


def test_rows_in_flight_can_be_read_with_sql(stopped: Bench) -> None:
    (row,) = stopped.store().edge("rounds").read(stopped.store().log.state().latest).to_pylist()
    assert stopped.rows("store/inflight/rounds") == [row]
    assert row["v"] == len(stopped.rows())


# -- bounds of an edge ---------------------------------------------------------------------------------------------------


def going_round(bench: Bench, **settings: object) -> Job:
    """Every row iterates `v` times, and each time the loop emits it with the remaining number."""
    job = bench.job(**settings)
    loop = job.feedback("rounds", "k string, v long")
    rows = job.source("in", bench.source()).union(loop)
    loop.close(rows.filter("v > 0").selectExpr("k", "v - 1 AS v"))
    rows.to(bench.sink(), name="out")
    return job


def rows_read_and_full_edges(run: ckpt.Run) -> list[tuple[int, list[str]]]:
    return [(int(each["numInputRows"]), each["backpressure"]) for each in run.recentProgress]  # type: ignore[call-overload, misc]


@pytest.mark.long  # in the gate: tests/coordination/test_edges.py
def test_sources_pause_while_an_edge_is_full(bench: Bench) -> None:
    for name in "ab":
        bench.put(*[(f"{name}{number}", 3) for number in range(4)])

    run = drain(going_round(bench, max_in_flight=3))

    seen = [each for each in rows_read_and_full_edges(run) if each != (0, [])]
    full = ["rounds"]
    assert seen == [(4, full), (0, full), (0, full), (4, full), (0, full), (0, full)]
    assert bench.values() == [(f"{name}{number}", v) for name in "ab" for number in range(4) for v in range(4)]


@pytest.mark.long  # in the gate: tests/coordination/test_edges.py
def test_sources_continue_while_edges_are_within_their_bound(bench: Bench) -> None:
    for name in "ab":
        bench.put(*[(f"{name}{number}", 3) for number in range(4)])

    run = drain(going_round(bench, max_in_flight=8))

    assert rows_read_and_full_edges(run)[:2] == [(4, []), (4, [])]


@pytest.mark.long  # in the gate: tests/coordination/test_edges.py and the tests above
def test_sources_that_pause_at_the_end_of_a_job_continue_in_the_next_one(bench: Bench) -> None:
    for name in "ab":
        bench.put(*[(f"{name}{number}", 40) for number in range(4)])
    heard = Heard()
    job = going_round(bench, interval="10 ms", max_in_flight=3)
    job.addListener(heard)
    run = job.start()
    heard.wait("committed", 3)
    run.stop(ENOUGH_S)
    assert sum(rows for rows, _ in rows_read_and_full_edges(run)) == 4

    drain(going_round(bench, max_in_flight=3))

    assert bench.values() == sorted(
        ((f"{name}{number}", v) for name in "ab" for number in range(4) for v in range(41)), key=repr
    )


# -- edges that lead on ------------------------------------------------------------------------------------------------


@pytest.mark.long  # in the gate: integration_tests/runtime/test_parting_streams.py
def test_streams_split_and_meet_again_after_an_edge(bench: Bench) -> None:
    job = bench.job()
    first = counting(job.source("in", bench.source()), "k", "first").select("key", "n").through("counted")
    even = counting(first.filter("n % 2 = 0").selectExpr("key AS k"), "k", "even").select("key", "n")
    all_ = counting(first.selectExpr("key AS k"), "k", "all").select("key", "n")
    even.join(all_, on=["key", "n"], name="both").to(bench.sink(), name="out")
    bench.put(*[("a", number) for number in range(6)], ("b", 0))

    drain(job)

    assert bench.values() == [("a", 1), ("a", 2), ("a", 3)]


@pytest.mark.long  # in the gate: tests/test_marks_of_event_time.py
def test_event_time_may_begin_after_an_edge(bench: Bench) -> None:
    def job() -> Job:
        described = bench.job()
        times = counting(described.source("in", bench.source()), "k", "first")
        timed = times.select("key", F.timestamp_seconds(F.col("v")).alias("at")).through("times")
        windows = timed.withWatermark("at", "0 seconds").groupBy(
            "key", F.window("at", "10 seconds").start.alias("start")
        )
        windows.agg(n=ckpt.count()).to(bench.sink(), name="out")
        return described

    bench.put(("a", 5), ("a", 8))
    drain(job())
    bench.put(("a", 100))
    drain(job())
    bench.put(("a", 1))
    run = drain(job())

    assert run.lastProgress is not None
    assert run.lastProgress["totals"]["late"] == 1
    assert {row["start"].timestamp(): row["n"] for row in bench.rows()} == {0: 2, 100: 1}  # type: ignore[attr-defined]


# -- first mistakes ----------------------------------------------------------------------------------------------------


def test_a_feedback_without_a_stream_is_refused(bench: Bench) -> None:
    job = bench.job()
    job.feedback("open", "k string, v long").to(bench.sink(), name="out")
    with pytest.raises(GraphInvalid, match="nothing goes into feedback 'open'"):
        job.start()


def test_a_feedback_that_is_no_loop_is_refused(bench: Bench) -> None:
    job = bench.job()
    rows = job.source("in", bench.source())
    loop = job.feedback("straight", "k string, v long")
    loop.close(rows)
    loop.to(bench.sink(), name="out")
    with pytest.raises(GraphInvalid, match="there is no loop"):
        job.start()


def test_an_edge_without_a_reader_is_refused(bench: Bench) -> None:
    job = bench.job()
    rows = job.source("in", bench.source()).to(bench.sink(), name="out")
    rows.through("nowhere")
    with pytest.raises(GraphInvalid, match="no stream reads edge 'nowhere'"):
        job.start()


def test_a_loop_is_closed_once_with_its_own_columns(bench: Bench) -> None:
    job = bench.job()
    rows = job.source("in", bench.source())
    loop = job.feedback("loop", "k string, v long")
    with pytest.raises(GraphInvalid, match="has struct<k:string,v:bigint>, the stream that closes it struct<k:string>"):
        loop.close(rows.select("k"))
    loop.close(rows.union(loop).select("v", "k"))
    with pytest.raises(GraphInvalid, match="closed already"):
        loop.close(rows)


def test_edges_need_different_names(bench: Bench) -> None:
    job = bench.job()
    job.source("in", bench.source()).through("one")
    with pytest.raises(GraphInvalid, match="two edges named 'one'"):
        job.feedback("one", "k string")


def test_an_edge_may_have_the_name_of_a_sink(bench: Bench) -> None:
    job = bench.job()
    job.source("in", bench.source()).through("out").to(bench.sink(), name="out")
    bench.put(("a", 1))
    drain(job)
    assert bench.values() == [("a", 1)]


@pytest.mark.long  # in the gate: the loop above
def test_other_programs_read_an_edge_as_records_of_its_topic(bench: Bench) -> None:
    job = bench.job()
    rows = job.source("in", bench.source())
    rows.through("plain", topic=bench.sink("topic"), key="k").to(bench.sink(), name="out")
    ready = rows.selectExpr("CAST(v AS string) AS value").through("ready", topic=bench.sink("ready"))
    ready.to(bench.sink("behind"), name="behind")
    bench.put(("a", 1))
    drain(job)
    assert (bench.values(), bench.values("topic")) == ([("a", 1)], [("a", '{"k":"a","v":1}')])
    assert bench.values("ready") == bench.values("behind") == [("1",)]
    with pytest.raises(GraphInvalid, match="there is no column 'w'"):
        rows.through("other", topic=bench.sink("other"), key="w")
    with pytest.raises(GraphInvalid, match="are records already"):
        rows.withColumnRenamed("v", "value").through("other", topic=bench.sink("other"), key="k")
