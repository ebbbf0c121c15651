"""Makes decoded values fit their columns, as far as Arrow would refuse or silently change them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pyarrow as pa


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
