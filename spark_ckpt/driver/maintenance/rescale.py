"""Change an operator's number of key groups: repartition its state, as an epoch between two runs."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ckpt.driver.maintenance.dealing import LEASE_MS, Dealing, behind
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot
from spark_ckpt.epochs.restore import LATEST
from spark_ckpt.errors import ConfigInvalid, EpochNotFound
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.store import Store


@dataclass(frozen=True, slots=True)
class Rescaled:
    """Result of a repartition. `before`, `after`: number of key groups. `rows`: number of live keys."""

    operator: str
    before: int
    after: int
    epoch: int
    rows: int
    size_bytes: int


def rescale(store: Store, operator: str, key_groups: int) -> Rescaled:
    """Repartition the operator's state to `key_groups` groups, as a new epoch after the newest one.

    Cursors, edges and other operators stay as they are; nothing is published. An interrupted repartition changes
    nothing.

    Raises:
    - `StoreInUse` while a driver runs;
    - `Fenced` if a driver took over meanwhile;
    - `ConfigInvalid`, `EpochNotFound`, `EpochDamaged`.
    """
    _check(store, operator, key_groups)
    point = store.log.begin_incarnation(current_holder("rescale"), LATEST, LEASE_MS)
    try:
        # Of the epoch that the incarnation continues from: another driver may have committed one since the check.
        snapshot = _snapshot_in(point.manifest, operator, key_groups)
        state = store.state(operator).location
        files = tuple(Dealing(store.log, point, snapshot, state).files(key_groups, state))
        dealt = snapshot.model_copy(update={"key_groups": key_groups, "files": files})
        manifest = behind(point, dealt, "rescaled")
        store.log.commit_epoch(manifest)
        # After the commit, and repeatable: a command that is killed here leaves a table that the next incarnation updates.
        store.materialize(manifest)
    finally:
        # Also after an error: otherwise the job could not start for the minute of the lease.
        store.log.release(point.incarnation)
    sizes = sum(file.rows for file in files), sum(file.size_bytes for file in files)
    return Rescaled(operator, snapshot.key_groups, key_groups, manifest.epoch, *sizes)


def _check(store: Store, operator: str, key_groups: int) -> None:
    log_state = store.log.state()
    if not log_state.latest:
        raise EpochNotFound("the job has no epoch yet", job=log_state.job, hint="set key_groups where the job is made")
    _snapshot_in(store.log.manifest(log_state.latest), operator, key_groups)


def _snapshot_in(manifest: Manifest, operator: str, key_groups: int) -> OperatorSnapshot:
    snapshots = manifest.operators
    if operator not in snapshots:
        known = ", ".join(sorted(snapshots)) or "none"
        raise ConfigInvalid(f"epoch {manifest.epoch} has no operator '{operator}'", hint=f"operators: {known}")
    if snapshots[operator].key_groups == key_groups:
        raise ConfigInvalid(f"operator '{operator}' has {key_groups} key groups already")
    return snapshots[operator]
