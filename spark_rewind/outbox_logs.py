"""Steps of a rewind in the log of an outbox: take its lease, continue from another epoch, release.

The lease is taken before the decision. From then on every driver of the query is fenced, and none begins: its start
raises `RewindUnderWay` (`epochs.restore.REWINDING`). The branch begins after the tables went back, so that log and
markers agree when the query starts. Each step is idempotent: a call after a crash finds the rows of an earlier one.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ckpt.epochs.log_state import At, LogState, folded, taken_back
from spark_ckpt.epochs.records import Holder, Manifest, Published, SinkAck, SparkBatch
from spark_ckpt.epochs.restore import LATEST, REWINDING, REWOUND, no_check, recovery_point
from spark_ckpt.errors import EpochDamaged, PublishConflict, RewindQueryRuns, RewindStale, RewindUnsupported, StoreInUse
from spark_ckpt.outbox.checkpoint import Checkpoint
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.holder import current_holder, provably_dead
from spark_ckpt.store.location import Location
from spark_ckpt.store.store import Store
from spark_rewind.durable import remove_tree, sync_tree, written
from spark_rewind.outboxes import opened
from spark_rewind.records import UNDO, OutboxChange
from spark_rewind.stages import KEEP, PLAN_AGAIN

_LEASE_MS = 60_000
_OTHER_TARGET = "bring back what is missing from a backup, or plan again with another target; nothing was changed"
EPOCH, BATCH = "ckpt_epoch", "ckpt_batch"
"""Columns that listed rows have in addition to those of their sink."""


def require_stopped(log_state: LogState, now_ms: int) -> None:
    """Raise `RewindQueryRuns` while the lease of an outbox runs and its driver is not known to be dead."""
    holder = log_state.holder
    if holder is None or log_state.is_free or log_state.lease_expires_ms <= now_ms or provably_dead(holder):
        return
    until = datetime.fromtimestamp(log_state.lease_expires_ms / 1000, UTC).strftime("%H:%M:%S UTC")
    raise RewindQueryRuns(
        f"outbox '{log_state.job}' has a driver: {holder}, whose lease runs until {until}",
        hint="stop the query and end its program, or call close() of its Outbox; then run the same command again. Nothing was "
        "changed",
    )


def check_unmoved(change: OutboxChange, identity: str) -> None:
    """Raise `RewindStale` if a driver has begun or committed since the plan."""
    log_state = opened(change.store).log.state()
    if not _is_taken(log_state, change, identity) and log_state.lease_token != change.token:
        raise RewindStale(f"outbox '{change.name}' has continued in the meantime", hint=PLAN_AGAIN)


def take(change: OutboxChange, identity: str) -> None:
    """Begin an incarnation that fences every driver, and keep its lease.

    Raises `RewindStale`, and `PublishConflict` or `EpochDamaged` if no branch can begin at the epoch of the change.
    """
    log = opened(change.store).log
    log_state = log.state()
    if _is_taken(log_state, change, identity):
        return
    # Now, since after the decision there would be no way but on: the same decision as that of `branch`, on the same state.
    acked = folded(log_state, [(At(0, 0), Published(incarnation=log_state.incarnation, acks=_acks(change)))])
    try:
        recovery_point(taken_back(acked, change.taken_back), change.base, log.manifest, log.verify)
    except (EpochDamaged, PublishConflict) as error:
        error.hint = KEEP if identity.endswith(UNDO) else _OTHER_TARGET
        raise
    try:
        # The token and no clock decides: a driver that renewed the lease since the check may have committed a batch.
        # The files of the newest epoch do not matter: a rewind may leave it because they are damaged.
        log.begin_incarnation(_holder(identity), LATEST, _LEASE_MS, ended=change.token, verify=no_check)
    except StoreInUse as error:
        raise RewindStale(f"outbox '{change.name}' has continued in the meantime", hint=PLAN_AGAIN) from error


def branch(change: OutboxChange, identity: str) -> None:
    """Make the log continue from the epoch of the change. It fences a driver that began all the same."""
    log = opened(change.store).log
    log_state = log.state()
    # `take` began this incarnation, and only a branch begins a later one under this name.
    done = _named(log_state, identity) and log_state.incarnation > change.incarnation
    if not done:
        # Before the branch: it computes from them which epochs its sinks still lack.
        if change.acked:
            log.record_acks(log_state.incarnation, _acks(change))
        token = log.state().lease_token
        log.begin_incarnation(
            _holder(identity), change.base, _LEASE_MS, ended=token, taken_back=dict(change.taken_back)
        )
    # Also for a branch that is there already: the command may have died between the two rows.
    _restate(log, change)


def only_prepared(log_state: LogState, incarnation: int, identity: str) -> bool:
    """Return true if nothing but earlier tries of this rewind began an incarnation after `incarnation`.

    Such a try ended before its decision, and left the branch as it was.
    """
    ours = f"{REWINDING}{identity} ("
    return all(each.holder.startswith(ours) for each in log_state.incarnations if each.incarnation > incarnation)


def release(change: OutboxChange, identity: str) -> None:
    """Release the lease: drivers may begin again."""
    log = opened(change.store).log
    log_state = log.state()
    if _named(log_state, identity):
        log.release(log_state.incarnation, REWOUND)


def moved_batch(change: OutboxChange, checkpoint: Path, batch: int) -> SparkBatch | None:
    """Return the identity that the batch of the base epoch has in a new checkpoint; None if it is unchanged.

    A checkpoint whose query reads tables that go back has other offsets. `batch`: newest one in it. Raises
    `RewindUnsupported` if the outbox began right after such a batch: no epoch can record it.
    """
    found, store = Checkpoint(Location(str(checkpoint))), opened(change.store)
    brief = store.log.state().by_id.get(change.base)
    base = brief.spark_batch if brief is not None else None
    if base is not None:
        now = found.batch(base.number)
        return None if now == base else now
    first = _first_before(store)
    if batch >= 0 and first and found.batch(batch).offsets != first:
        what = (
            f"{change.query} reads a table that goes back, and outbox '{change.name}' began right after batch {batch}"
        )
        raise RewindUnsupported(what, hint="plan again with a later target; nothing was changed")
    return None


def list_rows(change: OutboxChange, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Write the rows that sinks show, or may show, of the epochs that the branch leaves: a Parquet file per epoch.

    Return the folder of each sink, and a sentence about each damaged file, whose rows are not listed. The rows are as they
    were staged, with their epoch and batch as two more columns.
    """
    store, found, notes = opened(change.store), dict[str, str](), list[str]()
    # An earlier try that died may have listed the epochs of another branch.
    remove_tree(folder)
    gone = {each.name for each in change.sinks if each.table is not None}
    for left in change.left:
        manifest = store.log.manifest(left.epoch)
        for sink in (*left.shown, *left.maybe):
            if sink not in gone:
                target = folder / sink
                try:
                    _write_rows(store, manifest, sink, left.batch, target)
                # Not a refusal: to leave a damaged epoch, an outbox sends its user to a rewind.
                except EpochDamaged as error:
                    notes.append(
                        f"outbox {change.name}: rows of epoch {left.epoch} for sink {sink} are not listed: {error.what}"
                    )
                else:
                    found[sink] = str(target)
    if found:
        sync_tree(folder)
    return found, notes


def _write_rows(store: Store, manifest: Manifest, sink: str, batch: int, folder: Path) -> None:
    output = manifest.outputs[sink]
    place = store.staged(sink).location if not output.root else Location(output.root, store.location.storage_options)
    tables = [place.read_committed(file, file.rows, sink=sink, epoch=manifest.epoch) for file in output.files]
    whole = pa.concat_tables(tables, promote_options="permissive")
    whole = whole.append_column(EPOCH, pa.repeat(pa.scalar(manifest.epoch, pa.int64()), whole.num_rows))
    whole = whole.append_column(BATCH, pa.repeat(pa.scalar(batch, pa.int64()), whole.num_rows))
    target = folder / f"epoch-{manifest.epoch:08d}.parquet"
    with written(target):
        folder.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            pq.write_table(whole, file)
            file.flush()
            # After the decision nothing lists these rows again, and retention drops them from the store.
            os.fsync(file.fileno())


def _restate(log: EpochLog, change: OutboxChange) -> None:
    """Commit an epoch without rows for a batch whose offsets the rewind rewrote, so that the next batch continues it."""
    log_state = log.state()
    newest = log_state.by_id.get(log_state.latest)
    if change.moved is None or (newest is not None and newest.spark_batch == change.moved):
        return
    base = log.manifest(change.base)
    log.commit_epoch(
        Manifest(
            job=log_state.job,
            epoch=log_state.last + 1,
            incarnation=log_state.incarnation,
            attempt=uuid.uuid4().hex,
            base=base.epoch,
            previous=log_state.last,
            created_ms=time.time_ns() // 1_000_000,
            reason="batch",
            sink_identities=base.sink_identities,
            rows_before=base.rows_so_far,
            spark_batch=change.moved,
        )
    )


def _first_before(store: Store) -> str:
    """Return the digest of the offsets before the first batch that the outbox decided; empty if it had none."""
    log_state = store.log.state()
    first = min(
        (each for each in log_state.by_id.values() if each.spark_batch is not None), key=lambda each: each.epoch
    )
    return first.spark_batch.before if first.spark_batch is not None else ""


def _acks(change: OutboxChange) -> tuple[SinkAck, ...]:
    """Return what the sinks have again after an undo."""
    return tuple(SinkAck(sink=sink, epoch=epoch) for sink, epoch in change.acked.items())


def _is_taken(log_state: LogState, change: OutboxChange, identity: str) -> bool:
    return _named(log_state, identity) and log_state.incarnation >= change.incarnation and not log_state.is_free


def _named(log_state: LogState, identity: str) -> bool:
    return log_state.holder is not None and log_state.holder.name == f"{REWINDING}{identity}"


def _holder(identity: str) -> Holder:
    return current_holder(f"{REWINDING}{identity}")
