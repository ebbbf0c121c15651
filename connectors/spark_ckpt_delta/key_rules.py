"""Finds rows whose key has a null, before the epoch of the rows is committed. It runs in tasks, where rows are staged.

SQL's `=` matches no null with another. A merge by `<=>` takes rows with null for one key, so all but one of an epoch
would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from spark_ckpt.connector import RefusedRow

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class NoNullKeys:
    """Refuses a null in any column of `keys`."""

    keys: tuple[str, ...]

    def __call__(self, rows: pa.Table) -> RefusedRow | None:
        """Return the first row with a null in its key, or None."""
        # -1 for a column without a null.
        firsts = {name: pc.index(pc.is_null(rows.column(name)), True).as_py() for name in self.keys}
        found = [(row, name) for name, row in firsts.items() if row >= 0]
        if not found:
            return None
        row, name = min(found, key=lambda each: each[0])
        return RefusedRow(
            row,
            name,
            "a merge would take all rows with null for one key, and keep one of them",
            'filter them, or give them to a sink without keys; DeltaSink(..., null_keys="match") merges them as one key',
        )
