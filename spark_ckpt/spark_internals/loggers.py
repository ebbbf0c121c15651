"""Loggers of Spark: those that warn about what a job does by design, and those that belong in a file. On the driver."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.jvm import jvm_of
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = (
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

CONFIGURATION = Path(__file__).with_name("log4j2.properties")
"""Configuration of log4j with one line per record on the console and the stacks in a file."""
FILE_PROPERTY = "ckpt.log"
"""Java property with the path of that file."""

IN_FILE_ONLY = (
    SparkName(
        "TaskSetManager", "org.apache.spark.scheduler.TaskSetManager "
        "(core/src/main/scala/org/apache/spark/scheduler/TaskSetManager.scala)", "CONFIGURATION",
        "the console repeats the error of a failed task",
    ),
    SparkName(
        "Executor", "org.apache.spark.executor.Executor "
        "(core/src/main/scala/org/apache/spark/executor/Executor.scala)", "CONFIGURATION",
        "the console repeats the error of a failed task",
    ),
    SparkName(
        "TaskContextImpl", "org.apache.spark.TaskContextImpl "
        "(core/src/main/scala/org/apache/spark/TaskContextImpl.scala)", "CONFIGURATION",
        "the console repeats the error of a failed task",
    ),
    SparkName(
        "MicroBatchExecution", "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution "
        "(sql/core/src/main/scala/org/apache/spark/sql/execution/streaming/runtime/MicroBatchExecution.scala)",
        "CONFIGURATION", "the console repeats the error of a failed query",
    ),
    SparkName(
        "WriteToDataSourceV2Exec", "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec "
        "(sql/core/src/main/scala/org/apache/spark/sql/execution/datasources/v2/WriteToDataSourceV2Exec.scala)",
        "CONFIGURATION", "the console repeats the error of a failed query",
    ),
    SparkName(
        "DataWritingSparkTask", "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask "
        "(sql/core/src/main/scala/org/apache/spark/sql/execution/datasources/v2/WriteToDataSourceV2Exec.scala)",
        "CONFIGURATION", "the console repeats the error of a failed query",
    ),
    SparkName(
        "spark.util.Utils", "org.apache.spark.util.Utils "
        "(core/src/main/scala/org/apache/spark/util/Utils.scala)", "CONFIGURATION",
        "the console warns of the host's address at each start",
    ),
    SparkName(
        "ResolveWriteToStream", "org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream "
        "(sql/core/src/main/scala/org/apache/spark/sql/execution/streaming/runtime/ResolveWriteToStream.scala)",
        "CONFIGURATION", "the console warns of adaptive execution at each start",
    ),
)  # fmt: skip

NAMES = (*_QUIET, *IN_FILE_ONLY)


def quiet(spark: SparkSession) -> None:
    """Make the loggers of these classes report errors only; the settings of other loggers stay."""
    # A session of Spark Connect has no JVM here, and a distribution may log by another library.
    with suppress(Exception):
        log4j = jvm_of(spark).org.apache.logging.log4j
        for each in _QUIET:
            # A class of Spark names its logger.
            log4j.core.config.Configurator.setLevel(each.lives_in.partition(" ")[0], log4j.Level.ERROR)


def file_of_log(spark: SparkSession) -> str | None:
    """Return the path of Spark's log file; None if the session logs as the user configured."""
    with suppress(Exception):  # as above
        path = jvm_of(spark).java.lang.System.getProperty(FILE_PROPERTY)
        return None if path is None else str(path)
    return None
