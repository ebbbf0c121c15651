"""The state of an operator as a Delta table, whose live files are exactly those of the newest materialized epoch.

Columns: those of the key and the state, `ckpt_key_group` int, `ckpt_key_hash` long, `ckpt_epoch` long, `ckpt_op` string
("put" or "delete"), `ckpt_timeout_ms` long. The files are a changelog with a base: the state is the newest row of every
key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction
from pydantic_core import to_json

from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, StateFile
from spark_ckpt.errors import EpochDamaged, EpochNotFound
from spark_ckpt.store import delta_log
from spark_ckpt.store.data_table import DataTable, Seen, epoch_of, txn_version
from spark_ckpt.store.ddl import arrow_schema, column_names
from spark_ckpt.store.delta_log import Actions
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.location import Location
from spark_ckpt.store.schemas import committed_schema

OP = "ckpt_op"
DELETE = "delete"
_ORDER = "ckpt_order"
_OURS = pa.schema(
    [
        ("ckpt_key_group", pa.int32()),
        ("ckpt_key_hash", pa.int64()),
        ("ckpt_epoch", pa.int64()),
        (OP, pa.string()),
        ("ckpt_timeout_ms", pa.int64()),
    ]
)


class StateTable:
    """`<store>/state/<operator>`. Readers need no JVM; Spark reads the same folder as Delta."""

    def __init__(self, location: Location, operator: str, log: EpochLog) -> None:
        self.location = location
        self.operator = operator
        self._log = log
        self.table = DataTable(location, f"spark_ckpt/state/{operator}", f"spark_ckpt: state of operator {operator}")

    def materialize(self, manifest: Manifest, incarnation: int) -> None:
        """Make the table's live files those of the manifest.

        Idempotent; a late call of a replaced driver changes nothing.

        A table with a damaged log is re-created, with a version for every kept epoch.
        """
        self.table.redo(
            lambda: self._materialize(manifest, incarnation),
            self._log,
            incarnation,
            lambda: self._rebuild(manifest, incarnation),
        )

    def _rebuild(self, manifest: Manifest, incarnation: int) -> None:
        for brief in self._log.known().epochs:
            # Transaction versions only grow along a table, so later epochs cannot come before this one.
            if txn_version(brief.incarnation, brief.epoch) < txn_version(incarnation, manifest.epoch):
                # An old epoch with a missing file gets no version, nor does one that retention has dropped meanwhile.
                with contextlib.suppress(EpochDamaged, EpochNotFound):
                    self._materialize(self._log.manifest(brief.epoch), brief.incarnation)
        self._materialize(manifest, incarnation)

    def _materialize(self, manifest: Manifest, incarnation: int) -> None:
        snapshot = manifest.operators.get(self.operator)
        wanted = {file.path: file for file in snapshot.files} if snapshot else {}
        newest = max(wanted.values(), key=lambda file: file.epoch, default=None)
        key = txn_version(incarnation, manifest.epoch)
        # A late call of a replaced driver, or a repeated one.
        if self.table.newest_txn_version() >= key:
            return
        anew = None
        if snapshot is not None and newest is not None:
            file, declared = newest, (newest.incarnation, snapshot.key_schema, snapshot.state_schema)
            schema = self.table.columns_of(
                declared, lambda: committed_schema(self.location, file, epoch=file.epoch, operator=self.operator)
            )
            if self._has_other_types(schema, wanted):
                # Widened types: the table starts over with the new files in the same commit. Readers never see it
                # empty.
                anew = schema
            else:
                self.table.ensure(schema)

        def change(seen: Seen) -> Actions:
            live = seen.files
            # Files superseded by a newer full file remove no row from the state; a restore does.
            rollback = bool(wanted.keys() < live.keys()) or (seen.key >= 0 and epoch_of(seen.key) > manifest.epoch)
            adds = [_add(file) for path, file in wanted.items() if path not in live]
            gone = [
                delta_log.removed(path, size, data_change=rollback) for path, size in live.items() if path not in wanted
            ]
            return [*adds, *gone]

        facts = {"ckptEpoch": str(manifest.epoch), "ckptIncarnation": str(incarnation)}
        self.table.commit(key, change, facts, anew)

    def _has_other_types(self, schema: pa.Schema, wanted: Iterable[str]) -> bool:
        """Return True if the epoch's files have other column types than the table, which shows none of these files yet."""
        return bool(self.table.changed_columns(schema)) and not self.table.live().keys() & set(wanted)

    def version(self, epoch: int) -> int:
        """Return the table version whose live files are the epoch's, for Spark's `versionAsOf`.

        Raises `EpochNotFound` if the epoch is not in the log, was never materialized, or its version was cleaned up.
        `read` needs no version.
        """
        manifest = self._log.manifest(epoch)
        found = self.table.version_of(txn_version(manifest.incarnation, epoch), epoch)
        if found is None:
            raise EpochNotFound(
                f"epoch {epoch} has no version in the state table of '{self.operator}'",
                hint="read it with spark_ckpt.read_state or `spark-ckpt state`, which need no version",
                table=self.location.uri,
            )
        return found

    def versions(self, manifests: Iterable[Manifest]) -> list[int]:
        """Return the versions of those of the epochs that have one."""
        keys = ((txn_version(each.incarnation, each.epoch), each.epoch) for each in manifests)
        return [version for version in self.table.versions_of(keys) if version is not None]

    def read(self, epoch: int) -> pa.Table:
        """Return the state at an epoch: key, state and `ckpt_` columns, the newest row of every key, without deleted
        keys.

        Raises `EpochNotFound`, `EpochDamaged`.
        """
        snapshot = self._log.manifest(epoch).operators.get(self.operator)
        if snapshot is None:
            raise EpochNotFound(f"epoch {epoch} has no state of operator '{self.operator}'")
        try:
            return newest_rows([self._read(file) for file in snapshot.files], snapshot)
        except EpochDamaged:
            self._log.manifest(epoch)  # raises EpochNotFound if retention has dropped the epoch meanwhile
            raise

    def _read(self, file: StateFile) -> pa.Table:
        return self.location.read_committed(file, file.rows, epoch=file.epoch, operator=self.operator)


def newest_rows(oldest_first: list[pa.Table], snapshot: OperatorSnapshot) -> pa.Table:
    """Return the newest row of every key, without deleted keys. The files are in the order of the manifest."""
    if not oldest_first:
        return no_rows(snapshot)
    # Newest file first, so that the lowest position of a key is its newest row.
    rows = pa.concat_tables(reversed(oldest_first), promote_options="default")
    order = pa.array(range(rows.num_rows), pa.int64())
    keys = column_names(snapshot.key_schema)
    newest = rows.select(keys).append_column(_ORDER, order).group_by(keys).aggregate([(_ORDER, "min")])
    first = np.zeros(rows.num_rows, np.bool_)
    first[newest.column(f"{_ORDER}_min").to_numpy()] = True
    # A filter works file by file: `take` would make one array of each column, which holds 2 GiB of text at most.
    return rows.filter(pc.and_(pa.array(first), pc.not_equal(rows.column(OP), DELETE)))


def no_rows(snapshot: OperatorSnapshot) -> pa.Table:
    """Return an empty table with the columns of the operator's state."""
    schemas = (arrow_schema(snapshot.key_schema), arrow_schema(snapshot.state_schema), _OURS)
    return pa.schema([field for schema in schemas for field in schema]).empty_table()


def _add(file: StateFile) -> AddAction:
    groups = [each.key_group for each in file.ranges if each.rows]
    # By these bounds readers skip files; a file without rows has none.
    least, most = ({"ckpt_key_group": of(groups), "ckpt_epoch": file.epoch} if groups else {} for of in (min, max))
    stats = {"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": dict.fromkeys(least, 0)}
    return delta_log.added(file.path, file.size_bytes, to_json(stats).decode(), data_change=True)
