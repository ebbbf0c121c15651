"""A plain SparkSession for each module, without any jar, in its own time zone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from runtime_kit import ZONE, Bench

from integration_tests.spark import plain_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two local cores, two shuffle partitions."""
    yield from plain_session(ZONE)


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    """Surroundings of a job: an input folder, a store, output tables."""
    return Bench(spark, tmp_path)
