"""Makes decoded values fit their columns, as far as Arrow would refuse or silently change them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
from pyspark.sql import types as T

Values: TypeAlias = "pa.Array[Any]"


def fitted(value: Any, kind: pa.DataType) -> Any:
    """Return a decoded value for a column of type `kind`.

    Avro's uuid becomes its text, Avro's time of day the number of its milliseconds or microseconds. Raises
    `ValueError` for a fraction in a column of whole numbers, which Arrow would cut off, and for a number in a column
    of times, which Arrow would take for microseconds or days since 1970.
    """
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return {field.name: fitted(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind) and isinstance(value, Mapping | list):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(key, fitted(each, kind.item_type)) for key, each in pairs]
    if pa.types.is_list(kind) and value is not None:
        # Arrow would take the characters of a text, or the names in a mapping, for the elements.
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is no array")
        return [fitted(each, kind.value_type) for each in value]
    if isinstance(value, float) and pa.types.is_integer(kind) and value % 1:
        raise ValueError(f"{value} is no whole number")
    if isinstance(value, int | float) and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise ValueError(f"{value} is a number, and its column is a time")
    if isinstance(value, dt.time):
        since = dt.datetime.combine(dt.date.min, value) - dt.datetime.min
        # By the column's type: Avro's time-millis is an int, time-micros a long.
        return since // (dt.timedelta(milliseconds=1) if pa.types.is_int32(kind) else dt.timedelta(microseconds=1))
    return str(value) if isinstance(value, UUID) else value


def check_written(given: Values, wanted: T.DataType) -> None:
    """Raise `ValueError` for values that Avro's serialiser would change silently, at any depth.

    They are fractions and numbers out of range for whole numbers, other types for booleans and the reverse, and times without
    a zone for instants: it takes them for times in the zone of the executor's machine.
    """
    kind = given.type
    if pa.types.is_struct(kind) and isinstance(wanted, T.StructType):
        for field, values in zip(kind, given.flatten(), strict=True):
            if field.name in wanted.names:
                check_written(values, wanted[field.name].dataType)
    elif pa.types.is_list(kind) and isinstance(wanted, T.ArrayType):
        check_written(given.flatten(), wanted.elementType)
    elif pa.types.is_map(kind) and isinstance(wanted, T.MapType):
        check_written(given.items, wanted.valueType)
    elif pa.types.is_timestamp(kind) and kind.tz is None and isinstance(wanted, T.TimestampType):
        raise ValueError("a timestamp_ntz column is an instant in the schema")
    elif pa.types.is_boolean(kind) != isinstance(wanted, T.BooleanType) and not pa.types.is_null(kind):
        raise ValueError(f"a column of type {kind} is {wanted.simpleString()} in the schema")
    elif isinstance(wanted, T.IntegralType) and (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        given.cast(pa.int32() if isinstance(wanted, T.IntegerType) else pa.int64())
