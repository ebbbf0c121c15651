"""Reads Parquet files by their exact paths: Spark's readers expand globs in paths. On the driver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAMES = (
    SparkName(
        "__globPaths__",
        "org.apache.spark.sql.execution.datasources.DataSource "
        "(sql/core/src/main/scala/org/apache/spark/sql/execution/datasources/DataSource.scala)",
        "read_parquet", "files in a folder whose name has brackets or an asterisk are not found",
    ),
)  # fmt: skip


def read_parquet(
    spark: SparkSession, paths: Iterable[str], schema: StructType | None = None, **options: str
) -> DataFrame:
    """Return the rows of these files. `schema`: their columns; None to read it from the files.

    Escaping does not work: Hadoop matches no glob below a folder with a colon in its name.
    """
    reader = spark.read if schema is None else spark.read.schema(schema)
    return reader.options(**options).option("__globPaths__", "false").parquet(*paths)
