"""One session for the whole folder, with Spark's Kafka and Delta connectors, which plain queries need and jobs tolerate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from integration_tests.spark import connected_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two local cores."""
    yield from connected_session({"spark.databricks.delta.snapshotPartitions": "1"})
