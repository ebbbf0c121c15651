"""Conversion between Spark's schemas and Arrow's. On driver and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas import types as arrow_types

from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_TYPES = "pyspark.sql.pandas.types (python/pyspark/sql/pandas/types.py)"
NAMES = (
    SparkName("to_arrow_schema", _TYPES, "arrow_schema_of", "no operator and no file source can be planned"),
    SparkName("from_arrow_schema", _TYPES, "spark_schema_of", "no aggregation can be planned"),
)


def arrow_schema_of(schema: StructType, timezone: str = "UTC") -> pa.Schema:
    """Return Spark's Arrow schema for rows of this schema, with timestamps in `timezone`.

    Spark itself uses the session's time zone.
    """
    return arrow_types.to_arrow_schema(schema, timezone=timezone)


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Return the schema that Spark reads Arrow rows with. Raises PySpark's errors for types that Spark lacks."""
    return arrow_types.from_arrow_schema(schema)
