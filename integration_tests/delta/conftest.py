"""One SparkSession per module, with delta-spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_ckpt.spark_session import session as new_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two local cores. The JVM ends with the module: the next one may need other jars."""
    session = new_session(
        "delta-tests",
        "delta",
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.databricks.delta.snapshotPartitions": "2",
        },
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
