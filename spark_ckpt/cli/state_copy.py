"""A copy of an operator's state as a Delta table of the user's, for one epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.place import check_table_path
from spark_ckpt.storage_errors import outage
from spark_ckpt.store.location import Location


def is_within(table: str, store: Location) -> bool:
    """Return True if the table's place is the store's folder or below it."""
    place = Location(table)
    # Resolved, since a link may lead into the store.
    if place.local is not None and store.local is not None:
        return place.local.resolve().is_relative_to(store.local.resolve())
    return f"{place.uri.rstrip('/')}/".startswith(f"{store.uri.rstrip('/')}/")  # `store-2` is not in `store`


@dataclass(frozen=True, slots=True)
class StateCopy:
    """Delta table with the state of an operator. `store`: the id of its store."""

    table: str
    operator: str
    store: str
    storage_options: Mapping[str, str]

    def write(self, rows: pa.Table | pa.RecordBatchReader, epoch: int) -> int:
        """Replace the table's rows in one commit; return the version. Raises `ConfigInvalid` for a table of anything else.

        The commit names the epoch, `ckpt_epoch` in its history.
        """
        check_table_path(self.table, "a table")
        ours, options = f"state of operator {self.operator} in store {self.store}", dict(self.storage_options) or None
        try:
            # The description marks a copy of this operator: only such a table may lose its rows.
            if DeltaTable.is_deltatable(self.table, options) and self._opened().metadata().description != ours:
                raise ConfigInvalid(
                    f"{self.table} has other rows than the {ours}, which a copy would replace",
                    hint="name a new table",
                )
            write_deltalake(
                self.table,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                description=ours,
                storage_options=options,
                commit_properties=CommitProperties(custom_metadata={"ckpt_epoch": str(epoch)}),
            )
            return int(self._opened().version())
        except (DeltaError, OSError) as error:
            raise outage(self.table, error) from error

    def _opened(self) -> DeltaTable:
        return DeltaTable(self.table, storage_options=dict(self.storage_options) or None)
