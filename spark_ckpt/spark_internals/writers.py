"""The output mode that a user gave to a stream's writer. Spark has no method that returns it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/classic"
_LOST = "output mode complete is not refused at the start of an outbox"
NAMES = (
    SparkName(
        "DataStreamWriter.outputMode",
        f"org.apache.spark.sql.classic.DataStreamWriter ({_FOLDER}/DataStreamWriter.scala)", "output_mode_of", _LOST,
    ),
    SparkName(
        "WriteStreamOperationStart.output_mode",
        "pyspark.sql.connect.streaming.readwriter (python/pyspark/sql/connect/streaming/readwriter.py)", "output_mode_of", _LOST,
    ),
)  # fmt: skip


def output_mode_of(writer: DataStreamWriter) -> str | None:
    """Return "append", "update" or "complete"; None if this Spark does not tell."""
    start = getattr(writer, "_write_proto", None)
    if start is not None:
        return str(getattr(start, "output_mode", "") or "append").lower()
    java = getattr(writer, "_jwrite", None)
    if java is None:
        return None
    try:
        field = java.getClass().getDeclaredField("outputMode")
        field.setAccessible(True)
        return str(field.get(java).toString()).lower()
    except (Py4JError, AttributeError):
        return None
