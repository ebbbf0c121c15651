"""Rows of several inputs in one operator, told from each other: what each row carries, and how tasks take the inputs apart.

Every row has the operator's key columns, and one struct per input that holds the input's other columns: null in the rows of all
inputs but its own. Runs in tasks; `input_plan` makes such rows of streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.tasks.rows import RESERVED_PREFIX, Int64s, column

if TYPE_CHECKING:
    from spark_ckpt.tasks.rows import Array

TAG_PREFIX = f"{RESERVED_PREFIX}input_"
PRESENT = f"{RESERVED_PREFIX}present"
"""Stands in the struct of an input that has no column beside its key."""


@dataclass(frozen=True, slots=True)
class NamedInput:
    """One input. `schema`: its rows as its stream has them. `keys`: which column of the operator's key each of its key columns
    is, by its own name."""

    name: str
    schema: pa.Schema
    keys: Mapping[str, str]

    @property
    def tag(self) -> str:
        """The column of the operator's rows that holds what this input has beside its key."""
        return f"{TAG_PREFIX}{self.name}"

    def rows_of(self, rows: pa.Table) -> tuple[pa.Table, Int64s]:
        """The input's own rows, as its stream has them, and their positions among all."""
        own = column(rows, self.tag)
        at = np.flatnonzero(own.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64)
        own = own.take(pa.array(at))
        arrays = [self._values(rows, own, at, name) for name in self.schema.names]
        if not arrays:
            return self.schema.empty_table(), at
        return pa.table(arrays, schema=self.schema), at

    def _values(self, rows: pa.Table, own: Array, at: Int64s, name: str) -> Array:
        values = column(rows, self.keys[name]).take(pa.array(at)) if name in self.keys else pc.struct_field(own, name)
        wanted = self.schema.field(name).type
        return values if values.type.equals(wanted) else cast("Array", values.cast(wanted))
