"""Repartition an operator's state: to another operator, or to another number of key groups.

The group of a key is its hash modulo the number of groups. So a new group gets rows only from old groups that equal
it modulo both numbers' greatest common divisor. Each such class of groups is read, repartitioned and written before
the next one: from 16 to 32 groups, one old group is in memory at a time. Each file is verified as it is read. Rows are
merged by new group: an old one may have become larger than Arrow can merge. The old state stays in its epochs.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from spark_ckpt.driver.lease_keeper import LeaseKeeper
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, Reason, SparkState, StateFile, chain_of
from spark_ckpt.epochs.restore import LATEST
from spark_ckpt.errors import EpochNotFound
from spark_ckpt.store.ddl import arrow_schema
from spark_ckpt.store.holder import current_holder
from spark_ckpt.tasks.rows import StateSchema, rows_at
from spark_ckpt.tasks.state.levels import RangeRef, from_stored, range_ref, to_stored
from spark_ckpt.tasks.state.merging import key_table, merged
from spark_ckpt.tasks.state.shared_file import SharedFile

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ckpt.epochs.restore import RecoveryPoint
    from spark_ckpt.store.epoch_log import EpochLog
    from spark_ckpt.store.location import Location
    from spark_ckpt.store.store import Store
    from spark_ckpt.tasks.state.key_index import KeyTable

LEASE_MS = 60_000
"""Lease of the job in milliseconds while state is repartitioned."""

T = TypeVar("T")


@contextmanager
def changing(
    store: Store, command: str, checked: Callable[[Manifest], T], hint: str
) -> Iterator[tuple[RecoveryPoint, T]]:
    """Begin an incarnation that changes the newest epoch's state between two runs; renew its lease, and free it at the end.

    `checked`: raises if the command does not fit an epoch, and returns what is changed. Its answer is of the epoch that
    the incarnation continues from. `hint`: advice for a job without an epoch.

    Raises `StoreInUse` while a driver runs, `EpochNotFound`, and the errors of `checked`.
    """
    log_state = store.log.state()
    if not log_state.latest:
        raise EpochNotFound("the job has no epoch yet", job=log_state.job, hint=hint)
    # Before the incarnation: a refused command must not fence a driver, or leave a row in the log.
    checked(store.log.manifest(log_state.latest))
    point = store.log.begin_incarnation(current_holder(command), LATEST, LEASE_MS)
    # Large state takes longer than one lease. One that cannot be renewed is noticed by the commit, which needs it.
    keeper = LeaseKeeper(
        lambda: _renew(store.log, point), LEASE_MS, lambda: None, lambda error, missed_s: None, lambda error: None
    )
    keeper.start()
    try:
        # Again: a driver may have committed its last epoch since. The state before it would lack the rows in between.
        yield point, checked(point.manifest)
    finally:
        keeper.close()
        keeper.join()
        # Also after an error: otherwise the job could not start for the minute of the lease.
        store.log.release(point.incarnation)


def _renew(log: EpochLog, point: RecoveryPoint) -> None:
    log.renew(point.incarnation, LEASE_MS)


def behind(point: RecoveryPoint, dealt: OperatorSnapshot | SparkState, reason: Reason) -> Manifest:
    """Return the epoch after `point`: one operator's state, or that of Spark's own operators, is `dealt`. All else
    stays, and nothing is published.
    """
    base = point.manifest
    if isinstance(dealt, SparkState):
        states: dict[str, object] = {"spark_state": dealt}
    else:
        states = {"operators": {**base.operators, dealt.operator: dealt}}
    changes = states | {
        "epoch": point.last + 1,
        "incarnation": point.incarnation,
        "attempt": uuid.uuid4().hex,
        "base": base.epoch,
        # The highest number ever committed, also on a branch that a restore left.
        "previous": point.last,
        "created_ms": time.time_ns() // 1_000_000,
        "duration_ms": 0,
        "reason": reason,
        "outputs": {},
        "rows_before": base.rows_so_far,  # as of any epoch after the base
        "rows_in": 0,
        "rows_out": 0,
        "rejected": {},
        # The manifest of the base has carried them already.
        "acks": (),
        "timings": None,
    }
    return base.model_copy(update=changes)


class Dealing:
    """State of a snapshot, to be repartitioned for the epoch after `point`.

    `location`: place of the snapshot's files.
    """

    def __init__(self, point: RecoveryPoint, snapshot: OperatorSnapshot, location: Location) -> None:
        self._point = point
        self._snapshot = snapshot
        self._schema = StateSchema(arrow_schema(snapshot.key_schema), arrow_schema(snapshot.state_schema))
        self._location = location

    def files(self, key_groups: int, target: Location) -> Iterator[StateFile]:
        """Write the new groups with keys to `target`, a full file per class, and return the files; each is durable when
        it is returned.
        """
        before, epoch = self._snapshot.key_groups, self._point.last + 1
        classes = math.gcd(before, key_groups)
        for each in range(classes):
            dealt: dict[int, list[KeyTable]] = {}
            # No two old groups share a key, so that only the order of the files of one matters.
            for old in range(each, before, classes):
                for part in self._parts(old):
                    self._deal(part, key_groups, dealt)
            file: SharedFile | None = None
            for group in sorted(dealt):
                # The new file is the oldest of its chain, so no deleted key can appear again.
                rows = merged(dealt.pop(group), self._schema, drop_deletes=True)
                if len(rows):
                    file = file or SharedFile(target, self._point.incarnation, epoch, each, "full")
                    file.add(group, to_stored(rows, self._schema, group, epoch))
            if file is not None:
                yield file.finish()

    def _parts(self, number: int) -> Iterator[KeyTable]:
        """Yield the rows of an old group's files, newest first."""
        for file in reversed(chain_of(self._snapshot.files, number)):
            yield from_stored(self._read(range_ref(file, number)), self._schema)

    def _read(self, part: RangeRef) -> pa.Table:
        columns = self._schema.read.names
        return self._location.read_range(part, part.rows, columns, epoch=part.epoch, operator=self._snapshot.operator)

    def _deal(self, part: KeyTable, key_groups: int, dealt: dict[int, list[KeyTable]]) -> None:
        """Append the rows of each new group. The hash is in the file, so the keys need not be hashed again."""
        groups = np.mod(part.hashes, key_groups)
        # Stable: the rows of a group stay sorted by hash.
        order = np.argsort(groups, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(part) else ():
            own = part if len(rows) == len(part) else key_table(rows_at(part.table, rows), self._schema)
            dealt.setdefault(int(groups[rows[0]]), []).append(own)
