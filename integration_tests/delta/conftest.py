"""One SparkSession per module, with delta-spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from integration_tests.spark import ending
from spark_ckpt.spark_session import session as new_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two local cores."""
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    yield from ending(new_session("delta-tests", "delta", master="local[2]", conf=conf))
