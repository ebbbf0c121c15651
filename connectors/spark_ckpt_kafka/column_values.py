"""Makes decoded values fit their columns, as far as Arrow would refuse or silently change them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

Values: TypeAlias = "pa.Array[Any]"
_NO_FLOAT = (2 - 2**-24) * 2.0**127
"""Numbers from here on round to infinity. It is above the largest float, which Java writes with eight digits, rounded up."""


def fitted(value: Any, kind: pa.DataType) -> Any:
    """Return a decoded value for a column of type `kind`.

    Avro's uuid becomes its text, Avro's time of day the number of its milliseconds or microseconds. Raises
    `ValueError` for values that Arrow would change:

    - a fraction in a column of whole numbers, which it would cut off;
    - a number in a column of times, which it would take for microseconds or days since 1970;
    - true or false in a column of floats, 1 or 0 for it, and a number that is too large for a float, infinity for it.
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
    if isinstance(value, bool) and pa.types.is_floating(kind):
        raise ValueError(f"{value} is no number")
    if isinstance(value, int | float) and pa.types.is_float32(kind) and _NO_FLOAT <= abs(value) < math.inf:
        raise ValueError(f"{value} is too large for a float")
    if isinstance(value, dt.time):
        since = dt.datetime.combine(dt.date.min, value) - dt.datetime.min
        # By the column's type: Avro's time-millis is an int, time-micros a long.
        return since // (dt.timedelta(milliseconds=1) if pa.types.is_int32(kind) else dt.timedelta(microseconds=1))
    return str(value) if isinstance(value, UUID) else value


def check_written(given: Values, wanted: T.DataType, *, lacks: bool) -> None:
    """Raise `ValueError` for values that the serialiser of Avro or Protobuf would change silently, at any depth.

    Such values are:

    - fractions and numbers out of range for whole numbers, whole numbers that a float rounds, and infinity for others;
    - other types for booleans, binary for text, and the reverse: Protobuf's JSON form has bytes as text in base64;
    - times for dates, and times without a zone for instants: Avro takes them for times in the zone of the executor's
      machine.

    With `lacks`, a column that the schema lacks is refused, too: Avro's serialiser would leave it out and write the field's
    default. Protobuf's refuses it itself, and knows each field by two names.
    """
    kind = given.type
    if pa.types.is_struct(kind) and isinstance(wanted, T.StructType):
        for field, values in zip(kind, given.flatten(), strict=True):
            if field.name in wanted.names:
                check_written(values, wanted[field.name].dataType, lacks=lacks)
            elif lacks:
                raise ValueError(f"the schema has no field '{field.name}', only {', '.join(wanted.names)}")
    elif pa.types.is_list(kind) and isinstance(wanted, T.ArrayType):
        check_written(given.flatten(), wanted.elementType, lacks=lacks)
    elif pa.types.is_map(kind) and isinstance(wanted, T.MapType):
        check_written(given.items, wanted.valueType, lacks=lacks)
    elif pa.types.is_timestamp(kind) and kind.tz is None and isinstance(wanted, T.TimestampType):
        raise ValueError("a timestamp_ntz column is an instant in the schema")
    elif _is_another(kind, wanted):
        raise ValueError(f"a column of type {kind} is {wanted.simpleString()} in the schema")
    elif (numbers := _numbers(kind, wanted)) is not None:
        _check_cast(given, numbers, wanted.simpleString())


def _check_cast(given: Values, numbers: pa.DataType, name: str) -> None:
    kind = given.type
    if pa.types.is_integer(kind) and pa.types.is_floating(numbers):
        # Arrow's own check refuses every number from 2^24 (2^53) on, also those that the float holds.
        if not given.cast(numbers, safe=False).cast(kind).equals(given):
            raise ValueError(f"a whole number is rounded in {name}")
        return
    narrowed = given.cast(numbers)  # raises for a value that it would change, except for a float's infinity
    if pa.types.is_floating(kind) and not pc.is_finite(narrowed).equals(pc.is_finite(given)):
        raise ValueError(f"a number is too large for {name}")


def _is_another(kind: pa.DataType, wanted: T.DataType) -> bool:
    match wanted:
        case T.BinaryType() if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return True
        case T.StringType() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return True
        case T.DateType() if pa.types.is_timestamp(kind):
            return True
    return bool(pa.types.is_boolean(kind) != isinstance(wanted, T.BooleanType) and not pa.types.is_null(kind))


def _numbers(kind: pa.DataType, wanted: T.DataType) -> pa.DataType | None:
    """Return the numbers of the schema that a column of numbers is compared with; None if all of its values fit."""
    whole, exact = pa.types.is_integer(kind), pa.types.is_decimal(kind)
    match wanted:
        case T.IntegralType() if whole or exact or pa.types.is_floating(kind):
            return pa.int32() if isinstance(wanted, T.IntegerType) else pa.int64()
        case T.DecimalType() if exact:
            # Avro's may have more digits than a column of Spark's.
            digits, scale = wanted.precision, wanted.scale
            return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
        case T.DoubleType() if whole:
            return pa.float64()
        case T.FloatType() if whole or pa.types.is_float64(kind):
            return pa.float32()
    return None
