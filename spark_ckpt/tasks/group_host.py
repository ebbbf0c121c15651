"""An operator as Spark runs it: one function call per key group and micro-batch.

The call hosts the group's state and the user's operator, and takes the group's snapshot at a barrier. Everything here
runs in Python workers, possibly more than once for one batch. It changes nothing outside the task except uniquely
named files. It returns its results through `Reports`, which arrive only if the task succeeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

from spark_ckpt.connector import Json
from spark_ckpt.coordination.markers import BARRIERS, PREFETCHED
from spark_ckpt.epochs.records import StateFile
from spark_ckpt.tasks.blobs import outputs_to_blobs
from spark_ckpt.tasks.input_time import inputs_read_ms
from spark_ckpt.tasks.key_expression import key_hash_of
from spark_ckpt.tasks.late_watermark import late_watermark_ms
from spark_ckpt.tasks.onward import PACKED, Onward, unsafe
from spark_ckpt.tasks.operators.operator import Clock, KeyedOperator
from spark_ckpt.tasks.packing import control_tag, unpack_ordered
from spark_ckpt.tasks.reports import Reports
from spark_ckpt.tasks.rows import BLOB, KEY_HASH, NO_TIMEOUT, SHUFFLE_KEY
from spark_ckpt.tasks.shuffle_keys import shuffle_keys
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.tasks.state.levels import Files, LevelCache, range_ref
from spark_ckpt.tasks.state.local_folder import remove_older
from spark_ckpt.tasks.state.task_snapshot import Attempt, TaskSnapshot, close, snapshot_of
from spark_ckpt.tasks.worker_process import prepare_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

    from spark_ckpt.store.location import Location

_OUTPUT = f"{BLOB} binary"
# A hexadecimal digit has the bits of four key groups. A marker without digits, or with too few, asks for nothing.
_IS_ASKED = """
    coalesce(shiftright(CAST(conv(substring(digits, number DIV 4 + 1, 1), 16, 10) AS INT), number % 4) & 1, 0)
"""
"""`full_snapshots.is_asked` in SQL: 1 or 0 for key group `number`. Its control row carries only this bit."""
_STATE = "held binary, incarnation long"
"""Spark's state of a key group. A query may begin with the state of an earlier incarnation, for Spark's own operators;
ours is restored from its epoch's files."""


@dataclass(frozen=True, slots=True)
class GroupHost:
    """Everything a task needs to run key groups of one operator in one incarnation. Picklable: it is shipped to tasks.

    It holds no part of the user's graph, since recorded operations refer to columns of the driver's JVM.

    - `name`, `keys`: the operator's name and key columns.
    - `key_groups`: number of key groups; `tasks`: number of tasks that share them.
    - `base_epoch`, `base_watermark_ms`: the restored epoch and its watermark in epoch milliseconds.
    - `base_late_ms`: the watermark that decides which rows of the first batch are late, in epoch milliseconds.
    - `chains`: state files to restore from, per key group, oldest first.
    - `cache`: folder on each host for local levels.
    - `earlier`: that of the incarnation before, which may still exist.
    - `outgrown`: True if the files' columns have narrower types than the operator's.
    """

    name: str
    keys: tuple[str, ...]
    operator: KeyedOperator
    key_groups: int
    tasks: int
    incarnation: int
    base_epoch: int
    base_watermark_ms: int
    base_late_ms: int
    chains: Mapping[int, Sequence[StateFile]]
    location: Location
    cache: str
    earlier: str
    outgrown: bool = False

    @property
    def shuffle_keys(self) -> tuple[int, ...]:
        """Shuffle key of every key group, by group number: the number that Spark's shuffle partitions by."""
        return shuffle_keys(self.key_groups, self.tasks)

    @property
    def output_mode(self) -> str:
        """Output mode of the operator, which is also the streaming query's."""
        return self.operator.output_mode

    # -- on the driver: the plan around the operator -----------------------------------------------------------------

    def keyed(self, rows: DataFrame) -> DataFrame:
        """Return the user's columns with the key hash that packing needs (`ckpt_key_hash`)."""
        return rows.withColumn(KEY_HASH, key_hash_of(rows.schema, self.keys))

    def control(self, markers: DataFrame) -> DataFrame:
        """Return every marker once per key group, as packed rows (columns by position).

        So idle groups receive the marker too.
        """
        # applyInPandasWithState calls a key group only if it has rows, so each group gets its own copy
        # As a literal of the plan: no table, no shuffle, and no Python worker for the control rows.
        keys = F.lit(np.asarray(self.shuffle_keys, np.int32))
        digits = F.from_json("full_groups", "map<string,string>")[self.name].alias("digits")
        exploded = markers.select(F.posexplode(keys).alias("number", "key"), "kind", "epoch", digits)
        tag = control_tag(F.col("kind"), F.col("epoch"), F.expr(_IS_ASKED))
        return exploded.select("key", tag, F.lit(bytearray()))  # an empty blob: the tag says everything

    def apply(self, packed: DataFrame, reports: Reports, onward: Onward | None = None) -> DataFrame:
        """Run the operator on packed rows.

        The output is blobs, or with `onward` packed rows for the next operator.
        """
        applied = packed.groupBy(SHUFFLE_KEY).applyInPandasWithState(
            self.runner(reports, onward),
            _OUTPUT if onward is None else PACKED,
            _STATE,
            self.output_mode,
            self.operator.timeout,
        )
        return applied if onward is None else unsafe(applied)

    # -- in a task ------------------------------------------------------------------------------------------------------

    def runner(
        self, reports: Reports, onward: Onward | None = None
    ) -> Callable[[tuple[int], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
        """Return the function for Spark's `applyInPandasWithState`."""
        # The call's key is the shuffle key, which another number of tasks changes; state files know the group.
        groups = {number: group for group, number in enumerate(self.shuffle_keys)}

        def run(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
            prepare_worker()
            if key[0] not in groups:  # an earlier incarnation had other groups; a timeout of one of them is due
                state.remove()
                return
            yield from _GroupCall(self, groups[key[0]], state, reports, onward).run(frames)

        return run

    def state_of(self, group: int, state: GroupState) -> KeyGroupState:
        """Return the group's state: Spark's, or the restored one on the group's first call of an incarnation."""
        if state.exists and state.get[1] == self.incarnation:
            return KeyGroupState.decode(state.get[0], self.operator.schema, self._levels, group)
        # The driver removes old folders on its own host only.
        remove_older(Path(self.cache).parent)
        return self._restored(group)

    def _restored(self, group: int) -> KeyGroupState:
        files = [range_ref(file, group) for file in self.chains.get(group, ())]
        schema = self.operator.schema
        return KeyGroupState.restored(schema, self._levels, group, files, self.base_epoch, outgrown=self.outgrown)

    @property
    def _levels(self) -> LevelCache:
        # At each use: a host is pickled, and all caches of a worker share one map of open levels.
        return LevelCache(self.cache, self.location, self.operator.schema, self.name, earlier=Path(self.earlier))

    def task_of(self, group: int) -> frozenset[int]:
        """Return the key groups of the task that runs `group`, see `shuffle_keys`."""
        return frozenset(range(group % self.tasks, self.key_groups, self.tasks))

    # -- on a standby -------------------------------------------------------------------------------------------------

    def have_levels(self, is_over: Callable[[], bool]) -> None:
        """Prepare the local level files of every group to restore, and delete all others. Return early if `is_over()`."""
        kept: list[Files] = []
        for group in self.chains:
            # Checked for each group: a takeover waits for this call.
            if is_over():
                return
            kept += self._restored(group).have_levels()
        self._levels.keep_only(kept)


class _GroupCall:
    """The call of one key group in one micro-batch."""

    def __init__(self, host: GroupHost, group: int, state: GroupState, reports: Reports, onward: Onward | None) -> None:
        self._host = host
        self._onward = onward
        self._group = group
        self._state = state
        self._reports = reports
        self._began_ms = _now_ms()  # before the restore of the state, which counts to the call
        self._held = host.state_of(group, state)

    def run(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        unpacked = unpack_ordered(frames)
        # Lazy: its changes of the state are complete when the output below has been consumed.
        outputs = self._host.operator.process(unpacked.rows, self._held, self._clock())
        # output before the barrier: it belongs to the epoch that the barrier ends
        yield from self._put_out(outputs)
        processed_ms = _now_ms()
        barriers = [control for control in unpacked.controls if control[0] in BARRIERS]
        snapshot = None
        for kind, epoch, full in barriers[-1:]:  # an older one in the same batch belongs to an aborted epoch
            snapshot = self._pass_barrier(kind, epoch, full)
        # after the barrier: the snapshot empties the delta that Spark stores
        self._state.update((self._held.encode(), self._host.incarnation))
        self._arm_timeout()
        self._report(snapshot, processed_ms)

    def _report(self, snapshot: TaskSnapshot | None, processed_ms: float) -> None:
        """Report this call. With a barrier, the last call of the task names its files, after they are durable."""
        # The epoch is reported with each call: a report of a barrier without files says that a key group got none.
        body: dict[str, Json] = {} if snapshot is None else {"epoch": snapshot.epoch}
        if snapshot is not None and snapshot.is_whole:
            body = snapshot.finish()
            close(self._attempt(snapshot.epoch))  # last: after an error above the next attempt drops the snapshot
        now_ms = _now_ms()
        snapshot_ms = 0.0 if snapshot is None else now_ms - processed_ms
        times = {"began_ms": self._began_ms, "ended_ms": now_ms, "snapshot_ms": snapshot_ms}
        self._reports.send("operator", self._host.name, {"late": self._held.late_rows, **times, **body})

    def _put_out(self, outputs: Iterator[pa.Table]) -> Iterator[pd.DataFrame]:
        if self._onward is not None:
            yield from self._onward.packed(outputs, self._group)
        elif blobs := outputs_to_blobs(outputs):
            yield pd.DataFrame({BLOB: blobs})

    def _clock(self) -> Clock:
        processing_ms, inputs_ms = self._state.getCurrentProcessingTimeMs(), inputs_read_ms()
        try:
            # A new query's watermark starts at zero. Below the restored one, closed windows would open again.
            watermark_ms = max(self._state.getCurrentWatermarkMs(), self._host.base_watermark_ms)
        except PySparkException:  # Spark raises it if the query has no watermark
            return Clock(processing_ms, inputs_ms=inputs_ms)
        return Clock(processing_ms, watermark_ms, late_watermark_ms(), inputs_ms)

    def _attempt(self, epoch: int) -> Attempt:
        task = TaskContext.get()
        # Unique per attempt: a repeated one must not continue the file of a failed one in the same worker.
        return task.taskAttemptId() if task else 0, self._host.location.uri, epoch

    def _pass_barrier(self, kind: int, epoch: int, full: bool) -> TaskSnapshot:
        """Take the group's part of the task's snapshot, with its vote unless the epoch is over here.

        `full`: the barrier asks for all live rows. Then the group writes them in any case: the files that it shares with
        others leave together.
        """
        # Step 4 of docs/design/epoch-in-nine-steps.md.
        host, held = self._host, self._held
        groups = host.task_of(self._group)
        snapshot = snapshot_of(
            self._attempt(epoch), lambda: TaskSnapshot(host.location, host.incarnation, epoch, groups)
        )
        # a group has one input, so no other input has to be held until the barrier arrives on it
        is_over = epoch <= held.epoch and not full
        # a prefetched barrier of a group without changes is acknowledged without a snapshot; the group keeps its epoch
        stays = kind == PREFETCHED and held.is_captured and not full
        if not (is_over or stays):
            capture = held.capture_full(epoch) if full else held.capture(epoch)
            if capture is not None:
                held.captured(*snapshot.write(self._group, capture))
        # Passed in any case: the file is written when all groups of the task have been called, also those without changes.
        snapshot.passed(self._group, votes=stays or not is_over)
        return snapshot

    def _arm_timeout(self) -> None:
        """Have Spark call this group when its earliest key times out."""
        # Spark has one timeout per key group; a call that is too early finds no due key and sets the next timeout
        due_ms = self._held.earliest_timeout_ms
        if due_ms == NO_TIMEOUT:
            return
        if self._host.operator.timeout == GroupStateTimeout.ProcessingTimeTimeout:
            # Spark refuses a duration of zero: a timeout that is over comes with the next batch.
            self._state.setTimeoutDuration(max(1, due_ms - self._state.getCurrentProcessingTimeMs()))
        elif self._host.operator.timeout == GroupStateTimeout.EventTimeTimeout:
            # Spark refuses a timestamp before the current watermark, and 0
            self._state.setTimeoutTimestamp(max(due_ms, self._state.getCurrentWatermarkMs(), 1))


def _now_ms() -> float:
    # The wall clock: the driver compares these times with its own.
    return round(time.time() * 1000, 1)
