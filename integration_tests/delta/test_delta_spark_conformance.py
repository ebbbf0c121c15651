"""`DeltaSink(engine="spark")` keeps the promises of a sink, as the suite for any connector has them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink

from spark_ckpt.testing import SinkConformance, SinkSubject

pytestmark = pytest.mark.spark


def rows(epoch: int) -> pa.Table:
    ids = range(epoch * 10, epoch * 10 + 4)
    return pa.table({"id": pa.array(ids, pa.int64()), "city": ["Oslo", "a/b=c%", "Oslo", None]})


def shown(table: Path) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(table)):
        return []
    found: list[dict[str, Any]] = pa.table(DeltaTable(str(table)).scan().read_all()).to_pylist()
    return found


def subject(spark: SparkSession, folder: Path, **options: Any) -> SinkSubject:
    (folder / "outbox").mkdir()
    table = folder / "table"
    return SinkSubject(
        make=lambda: DeltaSink(str(table), engine="spark", partition_by=["city"], **options),
        rows=rows,
        shown=lambda: shown(table),
        staged_in=folder / "outbox",
        spark=spark,
        fences=False,  # delta-spark writes one transaction id for each commit, which has the epoch and no incarnation
        renew=lambda: shutil.rmtree(table),
    )


# Each publish takes a second. In the gate: test_delta_spark.py, and the suite itself in tests/delta and tests/conformance.
@pytest.mark.long
class TestAppending(SinkConformance):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> SinkSubject:
        return subject(spark, tmp_path)


@pytest.mark.long
class TestMerging(SinkConformance):
    @pytest.fixture
    def subject(self, spark: SparkSession, tmp_path: Path) -> SinkSubject:
        return subject(spark, tmp_path, keys=["id"])
