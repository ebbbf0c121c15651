"""Columns that travel with a row, and the conversion between Spark's and Arrow's schemas.

This library's columns begin with `ckpt_`, a prefix that user columns cannot have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ckpt.errors import GraphInvalid, StateSchemaChanged
from spark_ckpt.spark_internals.arrow_types import arrow_schema_of, is_collated

if TYPE_CHECKING:
    from typing import Any

    # Element types are known at run time only.
    Array: TypeAlias = pa.Array[Any]
    ChunkedArray: TypeAlias = pa.ChunkedArray[Any]
    Field: TypeAlias = pa.Field[Any]

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

RESERVED_PREFIX = "ckpt_"
KEY_HASH = "ckpt_key_hash"
KEY_GROUP = "ckpt_key_group"
SHUFFLE_KEY = "ckpt_shuffle_key"
EPOCH = "ckpt_epoch"
TAG = "ckpt_tag"
EVENT_TIME = "ckpt_event_time"
BLOB = "ckpt_blob"
OP = "ckpt_op"
TIMEOUT = "ckpt_timeout_ms"
REJECT = "ckpt_reject"

PUT, DELETE = 0, 1
OP_NAMES = ("put", "delete")  # at the places PUT and DELETE
ROWS_PER_WRITE = 131_072
"""Rows of a row group of a staged file, and of a batch that is read from one."""
NO_TIMEOUT = np.iinfo(np.int64).max
"""Value of a missing timeout in memory; stored files have a null."""


@dataclass(frozen=True)
class StateSchema:
    """Arrow types of an operator's key columns and state columns. Picklable: it is shipped to executors."""

    key: pa.Schema
    state: pa.Schema

    @cached_property
    def table(self) -> pa.Schema:
        """Schema of a key table in memory: hash, key columns, state columns, op (0 put, 1 delete), timeout (ms)."""
        head = [pa.field(KEY_HASH, pa.int64())]
        tail = [pa.field(OP, pa.int8()), pa.field(TIMEOUT, pa.int64())]
        return pa.schema([*head, *self.key, *self.state, *tail])

    @cached_property
    def stored(self) -> pa.Schema:
        """Schema of a state file in the store: the user's columns first, then the library's."""
        types = {
            KEY_GROUP: pa.int32(),
            KEY_HASH: pa.int64(),
            EPOCH: pa.int64(),
            OP: pa.string(),  # a number in memory, a word for readers of the Delta table
            TIMEOUT: pa.int64(),
        }
        return pa.schema([*self.key, *self.state, *(pa.field(name, kind) for name, kind in types.items())])

    @cached_property
    def read(self) -> pa.Schema:
        """The columns of a state file that a key table is made of. The others describe the whole file: no start decodes them."""
        return pa.schema([field for field in self.stored if field.name not in (KEY_GROUP, EPOCH)])


def state_schema(key: StructType, state: StructType) -> StateSchema:
    """Check an operator's schemas and translate them to Arrow.

    Raises `GraphInvalid` for a key column that is nested, collated or of nulls only, a type that Delta or Parquet does not
    have, a reserved name, or two columns of one name.
    """
    check_not_reserved([*key.names, *state.names])
    check_stageable(StructType([*key, *state]), "the state of an operator")
    schema = StateSchema(arrow_schema(key), arrow_schema(state))
    for field in schema.key:
        # Arrow compares no two values of such a type.
        if pa.types.is_nested(field.type) or pa.types.is_null(field.type):
            raise GraphInvalid(
                f"key column {field.name!r} has type {field.type}",
                hint="group by columns of simple types, for example the struct's fields; leave out a column of nulls only",
            )
    for field in key:
        if is_collated(field.dataType):
            raise GraphInvalid(
                f"key column {field.name!r} is {field.dataType.simpleString()}, and a job's operator compares bytes",
                hint="group by equal bytes, for example lower(collate(name, 'UTF8_BINARY')), or by Spark's own "
                "operators, inside of transform",
            )
    for column in (*key, *state):
        # The state's table follows the log after the commit: a type that it cannot have would fail every later start.
        if _has_no_delta_type(arrow_schema(StructType([column])).field(0).type):
            raise GraphInvalid(
                f"column {column.name!r} is {column.dataType.simpleString()}, and the table of an operator's state cannot have it",
                hint="keep a number in its place, for example the interval's microseconds as long",
            )
    return schema


def _has_no_delta_type(kind: pa.DataType) -> bool:
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_duration(kind) or pa.types.is_time(kind) or any(map(_has_no_delta_type, inner))


def check_stageable(schema: StructType, where: str) -> None:
    """Raise `GraphInvalid` for columns of one name, and for a struct without fields: Parquet holds none.

    `where` has the rows.
    """
    # Spark and Delta tell no names apart by their case.
    names = [name.lower() for name in schema.names]
    if twice := [name for name in schema.names if names.count(name.lower()) > 1]:
        raise GraphInvalid(
            f"columns {', '.join(twice)} have one name, and {where} has a column of each name once",
            hint="rename the columns; upper and lower case are one name",
        )
    for field in arrow_schema(schema):
        if _has_empty_struct(field.type):
            raise GraphInvalid(
                f"column {field.name!r} has a struct without fields, and {where} is kept as Parquet, which has none",
                hint=f"leave it out, drop({field.name!r}), or give the struct a field",
            )


def _has_empty_struct(kind: pa.DataType) -> bool:
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return (pa.types.is_struct(kind) and not kind.num_fields) or any(map(_has_empty_struct, inner))


def check_not_reserved(names: Iterable[str], where: str = "") -> None:
    """Raise `GraphInvalid` for a name of this library's columns, which operators remove from their rows."""
    for name in names:
        if name.lower().startswith(RESERVED_PREFIX):
            raise GraphInvalid(f"column {name!r}{where} uses the reserved prefix {RESERVED_PREFIX!r}", hint="rename it")


def arrow_schema(schema: StructType, timezone: str = "UTC") -> pa.Schema:
    """Return Spark's Arrow types for a struct: timestamps in `timezone`, every field nullable."""
    arrow = arrow_schema_of(schema, timezone)
    return pa.schema([pa.field(field.name, field.type) for field in arrow])


def column(table: pa.Table, name: str) -> Array:
    """Return one column as one contiguous array."""
    chunks = table.column(name)
    return chunks.chunk(0) if chunks.num_chunks == 1 else cast("Array", chunks.combine_chunks())


def numbers(table: pa.Table, name: str) -> Int64s:
    """Return a column without nulls as a numpy array, without a copy if Arrow allows it."""
    return cast("Int64s", column(table, name).to_numpy(zero_copy_only=False))


def taken(values: Array, positions: Int64s, absent: Bools | None = None) -> Array:
    """Return `values` at `positions`, null for rows in the mask `absent`."""
    return values.take(_indices(positions, absent))


def rows_at(table: pa.Table, positions: Int64s, absent: Bools | None = None) -> pa.Table:
    """Return the rows of `table` at `positions`, contiguous; all columns are null for rows in the mask `absent`."""
    return table.take(_indices(positions, absent))


def _indices(positions: Int64s, absent: Bools | None) -> pa.Int64Array:
    return cast("pa.Int64Array", pa.array(positions, pa.int64(), mask=absent))


def user_columns(table: pa.Table) -> pa.Table:
    """Return the table without this library's columns."""
    return table.select([name for name in table.column_names if not name.startswith(RESERVED_PREFIX)])


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Select and cast the columns of `schema`; a missing column becomes null.

    Raises `StateSchemaChanged` if a value does not fit its declared type.
    """
    if table.schema.equals(schema):
        return table
    return pa.table([_conformed(table, field) for field in schema], schema=schema)


def _conformed(table: pa.Table, field: Field) -> ChunkedArray | Array:
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    try:
        return cast("ChunkedArray", table.column(field.name).cast(field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StateSchemaChanged(
            f"stored column {field.name!r} of type {table.column(field.name).type} does not fit {field.type}",
            hint="declare the type the state was written with, or restore from an epoch that has the new one",
        ) from error
