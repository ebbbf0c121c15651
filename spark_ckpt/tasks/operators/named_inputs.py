"""Rows of several inputs in one operator: their form, and the code with which tasks separate the inputs.

Every row has the operator's key columns and one struct per input. The struct holds the input's other columns; it is
null in the rows of all other inputs. This module runs in tasks; `input_plan` makes such rows from streams.
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
"""Field in the struct of an input that has key columns only."""


@dataclass(frozen=True, slots=True)
class NamedInput:
    """One input.

    - `schema`: its rows in its stream's form.
    - `keys`: for each of its key columns, by its own name, the operator's key column.
    """

    name: str
    schema: pa.Schema
    keys: Mapping[str, str]

    @property
    def tag(self) -> str:
        """Column of the operator's rows that holds this input's other columns."""
        return f"{TAG_PREFIX}{self.name}"

    def rows_of(self, rows: pa.Table) -> tuple[pa.Table, Int64s]:
        """Return the input's own rows, in its stream's form, and their positions among all rows."""
        own = column(rows, self.tag)
        # A row of nulls is a row of the input: only its struct tells whose row it is.
        at = np.flatnonzero(own.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64)
        own = own.take(pa.array(at))
        arrays = [self._values(rows, own, at, name) for name in self.schema.names]
        if not arrays:
            return self.schema.empty_table(), at
        return pa.table(arrays, schema=self.schema), at

    def _values(self, rows: pa.Table, own: Array, at: Int64s, name: str) -> Array:
        values = column(rows, self.keys[name]).take(pa.array(at)) if name in self.keys else field_of(own, name)
        wanted = self.schema.field(name).type
        return values if values.type.equals(wanted) else cast("Array", values.cast(wanted))


def field_of(structs: Array, name: str) -> Array:
    """Return a field of structs, null where a struct is null."""
    # By its place: Arrow reads a name that begins with a dot as a path, `.a` as the field `a`.
    return cast("Array", pc.struct_field(structs, [structs.type.get_field_index(name)]))
