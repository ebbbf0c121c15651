"""A Delta table of a sink: the staged rows of committed epochs.

Rows staged outside of the store (a Delta sink stages into its own table's folder) are not shown here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from deltalake.transaction import AddAction

from spark_ckpt.epochs.records import Manifest, StagedFileRecord
from spark_ckpt.epochs.retention import incarnation_of
from spark_ckpt.errors import CkptError, EpochNotFound
from spark_ckpt.store import delta_log
from spark_ckpt.store.data_table import DataTable, Seen, epoch_of, txn_version
from spark_ckpt.store.delta_log import Actions
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.location import Location
from spark_ckpt.store.schemas import committed_schema

_COLUMNS = "columns.json"


class StagedTable:
    """`<store>/edges/<sink>`. Tasks write into `location`; a file counts once a manifest names it."""

    def __init__(self, location: Location, sink: str, log: EpochLog) -> None:
        self.location = location
        self.sink = sink
        self._log = log
        self.table = DataTable(location, f"spark_ckpt/edge/{sink}", f"spark_ckpt: rows of sink {sink}")

    def declare(self, columns: str) -> None:
        """Publish the sink as an edge: other jobs read its rows here. `columns`: Spark's JSON of their schema."""
        # Every start declares the columns, mostly the same ones.
        if self.declared() != columns:
            self.location.write_bytes(_COLUMNS, columns.encode())

    def declared(self) -> str | None:
        """Return the columns of the edge; None for a sink that is no edge."""
        try:
            return self.location.read_bytes(_COLUMNS).decode()
        except FileNotFoundError:
            return None

    def staged(self, manifest: Manifest) -> tuple[StagedFileRecord, ...]:
        """Return the epoch's files in the store; none if the sink stages elsewhere."""
        output = manifest.outputs.get(self.sink)
        return output.files if output is not None and not output.root else ()

    def materialize(self, manifest: Manifest, incarnation: int) -> None:
        """Make the table show the rows of this epoch, and of earlier epochs of its branch that it lacks. Idempotent.

        A table with a damaged log is re-created with the rows of the kept epochs.
        """
        self.table.redo(lambda: self._materialize(manifest, incarnation), self._log, incarnation)

    def _materialize(self, manifest: Manifest, incarnation: int) -> None:
        key = txn_version(incarnation, manifest.epoch)
        materialized = self.table.newest_txn_version()
        # A late call of a replaced driver, or a repeated one.
        if materialized >= key:
            return
        files = self._due(manifest, 0 if materialized < 0 else epoch_of(materialized))
        if files:
            self._ensure(files[-1], manifest.epoch)
        elif materialized < 0:
            return

        def change(seen: Seen) -> Actions:
            return [_add(file) for file in files if file.path not in seen.files]

        self.table.commit(key, change, {"ckptEpoch": str(manifest.epoch), "ckptIncarnation": str(incarnation)})

    def read(self, epoch: int) -> pa.Table:
        """Return the epoch's rows in publishing order. Raises `EpochNotFound`, `EpochDamaged`."""
        staged = self.staged(self._log.manifest(epoch))
        tables = [self.location.read_committed(file, file.rows, epoch=epoch, sink=self.sink) for file in staged]
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def forget(self, kept: Sequence[Manifest]) -> list[str]:
        """Remove the rows of all but the `kept` epochs from the table. Return the removed paths.

        The caller must read `kept` after the table: every live file then belongs to a committed epoch.
        """
        wanted = {file.path for manifest in kept for file in self.staged(manifest)}
        left: list[str] = []

        def change(seen: Seen) -> Actions | None:
            gone = {path: size for path, size in seen.files.items() if path not in wanted}
            left[:] = list(gone)
            # No data change: published rows leave the table, they are not deleted for its stream readers.
            return [delta_log.removed(path, size, data_change=False) for path, size in gone.items()] or None

        self.table.commit(None, change, {})
        return left

    def _due(self, manifest: Manifest, materialized_epoch: int) -> list[StagedFileRecord]:
        older = [
            brief.epoch
            for brief in self._log.known().lineage(manifest.epoch)
            if materialized_epoch < brief.epoch < manifest.epoch
        ]
        manifests = self._kept(older[::-1]) if older else []  # a lineage runs from the newest epoch down
        # After a restore the table may show a later epoch. Its version moves on, but no rows are new.
        due = [*manifests, manifest] if manifest.epoch > materialized_epoch else manifests
        return [file for each in due for file in self.staged(each)]

    def _kept(self, epochs: Sequence[int]) -> list[Manifest]:
        found = self._log.readable(epochs).values()
        for each in found:
            # Retention in another process may have dropped epochs since the state was read: their rows need not be shown.
            if isinstance(each, CkptError) and not isinstance(each, EpochNotFound):
                raise each
        return [each for each in found if isinstance(each, Manifest)]

    def _ensure(self, newest: StagedFileRecord, epoch: int) -> None:
        schema = self.table.columns_of(
            incarnation_of(newest.path, f"ckpt-{self.sink}"),
            lambda: committed_schema(self.location, newest, epoch=epoch, sink=self.sink),
        )
        # Partition columns are in no file: the manifest has their values.
        columns = list(newest.partition_values)
        for name in columns:
            schema = schema.append(pa.field(name, pa.string()))
        # A redeployed job may send other columns. Older epochs can still be read by `read`.
        self.table.ensure(schema, columns, replace=True)


def _add(file: StagedFileRecord) -> AddAction:
    return delta_log.added(file.path, file.size_bytes, file.stats, data_change=True, partition=file.partition_values)
