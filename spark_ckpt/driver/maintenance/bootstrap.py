"""State for a new operator of a job: copy another operator's state, from this store or another one, as a new epoch."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ckpt.driver.maintenance.dealing import Dealing, behind, changing
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.errors import ConfigInvalid, EpochDamaged
from spark_ckpt.store.state_rows import snapshot_of
from spark_ckpt.store.store import Store


@dataclass(frozen=True, slots=True)
class Origin:
    """State of an operator at an epoch of a store."""

    store: Store
    epoch: int
    operator: str


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """Result of a bootstrap. `rows`: number of live keys."""

    operator: str
    key_groups: int
    epoch: int
    rows: int
    size_bytes: int


def bootstrap(store: Store, operator: str, origin: Origin) -> Bootstrapped:
    """Create `operator`, which the newest epoch lacks, with the keys, values and timeouts of `origin`.

    The result is an epoch after the newest one. Cursors, edges and other operators stay as they are. An interrupted
    bootstrap changes nothing.

    Raises:
    - `StoreInUse` while a driver runs;
    - `Fenced` if a driver took over meanwhile;
    - `ConfigInvalid`, `EpochNotFound`, `EpochDamaged`.
    """
    valid_name("operator", operator)
    snapshot = snapshot_of(origin.store.log.manifest(origin.epoch), origin.operator)
    hint = "run it once without the operator (availableNow=True)"
    with changing(store, "bootstrap", lambda manifest: _refuse_known(manifest, operator), hint) as (point, _):
        read, write = origin.store.state(origin.operator).location, store.state(operator).location
        try:
            files = tuple(Dealing(point, snapshot, read).files(snapshot.key_groups, write))
        except EpochDamaged:
            # Raises EpochNotFound if that job's retention has dropped the epoch meanwhile.
            origin.store.log.manifest(origin.epoch)
            raise
        # The inputs of the new operator have had no rows, so it has no event time yet.
        begun = {"operator": operator, "files": files, "watermarks": {}, "late_rows": 0}
        manifest = behind(point, snapshot.model_copy(update=begun), "bootstrap")
        store.log.commit_epoch(manifest)
        # After the commit, and repeatable: a command that is killed here leaves a table that the next incarnation updates.
        store.materialize(manifest)
    sizes = sum(file.rows for file in files), sum(file.size_bytes for file in files)
    return Bootstrapped(operator, snapshot.key_groups, manifest.epoch, *sizes)


def _refuse_known(manifest: Manifest, operator: str) -> None:
    if operator in manifest.operators:
        raise ConfigInvalid(
            f"operator '{operator}' has state in epoch {manifest.epoch}", hint="give the new operator another name"
        )
