"""Windowed aggregates under Spark's own update and append modes and under `agg` emit the same rows, drop the same late rows
and keep the same windows, even if ours is restarted repeatedly.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from runtime_kit import Bench, drain, progress_totals

import spark_ckpt as ckpt

pytestmark = pytest.mark.spark
SCHEMA = "k string, v long, at timestamp"
DELAY, WINDOW = "5 seconds", "10 seconds"


def at(seconds: float) -> dt.datetime:
    return dt.datetime(2024, 7, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


BATCHES = [
    [("a", 1, 1), ("b", 2, 2), ("a", 3, 12), ("c", 1, 3)],
    [("a", 4, 100), ("b", 1, 95)],  # the watermark advances to 95
    [("a", 5, 3), ("d", 6, 4), ("a", 1, 101)],  # by the watermark of the batch before no row is late yet
    [("a", 7, 5), ("c", 8, 6), ("a", 1, 96), ("b", 1, 84)],  # late, late, open, late
    [("a", 1, 200), ("e", 1, 94)],
    [("a", 1, 97), ("b", 1, 104), ("e", 9, 2), ("a", 2, 194)],
    [("z", 1, 400)],
    [("z", 1, 401), ("a", 1, 200), ("a", 3, 399)],
]


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.schema = SCHEMA
    return bench


@pytest.fixture
def without_idle_batches(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    yield
    spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")


def put(bench: Bench, number: int) -> None:
    bench.put(*[(key, value, at(second)) for key, value, second in BATCHES[number]])


class Sparks:
    """Spark's own aggregation over the files of `bench`, one per batch."""

    def __init__(self, bench: Bench, windows: Callable[[], F.Column], mode: str = "update") -> None:
        rows = bench.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(bench.input()))
        summed = (
            rows.withWatermark("at", DELAY).groupBy("k", windows()).agg(F.count("*").alias("n"), F.sum("v").alias("t"))
        )
        self.shown: Counter[tuple[object, ...]] = Counter()
        self._query = (
            summed.selectExpr("k", "cast(window.start as long)", "cast(window.end as long)", "n", "t")
            .writeStream.foreachBatch(self._keep)
            .outputMode(mode)
            .option("checkpointLocation", str(bench.folder / "sparks"))
            .start()
        )

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.shown.update(map(tuple, frame.collect()))

    def catch_up(self) -> None:
        self._query.processAllAvailable()

    def windows_kept(self) -> int:
        return int(self._query.lastProgress["stateOperators"][0]["numRowsTotal"])

    def end(self) -> None:
        self._query.stop()


def ours(bench: Bench, windows: Callable[[], F.Column], mode: str = "update", **settings: object) -> ckpt.Run:
    job = bench.job(**settings)
    rows = job.source("in", bench.source()).withWatermark("at", DELAY)
    summed = rows.groupBy("k", windows()).agg(mode, n=ckpt.count(), t=ckpt.sum("v"))
    summed.to(bench.sink(), name="out")
    return drain(job)


def shown_by_ours(bench: Bench) -> Counter[tuple[object, ...]]:
    rows = bench.rows()
    ends = [{part: int(row["window"][part].timestamp()) for part in ("start", "end")} for row in rows]
    return Counter(
        (row["k"], end["start"], end["end"], row["n"], row["t"]) for row, end in zip(rows, ends, strict=True)
    )


def windows_kept(bench: Bench) -> int:
    return len(ckpt.read_state(str(bench.folder / "store"), "aggregate"))


@pytest.mark.parametrize(
    "windows",
    [
        # in the gate: sliding windows, and tests/runtime/test_windowed_aggregates.py
        pytest.param(lambda: F.window("at", WINDOW), id="tumbling", marks=pytest.mark.long),
        pytest.param(lambda: F.window("at", "20 seconds", WINDOW), id="sliding"),
    ],
)
def test_every_batch_emits_the_rows_of_sparks_update_mode(bench: Bench, without_idle_batches: None, windows) -> None:
    for number in range(len(BATCHES)):
        put(bench, number)
    sparks = Sparks(bench, windows)
    sparks.catch_up()
    sparks.end()
    run = ours(bench, windows)
    assert shown_by_ours(bench) == sparks.shown
    assert progress_totals(run)["late"] > 0


@pytest.mark.long  # in the gate: tests/runtime/test_windowed_aggregates.py
def test_append_shows_every_window_once_as_sparks_append_mode_does(bench: Bench) -> None:
    windows = lambda: F.window("at", WINDOW)  # noqa: E731
    put(bench, 0)
    sparks = Sparks(bench, windows, "append")
    for last in (4, len(BATCHES)):
        for number in range(bench.number, last):
            put(bench, number)
        sparks.catch_up()
        run = ours(bench, windows, "append")  # the second one is a restart
    assert shown_by_ours(bench) == sparks.shown
    assert set(sparks.shown.values()) == {1}
    assert windows_kept(bench) == sparks.windows_kept()
    assert progress_totals(run)["late"] > 0
    sparks.end()


def test_append_where_no_window_closes_is_refused_with_the_mode_of_each_row(bench: Bench) -> None:
    rows = bench.job().source("in", bench.source())
    for grouped in (
        rows.groupBy("k"),
        rows.groupBy(F.window("at", WINDOW)),
        rows.withWatermark("at", DELAY).groupBy("k"),
    ):
        with pytest.raises(ckpt.CkptError) as refused:
            grouped.agg("append", n=ckpt.count())
        assert (refused.value.condition, 'agg("each row"' in refused.value.hint) == ("CKPT_GRAPH_INVALID", True)


@pytest.mark.long
def test_restarts_change_nothing(bench: Bench) -> None:
    """Ours restarts for every file; Spark's query continues, and idles until its watermark has caught up."""
    windows = lambda: F.window("at", WINDOW)  # noqa: E731
    put(bench, 0)
    sparks = Sparks(bench, windows)
    for number in range(len(BATCHES)):
        if number:
            put(bench, number)
        sparks.catch_up()
        ours(bench, windows, key_groups=3)
    assert shown_by_ours(bench) == sparks.shown
    assert windows_kept(bench) == sparks.windows_kept() == 2
    sparks.end()


@pytest.mark.parametrize(
    "grouped",
    [
        lambda rows: rows.groupBy("k", F.window("at", WINDOW).end.alias("end")),
        lambda rows: rows.transform(lambda frame: frame.withColumn("w", F.window("at", WINDOW))).groupBy("w"),
        # in the gate: tests/runtime/test_windowed_aggregates.py
        *(
            pytest.param(grouped, marks=pytest.mark.long)
            for grouped in (
                lambda rows: rows.groupBy("k", F.window("at", WINDOW).start.alias("start")),
                lambda rows: rows.withColumn("w", F.window("at", "20 seconds", WINDOW)).groupBy("k", "w.start"),
                lambda rows: (
                    rows.select("k", F.window("at", WINDOW).alias("w"), "at")
                    .select("k", "at", "w.*")
                    .groupBy("end", "start")
                ),
                lambda rows: rows.groupBy("at"),
            )
        ),
    ],
    ids=["end", "a window of a transform", "start", "start of a sliding window", "both", "the time itself"],
)
def test_for_every_grouped_part_of_the_window_closed_windows_are_removed_and_late_rows_counted(
    bench: Bench, grouped
) -> None:
    for rows in ([("a", 1, 1)], [("a", 1, 500)], [("a", 1, 501)], [("a", 1, 2), ("a", 1, 502)]):
        bench.put(*[(key, value, at(second)) for key, value, second in rows])
    job = bench.job()
    grouped(job.source("in", bench.source()).withWatermark("at", DELAY)).agg(n=ckpt.count()).to(
        bench.sink(), name="out"
    )
    run = drain(job)
    assert progress_totals(run)["late"] in (1, 2)  # a sliding window has the row twice
    assert {row["n"] for row in ckpt.read_state(str(bench.folder / "store"), "aggregate").to_pylist()} <= {1, 2, 3}
    assert all(first >= at(490) for first in closes(bench))


def closes(bench: Bench) -> list[dt.datetime]:
    """The greatest time in the key of every kept window."""
    kept = ckpt.read_state(str(bench.folder / "store"), "aggregate").to_pylist()
    assert kept
    return [max(value for value in row.values() if isinstance(value, dt.datetime)) for row in kept]


def test_a_grouping_without_a_window_ignores_the_watermark_as_spark_does(bench: Bench) -> None:
    for rows in ([("a", 1, 1)], [("a", 1, 500)], [("a", 1, 2)]):
        bench.put(*[(key, value, at(second)) for key, value, second in rows])
    job = bench.job()
    job.source("in", bench.source()).withWatermark("at", DELAY).groupBy("k").agg(n=ckpt.count()).to(
        bench.sink(), name="out"
    )
    run = drain(job)
    assert [row["n"] for row in bench.rows()][-1] == 3
    assert progress_totals(run)["late"] == 0


def test_a_session_window_is_refused(bench: Bench) -> None:
    rows = bench.job().source("in", bench.source()).withWatermark("at", DELAY)
    with pytest.raises(ckpt.CkptError, match="session window"):
        rows.groupBy("k", F.session_window("at", WINDOW)).agg(n=ckpt.count())


def test_a_sinks_schema_has_no_mark_of_the_watermark(bench: Bench, tmp_path: Path) -> None:
    rows = bench.job().source("in", bench.source()).withWatermark("at", DELAY)
    assert all(not field.metadata for field in rows.schema)
