"""The segments of an edge, with a Delta table of the rows that were in flight at the newest epoch.

The table is derived from the manifests, like every table of the store: a damaged log is re-created.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from deltalake.transaction import AddAction

from spark_ckpt.epochs.records import Manifest, StagedFileRecord
from spark_ckpt.epochs.retention import incarnation_of
from spark_ckpt.store import delta_log
from spark_ckpt.store.data_table import DataTable, Seen, txn_version
from spark_ckpt.store.delta_log import Actions
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.location import Location
from spark_ckpt.store.schemas import committed_schema, in_columns_of


class InFlight:
    """`<store>/inflight/<edge>`. Tasks write segments into `location`. Those that a manifest names belong to an epoch."""

    def __init__(self, location: Location, edge: str, log: EpochLog) -> None:
        self.location = location
        self.edge = edge
        self._log = log
        self.table = DataTable(location, f"spark_ckpt/inflight/{edge}", f"spark_ckpt: rows in flight on edge {edge}")

    def read(self, epoch: int) -> pa.Table:
        """Return the rows in flight at an epoch, oldest first, in the columns of the newest segment.

        Raises `EpochNotFound`, `EpochDamaged`.
        """
        files = self._files(self._log.manifest(epoch))
        tables = [self.location.read_committed(file, file.rows, epoch=epoch, edge=self.edge) for file in files]
        return pa.concat_tables(in_columns_of(each, tables[-1].schema) for each in tables) if tables else pa.table({})

    def materialize(self, manifest: Manifest, incarnation: int) -> None:
        """Make the table show the rows in flight at this epoch. Idempotent. A table with a damaged log is re-created."""
        self.table.redo(lambda: self._materialize(manifest, incarnation), self._log, incarnation)

    def remove(self, paths: Iterable[str]) -> None:
        """Delete segments that no epoch names. Missing files are ignored."""
        self.location.delete(paths)

    def _materialize(self, manifest: Manifest, incarnation: int) -> None:
        key = txn_version(incarnation, manifest.epoch)
        materialized = self.table.newest_txn_version()
        # A late call of a replaced driver, or a repeated one.
        if materialized >= key:
            return
        files = self._files(manifest)
        if files:  # the newest segment's columns hold the rows of every older one
            written_by = incarnation_of(files[-1].path, f"ckpt-{self.edge}"), manifest.edges[self.edge].row_schema
            schema = self.table.columns_of(
                written_by,
                lambda: committed_schema(self.location, files[-1], epoch=manifest.epoch, edge=self.edge),
            )
            self.table.ensure(schema, replace=True)
        # There is no table, and without rows in flight none is needed.
        elif materialized < 0:
            return

        def change(seen: Seen) -> Actions:
            live = seen.files
            new = {file.path: file for file in files}
            gone = [delta_log.removed(path, live[path], data_change=True) for path in live.keys() - new.keys()]
            return [*gone, *(_add(new[path]) for path in new if path not in live)]

        self.table.commit(key, change, {"ckptEpoch": str(manifest.epoch), "ckptIncarnation": str(incarnation)})

    def _files(self, manifest: Manifest) -> tuple[StagedFileRecord, ...]:
        cut = manifest.edges.get(self.edge)
        return cut.files if cut else ()


def _add(file: StagedFileRecord) -> AddAction:
    return delta_log.added(file.path, file.size_bytes, file.stats, data_change=True)
