"""`DeltaSink(engine="spark")` keeps the promises of a sink, as the suite for any connector has them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink

from spark_ckpt.testing import SinkConformance, SinkSubject
from tests.delta.test_delta_sink_conformance import rows, shown

pytestmark = pytest.mark.spark


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
