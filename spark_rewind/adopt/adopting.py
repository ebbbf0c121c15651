"""`spark-ckpt adopt`: the checkpoint of a plain query becomes epoch 1 of a job in a new store.

The checkpoint stays unchanged. A store whose adoption did not commit its epoch is marked (`epochs.restore.ADOPTING`): no
job starts on it, and the adoption can run again.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, SparkState
from spark_ckpt.epochs.restore import ADOPTING, LATEST, RecoveryPoint
from spark_ckpt.errors import AdoptionRefused, CkptError, Fenced, RewindQueryRuns, StoreForeign, StoreOutage
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.store import proposals
from spark_ckpt.store.epoch_log import wall_ms
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.folders import delete_folder, folders
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.location import Location
from spark_ckpt.store.schemes import store_location
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.shuffle_keys import usual_key_groups
from spark_rewind.adopt.outboxes import given_back, is_outbox, published
from spark_rewind.adopt.plan import AdoptRequest, Taking, planned
from spark_rewind.applying import watch
from spark_rewind.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEASE_MS = 60_000
_STOP = "stop the query, then adopt; nothing was changed"
BEGINNING = 0

Sessions = Callable[[], "SparkSession"]
"""Factory of a session; called only if there is state to read."""


@dataclass(frozen=True, slots=True)
class TakenState:
    """State of one operator.

    - `keys`: number of keys. `timed`: number of keys with a timeout.
    - `key`, `state`: columns as DDL.
    - `size_bytes`: size of the written files, None before the adoption.
    """

    operator: str
    number: int
    key: str
    state: str
    keys: int
    timed: int
    key_groups: int
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Adoption:
    """Result of an adoption, or its preview. `epoch`: None in a dry run."""

    taking: Taking
    states: tuple[TakenState, ...]
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class AdoptTarget:
    """The job's store and the number of key groups of its operators. None: the default of a job on this machine."""

    store: str
    job: str
    storage_options: Mapping[str, str]
    key_groups: int | None = None


def would_adopt(request: AdoptRequest, target: AdoptTarget, sessions: Sessions) -> Adoption:
    """Return a preview of `adopt`. Writes nothing. Raises the errors of `adopt`."""
    outbox = _outbox_at(target)
    if outbox is not None:
        taking = _of_outbox(request, outbox)
    else:
        taking = planned(request)
        _refuse_used(target)
    if not taking.operators:
        return Adoption(taking, ())
    from spark_rewind.adopt import state  # imports PySpark, which nothing else needs

    spark = sessions()
    groups = _key_groups(target, spark)
    found = []
    with state.readable(taking, spark) as folder:
        for name, operator in taking.operators.items():
            there = state.found_state(spark, taking, folder, name)
            keys, timed = state.counted_keys(there, operator, taking.folder)
            found.append(TakenState(name, operator.number, there.key_ddl, there.state_ddl, keys, timed, groups))
    return Adoption(taking, tuple(found))


def adopt(
    request: AdoptRequest, target: AdoptTarget, sessions: Sessions, wait: Callable[[], None] = lambda: None
) -> Adoption:
    """Commit the epoch. A refusal changes nothing; the checkpoint never changes.

    `wait`: waits while the checkpoint is watched. A query with an outbox is fenced instead.

    Raises the errors of `plan.planned`, `AdoptionRefused`, `CheckpointDamaged`, `EnvironmentUnfit`, a `StoreOutage`.
    Raises `StoreForeign` for a store that is not empty, `StoreInUse` while another process adopts into it. The store of
    the query's own outbox is taken over as it is.
    """
    outbox = _outbox_at(target)
    if outbox is not None:
        return _adopt_outbox(request, target, sessions, outbox)
    taking = planned(request)
    _refuse_used(target)
    # Before the store is created: without Java nothing may be left behind.
    spark = sessions() if taking.operators else None
    _refuse_running(taking, wait)
    # Once more: another process may have adopted into it during the wait, and its job may have begun.
    before = _refuse_used(target)
    store = Store.open(target.store, target.job, target.storage_options)
    # Not "latest": a store that was begun is no start for a job, see ADOPTING.
    point = store.log.begin_incarnation(current_holder(ADOPTING), BEGINNING, _LEASE_MS)
    try:
        states, snapshots = _states(taking, target, store, point, spark)
        # the query may have run while its state was read
        _refuse_moved(taking)
        manifest = _manifest(taking, target.job, point, snapshots, _kept(taking, store, point.incarnation))
        # an epoch that cannot be read back must not be committed
        store.verify(manifest)
        _commit(store, manifest)
    except BaseException:
        undo(store, point, before)
        raise
    # The epoch counts from here on. The tables of the state are for SQL, and the job's start writes those that are missing.
    try:
        store.materialize(manifest)
    finally:
        store.log.release(point.incarnation)
    return Adoption(taking, states, manifest.epoch)


def _outbox_at(target: AdoptTarget) -> Store | None:
    """Return the store of an outbox at the target's place; None for another place."""
    valid_name("job", target.job)
    location = store_location(target.store, target.storage_options)
    if "epochs" not in location.entries():
        return None
    store = existing_store(target.store, target.storage_options)
    return store if is_outbox(store.log.state()) else None


def _of_outbox(request: AdoptRequest, store: Store) -> Taking:
    log_state = store.log.state()
    taking = planned(replace(request, outbox=log_state))
    note = f"name the sinks of the job as the outbox did, to continue their markers: {', '.join(log_state.sinks)}"
    return replace(taking, notes=(*taking.notes, note))


def _adopt_outbox(request: AdoptRequest, target: AdoptTarget, sessions: Sessions, store: Store) -> Adoption:
    """Adopt a query into the store of its outbox: the markers of the sinks stay valid for the job."""
    taking = _of_outbox(request, store)
    spark = sessions() if taking.operators else None
    # Before the owner changes back: another process may be adopting.
    proposals.refuse_if_held(store.log.state(), None, wall_ms())
    given_back(store)
    # The outbox's, to give the log back after a failure.
    name = store.log.state().job
    # It fences the query's driver, unless that holds a lease: then it is refused.
    point = store.log.begin_incarnation(current_holder(ADOPTING), LATEST, _LEASE_MS)
    try:
        states, snapshots = _states(taking, target, store, point, spark)
        _refuse_moved(taking)
        # Asked again under the lease: until it was acquired, the query's driver could commit.
        published(store.log.state(), read_checkpoint(taking.folder, taking.folder.name))
        manifest = _manifest(taking, target.job, point, snapshots, _kept(taking, store, point.incarnation))
        store.verify(manifest)
        # No driver begins between the two: not the query, whose store this was, and not the job, which has no epoch.
        store.log.change_owner(point.incarnation, target.job, "job")
        hit(Failpoint.ADOPTING)
        _commit(store, manifest)
    except BaseException as error:
        with suppress(CkptError, OSError):
            log_state = store.log.state()
            if log_state.incarnation == point.incarnation:
                # With the epoch in it the log is the job's: an outbox finds no batch at its end.
                if log_state.last == point.last:
                    store.log.change_owner(point.incarnation, name, "outbox")
                store.log.release(point.incarnation)
        if isinstance(error, Fenced):
            what = f"a driver of outbox '{name}' began while its query was adopted"
            raise AdoptionRefused(what, hint=_STOP) from error
        raise
    # Opened again: the other handle is of the outbox, whose name the log no longer has.
    job = existing_store(target.store, target.storage_options)
    try:
        job.materialize(manifest, point.incarnation)
    finally:
        store.log.release(point.incarnation)
    return Adoption(taking, states, manifest.epoch)


def _commit(store: Store, manifest: Manifest) -> None:
    """Commit the epoch. An outage whose commit is in the log is none. Raises as `EpochLog.commit_epoch`."""
    try:
        store.log.commit_epoch(manifest)
    except StoreOutage:
        # The answer of the store was lost, or the log could not be folded after the append.
        landed = store.log.state().by_id.get(manifest.epoch)
        if landed is None or landed.attempt != manifest.attempt:
            raise


def _states(
    taking: Taking, target: AdoptTarget, store: Store, point: RecoveryPoint, spark: SparkSession | None
) -> tuple[tuple[TakenState, ...], dict[str, OperatorSnapshot]]:
    if spark is None:
        return (), {}
    from spark_rewind.adopt import state  # imports PySpark, which nothing else needs

    groups = _key_groups(target, spark)
    states, snapshots = [], {}
    with state.readable(taking, spark) as folder:
        for name, operator in taking.operators.items():
            there = state.found_state(spark, taking, folder, name)
            where = (store.state(name).location, groups, point.last + 1, point.incarnation)
            done = state.written(there, operator, taking.folder, *where)
            # a long state must not outlive the lease between two operators
            store.log.renew(point.incarnation, _LEASE_MS)
            rows = sum(file.rows for file in done.snapshot.files)
            size = sum(file.size_bytes for file in done.snapshot.files)
            states.append(
                TakenState(name, operator.number, there.key_ddl, there.state_ddl, rows, done.timed, groups, size)
            )
            snapshots[name] = done.snapshot
    return tuple(states), snapshots


def _kept(taking: Taking, store: Store, incarnation: int) -> SparkState | None:
    """Return the state of Spark's own operators; None for a job that has none of them."""
    if not taking.spark_operators:
        return None
    from spark_rewind.adopt.sparks_state import spark_state  # imports PySpark, which nothing else needs

    return spark_state(taking, store, incarnation)


def _manifest(
    taking: Taking,
    job: str,
    point: RecoveryPoint,
    snapshots: Mapping[str, OperatorSnapshot],
    kept: SparkState | None,
) -> Manifest:
    stands = taking.sources
    return Manifest(
        job=job,
        epoch=point.last + 1,
        incarnation=point.incarnation,
        attempt=uuid.uuid4().hex,
        base=point.manifest.epoch,
        previous=point.last,
        created_ms=time.time_ns() // 1_000_000,
        reason="adopt",
        cursors=json.loads(json.dumps({name: stand.cursor for name, stand in stands.items()})),
        watermark_ms=taking.watermark_ms,
        late_watermark_ms=taking.late_ms,
        operators=dict(snapshots),
        spark_state=kept,
        source_identities={name: dict(stand.identity) for name, stand in stands.items()},
        # Both of the outbox that the job continues; empty in a new store.
        sink_identities=point.manifest.sink_identities,
        rows_before=point.manifest.rows_so_far,
    )


def _key_groups(target: AdoptTarget, spark: SparkSession) -> int:
    return target.key_groups or usual_key_groups(spark.sparkContext.defaultParallelism)


@dataclass(frozen=True, slots=True)
class _Before:
    """The store's place before an adoption. `empty`: no entries; `missing`: no folder on this machine."""

    empty: bool
    missing: bool = False


def _refuse_used(target: AdoptTarget) -> _Before:
    """Return the state of the store's place. Raise `StoreForeign` for a store with other content."""
    valid_name("job", target.job)
    location = store_location(target.store, target.storage_options)
    there = location.entries()
    if not there:
        return _Before(empty=True, missing=location.local is not None and not location.local.exists())
    log_state = Store.open(target.store, target.job, target.storage_options).log.state() if "epochs" in there else None
    if log_state is None or not _was_begun(log_state):
        newest = log_state.by_id.get(log_state.latest) if log_state is not None else None
        done = newest is not None and newest.reason == "adopt"
        raise StoreForeign(
            f"a query was adopted into this store already, as epoch {newest.epoch}"
            if newest is not None and done
            else "the store is not empty: a query can be adopted into a new store only",
            store=location.uri,
            found=", ".join(there[:5]),
            hint=f"start job '{target.job}' with this store; nothing was changed"
            if done
            else "give a folder that is empty, or not there yet; nothing was changed",
        )
    return _Before(empty=False)


def _was_begun(log_state: LogState) -> bool:
    """Return true for a store that has only an adoption without an epoch."""
    return log_state.last == 0 and (log_state.holder is None or log_state.holder.name == ADOPTING)


def _refuse_moved(taking: Taking) -> None:
    """Raise `AdoptionRefused` if the query's checkpoint has changed meanwhile: the query runs."""
    now = read_checkpoint(taking.folder, taking.folder.name)
    if now.digest != taking.digest:
        raise AdoptionRefused(
            f"the query of {taking.folder} runs: its checkpoint has changed while it was read",
            hint=_STOP,
        )


def _refuse_running(taking: Taking, wait: Callable[[], None]) -> None:
    """Raise `AdoptionRefused` if a file of the checkpoint changes during the wait. An idle query goes unnoticed."""
    try:
        watch({f"the query of {taking.folder}": [taking.folder]}, wait, 0)
    except RewindQueryRuns as error:
        raise AdoptionRefused(error.what, hint=_STOP) from error


def undo(store: Store, point: RecoveryPoint, before: _Before) -> None:
    """Restore the store's place. Leftovers of a failed clean-up are harmless: no job starts on them."""
    with suppress(CkptError, OSError):
        log_state = store.log.state()
        # only this adoption's own leftovers: another one may have begun since
        if before.empty and log_state.last == BEGINNING and log_state.incarnation == point.incarnation:
            _emptied(store.location, before.missing)
        else:
            store.log.release(point.incarnation)


def _emptied(location: Location, wholly: bool) -> None:
    for name in folders(location):
        delete_folder(location, name)
    if wholly and location.local is not None:
        location.local.rmdir()
