"""State of Spark's own operators in the checkpoint of one incarnation: laid out at its start, captured at each epoch.

An epoch ends with a batch, and the state of every operator of Spark after a batch is a set of files. A new incarnation
gets a fresh checkpoint that begins behind the epoch's batch: Spark's texts about this batch without any offset, since
each source finds its place from the epoch's cursor, and the files of the state. So Spark continues with the
watermark, the timers and the batch number of the epoch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from spark_ckpt.config import CONF_PREFIX
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.epochs.records import SparkState
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import ConfigInvalid, SparkStateUncaptured
from spark_ckpt.spark_internals.checkpoint_files import metadata_of
from spark_ckpt.spark_internals.operator_metadata import operators_in, place_schemas
from spark_ckpt.spark_internals.query_logs import COMMITS, OFFSETS, STATE, StateIds, parse_batch, parse_commit
from spark_ckpt.spark_internals.settings import CHECKPOINT_FORMAT, PARTITIONS, PROVIDER, state_settings
from spark_ckpt.spark_internals.state_selection import select
from spark_ckpt.storage_errors import typed_errors_at
from spark_ckpt.store.location import Location
from spark_ckpt.store.spark_state import Known, Moment, SparkStates, StateIndex
from spark_ckpt.temporary_folder import TemporaryFolder

_LOOK_S = 0.002


class CheckpointState:
    """State of Spark's own operators in the checkpoint of one incarnation.

    - `states`: the store's place for it.
    - `checkpoint`: the local folder of the checkpoint.
    - `base`: state of the epoch that the incarnation continues from; None to begin empty. `epoch`: that epoch.
    - `settings`: provider and format of Spark's state stores.
    """

    def __init__(
        self,
        states: SparkStates,
        checkpoint: Path,
        incarnation: int,
        base: SparkState | None,
        epoch: int,
        settings: dict[str, str],
    ) -> None:
        self._states = states
        self._checkpoint = checkpoint
        self._incarnation = incarnation
        self._base = base
        self._epoch = epoch
        self.settings = settings
        self._known = Known()
        self._ids: dict[int, StateIds | None] = {}
        self._oldest = 0
        self._operators: tuple[str, ...] = ()

    @property
    def last_batch(self) -> int | None:
        """The batch that the checkpoint begins behind; None for a checkpoint that begins with batch 0."""
        return None if self._base is None else self._base.batch

    @property
    def versions_with_ids(self) -> frozenset[int]:
        """Versions of the state whose ids are in memory: those that the next capture may need."""
        return frozenset(self._ids)

    def lay_out(self) -> StateIndex | None:
        """Put the files of the state into the checkpoint; return the index with Spark's texts, None to begin empty.

        Raises `EpochDamaged`, and a `StoreOutage`.
        """
        if self._base is None:
            return None
        state = self._checkpoint / STATE
        index, self._known = self._states.lay_out(self._base, state, self._epoch)
        place_schemas(state, state)
        self._read_ids(self._base.batch, index.commit)
        return index

    def after(self, batch: int, wait_ms: int, is_over: Callable[[], bool]) -> SparkState:
        """Capture the state after a batch, whose action has ended. Waits until Spark has committed it.

        Spark writes its watermark, and the ids of the state's files, only behind the action. Raises
        `SparkStateUncaptured`, and a `StoreOutage`.
        """
        commit = self._committed(batch, wait_ms, is_over)
        state = self._checkpoint / STATE
        try:
            self._read_ids(batch, commit)
            text = (self._checkpoint / OFFSETS / str(batch)).read_text()
            conf = parse_batch(text).conf
            selected = select(state, batch + 1, batch, self._ids, alone=True)
            self._forget_ids(selected.oldest or 0)
            # Operators do not change within a query, so their metadata is read once.
            self._operators = self._operators or operators_in(state)
            moment = Moment(
                self._incarnation,
                batch,
                metadata_of(text),
                commit,
                conf.get(PROVIDER, self.settings[PROVIDER]),
                int(self.settings[CHECKPOINT_FORMAT]),
                int(conf[PARTITIONS]),  # fixed by the checkpoint's first batch
                self._operators,
            )
            return self._states.keep(state, selected.files, moment, self._known)
        except FileNotFoundError as error:
            # Spark deletes files of versions that are a hundred batches old.
            raise _uncaptured(batch, f"{error.filename} is gone") from error
        except ValueError as error:
            raise _uncaptured(batch, str(error)) from error

    def _committed(self, batch: int, wait_ms: int, is_over: Callable[[], bool]) -> str:
        path, until_s = self._checkpoint / COMMITS / str(batch), time.monotonic() + wait_ms / 1000
        while True:
            try:
                return path.read_text()
            except FileNotFoundError:
                # After its end the incarnation commits nothing, so a capture would only hold up the close.
                if is_over() or time.monotonic() > until_s:
                    raise _uncaptured(batch, f"Spark has not committed it within {wait_ms} ms") from None
            # The file appears some milliseconds behind the action; nothing announces it.
            time.sleep(_LOOK_S)

    def _read_ids(self, batch: int, commit: str) -> None:
        if self.settings[CHECKPOINT_FORMAT] == "1":
            return  # commits name no ids: a version has one file of each kind
        # Version N + 1 is the state after batch N. Of several attempts the commit names the one that counts.
        self._ids[batch + 1] = parse_commit(commit).state_ids
        # Ids of batches in between: changes of earlier versions follow the snapshot.
        for path in (self._checkpoint / COMMITS).glob("[0-9]*"):
            version = int(path.name) + 1 if path.name.isdecimal() else 0
            if max(1, self._oldest) <= version <= batch and version not in self._ids:
                self._ids[version] = parse_commit(path.read_text()).state_ids

    def _forget_ids(self, oldest: int) -> None:
        """Forget the ids of versions before the oldest one that the state of an epoch needed: no later one needs them."""
        self._oldest = oldest
        self._ids = {version: ids for version, ids in self._ids.items() if version >= oldest}


def _uncaptured(batch: int, why: str) -> SparkStateUncaptured:
    return SparkStateUncaptured(
        f"the state of Spark's operators after batch {batch} could not be captured: {why}",
        hint="the job continues from its last epoch by itself; if it comes again, look at the disk of Spark's checkpoint",
    )


def checkpoint_state(plan: JobPlan, point: RecoveryPoint) -> CheckpointState | None:
    """Return the state of Spark's own operators in the checkpoint of the next incarnation; None for a job without them."""
    if plan.spark_mode is None:
        return None
    base, checkpoint = point.manifest.spark_state, plan.checkpoint(point.incarnation).local
    if checkpoint is None:
        return None  # refused at the start
    known = (None, None) if base is None else (base.provider, base.checkpoint_format)
    settings = state_settings(plan.spark, *known)
    states, epoch = plan.store.spark_states, point.manifest.epoch
    return CheckpointState(states, checkpoint, point.incarnation, base, epoch, settings)


def shared_folder(spark: SparkSession, store: Location) -> Path:
    """Return a folder that driver and executors share, for state of a store that is in an object store; this process's own.

    It is deleted when the process ends. Raises `ConfigInvalid`, and a `StoreOutage`.
    """
    base = spark.conf.get(f"{CONF_PREFIX}run.dir", None)
    if base is None and not str(spark.sparkContext.master).startswith("local["):
        raise ConfigInvalid(
            "Spark reads the state of its own operators from a folder, and the store is in an object store",
            hint=f"set {CONF_PREFIX}run.dir to a path that driver and executors share; what is put there is deleted again",
            store=store.uri,
        )
    return _folder_until_exit(base, store.uri).path


@cache
def _folder_until_exit(base: str | None, store: str) -> TemporaryFolder:
    with typed_errors_at(base or tempfile.gettempdir()):
        return TemporaryFolder("read", base)
