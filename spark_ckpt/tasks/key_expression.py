"""The hash that a key's group is made of, as an expression: for rows that arrive, and for state that comes from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, StructType

from spark_ckpt.spark_internals.column_names import column_of

if TYPE_CHECKING:
    from pyspark.sql import Column


def key_hash_of(schema: StructType, keys: Sequence[str]) -> Column:
    """Of the columns `keys` of rows of `schema`; modulo the number of key groups it is the group."""
    return F.xxhash64(*_normalized(schema, keys))


def _normalized(schema: StructType, keys: Sequence[str]) -> list[Column]:
    """Key expressions for hashing: -0.0 and 0.0 are one key, as in Spark's own grouping."""
    floating = (FloatType, DoubleType)
    return [
        column_of(key) + F.lit(0.0).cast(schema[key].dataType)
        if isinstance(schema[key].dataType, floating)
        else column_of(key)
        for key in keys
    ]
