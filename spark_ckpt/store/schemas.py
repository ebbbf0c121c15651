"""The columns of Parquet files, without their rows."""

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
