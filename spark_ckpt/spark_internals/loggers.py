"""Loggers of Spark that warn about what a job does by design. On the driver."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.jvm import jvm_of
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = (
    SparkName(
        "ProcessingTimeExecutor", "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor "
        "(sql/core/src/main/scala/org/apache/spark/sql/execution/streaming/runtime/TriggerExecutor.scala)", "quiet",
        "the console warns of each batch that takes longer than a tenth of a second",
    ),
    SparkName(
        "DataSourceManager", "org.apache.spark.sql.execution.datasources.DataSourceManager "
        "(sql/core/src/main/scala/org/apache/spark/sql/execution/datasources/DataSourceManager.scala)", "quiet",
        "the console warns of each data source that is registered again",
    ),
    SparkName(
        "DAGScheduler", "org.apache.spark.scheduler.DAGScheduler "
        "(core/src/main/scala/org/apache/spark/scheduler/DAGScheduler.scala)", "quiet",
        "the console warns of job groups that are over when a query stops",
    ),
)  # fmt: skip


def quiet(spark: SparkSession) -> None:
    """Make the loggers of these classes report errors only; the settings of other loggers stay."""
    # A session of Spark Connect has no JVM here, and a distribution may log by another library.
    with suppress(Exception):
        log4j = jvm_of(spark).org.apache.logging.log4j
        for each in NAMES:
            log4j.core.config.Configurator.setLevel(each.lives_in.partition(" ")[0], log4j.Level.ERROR)
