"""Collects what a user's function yields (frames, tuples, dicts, Rows) into Arrow tables of the declared
schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.conversion import PandasToArrowConversion
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from spark_ckpt.runtime.failures import OutputInvalid, bounded
from spark_ckpt.runtime.pandas_rows import PandasOptions, column_arrays
from spark_ckpt.runtime.python_values import plain_array
from spark_ckpt.runtime.rows import arrow_schema, conform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spark_ckpt.runtime.rows import Array, ChunkedArray, Field

_PLAIN = (NumericType, StringType, BooleanType, BinaryType, DateType)
_FLUSH = 50_000


class OutputRows:
    """Order of yielding is kept. Frames are converted as Spark does; tuples and dicts never become a
    frame.
    """

    def __init__(self, schema: StructType, options: PandasOptions) -> None:
        self.arrow = arrow_schema(schema)
        self._schema = schema
        self._options = options
        self._rows: list[Sequence[object]] = []
        self._frames = _Frames()
        self._tables: list[pa.Table] = []

    def add(self, item: object) -> None:
        """Take one yielded item. Raises Spark's own error for anything that is no row and no frame."""
        if isinstance(item, tuple):
            self._add_row(item)
        elif isinstance(item, pd.DataFrame):
            self._add_frame(item)
        elif isinstance(item, Mapping):
            self._add_row([item.get(name) for name in self._checked(item)])
        else:
            raise PySparkTypeError(
                errorClass="UDF_RETURN_TYPE",
                messageParameters={
                    "expected": "iterator of pandas.DataFrame",
                    "actual": f"iterator of {type(item).__name__}",
                },
            )

    def tables(self) -> list[pa.Table]:
        """Everything taken so far, in order."""
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
                f"a yielded row has {len(row)} values, the output schema has {len(self._schema)} columns",
                hint=f"the output columns are {', '.join(self._schema.names)}",
                row=bounded(row),
            )
        if self._frames:
            self._flush_frames()
        self._rows.append(row)
        if len(self._rows) >= _FLUSH:
            self._flush_rows()

    def _add_frame(self, frame: pd.DataFrame) -> None:
        if len(frame.columns) != len(self._schema) and not (len(frame.columns) == 0 and frame.empty):
            raise PySparkRuntimeError(
                errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                messageParameters={"expected": str(len(self._schema)), "actual": str(len(frame.columns))},
            )
        if frame.empty:
            return
        if self._rows:
            self._flush_rows()
        self._frames.add(frame)

    def _flush_rows(self) -> None:
        if self._rows:
            columns = list(zip(*self._rows, strict=True))
            arrays = [self._array(*each) for each in zip(columns, self._schema.fields, self.arrow, strict=True)]
            self._tables.append(pa.table(arrays, schema=self.arrow))
            self._rows = []

    def _array(self, values: Sequence[object], field: StructField, to: Field) -> Array:
        if isinstance(field.dataType, _PLAIN):
            return _plain_array(values, field, to.type)
        frame = pd.DataFrame({field.name: pd.Series(list(values))})
        return self._converted(frame, StructType([field])).column(0).cast(to.type)

    def _flush_frames(self) -> None:
        if self._frames:
            batch = self._converted(self._frames.joined(), self._schema)
            self._tables.append(conform(pa.Table.from_batches([batch]), self.arrow))
            self._frames = _Frames()

    def _converted(self, frame: pd.DataFrame, schema: StructType) -> pa.RecordBatch:
        return PandasToArrowConversion.convert(
            frame,
            schema,
            timezone=self._options.timezone,
            safecheck=self._options.safecheck,
            arrow_cast=True,
            assign_cols_by_name=self._options.assign_cols_by_name,
            int_to_decimal_coercion_enabled=self._options.int_to_decimal_coercion,
        )


class _Frames:
    """Frames to be joined. Those of one shape, as one function yields, are kept as bare columns: no frame lives longer
    than its key's call, and joining arrays costs a tenth of `pd.concat`.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._types: list[np.dtype[np.generic]] = []
        self._columns: list[list[NDArray[np.generic]]] = []
        self._whole: list[pd.DataFrame] = []

    def __bool__(self) -> bool:
        return bool(self._columns or self._whole)

    def add(self, frame: pd.DataFrame) -> None:
        arrays, names = column_arrays(frame), frame.columns.tolist()
        types = [each.dtype for each in arrays]
        if not self:
            self._names = names
            self._types = types if all(isinstance(each, np.dtype) for each in types) else []
        if not self._whole and (names, types) == (self._names, self._types):
            self._columns.append(arrays)
        else:
            self._whole = [*self._kept(), frame]

    def joined(self) -> pd.DataFrame:
        """All rows, in order."""
        frames = self._kept()
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)

    def _kept(self) -> list[pd.DataFrame]:
        """What was added so far, as whole frames."""
        if self._columns:
            joined = pd.DataFrame(dict(enumerate(map(np.concatenate, zip(*self._columns, strict=True)))))
            joined.columns = pd.Index(self._names)
            self._columns, self._whole = [], [joined]
        return self._whole


def _plain_array(values: Sequence[object], field: StructField, type_: pa.DataType) -> Array:
    """NaN is null where the type has no NaN."""
    from_pandas = not pa.types.is_floating(type_)
    try:
        return plain_array(values, type_, from_pandas=from_pandas)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        culprit = next((each for each in values if not _fits(each, type_, from_pandas=from_pandas)), None)
        raise OutputInvalid(
            f"output column {field.name!r} ({field.dataType.simpleString()}) cannot hold {bounded(culprit)}",
            hint="yield values of the declared output type",
        ) from error


def _fits(value: object, type_: pa.DataType, *, from_pandas: bool) -> bool:
    try:
        plain_array([value], type_, from_pandas=from_pandas)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True


def to_table(rows: pa.Table | pd.DataFrame, schema: StructType, options: PandasOptions, operator: str) -> pa.Table:
    """A whole table or frame as the declared schema, columns by name. Raises `OutputInvalid` naming
    what does not fit.
    """
    have = [str(name) for name in (rows.columns if isinstance(rows, pd.DataFrame) else rows.column_names)]
    if sorted(have) != sorted(schema.names):
        raise OutputInvalid(
            f"the returned table has columns {bounded(have)}, declared are {bounded(schema.names)}",
            operator=operator,
            hint="return exactly the declared columns",
        )
    if isinstance(rows, pd.DataFrame):
        output = OutputRows(schema, options)
        output.add(rows)
        return pa.concat_tables([output.arrow.empty_table(), *output.tables()])
    return pa.table([_cast(rows, field) for field in arrow_schema(schema)], schema=arrow_schema(schema))


def _cast(rows: pa.Table, field: Field) -> ChunkedArray:
    values = rows.column(field.name)
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OutputInvalid(
            f"column {field.name!r} of type {values.type} does not fit {field.type}: {bounded(str(error))}",
            hint="cast the column in the function",
        ) from error
