"""State values: conversion between Arrow columns and the Python objects in Spark's `GroupState`.

Spark passes state through `StructType.toInternal`: naive datetimes are in the Python process's time zone, and structs
are Rows.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    Row,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_ckpt.tasks.failures import OutputInvalid, bounded

if TYPE_CHECKING:
    from spark_ckpt.tasks.rows import Array, ChunkedArray

Convert = Callable[[object], object]
_Finder = Callable[[Iterable[object]], bool] | None
_UNFIT = (OverflowError, AttributeError, TypeError, ValueError)
"""Errors of a value that does not fit; Arrow's own ones are among their subclasses."""


def to_python(values: ChunkedArray, kind: DataType) -> list[object]:
    """Return a state column as Python objects, None for null."""
    convert = _reader(kind)
    objects = values.to_pylist()
    return objects if convert is None else [None if each is None else convert(each) for each in objects]


def to_arrow(values: Sequence[object], field: StructField, type_: pa.DataType) -> Array:
    """Return Python objects as a state column. Raises `OutputInvalid` with the column and the value that does not fit."""
    convert = _writer(field.dataType)
    try:
        objects = values if convert is None else [None if each is None else convert(each) for each in values]
        return plain_array(objects, type_)
    except _UNFIT as error:
        row = next((i for i, each in enumerate(values) if not _fits(each, convert, type_)), None)
        refused = OutputInvalid(
            f"state column {field.name!r} ({field.dataType.simpleString()}) cannot hold"
            f" {'these values' if row is None else bounded(values[row])}",
            hint="update() takes one value per state column, of the declared type",
            column=field.name,
        )
        refused.row = row
        raise refused from error


def plain_array(values: Sequence[object], type_: pa.DataType, *, from_pandas: bool = False) -> Array:
    """Return `pa.array`, but raise `ArrowInvalid` for fractions in whole numbers: Arrow would cut them silently."""
    if pa.types.is_integer(type_):
        for each in values:
            if isinstance(each, _FRACTIONAL) and not (from_pandas and math.isnan(each)):
                _whole(each)
    return pa.array(values, type_, from_pandas=from_pandas)


def _whole(value: object) -> object:
    if isinstance(value, _FRACTIONAL) and (_is_fraction(value) or not math.isfinite(value)):
        raise pa.ArrowInvalid(f"{value} is not a whole number")
    return value


def fraction_finder(kind: DataType) -> Callable[[object], bool] | None:
    """Return a function that finds a fraction where `kind`, at any depth, has whole numbers: Arrow would cut it silently.

    None for a type without whole numbers. NaN is no fraction.
    """
    if isinstance(kind, IntegralType):
        return _is_fraction
    if isinstance(kind, StructType):
        parts = [(at, name, each) for at, name in enumerate(kind.names) if (each := fraction_finder(kind[at].dataType))]
        return (lambda value: _fraction_in(value, parts)) if parts else None
    if isinstance(kind, ArrayType):
        inner = _finder_among(kind.elementType)
        return None if inner is None else lambda values: isinstance(values, Iterable) and inner(values)
    if isinstance(kind, MapType):
        key, item = _finder_among(kind.keyType), _finder_among(kind.valueType)
        return None if key is None and item is None else lambda pairs: _fraction_in_map(pairs, key, item)
    return None


_FRACTIONAL = (float, np.floating, Decimal)


def _is_fraction(value: object) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite() and value != value.to_integral_value()  # `%` refuses more digits than the context has
    return isinstance(value, float | np.floating) and bool(value % 1 > 0)


def _finder_among(kind: DataType) -> _Finder:
    if isinstance(kind, IntegralType):
        return _fraction_among
    each = fraction_finder(kind)
    return None if each is None else lambda values: any(map(each, values))


def _fraction_among(values: Iterable[object]) -> bool:
    # By their types: a call for each number of a long array takes a multiple of Arrow's conversion.
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        return False
    return any(issubclass(each, _FRACTIONAL) for each in set(map(type, values))) and any(map(_is_fraction, values))


def _fraction_in_map(pairs: object, key: _Finder, item: _Finder) -> bool:
    if not isinstance(pairs, Mapping):
        return False
    return bool((key is not None and key(pairs.keys())) or (item is not None and item(pairs.values())))


def _fraction_in(value: object, parts: Sequence[tuple[int, str, Callable[[object], bool]]]) -> bool:
    if isinstance(value, Mapping):
        return any(has(value.get(name)) for _, name, has in parts)
    return isinstance(value, Sequence) and any(at < len(value) and has(value[at]) for at, _, has in parts)


def row_copier(schema: StructType) -> Callable[[Sequence[object]], list[object]] | None:
    """Return a function that copies the lists, arrays and dicts of a row; None for a schema without any.

    A row of another width, which is refused later, is copied as far as it goes.
    """
    copies = [(at, copy) for at, each in enumerate(schema) if (copy := _copier(each.dataType)) is not None]
    return partial(_copied_row, copies=copies) if copies else None


def _copied_row(row: Sequence[object], copies: Sequence[tuple[int, Callable[[object], object]]]) -> list[object]:
    values = list(row)
    for at, copy in copies:
        if at < len(values):
            values[at] = copy(values[at])
    return values


def _copier(kind: DataType) -> Callable[[object], object] | None:
    if isinstance(kind, ArrayType):
        return partial(_copied, each=_copier(kind.elementType))
    if isinstance(kind, MapType):
        return partial(_copied, each=_copier(kind.valueType))
    if isinstance(kind, StructType):
        parts = {each.name: copy for each in kind if (copy := _copier(each.dataType)) is not None}
        return partial(_copied_fields, parts=parts)
    return None


def _copied(value: object, each: Callable[[object], object] | None) -> object:
    if isinstance(value, list):
        return value.copy() if each is None else [each(item) for item in value]
    if isinstance(value, dict):
        return value.copy() if each is None else {key: each(item) for key, item in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def _copied_fields(value: object, parts: Mapping[str, Callable[[object], object]]) -> object:
    if not isinstance(value, dict):
        return value
    return {name: parts[name](item) if name in parts else item for name, item in value.items()}


def _fits(value: object, convert: Convert | None, type_: pa.DataType) -> bool:
    try:
        plain_array([_applied(convert, value)], type_)
    except _UNFIT:
        return False
    return True


def _reader(kind: DataType) -> Convert | None:
    """Return the function from Arrow's Python objects to Spark's; None if they are equal."""
    if isinstance(kind, TimestampType):
        # As Spark passes it to a function: naive, in the zone of the Python process.
        return lambda value: cast(dt.datetime, value).astimezone().replace(tzinfo=None)
    if isinstance(kind, StructType):
        return _struct_reader(kind)
    if isinstance(kind, ArrayType):
        return _each(_reader(kind.elementType))
    if isinstance(kind, MapType):
        return _pairs(_reader(kind.keyType), _reader(kind.valueType))
    return None


def _struct_reader(kind: StructType) -> Convert:
    readers = [(name, _reader(field.dataType)) for name, field in zip(kind.names, kind.fields, strict=True)]

    def read(value: object) -> object:
        fields = cast(Mapping[str, object], value)
        row = Row(*(_applied(convert, fields[name]) for name, convert in readers))
        row.__fields__ = kind.names  # as PySpark gives its own rows their names
        return row

    return read


def _writer(kind: DataType) -> Convert | None:
    if isinstance(kind, TimestampType):
        # A naive time is in the zone of the Python process.
        return lambda value: _python_time(value).astimezone(dt.UTC)
    if isinstance(kind, TimestampNTZType):
        return _without_zone
    if isinstance(kind, DateType):
        return _present
    if isinstance(kind, StructType):
        return _struct_writer(kind)
    if isinstance(kind, ArrayType):
        return _each(_inner_writer(kind.elementType))
    if isinstance(kind, MapType):
        return _items(_inner_writer(kind.keyType), _inner_writer(kind.valueType))
    return None


def _python_time(value: object) -> dt.datetime:
    # A value of a frame is pandas' own time, which cannot convert a naive one.
    return cast(dt.datetime, value.to_pydatetime(warn=False) if isinstance(value, pd.Timestamp) else _present(value))


def _without_zone(value: object) -> dt.datetime:
    # As in Spark, a zone is ignored; Arrow would convert the time to UTC. Numpy's times have none.
    time = value.astype("datetime64[us]").item() if isinstance(value, np.datetime64) else _python_time(value)
    return time.replace(tzinfo=None)


def _present(value: object) -> object:
    # Arrow takes it for a day of the year 1.
    if value is pd.NaT:
        raise ValueError("NaT is no date and no time; write None")
    return value


def _inner_writer(kind: DataType) -> Convert | None:
    # `plain_array` does not look into nested values, where Arrow would cut fractions as well.
    return _whole if isinstance(kind, IntegralType) else _writer(kind)


def _struct_writer(kind: StructType) -> Convert:
    writers = [(field.name, _inner_writer(field.dataType)) for field in kind.fields]

    def write(value: object) -> object:
        if isinstance(value, Mapping):
            return {name: _applied(convert, value.get(name)) for name, convert in writers}
        items = tuple(cast(Sequence[object], value))
        return {name: _applied(convert, each) for (name, convert), each in zip(writers, items, strict=True)}

    return write


def _applied(convert: Convert | None, value: object) -> object:
    return value if convert is None or value is None else convert(value)


def _each(convert: Convert | None) -> Convert:
    return lambda values: [_applied(convert, each) for each in cast(Sequence[object], values)]


def _pairs(key: Convert | None, item: Convert | None) -> Convert:
    return lambda pairs: {_applied(key, k): _applied(item, v) for k, v in cast(Sequence[tuple[object, object]], pairs)}


def _items(key: Convert | None, item: Convert | None) -> Convert:
    return lambda pairs: [
        (_applied(key, k), _applied(item, v)) for k, v in cast(Mapping[object, object], pairs).items()
    ]
