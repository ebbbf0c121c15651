"""Conversion between Spark's schemas and Arrow's. On driver and tasks.

Spark's own conversion to Arrow is private and differs between versions, so this module has its own. A test compares both.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas import types as arrow_types

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

NAMES = (
    SparkName(
        "from_arrow_schema",
        "pyspark.sql.pandas.types (python/pyspark/sql/pandas/types.py)",
        "spark_schema_of",
        "no aggregation can be planned",
    ),
)
_METADATA = b"SPARK::metadata::json"  # the key of a column's metadata in Spark's Arrow fields
_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)


def arrow_schema_of(schema: StructType, timezone: str = "UTC") -> pa.Schema:
    """Return the Arrow schema of Spark's rows of this schema, with timestamps in `timezone`.

    Spark itself uses the session's time zone. Raises `ConfigInvalid` for a type without an Arrow type.
    """
    return pa.schema([_field(field, timezone) for field in schema.fields])


def _field(field: StructField, timezone: str) -> pa.Field:
    metadata = {_METADATA: json.dumps(field.metadata).encode()} if field.metadata else None
    return pa.field(field.name, _type(field.dataType, timezone), nullable=field.nullable, metadata=metadata)


def _type(kind: DataType, timezone: str) -> pa.DataType:
    match kind:
        case types.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case types.StringType() | types.CharType() | types.VarcharType():
            return pa.string()
        case types.TimestampType():
            return pa.timestamp("us", tz=timezone)
        case types.DayTimeIntervalType():
            return pa.duration("us")
        # Inner fields have Spark's names: by itself Arrow calls an element "item".
        case types.ArrayType():
            return pa.list_(pa.field("element", _type(kind.elementType, timezone), nullable=kind.containsNull))
        case types.MapType():
            key = pa.field("key", _type(kind.keyType, timezone), nullable=False)
            return pa.map_(key, pa.field("value", _type(kind.valueType, timezone), nullable=kind.valueContainsNull))
        case types.StructType():
            return pa.struct([_field(field, timezone) for field in kind.fields])
        case types.UserDefinedType():
            return _type(kind.sqlType(), timezone)
    return _by_name(kind)


def _by_name(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a type without parts, by name: some of these classes are missing in older versions."""
    name = kind.typeName()
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "variant":
        return _VARIANT
    if type(kind).__name__ == "TimeType":
        return pa.time64("ns")
    raise ConfigInvalid(f"a column of type {kind.simpleString()} has no Arrow type", hint="cast the column")


def is_collated(kind: DataType) -> bool:
    """Return True for text that Spark compares by a collation: Arrow has none, and compares bytes."""
    return getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY"


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Return the schema that Spark reads Arrow rows with. Raises PySpark's errors for types that Spark lacks."""
    return arrow_types.from_arrow_schema(schema)
