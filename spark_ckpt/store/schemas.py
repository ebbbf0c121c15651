"""The columns of Parquet files: looked at without the rows, and rows in wider ones than they were written with."""

from __future__ import annotations

import pyarrow as pa

from spark_ckpt.content import Committed
from spark_ckpt.errors import EpochDamaged
from spark_ckpt.store.location import Location


def read_schema(location: Location, path: str) -> pa.Schema:
    """The columns of a Parquet file. Raises as `Location.read_table`."""
    schema = location.read_table(path, row_groups=[]).schema
    return schema.remove_metadata()


def committed_schema(location: Location, file: Committed, **where: object) -> pa.Schema:
    """The columns of a file that a decision refers to: all of it is read only if its footer cannot be. Raises as
    `Location.read_committed`.
    """
    try:
        return read_schema(location, file.path)
    except EpochDamaged as error:
        location.verify(file, **where, location=location.uri)  # says what was expected and what is there
        error.context = {**where, **error.context}
        raise


def in_columns_of(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in the columns of `schema`, whose types hold their values; null in columns that they lack."""
    columns = [
        table.column(each.name).cast(each.type)
        if each.name in table.column_names
        else pa.nulls(table.num_rows, each.type)
        for each in schema
    ]
    return pa.table(columns, schema=schema)
