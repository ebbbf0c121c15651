"""The writer of a stream: its output mode, and if a Connect server runs it. Spark has no public method for either."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql.utils import is_remote

from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Writer: TypeAlias = DataStreamWriter

_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/classic"
_CONNECT = "pyspark.sql.connect.streaming.readwriter (python/pyspark/sql/connect/streaming/readwriter.py)"
_CHECKPOINT = "checkpointlocation"
_FUNCTIONS = {"foreach_batch": "foreachBatch", "foreach_writer": "foreach"}
"""Functions of a writer, by their field in a Connect client."""
_LOST = "output mode complete is not refused at the start of an outbox, nor a writer's own function or checkpoint"
NAMES = (
    SparkName(
        "getDeclaredField",
        "fields outputMode, extraOptions, source of org.apache.spark.sql.classic.DataStreamWriter "
        f"({_FOLDER}/DataStreamWriter.scala)",
        "_field", _LOST,
    ),
    SparkName(
        "_df", "pyspark.sql.streaming.readwriter.DataStreamWriter (python/pyspark/sql/streaming/readwriter.py)", "dataframe_of",
        "mistakes in the rows of a sink, and a batch that a dead driver left unpublished, wait for the first batch",
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
        return str(getattr(start, "output_mode", "") or "append").lower()  # an unset field is empty: Spark appends then
    mode = _field(writer, "outputMode")
    return None if mode is None else str(mode.toString()).lower()


def checkpoint_of(writer: Writer) -> str | None:
    """Return the writer's option checkpointLocation; None without one, or if this Spark does not tell."""
    start = getattr(writer, "_write_proto", None)
    if start is not None:
        found = {key.lower(): value for key, value in dict(getattr(start, "options", {})).items()}
        return found.get(_CHECKPOINT)
    options = _field(writer, "extraOptions")
    try:
        given = options.get(_CHECKPOINT) if options is not None else None
        return str(given.get()) if given is not None and given.isDefined() else None
    except (Py4JError, AttributeError):
        return None


def function_of(writer: Writer) -> str | None:
    """Return "foreachBatch" or "foreach" if the writer has a function; None without one, or if this Spark does not tell."""
    start = getattr(writer, "_write_proto", None)
    if start is not None:
        # Of a protobuf message: the fields that are set.
        given = {each.name for each, _ in start.ListFields()} if hasattr(start, "ListFields") else set()
        return next((name for field, name in _FUNCTIONS.items() if field in given), None)
    source = _field(writer, "source")
    return str(source) if source in _FUNCTIONS.values() else None


def dataframe_of(writer: Writer) -> DataFrame | None:
    """Return the DataFrame of the writer; None if this Spark does not tell."""
    return getattr(writer, "_df", None)


def _field(writer: Writer, name: str) -> JavaObject | None:
    java = getattr(writer, "_jwrite", None)
    if java is None:
        return None
    try:
        field = java.getClass().getDeclaredField(name)
        field.setAccessible(True)
        return field.get(java)
    except (Py4JError, AttributeError):
        return None
