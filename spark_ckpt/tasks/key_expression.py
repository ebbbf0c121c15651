"""The key hash as a Spark expression, for rows that arrive and for state that is imported."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, StructType

from spark_ckpt.spark_internals.column_names import column_of


def key_hash_of(schema: StructType, keys: Sequence[str]) -> Column:
    """Return the hash of the columns `keys` of rows of `schema`, a long.

    The hash modulo the number of key groups is the key group.
    """
    return F.xxhash64(*_normalized(schema, keys))


def _normalized(schema: StructType, keys: Sequence[str]) -> list[Column]:
    """Return the key expressions to hash: -0.0 and 0.0 are one key, as in Spark's own grouping."""
    floating = (FloatType, DoubleType)
    return [
        column_of(key) + F.lit(0.0).cast(schema[key].dataType)  # -0.0 + 0.0 is 0.0
        if isinstance(schema[key].dataType, floating)
        else column_of(key)
        for key in keys
    ]
