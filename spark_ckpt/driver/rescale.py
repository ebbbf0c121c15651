"""Another number of key groups for an operator: its state is dealt out anew, as an epoch of its own between two runs.

A key's group is its hash modulo the number of groups, so a group's rows come from the old groups that are equal to it modulo the
greatest common divisor of both numbers. Such a class of groups is read, dealt out and written before the next: from 16 to 32
groups, one old group is in memory at a time. Every file is verified as it is read, and the state before stays in its epochs.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_ckpt.errors import ConfigInvalid, EpochNotFound
from spark_ckpt.store.ddl import arrow_schema
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.records import Manifest, OperatorSnapshot, StateFile
from spark_ckpt.store.restore import LATEST, RecoveryPoint
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.rows import KEY_HASH, StateSchema, numbers, rows_at
from spark_ckpt.tasks.state.key_index import KeyTable
from spark_ckpt.tasks.state.levels import from_stored, key_table, merged, to_stored

_LEASE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Rescaled:
    """What was done. `rows`: live keys."""

    operator: str
    before: int
    after: int
    epoch: int
    rows: int
    size_bytes: int


def rescale(store: Store, operator: str, key_groups: int) -> Rescaled:
    """Deal the operator's state out to `key_groups` groups, as a new epoch behind the newest one.

    Cursors, edges and other operators stay as they are; there is nothing to publish. Stopped in between it has done
    nothing. Raises `StoreInUse` while a driver runs, `Fenced` if one took over meanwhile, `ConfigInvalid`, `EpochNotFound`,
    `EpochDamaged`.
    """
    _check(store, operator, key_groups)
    point = store.log.begin_incarnation(current_holder("rescale"), LATEST, _LEASE_MS)
    try:
        snapshot = point.manifest.operators[operator]
        files = tuple(_Dealing(store, point, snapshot, key_groups).files())
        dealt = snapshot.model_copy(update={"key_groups": key_groups, "files": files})
        manifest = _behind(point, dealt)
        store.log.commit_epoch(manifest)
        store.settle(manifest)
    finally:
        store.log.release(point.incarnation)
    sizes = sum(file.rows for file in files), sum(file.size_bytes for file in files)
    return Rescaled(operator, snapshot.key_groups, key_groups, manifest.epoch, *sizes)


def _check(store: Store, operator: str, key_groups: int) -> None:
    tail = store.log.tail()
    if not tail.latest:
        raise EpochNotFound("the job has no epoch yet", job=tail.job, hint="set key_groups where the job is made")
    snapshots = store.log.manifest(tail.latest).operators
    if operator not in snapshots:
        known = ", ".join(sorted(snapshots)) or "none"
        raise ConfigInvalid(f"epoch {tail.latest} has no operator '{operator}'", hint=f"operators: {known}")
    if snapshots[operator].key_groups == key_groups:
        raise ConfigInvalid(f"operator '{operator}' has {key_groups} key groups already")


def _behind(point: RecoveryPoint, dealt: OperatorSnapshot) -> Manifest:
    base = point.manifest
    changes = {
        "epoch": point.last + 1,
        "incarnation": point.incarnation,
        "attempt": uuid.uuid4().hex,
        "base": base.epoch,
        "previous": point.last,
        "created_ms": time.time_ns() // 1_000_000,
        "duration_ms": 0,
        "reason": "rescaled",
        "operators": {**base.operators, dealt.operator: dealt},
        "outputs": {},
        "rows_in": 0,
        "rows_out": 0,
        "rejected": {},
        "acks": (),
        "timings": None,
    }
    return base.model_copy(update=changes)


class _Dealing:
    def __init__(self, store: Store, point: RecoveryPoint, snapshot: OperatorSnapshot, key_groups: int) -> None:
        self._store = store
        self._point = point
        self._snapshot = snapshot
        self._key_groups = key_groups
        self._schema = StateSchema(arrow_schema(snapshot.key_schema), arrow_schema(snapshot.state_schema))
        self._location = store.state(snapshot.operator).location

    def files(self) -> Iterator[StateFile]:
        """One full file per new group that has keys, written and durable."""
        classes = math.gcd(self._snapshot.key_groups, self._key_groups)
        for each in range(classes):
            olds = [self._group(number) for number in range(each, self._snapshot.key_groups, classes)]
            rows = merged(olds, self._schema, drop_deletes=True)
            groups = np.mod(numbers(rows.table, KEY_HASH), self._key_groups)
            for group in range(each, self._key_groups, classes):
                at = np.flatnonzero(groups == group)
                if len(at):
                    yield self._written(group, key_table(rows_at(rows.table, at), self._schema))
            self._store.log.renew(self._point.incarnation, _LEASE_MS)

    def _group(self, number: int) -> KeyTable:
        """An old group's live rows."""
        chain = [file for file in self._snapshot.files if file.key_group == number]
        tables = [from_stored(self._read(file), self._schema) for file in reversed(chain)]
        empty = key_table(self._schema.table.empty_table(), self._schema)
        return merged([*tables, empty], self._schema, drop_deletes=True)

    def _read(self, file: StateFile) -> pa.Table:
        return self._location.read_committed(file, file.rows, epoch=file.epoch, operator=self._snapshot.operator)

    def _written(self, group: int, rows: KeyTable) -> StateFile:
        epoch, incarnation = self._point.last + 1, self._point.incarnation
        path = f"i{incarnation}-e{epoch}-g{group}-{uuid.uuid4().hex}.parquet"
        table = to_stored(rows, self._schema, group, epoch)
        size_bytes, sha256 = self._location.write_table(path, table)
        return StateFile(
            path=path,
            size_bytes=size_bytes,
            rows=table.num_rows,
            key_group=group,
            epoch=epoch,
            incarnation=incarnation,
            kind="full",
            sha256=sha256,
        )
