"""Change an operator's number of key groups: repartition its state, as an epoch between two runs."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ckpt.driver.maintenance.dealing import Dealing, behind, changing
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot
from spark_ckpt.errors import ConfigInvalid
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
    hint = "set key_groups where the job is made"
    with changing(store, "rescale", lambda manifest: _snapshot_in(manifest, operator, key_groups), hint) as (
        point,
        snapshot,
    ):
        state = store.state(operator).location
        files = tuple(Dealing(point, snapshot, state).files(key_groups, state))
        dealt = snapshot.model_copy(update={"key_groups": key_groups, "files": files})
        manifest = behind(point, dealt, "rescaled")
        store.log.commit_epoch(manifest)
        # After the commit, and repeatable: a command that is killed here leaves a table that the next incarnation updates.
        store.materialize(manifest)
    sizes = sum(file.rows for file in files), sum(file.size_bytes for file in files)
    return Rescaled(operator, snapshot.key_groups, key_groups, manifest.epoch, *sizes)


def _snapshot_in(manifest: Manifest, operator: str, key_groups: int) -> OperatorSnapshot:
    snapshots = manifest.operators
    if operator not in snapshots:
        known = ", ".join(sorted(snapshots)) or "none"
        raise ConfigInvalid(f"epoch {manifest.epoch} has no operator '{operator}'", hint=f"operators: {known}")
    if snapshots[operator].key_groups == key_groups:
        raise ConfigInvalid(f"operator '{operator}' has {key_groups} key groups already")
    return snapshots[operator]
