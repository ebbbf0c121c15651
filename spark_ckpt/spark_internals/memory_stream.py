"""A streaming source whose rows the driver adds one by one. On the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.jvm import frame_of, java_session, jvm_of, scala_object, seq
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession

_MEMORY = "sql/core/src/main/scala/org/apache/spark/sql/execution/streaming/runtime/memory.scala"
NAMES = (
    SparkName(
        "MemoryStream.apply", f"org.apache.spark.sql.execution.streaming.runtime.MemoryStream ({_MEMORY})", "MemoryStream",
        "no control rows: no job starts",
    ),
    SparkName(
        "MemoryStream.addData", f"org.apache.spark.sql.execution.streaming.runtime.MemoryStreamBase ({_MEMORY})",
        "MemoryStream.add", "no marker enters a stream: no epoch ends",
    ),
    SparkName(
        "MemoryStream.toDF", f"org.apache.spark.sql.execution.streaming.runtime.MemoryStreamBase ({_MEMORY})",
        "MemoryStream.frame", "no control rows: no job starts",
    ),
    SparkName(
        "MemoryStream's offset", f"org.apache.spark.sql.execution.streaming.runtime.MemoryStream ({_MEMORY})",
        "rows_up_to", "a batch would end another epoch than its own",
    ),
)  # fmt: skip


class MemoryStream:
    """Memory stream of Spark. Each `add` is one row, so the source's offset in Spark's offset log counts rows.

    Rows travel in the plan.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        jvm = jvm_of(spark)
        streams = scala_object(jvm.org.apache.spark.sql.execution.streaming.runtime, "MemoryStream")
        encoder = jvm.org.apache.spark.sql.Encoders.STRING()
        self._stream: JavaObject = streams.apply(java_session(spark), encoder)

    def add(self, text: str) -> None:
        """Add the next row. May be called from any thread."""
        self._stream.addData(seq(self._spark, [text]))

    @property
    def frame(self) -> DataFrame:
        """The stream: one column `value`, a string."""
        return frame_of(self._stream.toDF(), self._spark)


def rows_up_to(line: str | None) -> int:
    """Return the number of rows of the stream, from its line in Spark's offset log (-1 means none)."""
    return 0 if line is None else int(line) + 1
