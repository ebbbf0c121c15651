"""Columns of Parquet files: read them without the rows, and convert rows to wider ones."""

from __future__ import annotations

import pyarrow as pa

from spark_ckpt.content import Committed
from spark_ckpt.errors import EpochDamaged
from spark_ckpt.store.location import Location


def read_schema(location: Location, path: str) -> pa.Schema:
    """Return the columns of a Parquet file. Raises as `Location.read_table`."""
    # Without row groups only the footer is read.
    schema = location.read_table(path, row_groups=[]).schema
    return schema.remove_metadata()


def committed_schema(location: Location, file: Committed, **where: object) -> pa.Schema:
    """Return the columns of a committed file. The whole file is read only if its footer is unreadable.

    Raises as `Location.read_committed`.
    """
    try:
        return read_schema(location, file.path)
    except EpochDamaged as error:
        location.verify(
            file, **where, location=location.uri
        )  # raises a more precise error: expected and actual content
        error.context = {**where, **error.context}
        raise


def in_columns_of(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows in the columns of `schema`, whose types must hold their values. Missing columns become null."""
    columns = [
        table.column(each.name).cast(each.type)
        if each.name in table.column_names
        else pa.nulls(table.num_rows, each.type)
        for each in schema
    ]
    return pa.table(columns, schema=schema)
