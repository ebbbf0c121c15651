"""Collects a user function's output (frames, tuples, dicts, Rows) into Arrow tables of the declared schema."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NoReturn, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from spark_ckpt.spark_internals.pandas_conversion import frame_to_arrow
from spark_ckpt.tasks.failures import OutputInvalid, bounded, types_of
from spark_ckpt.tasks.operators.pandas_rows import PandasOptions, column_arrays
from spark_ckpt.tasks.rows import arrow_schema, conform
from spark_ckpt.tasks.state.python_values import fraction_finder, plain_array, row_copier
from spark_ckpt.wording import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spark_ckpt.tasks.operators.segments import Values
    from spark_ckpt.tasks.rows import Array, ChunkedArray, Field

_PLAIN = (NumericType, StringType, BooleanType, BinaryType, DateType)
_FLUSH = 50_000  # rows that wait as Python objects
_EXACT_MAX = 1 << 53  # a double holds every whole number up to it


class OutputRows:
    """Output of one call, in the order of yielding.

    Frames are converted as Spark does; tuples and dicts never become a frame.
    """

    def __init__(self, schema: StructType, options: PandasOptions, operator: str = "", what: str = "output") -> None:
        self.arrow = arrow_schema(schema)
        self._schema = schema
        self._options = options
        self._operator = operator
        self._what = what
        self._rows: list[Sequence[object]] = []
        self._frames = Frames()
        self._tables: list[pa.Table] = []
        self._key: object = None
        self._keys = _Starts()
        self._copied = row_copier(schema)

    def begins(self, key: object) -> None:
        """Start the output of `key`, which the error of a later invalid row names."""
        self._key = key
        # only one of both is filled: rows and frames flush each other, to keep the order
        self._keys.add(len(self._rows) or self._frames.rows, key)

    def add(self, item: object) -> None:
        """Add one yielded item.

        Raises `OutputInvalid` for anything except a row or a frame, and for one of another shape.
        """
        if isinstance(item, tuple):
            self._add_row(item)
        elif isinstance(item, pd.DataFrame):
            self._add_frame(item)
        elif isinstance(item, Mapping):
            self._add_row([item.get(name) for name in self._checked(item)])
        else:
            raise OutputInvalid(
                f"the function yielded {bounded(item)} ({type(item).__name__}), which is no row and no frame",
                hint=f"yield a tuple, a dict or a DataFrame with the columns {', '.join(self._schema.names)}",
            )

    def tables(self) -> list[pa.Table]:
        """Return everything added so far, in order. Raises `OutputInvalid` with operator, key and column."""
        self._flush_rows()
        self._flush_frames()
        tables, self._tables = self._tables, []
        return tables

    def _checked(self, item: Mapping[object, object]) -> list[str]:
        unknown = set(item) - set(self._schema.names)
        if unknown:
            raise OutputInvalid(
                f"a yielded dict has keys that the output schema lacks: {bounded(sorted(map(str, unknown)))}",
                hint=f"the output columns are {', '.join(self._schema.names)}",
            )
        return self._schema.names

    def _add_row(self, row: Sequence[object]) -> None:
        if len(row) != len(self._schema):
            raise OutputInvalid(
                f"a yielded row has {counted(len(row), 'value')} ({types_of(row)}),"
                f" the output schema has {counted(len(self._schema), 'column')}",
                hint=f"the output columns are {', '.join(self._schema.names)}",
            )
        # A function may yield rows and frames in turns, and their order is kept.
        if self._frames:
            self._flush_frames()
        # Converted later: a function may append to the list that it has yielded, and yield it again.
        self._rows.append(row if self._copied is None else self._copied(row))
        if len(self._rows) >= _FLUSH:
            self._flush_rows()

    def _add_frame(self, frame: pd.DataFrame) -> None:
        if len(frame.columns) != len(self._schema) and not (len(frame.columns) == 0 and frame.empty):
            raise self._other_columns(frame)
        if frame.empty:
            return
        if self._rows:
            self._flush_rows()
        self._frames.add(frame)

    def _other_columns(self, frame: pd.DataFrame) -> OutputInvalid:
        have = list(map(str, frame.columns))
        lacks = [name for name in self._schema.names if name not in have]
        beyond = [name for name in have if name not in self._schema.names]
        wrong = f"lacks {bounded(lacks)}" if lacks else f"has {bounded(beyond or have)} beyond the schema"
        return OutputInvalid(
            f"a yielded frame {wrong}: it has {counted(len(have), 'column')}, the {self._what} schema has"
            f" {counted(len(self._schema), 'column')}",
            hint=f"columns of the {self._what}: {', '.join(self._schema.names)}; add the missing ones to the frame, or change "
            "the declared schema",
            column=lacks[0] if lacks else None,
        )

    def _flush_rows(self) -> None:
        if self._rows:
            columns = list(zip(*self._rows, strict=True))
            arrays = [self._array(*each) for each in zip(columns, self._schema.fields, self.arrow, strict=True)]
            self._tables.append(pa.table(arrays, schema=self.arrow))
            self._rows = []
            # The key that is yielding now may have more rows after the flush.
            self._keys = _Starts(self._key)

    def _array(self, values: Sequence[object], field: StructField, to: Field) -> Array:
        if not isinstance(field.dataType, _PLAIN):
            self._check_fractions(values, field)
            # nested types and timestamps have Spark's own conversion rules
            frame = pd.DataFrame({field.name: pd.Series(list(values))})
            return self._fitted(frame, StructType([field])).column(0).cast(to.type)
        from_pandas = not pa.types.is_floating(to.type)  # NaN is null where the type has no NaN
        try:
            return plain_array(values, to.type, from_pandas=from_pandas)
        # Arrow's errors are among them, and Python's for half of a surrogate pair, which `json.loads` gives.
        except (OverflowError, TypeError, ValueError) as error:
            row = first_failing(len(values), lambda few: plain_array(values[:few], to.type, from_pandas=from_pandas))
            self._refuse(field, row, bounded(values[row]) if row is not None else "these values", error)

    def _check_fractions(self, values: Sequence[object], field: StructField) -> None:
        found = fraction_finder(field.dataType)
        row = None if found is None else next((row for row, each in enumerate(values) if found(each)), None)
        if row is not None:
            self._refuse(field, row, bounded(values[row]), ValueError("a fraction in place of a whole number"))

    def _flush_frames(self) -> None:
        if self._frames:
            for frame in self._frames.joined():
                batch = self._fitted(frame, self._schema)
                self._tables.append(conform(pa.Table.from_batches([batch]), self.arrow))
                self._keys.converted += len(frame)
            self._frames = Frames()
            self._keys = _Starts(self._key)

    def _fitted(self, frame: pd.DataFrame, schema: StructType) -> pa.RecordBatch:
        """Convert as Spark does."""
        try:
            return self._converted(frame, schema)
        # The memory may suffice the next time, so the job retries. Any other error is a property of the user's values.
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the conversion calls methods of the user's values
            self._refuse_frame(frame, schema, error)

    def _refuse_frame(self, frame: pd.DataFrame, schema: StructType, error: Exception) -> NoReturn:
        """Find the column and the row that fail: the error of a whole frame contains at most the column."""
        # Spark takes columns by position if no column's name is a text.
        named = any(isinstance(name, str) for name in frame.columns) and self._options.assign_cols_by_name
        missing = [name for name in schema.names if name not in frame.columns] if named else []
        if missing:
            raise self._placed(
                OutputInvalid(
                    f"the function's frames lack column {missing[0]!r}, they have {bounded(list(map(str, frame.columns)))}",
                    hint=f"columns of the {self._what}: {', '.join(schema.names)}",
                ),
                0,
            ) from error
        for at, column in enumerate(schema.fields):
            one, alone = frame[[column.name]] if named else frame.iloc[:, [at]], StructType([column])

            def attempt(rows: int, one: pd.DataFrame = one, alone: StructType = alone) -> object:
                return self._converted(one.iloc[:rows], alone)

            row = first_failing(len(frame), attempt)
            if row is not None:
                self._refuse(column, row, bounded(one.iloc[row, 0]), error)
        raise self._placed(OutputInvalid(f"the function's frames do not fit: {bounded(str(error))}"), None) from error

    def _refuse(self, column: StructField, row: int | None, value: str, error: Exception) -> NoReturn:
        refused = OutputInvalid(
            f"{self._what} column {column.name!r} ({column.dataType.simpleString()}) cannot hold {value}",
            hint=f"give values of the declared {self._what} type",
            column=column.name,
        )
        raise self._placed(refused, row) from error

    def _placed(self, refused: OutputInvalid, row: int | None) -> OutputInvalid:
        refused.row = row
        refused.at(self._operator, None if row is None else self._keys.of(row))
        return refused

    def _converted(self, frame: pd.DataFrame, schema: StructType) -> pa.RecordBatch:
        return frame_to_arrow(
            frame,
            schema,
            timezone=self._options.timezone,
            safecheck=self._options.safecheck,
            assign_cols_by_name=self._options.assign_cols_by_name,
            int_to_decimal_coercion=self._options.int_to_decimal_coercion,
        )


class Frames:
    """Frames to concatenate.

    Frames of one shape, as one function yields, are kept as bare columns. So no frame lives longer than its key's call,
    and concatenating arrays takes a tenth of the time of `pd.concat`.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._names: list[str] = []
        self._types: list[np.dtype[np.generic]] = []
        self._columns: list[list[NDArray[np.generic]]] = []
        self._whole: list[pd.DataFrame] = []

    def __bool__(self) -> bool:
        return bool(self._columns or self._whole)

    def add(self, frame: pd.DataFrame) -> None:
        """Append a frame's rows."""
        arrays, names = column_arrays(frame), frame.columns.tolist()
        types = [each.dtype for each in arrays]
        self.rows += len(frame)
        if not self:
            self._names = names
            # `np.concatenate` would turn extension arrays into objects.
            self._types = types if all(isinstance(each, np.dtype) for each in types) else []
        if not self._whole and (names, types) == (self._names, self._types):
            self._columns.append(arrays)
        else:
            self._whole = [*self._kept(), frame]  # frames of other shapes: pandas joins them by the columns' names

    def joined(self) -> list[pd.DataFrame]:
        """Return all rows, in order: as one frame, unless that would round a number."""
        frames = self._kept()
        if len(frames) == 1:
            return frames
        # Only frames of equal types are joined then: pandas makes a double of int64 and double.
        alike = groupby(frames, _shape) if _would_round(frames) else [(None, frames)]
        return [pd.concat(list(each), ignore_index=True) for _, each in alike]

    def _kept(self) -> list[pd.DataFrame]:
        """Return the rows so far as whole frames."""
        if self._columns:
            # By number first: two columns of a frame may have one name.
            joined = pd.DataFrame(dict(enumerate(map(np.concatenate, zip(*self._columns, strict=True)))))
            joined.columns = pd.Index(self._names)
            self._columns, self._whole = [], [joined]
        return self._whole


def _shape(frame: pd.DataFrame) -> tuple[list[str], list[object]]:
    return frame.columns.tolist(), frame.dtypes.tolist()


def _would_round(frames: Sequence[pd.DataFrame]) -> bool:
    """Return True if a column has whole numbers that no double holds, and in another frame another type of numbers."""
    large: set[Hashable] = set()
    kinds: dict[Hashable, set[str]] = {}
    for frame in frames:
        arrays = cast("list[Values]", column_arrays(frame))
        for name, values in zip(frame.columns, arrays, strict=True):
            kind = values.dtype.kind
            if kind in "iuf":
                kinds.setdefault(name, set()).add(kind)
            if kind in "iu" and ((values > _EXACT_MAX) | (values < -_EXACT_MAX)).any():
                large.add(name)
    return any(len(kinds[name]) > 1 for name in large)


class _Starts:
    """First row of each key among the rows that wait for conversion."""

    def __init__(self, key: object = None) -> None:
        self.converted = 0  # rows before the frame that is converted now
        self._rows: list[int] = [0]
        self._keys: list[object] = [key]

    def add(self, row: int, key: object) -> None:
        self._rows.append(row)
        self._keys.append(key)

    def of(self, row: int) -> object:
        """Return the key of a row of this frame: the last key that begins at it or before it."""
        # A key without output begins at the row of the next one, which comes later in the list.
        return self._keys[bisect_right(self._rows, self.converted + row) - 1]


def first_failing(rows: int, attempt: Callable[[int], object]) -> int | None:
    """Return the first row with which `attempt(number of rows)` fails, by bisection; None if it never fails.

    For an error that does not contain the row.
    """

    def fails(few: int) -> bool:
        try:
            attempt(few)
        except Exception:  # noqa: BLE001 - any error is an error of these rows
            return True
        return False

    # every prefix with the invalid row fails, every shorter one converts
    found = bisect_left(range(1, rows + 1), True, key=fails)
    return found if found < rows else None


def to_table(
    rows: pa.Table | pd.DataFrame, schema: StructType, options: PandasOptions, operator: str, what: str = "output"
) -> pa.Table:
    """Convert a whole table or frame to the declared schema, columns by name.

    `what` names the table in messages. Raises `OutputInvalid` with the column that does not fit.
    """
    if not isinstance(rows, pd.DataFrame | pa.Table | pa.RecordBatch):
        raise OutputInvalid(
            f"the returned {what} is a {type(rows).__name__}, not a table",
            operator=operator,
            hint=f"return a pyarrow.Table or a pandas DataFrame with the columns {', '.join(schema.names)}",
        )
    have = [str(name) for name in (rows.columns if isinstance(rows, pd.DataFrame) else rows.column_names)]
    if sorted(have) != sorted(schema.names):
        raise OutputInvalid(
            f"the returned table has columns {bounded(have)}, declared are {bounded(schema.names)}",
            operator=operator,
            hint="return exactly the declared columns",
        )
    if isinstance(rows, pd.DataFrame):
        output = OutputRows(schema, options, operator, what)
        # In the declared order: a session may say that Spark takes a frame's columns by position.
        output.add(rows.iloc[:, [have.index(name) for name in schema.names]])
        return pa.concat_tables([output.arrow.empty_table(), *output.tables()])  # an empty frame gives no table
    return pa.table([_cast(rows, field, operator) for field in arrow_schema(schema)], schema=arrow_schema(schema))


def _cast(rows: pa.Table, field: Field, operator: str) -> ChunkedArray:
    values = rows.column(field.name)
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        refused = OutputInvalid(
            f"column {field.name!r} of type {values.type} does not fit {field.type}: {bounded(str(error))}",
            hint="cast the column in the function",
            operator=operator,
            column=field.name,
        )
        if not isinstance(error, pa.ArrowNotImplementedError):
            refused.row = first_failing(len(values), lambda few: values.slice(0, few).cast(field.type))
        raise refused from error
