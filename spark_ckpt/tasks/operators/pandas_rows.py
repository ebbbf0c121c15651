"""Arrow rows as Spark's pandas frames, key by key, without a conversion per key.

In Spark, the dtype of an integer or boolean column depends on the nulls among *this key's* rows. It is int64 without
nulls, and float64 or object with nulls. One conversion of all keys' rows would let one key's null change another key's
dtype. So there is one frame per pattern of nulls, made of the rows of its keys when one first needs it. Keys are slices of
the frame of their pattern.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, Self, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from spark_ckpt.spark_internals.pandas_conversion import columns_to_pandas
from spark_ckpt.tasks.rows import Int64s, rows_at

if TYPE_CHECKING:
    from spark_ckpt.tasks.rows import Array, ChunkedArray


@dataclass(frozen=True, slots=True)
class PandasOptions:
    """Spark's settings for pandas conversion, read from the session when the operator is planned."""

    timezone: str = "UTC"
    prefer_int_ext_dtype: bool = False
    safecheck: bool = True
    assign_cols_by_name: bool = True
    int_to_decimal_coercion: bool = False


def to_series(table: pa.Table, options: PandasOptions) -> list[pd.Series[float]]:
    """Convert column by column with Spark's own conversion; timestamps become naive in the session's time zone."""
    return columns_to_pandas(
        _in_session_zone(table, options.timezone),
        timezone=options.timezone,
        prefer_int_ext_dtype=options.prefer_int_ext_dtype,
    )


def to_frame(table: pa.Table, options: PandasOptions) -> pd.DataFrame:
    """Convert a whole table to Spark's pandas frame."""
    # `concat` refuses an empty list.
    if not table.num_columns:
        return pd.DataFrame(index=pd.RangeIndex(table.num_rows))
    return pd.concat(to_series(table, options), axis=1)


def _in_session_zone(table: pa.Table, timezone: str) -> pa.Table:
    fields = [
        field.with_type(pa.timestamp(field.type.unit, timezone))
        if pa.types.is_timestamp(field.type) and field.type.tz
        else field
        for field in table.schema
    ]
    schema = pa.schema(fields)
    if schema.equals(table.schema):
        return table
    # a cast of no rows leaves no chunk, which Spark refuses
    return table.cast(schema) if table.num_rows else schema.empty_table()


def key_tuples(keys: pa.Table, options: PandasOptions) -> list[tuple[Hashable, ...]]:
    """Return each row as Spark's key tuple.

    Numbers are numpy scalars; other values are `Timestamp`, `str` or `date`; null is NaN or None.
    """
    return list(zip(*(_key_values(keys.select([name]), options) for name in keys.column_names), strict=True))


def _key_values(one: pa.Table, options: PandasOptions) -> list[Hashable]:
    if not _depends_on_nulls(one.column(0), options):
        series = to_series(one, options)[0]
        # A Series of numbers would give Python's numbers, not numpy's.
        return list(series.to_numpy() if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iufb" else series)
    nulls = one.column(0).is_null().to_numpy(zero_copy_only=False)
    values = np.empty(len(nulls), object)
    # Apart: Spark makes a key of its group's first row, so a null of one key changes no other key's type.
    for part in (nulls, ~nulls):
        values[part] = list(to_series(one.filter(pa.array(part)), options)[0].array) if part.any() else []
    return list(values)


class FrameSlices:
    """Frames of many keys whose rows are contiguous in `table`: key i has rows starts[i]:ends[i]."""

    def __init__(self, table: pa.Table, starts: Int64s, ends: Int64s, options: PandasOptions) -> None:
        self._table = table
        self._options = options
        # In the table, and in the frame of the key's pattern as soon as there is one.
        self._spans = dict(enumerate(zip(starts.tolist(), ends.tolist(), strict=True)))
        self._exactly = any(_nulls_inside(table.column(i)) for i in range(table.num_columns))
        self._varying = [i for i in range(table.num_columns) if _depends_on_nulls(table.column(i), options)]
        self._patterns = self._patterns_of(starts)
        self._keys_of: dict[int, list[int]] = {}
        for key, pattern in enumerate(self._patterns):
            self._keys_of.setdefault(pattern, []).append(key)
        self._frames: dict[int, pd.DataFrame] = {}

    def _patterns_of(self, starts: Int64s) -> list[int]:
        patterns = [0] * len(starts)
        for bit, i in enumerate(self._varying):
            nulls = self._table.column(i).is_null().to_numpy(zero_copy_only=False)
            # Every key has a row: `reduceat` takes the next key's row for one that has none.
            for key in np.flatnonzero(np.logical_or.reduceat(nulls, starts)).tolist():
                patterns[key] |= 1 << bit
        return patterns

    def frame(self, key: int) -> pd.DataFrame:
        """Return the frame of one key, indexed from 0; the caller may change it."""
        # Pandas decides the type of a nested value by all rows of the conversion, so these keys are converted alone.
        if self._exactly:
            start, end = self._spans[key]
            return to_frame(self._table.slice(start, end - start), self._options)
        pattern = self._patterns[key]
        whole = self._frames.get(pattern)
        if whole is None:
            whole = self._frames[pattern] = self._frame_of(pattern)
        return rows_of(whole, *self._spans[key])

    def _frame_of(self, pattern: int) -> pd.DataFrame:
        table, keys = self._table, self._keys_of[pattern]
        if len(keys) < len(self._spans):
            # Only the rows of the pattern's keys: with many columns almost every key has a pattern of its own.
            table = rows_at(table, np.concatenate([np.arange(*self._spans[key]) for key in keys]))
            ends = np.cumsum([end - start for start, end in (self._spans[key] for key in keys)]).tolist()
            self._spans.update(zip(keys, pairwise([0, *ends]), strict=True))
        frame = to_frame(table, self._options)
        column_arrays(frame)  # pandas caches the position of the columns here, once for all slices
        return frame


class _Manager(Protocol):
    """The methods of pandas' block manager that pandas' own `groupby` slices groups with."""

    axes: list[pd.Index[int]]

    def get_slice(self, rows: slice, axis: int) -> Self: ...


class _Internals(Protocol):
    _mgr: _Manager

    def _constructor_from_mgr(self, mgr: _Manager, axes: list[pd.Index[int]]) -> pd.DataFrame: ...

    def _get_column_array(self, i: int) -> np.typing.NDArray[np.generic]: ...


def rows_of(frame: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    """Return `frame.iloc[start:end]`, indexed from 0, in a third of the time, which matters once per key."""
    whole = cast("_Internals", frame)
    part = whole._mgr.get_slice(slice(start, end), axis=1)
    part.axes[1] = pd.RangeIndex.from_range(range(end - start))
    return whole._constructor_from_mgr(part, axes=part.axes)


def column_arrays(frame: pd.DataFrame) -> list[np.typing.NDArray[np.generic]]:
    """Return the columns' values without a series for each; extension types give pandas' extension arrays."""
    return [cast("_Internals", frame)._get_column_array(i) for i in range(frame.shape[1])]


def _depends_on_nulls(values: ChunkedArray, options: PandasOptions) -> bool:
    integers = pa.types.is_integer(values.type) and not options.prefer_int_ext_dtype
    return bool(values.null_count) and (integers or pa.types.is_boolean(values.type))


def _nulls_inside(values: ChunkedArray) -> bool:
    """Return True if a nested column holds nulls of numbers or booleans, whose conversion would leak between keys."""
    return pa.types.is_nested(values.type) and any(_inner_nulls(chunk) for chunk in values.chunks)


def _inner_nulls(values: Array) -> bool:
    if isinstance(values, pa.StructArray | pa.ListArray | pa.LargeListArray):
        children = values.flatten()
        return any(map(_inner_nulls, children if isinstance(children, list) else [children]))
    if isinstance(values, pa.MapArray):
        return _inner_nulls(values.keys) or _inner_nulls(values.items)
    return bool(values.null_count) and (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type))
