"""Results of Spark's own aggregations in a table that delta-spark writes: the newest row of each key, or the whole result."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from spark_ckpt.store.existing import existing_store

pytestmark = pytest.mark.spark
SCHEMA = "k string, v long, at timestamp"
ENOUGH_S = 120.0
FILES = [
    [("a", 1, 1), ("b", 2, 2), ("a", 1, 70)],
    [("a", 4, 30), ("b", 2, 65), ("c", 1, 5)],
    [("a", 5, 31), ("d", 6, 400)],
    [("b", 7, 3), ("c", 8, 6), ("d", 1, 401)],
]


def put(inbox: Path, number: int) -> None:
    inbox.mkdir(exist_ok=True)
    start = dt.datetime(2024, 7, 1, tzinfo=dt.UTC)
    rows = [{"k": k, "v": v, "at": (start + dt.timedelta(seconds=s)).isoformat()} for k, v, s in FILES[number]]
    path = inbox / f"{number:03}.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_700_000_000 + number,) * 2)


def minutes(frame: DataFrame) -> DataFrame:
    timed = frame.withWatermark("at", "1 hour")  # no row is late
    return timed.groupBy("k", F.window("at", "1 minute")).agg(F.sum("v").alias("total"))


def sums(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(F.sum("v").alias("total")).where("total < 12")  # rows also leave the result


def job(
    spark: SparkSession, folder: Path, program: Callable[[DataFrame], DataFrame], mode: str, **sink: object
) -> ckpt.Job:
    made = ckpt.Job(spark, "results", str(folder / "store"), interval="every batch", shuffle_partitions=2)
    rows = made.source("in", FilesSource(str(folder / "in"), "json", SCHEMA, maxFilesPerTrigger=1))
    table = DeltaSink(str(folder / "table"), engine="spark", **sink)
    rows.transform(program, outputMode=mode).to(table, name="out", publish_every="1 hour")
    return made


def drain(made: ckpt.Job, **options: object) -> ckpt.Run:
    run = made.start(availableNow=True, **options)
    assert run.awaitTermination(ENOUGH_S)
    return run


def shown(folder: Path) -> list[str]:
    rows = DeltaTable(str(folder / "table")).to_pyarrow_table().select(["k", "total"]).to_pylist()
    return sorted(str(tuple(row.values())) for row in rows)


def wanted(spark: SparkSession, folder: Path, program: Callable[[DataFrame], DataFrame]) -> list[str]:
    rows = program(spark.read.schema(SCHEMA).json(str(folder / "in"))).select("k", "total").collect()
    return sorted(str(tuple(row)) for row in rows)


@pytest.mark.long  # in the gate: tests/delta/test_delta_sink_conformance.py
@pytest.mark.parametrize(
    ("program", "mode", "sink"),
    [
        # in the gate: merges of test_delta_spark.py
        (minutes, "update", {"keys": ["k", "window"]}),
        (sums, "complete", {}),
    ],
    ids=["the newest row of each key", "the whole result"],
)
def test_the_table_has_the_result_after_every_run_and_a_restore(
    spark: SparkSession, tmp_path: Path, program: Callable[[DataFrame], DataFrame], mode: str, sink: dict[str, object]
) -> None:
    put(tmp_path / "in", 0)
    put(tmp_path / "in", 1)
    drain(job(spark, tmp_path, program, mode, **sink))
    assert shown(tmp_path) == wanted(spark, tmp_path, program)
    back = newest_epoch(tmp_path)
    put(tmp_path / "in", 2)
    put(tmp_path / "in", 3)
    drain(job(spark, tmp_path, program, mode, **sink))
    assert shown(tmp_path) == wanted(spark, tmp_path, program)
    drain(job(spark, tmp_path, program, mode, **sink), restore=back)
    assert shown(tmp_path) == wanted(spark, tmp_path, program)


def newest_epoch(folder: Path) -> int:
    return existing_store(str(folder / "store")).log.state().latest


def test_a_sink_that_merges_refuses_a_whole_result(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", 0)
    with pytest.raises(ckpt.CkptError, match="cannot replace its rows"):
        job(spark, tmp_path, sums, "complete", keys=["k"]).start(availableNow=True)
