"""Timestamps in files are the instants that Spark's own reader returns, for every time zone of the session."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_ckpt_files import FilesSource

pytestmark = pytest.mark.spark
ZONE = "America/New_York"
OTHER_ZONES = ("America/Sao_Paulo", "+05:30", "Europe/Berlin", "GMT-3", "PST", "UTC")
"""Long; in the gate tests/files/test_files_zones.py has zones without Spark."""
GAPS_AND_OVERLAPS = (
    "2024-03-10 01:59:59.999999", "2024-03-10 02:00:00", "2024-03-10 02:30:00", "2024-03-10 03:00:00",
    "2024-11-03 00:59:59", "2024-11-03 01:30:00", "2024-11-03 02:00:00",
    "2024-03-31 02:30:00", "2024-10-27 02:30:00", "2018-11-04 00:30:00", "2018-02-17 23:30:00", "2018-11-04",
)  # fmt: skip
OTHERS = (
    "2024-07-01", "2024-07-01T12:00", "2024-07-01 12:00:00.123456789", "2024-07-01T12:00:00Z",
    "2024-07-01T12:00:00+02:00", "2024-07-01T12:00:00-0130", "1969-12-31 23:59:59", "1883-11-18 12:00:00",
    "1800-01-01 00:00:00", "9999-12-31 00:00:00",
)  # fmt: skip
TEXTS = (*GAPS_AND_OVERLAPS, *OTHERS)


@pytest.fixture(params=[ZONE, *(pytest.param(zone, marks=pytest.mark.long) for zone in OTHER_ZONES)])
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """The session's time zone, for one test."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


def micros(frame: DataFrame, *columns: str) -> dict[int, tuple[Any, ...]]:
    return {row[0]: tuple(row[1:]) for row in frame.select("id", *map(F.unix_micros, columns)).collect()}


def read(spark: SparkSession, source: FilesSource, folder: Path, *columns: str) -> dict[int, tuple[Any, ...]]:
    found: dict[int, tuple[Any, ...]] = {}
    query = (
        source.read(spark, source.start(spark))
        .writeStream.foreachBatch(lambda batch, _: found.update(micros(batch, *columns)))
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


@pytest.mark.parametrize("format", ["csv", "json"])
def test_texts_are_the_instants_that_spark_reads(
    format: Literal["csv", "json"], zone: str, spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "in"
    place.mkdir()
    if format == "csv":
        (place / "a.csv").write_text("".join(f"{n},{text}\n" for n, text in enumerate(TEXTS)))
    else:
        (place / "a.json").write_text("".join(json.dumps({"id": n, "at": t}) + "\n" for n, t in enumerate(TEXTS)))
    schema = "id long, at timestamp"
    expected = micros(spark.read.schema(schema).format(format).load(str(place)), "at")
    assert None not in {each for (each,) in expected.values()}

    source = FilesSource(str(place), format, schema, header=False)

    found = read(spark, source, tmp_path / "checkpoint", "at")
    assert {TEXTS[n]: found[n] for n in found} == {TEXTS[n]: expected[n] for n in expected}


def test_parquets_instants_and_local_times_are_those_that_spark_reads(
    zone: str, spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "in"
    place.mkdir()
    times = [dt.datetime(2024, 3, 10, 2, 30), dt.datetime(2024, 11, 3, 1, 30), None, dt.datetime(1950, 1, 1)]
    table = pa.table(
        {
            "id": pa.array(range(len(times)), pa.int64()),
            "instant": pa.array(times, pa.timestamp("us", "UTC")),
            "local": pa.array(times, pa.timestamp("us")),
        }
    )
    pq.write_table(table, place / "a.parquet")
    schema = "id long, instant timestamp, local timestamp"
    expected = micros(spark.read.schema(schema).parquet(str(place)), "instant", "local")

    source = FilesSource(str(place), "parquet", schema)

    assert read(spark, source, tmp_path / "checkpoint", "instant", "local") == expected
