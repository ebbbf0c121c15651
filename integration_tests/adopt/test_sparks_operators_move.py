"""A plain query with operators of Spark becomes a job with the same operators inside of `transform`, and keeps its state."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink, DeltaSource

import spark_ckpt as ckpt
from integration_tests.s3 import running_s3
from spark_ckpt.cli.app import exit_code

pytestmark = pytest.mark.spark

T0_S = 1_700_000_000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
VERSIONS = [
    [("a", 0, 1), ("b", 1, 2), ("a", 0, 1), ("c", 3, 5)],
    [("a", 4, 1), ("b", 1, 2), ("c", 12, 7)],
    [("a", 4, 1), ("b", 13, 2), ("d", 14, 1)],
    [("z", 1000, 0)],
    [("z", 1000, 1)],
]
"""(user, seconds after T0, value) of the versions of a table. The second half repeats rows of the first."""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with running_s3() as options:
        yield options


def windows(frame: DataFrame) -> DataFrame:
    once = frame.withWatermark("at", "30 seconds").dropDuplicatesWithinWatermark(["user", "v", "at"])
    summed = once.groupBy("user", F.window("at", "10 seconds")).agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    return summed.select("user", F.unix_timestamp("window.start").alias("began"), "n", "total")


def feed(spark: SparkSession, table: Path, rows: list[tuple[str, int, int]]) -> None:
    frame = spark.createDataFrame([(user, T0_S + after, v) for user, after, v in rows], "user string, at long, v long")
    frame.withColumn("at", F.timestamp_seconds("at")).coalesce(1).write.format("delta").mode("append").save(str(table))


def run_plain(spark: SparkSession, folder: Path, name: str) -> None:
    read = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(folder / "bronze"))
    writer = windows(read).writeStream.format("delta").option("checkpointLocation", str(folder / f"{name}-checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / name)).awaitTermination()


def rows(folder: Path, name: str) -> Counter[tuple[object, ...]]:
    table = DeltaTable(str(folder / name)).to_pyarrow_table(columns=["user", "began", "n", "total"])
    return Counter(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.long  # in the gate: tests/store/test_sparks_state_files.py, and test_delta_to_job.py in this folder
@pytest.mark.parametrize("place", ["a folder", "an object store"])
@pytest.mark.parametrize("provider", [None, ROCKSDB], ids=["HDFS-backed", "RocksDB"])
def test_the_job_continues_with_the_querys_windows_and_first_rows(
    spark: SparkSession, tmp_path: Path, provider: str | None, place: str, request: pytest.FixtureRequest
) -> None:
    capsys, store, options = request.getfixturevalue("capsys"), str(tmp_path / "store"), dict[str, str]()
    if place == "an object store":
        options = request.getfixturevalue("s3")
        store = f"s3://bucket/{'rocksdb' if provider else 'hdfs'}/store"
    before = spark.conf.get(PROVIDER, None)
    if provider is not None:
        spark.conf.set(PROVIDER, provider)
    try:
        for version in VERSIONS[:2]:
            feed(spark, tmp_path / "bronze", version)
        run_plain(spark, tmp_path, "moved")
        arguments = ["adopt", str(tmp_path / "moved-checkpoint"), store, "--job", "windows", "--watch-s", "0"]
        arguments += [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
        assert exit_code([*arguments, "--source", "bronze"]) != 0
        assert "--spark-operators" in capsys.readouterr().err
        assert exit_code([*arguments, "--source", "bronze", "--spark-operators", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["spark_operators"] == ["stateStoreSave", "dedupeWithinWatermark"]
        for version in VERSIONS[2:]:
            feed(spark, tmp_path / "bronze", version)
        job = ckpt.Job(spark, "windows", store=store, storage_options=options)
        source = job.source("bronze", DeltaSource(str(tmp_path / "bronze"), maxFilesPerTrigger=1))
        source.transform(windows).to(DeltaSink(str(tmp_path / "moved")))
        assert job.start(availableNow=True).awaitTermination(180)
        run_plain(spark, tmp_path, "stayed")
    finally:
        if before is None:
            spark.conf.unset(PROVIDER)
        else:
            spark.conf.set(PROVIDER, before)
    assert rows(tmp_path, "moved") == rows(tmp_path, "stayed")
