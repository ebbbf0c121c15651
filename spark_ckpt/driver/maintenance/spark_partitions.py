"""Change the number of partitions of the state of Spark's own operators: Spark repartitions a copy, as an epoch between
two runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from spark_ckpt.driver.maintenance.dealing import behind, changing
from spark_ckpt.driver.query.spark_state import CheckpointState, shared_folder
from spark_ckpt.epochs.records import Manifest, SparkState
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.spark_internals.captured_errors import causes_of, message_of
from spark_ckpt.spark_internals.checkpoint_files import write_ended_checkpoint
from spark_ckpt.spark_internals.settings import state_settings
from spark_ckpt.spark_internals.state_partitions import repartition_state
from spark_ckpt.storage_errors import one_line
from spark_ckpt.store.store import Store

_PLACE = "is in an invalid state."
"""End of the sentence in which Spark's error names the checkpoint, which is gone when a user reads it."""


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """Result. `before`, `after`: number of partitions. `size_bytes`: of the state in the new epoch."""

    operators: tuple[str, ...]
    before: int
    after: int
    epoch: int
    size_bytes: int


def repartition(store: Store, session: Callable[[], SparkSession], partitions: int) -> Repartitioned:
    """Repartition the state of all of Spark's own operators, as a new epoch after the newest one.

    `session`: returns the session to do it in; not called for a state that needs no repartitioning.
    Cursors, edges and the job's own operators stay as they are; nothing is published. An interrupted repartition changes
    nothing.

    Raises:
    - `StoreInUse` while a driver runs;
    - `Fenced` if a driver took over meanwhile;
    - `ConfigInvalid` for a state that Spark cannot repartition;
    - `EpochNotFound`, `EpochDamaged`, `SparkStateUncaptured`.
    """
    hint = "set shuffle_partitions in the job"
    with changing(store, "rescale", lambda manifest: _state_in(manifest, partitions), hint) as (point, state):
        spark = session()
        with _checkpoint(spark, store, point) as checkpoint:
            after = _repartitioned(store, spark, point, state, checkpoint, partitions)
        manifest = behind(point, after, "rescaled")
        store.log.commit_epoch(manifest)
    return Repartitioned(after.operators, state.partitions, after.partitions, manifest.epoch, after.state_bytes)


def _state_in(manifest: Manifest, partitions: int) -> SparkState:
    state = manifest.spark_state
    if state is None:
        raise ConfigInvalid(
            f"epoch {manifest.epoch} has no state of Spark's own operators",
            hint="an operator of the job has key groups: spark-ckpt rescale STORE OPERATOR --key-groups N",
        )
    if state.partitions == partitions:
        raise ConfigInvalid(f"the state of Spark's own operators has {partitions} partitions already")
    return state


def _repartitioned(
    store: Store, spark: SparkSession, point: RecoveryPoint, base: SparkState, checkpoint: Path, partitions: int
) -> SparkState:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    settings = state_settings(spark, base.provider, base.checkpoint_format)
    epoch = point.manifest.epoch
    state = CheckpointState(store.spark_states, checkpoint, point.incarnation, base, epoch, settings)
    _lay_out(state, base, checkpoint)
    try:
        repartition_state(spark, checkpoint, partitions, base.checkpoint_format)
    except (PySparkException, Py4JError) as error:
        # Spark's text begins with the path of a folder that is deleted again, and ends with a code.
        text = message_of(next(causes_of(error), error)).split("SQLSTATE", 1)[0]
        why = text.split(_PLACE, 1)[-1]
        raise ConfigInvalid(
            f"Spark cannot repartition the state of its operators: {one_line(why)}",
            hint="nothing was changed: the job can start as before, with the old number of partitions. Spark repartitions "
            "state in RocksDB only, and the first epoch fixes the provider",
            epoch=epoch,
        ) from error
    # Spark has committed the batch that it added before it returned.
    return state.after(base.batch + 1, 0, lambda: True)


@contextmanager
def _checkpoint(spark: SparkSession, store: Store, point: RecoveryPoint) -> Iterator[Path]:
    """Yield a folder, on the store's file system if it has one, so that files are linked. The next run deletes one that stays."""
    folder = store.run_folder(point.incarnation).local
    folder = folder or shared_folder(spark, store.location) / str(point.incarnation)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lay_out(state: CheckpointState, base: SparkState, checkpoint: Path) -> None:
    """Write a checkpoint that ends with the epoch's batch."""
    index = state.lay_out()
    assert index is not None  # noqa: S101 - for the type checker: there is a base
    write_ended_checkpoint(checkpoint, base.batch, index.metadata, index.commit)
