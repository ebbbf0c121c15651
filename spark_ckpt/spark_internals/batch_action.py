"""The one action of a micro-batch, which discards its rows. On the driver."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.jvm import java_frame
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/execution"
NAMES = (
    SparkName(
        "LogicalRDD.rdd", f"org.apache.spark.sql.execution.LogicalRDD ({_FOLDER}/ExistingRDD.scala)", "run_tasks",
        "no batch of a job runs",
    ),
    SparkName(
        "StreamExecution.PROXY_ERROR",
        "org.apache.spark.sql.execution.streaming.runtime.StreamExecution "
        "(sql/core/src/main/scala/org/apache/spark/sql/execution/streaming/runtime/StreamExecution.scala)", "Interrupted",
        "a job or outbox that is stopped within a batch leaves Spark's errors in its log and with its listeners",
    ),
    SparkName(
        "py4j.clientserver", "py4j's loggers (py4j/clientserver.py, py4j/java_gateway.py)", "leave_interruptions_out_of_the_log",
        "a job or outbox that is stopped within a batch logs a traceback",
    ),
)  # fmt: skip


_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")


class Interrupted(Exception):
    """Ends the batch that is running at a stop; Spark treats its text as an interruption, not as a failure.

    Two alternatives fail:

    - The original error that interrupted the batch is too long: Spark's pattern overflows the stack of its thread.
    - After a plain return, Spark finds that the batch's state was not written.
    """

    def __init__(self) -> None:
        # Matches StreamExecution.PROXY_ERROR, with Java's name of an interruption.
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling count: java.lang.InterruptedException"
        )


class _Interruptions(logging.Filter):
    """Drops py4j's report, with its traceback, of an exception that a callback raises on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is logged."""
        return not (record.exc_info and isinstance(record.exc_info[1], Interrupted))


_INTERRUPTIONS = _Interruptions()


def leave_interruptions_out_of_the_log() -> None:
    """Keep a stop within a batch out of the log, since it is no error.

    Applies to py4j's loggers; repeated calls have no effect.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_INTERRUPTIONS)


def run_tasks(frame: DataFrame) -> None:
    """Run the tasks of the frame that `foreachBatch` receives.

    Its plan is Spark's for the whole batch, ready to run. `collect` would make Spark plan again, report another query,
    and open a socket for rows.
    """
    java_frame(frame).queryExecution().logical().rdd().count()
