"""One plain SparkSession per module, without any jar, in a time zone of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from runtime_kit import ZONE, Bench


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two local cores, two shuffle partitions. The JVM ends with the module: the next one may need other jars."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", ZONE)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    end_jvm()


def end_jvm() -> None:
    """End the JVM of the last session and wait for it."""
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    """A job's world: an input folder, a store, output tables."""
    return Bench(spark, tmp_path)
