"""Columns that Spark's expressions cannot name without quotes, as data, keys, state, event time and partitions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink, DeltaSource
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder
ODD, TIME = "a b.c`d/e%20f", "t.`t"
QUOTED, QUOTED_TIME = "`a b.c``d/e%20f`", "`t.``t`"
ENOUGH_S = 240.0


def ended(job: ckpt.Job) -> None:
    assert job.start(availableNow=True).awaitTermination(ENOUGH_S)


def rows_of(spark: SparkSession, table: Path, *columns: str) -> list[tuple[object, ...]]:
    found = spark.read.format("delta").load(str(table))
    return sorted(map(tuple, found.select(*columns).collect()))


def each(key, frames, state):
    total = (state.get[0] if state.exists else 0) + sum(int(frame["v"].sum()) for frame in frames)
    state.update((total,))
    yield key[0], total


@pytest.fixture
def source(tmp_path: Path) -> FilesSource:
    (tmp_path / "in").mkdir()
    lines = [json.dumps({ODD: k, "v": v, TIME: "2024-01-01T00:00:00Z"}) for v, k in enumerate("aab")]
    (tmp_path / "in" / "1.json").write_text("\n".join(lines) + "\n")
    return FilesSource(str(tmp_path / "in"), "json", f"{QUOTED} string, v long, {QUOTED_TIME} timestamp")


@pytest.mark.long  # in the gate: test_streams_meet_on_columns_of_any_name
def test_a_job_takes_columns_of_any_name(spark: SparkSession, tmp_path: Path, source: FilesSource) -> None:
    def job() -> ckpt.Job:
        made = ckpt.Job(spark, "names", str(tmp_path / "store"), interval="1 hour", trigger="10 ms")
        rows = made.source("in", source).withWatermark(TIME, "1 minute")
        rows.fillna("x").to(DeltaSink(str(tmp_path / "rows"), partition_by=[ODD]), name="rows")
        totals = rows.groupBy(QUOTED).applyInPandasWithState(
            each, f"{QUOTED} string, v long", "v long", "append", "NoTimeout"
        )
        totals.to(DeltaSink(str(tmp_path / "totals")), name="totals")
        counts = rows.groupBy(ODD, F.window(QUOTED_TIME, "1 hour")).agg(**{"n.n": ckpt.count(), "m`": ckpt.max(ODD)})
        counts.mapInArrow(lambda batches: batches, counts.schema).through("edge").to(
            DeltaSink(str(tmp_path / "counts")), name="counts"
        )
        return made

    ended(job())
    ended(job())  # continues with its state

    assert rows_of(spark, tmp_path / "rows", QUOTED, "v") == [("a", 0), ("a", 1), ("b", 2)]
    assert rows_of(spark, tmp_path / "totals", QUOTED, "v") == [("a", 1), ("b", 2)]
    assert rows_of(spark, tmp_path / "counts", QUOTED, "`n.n`", "`m```") == [("a", 2, "a"), ("b", 1, "b")]
    state = ckpt.state_frame(spark, str(tmp_path / "store"), "each")
    assert sorted(map(tuple, state.select(QUOTED, "v").collect())) == [("a", 1), ("b", 2)]


def test_streams_meet_on_columns_of_any_name(spark: SparkSession, tmp_path: Path, source: FilesSource) -> None:
    made = ckpt.Job(spark, "names", str(tmp_path / "store"), interval="1 hour", trigger="10 ms")
    rows = made.source("in", source).drop(TIME)
    others = made.source("others", source).drop(TIME).withColumnRenamed("v", "w.w")
    joined = rows.join(others, on=ODD)
    joined.mapInPandas(lambda frames: frames, joined.schema).to(DeltaSink(str(tmp_path / "joined")), name="joined")
    ended(made)
    again = ckpt.Job(spark, "again", str(tmp_path / "second"), interval="1 hour", trigger="10 ms")
    copied = again.source("in", DeltaSource(str(tmp_path / "joined")))
    copied.filter(copied["w.w"] > 0).to(DeltaSink(str(tmp_path / "copy")), name="copy")
    ended(again)

    assert rows_of(spark, tmp_path / "copy", QUOTED, "v", "`w.w`") == [("a", 0, 1), ("a", 1, 1), ("b", 2, 2)]
