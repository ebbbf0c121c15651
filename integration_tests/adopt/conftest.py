"""One session for the whole folder, with Spark's Kafka and Delta connectors: plain queries need both, and jobs do not mind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from integration_tests.spark import SMALL_JAVA, end_jvm, ending
from spark_ckpt import session
from spark_ckpt.class_archive import DRIVER_OPTIONS

CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    DRIVER_OPTIONS: SMALL_JAVA,
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    end_jvm()
    yield from ending(session("adopt-tests", "kafka", "delta", master="local[2]", conf=CONF))
