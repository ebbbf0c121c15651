"""A plain SparkSession for each module, for the incarnations after the last signal or outage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from integration_tests.spark import plain_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two local cores."""
    yield from plain_session()
