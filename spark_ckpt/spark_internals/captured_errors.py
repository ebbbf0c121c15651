"""Content of Spark's errors besides their text: causes, the plain message, the query's plan. On the driver."""

from __future__ import annotations

from collections.abc import Iterator

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import convert_exception

from spark_ckpt.spark_internals.names import SparkName

_CAPTURED = "pyspark.errors.exceptions.captured.CapturedException (python/pyspark/errors/exceptions/captured.py)"
_UNJUDGED = "an error that can never pass is tried again until the bound of failed epochs"
NAMES = (
    SparkName(
        "convert_exception", "pyspark.errors.exceptions.captured (python/pyspark/errors/exceptions/captured.py)",
        "causes_of", _UNJUDGED,
    ),
    SparkName("CapturedException._cause", _CAPTURED, "causes_of", _UNJUDGED),
    SparkName("CapturedException._desc", _CAPTURED, "message_of", "Java's stack stands in errors that users read"),
    SparkName(
        "=== Streaming Query ===",
        "org.apache.spark.sql.execution.streaming.runtime.StreamExecution "
        "(sql/core/src/main/scala/org/apache/spark/sql/execution/streaming/runtime/StreamExecution.scala)",
        "without_plan", "a text in the plan may be taken for the error",
    ),
)  # fmt: skip

_DEEPEST = 20
_PLAN = "\n=== Streaming Query ==="


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes, as PySpark's exceptions. Raises `Py4JError` if the JVM is gone."""
    # bounded: a chain of causes may contain a cycle
    for _ in range(_DEEPEST):
        if isinstance(error, Py4JJavaError):  # of a call that PySpark does not wrap
            error = convert_exception(error.java_exception)
        if error is None:
            return
        yield error
        error = getattr(error, "_cause", None) or error.__cause__  # Java's cause first


def message_of(error: BaseException) -> str:
    """Return the message alone: the text of a captured error also contains Java's stack trace."""
    return str(getattr(error, "_desc", None) or error)


def without_plan(text: str) -> str:
    """Return a query's error without the ids, offsets and plan that Spark appends.

    The plan contains the texts of `raise_error`.
    """
    return text.split(_PLAN, 1)[0]
