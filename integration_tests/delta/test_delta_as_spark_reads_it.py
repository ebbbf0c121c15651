"""Spark's own Delta source in a job: an older kind of source, from which Spark also requests the rows before the cut."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from integration_tests.survival.process import wait_until
from integration_tests.survival.session import TIMEOUT_S, Place

pytestmark = pytest.mark.spark


def append(path: Path, first: int, count: int = 10) -> None:
    write_deltalake(str(path), pa.table({"id": pa.array(range(first, first + count), pa.int64())}), mode="append")


def ran_until(place: Place, path: Path, rows: int, restore: str | int = "latest") -> ckpt.Run:
    job = place.job(interval="200 milliseconds")
    source = ckpt.SparkSource("delta", {"path": str(path), "maxFilesPerTrigger": 1})
    job.source("rows", source).filter("id >= 0").to(place.sink(), name="out")
    run = job.start(restore=restore)
    wait_until(lambda: Path(place.table).exists() and len(place.output()) >= rows, f"{rows} rows", TIMEOUT_S)
    assert run.stop(TIMEOUT_S)
    return run


def ids(place: Place) -> Counter[int]:
    return Counter(row["id"] for row in place.output())


@pytest.mark.long  # in the gate: tests/delta/test_delta_source.py
def test_a_delta_table_is_read_once_across_incarnations_and_again_from_an_older_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    place, table = Place(spark, tmp_path), tmp_path / "input"
    for first in (0, 10, 20):
        append(table, first)
    kept = [each for each in ran_until(place, table, 30).epochs() if each.rows_in]
    append(table, 30)
    append(table, 40)
    ran_until(place, table, 50)
    assert ids(place) == Counter(range(50))

    cut = kept[0].rows_in
    ran_until(place, table, 50 + (50 - cut), restore=kept[0].epoch)

    again = ids(place) - Counter(range(50))
    assert ids(place) == Counter(range(50)) + again
    assert sum(again.values()) == 50 - cut
    assert max(again.values(), default=1) == 1
