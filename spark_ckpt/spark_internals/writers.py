"""The writer of a stream: its output mode, and if a Connect server runs it. Spark has no public method for either."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql.utils import is_remote

from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Writer: TypeAlias = DataStreamWriter

_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/classic"
_CONNECT = "pyspark.sql.connect.streaming.readwriter (python/pyspark/sql/connect/streaming/readwriter.py)"
_LOST = "output mode complete is not refused at the start of an outbox"
NAMES = (
    SparkName(
        "getDeclaredField",
        f"field outputMode of org.apache.spark.sql.classic.DataStreamWriter ({_FOLDER}/DataStreamWriter.scala)",
        "output_mode_of", _LOST,
    ),
    SparkName("_write_proto", _CONNECT, "output_mode_of", _LOST),
    SparkName(
        "is_remote", "pyspark.sql.utils (python/pyspark/sql/utils.py)", "runs_remotely",
        "a Connect client opens the store of an outbox, which it may not reach",
    ),
)  # fmt: skip


def runs_remotely() -> bool:
    """Return True in a client of Spark Connect."""
    return bool(is_remote())


def output_mode_of(writer: Writer) -> str | None:
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
