"""The operator as Spark runs it: one call per key group and micro-batch, hosting the state, the user's operator and the
barrier machine of that group.

Everything here runs in Python workers, possibly more than once for one batch.  It changes nothing outside but uniquely
named files, and says what it did through `Reports`, which arrive only with the task's success.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

from checkpoint_protocols import barrier
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, TaskId
from spark_ckpt.connector import Json
from spark_ckpt.coordination.markers import AHEAD, BARRIERS
from spark_ckpt.coordination.reports import scope_of_group
from spark_ckpt.store.records import StateFile
from spark_ckpt.tasks.blobs import outputs_to_blobs
from spark_ckpt.tasks.key_expression import key_hash_of
from spark_ckpt.tasks.late_watermark import late_watermark_ms
from spark_ckpt.tasks.onward import PACKED, Onward, unsafe
from spark_ckpt.tasks.operators.operator import Clock, KeyedOperator
from spark_ckpt.tasks.packing import control_tag, unpack_ordered
from spark_ckpt.tasks.reports import Reports
from spark_ckpt.tasks.rows import BLOB, KEY_HASH, NO_TIMEOUT, SHUFFLE_KEY
from spark_ckpt.tasks.shuffle_keys import shuffle_keys
from spark_ckpt.tasks.state.group_state import Capture, KeyGroupState
from spark_ckpt.tasks.state.levels import FileRef, Files, LevelCache
from spark_ckpt.tasks.worker_process import prepare_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

    from spark_ckpt.store.location import Location, Written

_OUTPUT = f"{BLOB} binary"
_STATE = "held binary"
_CHANNEL = ChannelId("input")


@dataclass(frozen=True, slots=True)
class GroupHost:
    """What a task needs to run key groups of one operator in one incarnation. Shipped to tasks, so it holds no part of the
    user's graph: recorded operations refer to columns of the driver's JVM.

    `tasks`: that share the key groups.
    `chains`: state files to restore from, per key group, oldest first. `cache`: folder on each host for local levels.
    `base_late_ms`: the watermark that rows of the first batch are late by. `outgrown`: the files' columns have narrower types than
    the operator's.
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
    outgrown: bool = False

    @property
    def shuffle_keys(self) -> tuple[int, ...]:
        """Under which number Spark's shuffle deals each key group."""
        return shuffle_keys(self.key_groups, self.tasks)

    @property
    def output_mode(self) -> str:
        """The streaming query's output mode is the operator's."""
        return self.operator.output_mode

    # -- on the driver: the plan around the operator -----------------------------------------------------------------

    def keyed(self, rows: DataFrame) -> DataFrame:
        """The user's columns, and the hash that packing needs beside them."""
        return rows.withColumn(KEY_HASH, key_hash_of(rows.schema, self.keys))

    def control(self, markers: DataFrame) -> DataFrame:
        """Every marker once per key group, so that idle groups see it too, in the form of packed rows (columns by position)."""
        exploded = markers.select(
            F.explode(F.lit(np.asarray(self.shuffle_keys, np.int32))).alias("key"), "kind", "epoch"
        )
        return exploded.select("key", control_tag(F.col("kind"), F.col("epoch")), F.lit(bytearray()))

    def apply(self, packed: DataFrame, reports: Reports, onward: Onward | None = None) -> DataFrame:
        """Run the operator on packed rows. Its output comes in blobs, or with `onward` as packed rows of the next operator."""
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
        """The function for Spark."""
        groups = {number: group for group, number in enumerate(self.shuffle_keys)}

        def run(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
            prepare_worker()
            yield from _GroupCall(self, groups[key[0]], state, reports, onward).run(frames)

        return run

    def state_of(self, group: int, state: GroupState) -> KeyGroupState:
        """The group's state: Spark's, or the restored one on the group's first call of an incarnation."""
        if state.exists:
            return KeyGroupState.decode(state.get[0], self.operator.schema, self._levels, group)
        return self._restored(group)

    def _restored(self, group: int) -> KeyGroupState:
        files = [
            FileRef(file.path, file.size_bytes, file.rows, file.kind, file.epoch, file.sha256)
            for file in self.chains.get(group, ())
        ]
        schema = self.operator.schema
        return KeyGroupState.restored(schema, self._levels, group, files, self.base_epoch, outgrown=self.outgrown)

    @property
    def _levels(self) -> LevelCache:
        return LevelCache(self.cache, self.location, self.operator.schema, self.name)

    # -- on a standby -------------------------------------------------------------------------------------------------

    def have_levels(self, beside: Path, is_over: Callable[[], bool]) -> None:
        """Have the local levels of every group that will be restored, and no others. Those that another incarnation on this host
        has in its folder `beside` are taken from there. Ends early if `is_over`."""
        kept: list[Files] = []
        for group in self.chains:
            if is_over():
                return
            kept += self._restored(group).have_levels(beside / self.name)
        self._levels.keep_only(kept)


class _GroupCall:
    """One key group in one micro-batch."""

    def __init__(self, host: GroupHost, group: int, state: GroupState, reports: Reports, onward: Onward | None) -> None:
        self._host = host
        self._onward = onward
        self._group = group
        self._state = state
        self._reports = reports
        self._began_ms = _now_ms()
        self._held = host.state_of(group, state)
        self._task = TaskId(f"{host.name}/{group}")
        self._machine = barrier.Operator(
            self._task, (_CHANNEL,), Incarnation(host.incarnation), Epoch(self._held.epoch)
        )

    def run(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        unpacked = unpack_ordered(frames)
        outputs = self._host.operator.process(unpacked.rows, self._held, self._clock())
        yield from self._put_out(outputs)
        account, processed_ms = self._account(), _now_ms()
        barriers = [(kind, epoch) for kind, epoch in unpacked.controls if kind in BARRIERS]
        for kind, epoch in barriers[-1:]:  # an older one in the same batch is of an epoch that was given up
            stays = kind == AHEAD and self._held.is_captured
            account |= {"epoch": epoch} if stays else self._on_barrier(epoch)
        self._state.update((self._held.encode(),))
        account |= self._moments(processed_ms)
        self._arm_timeout()
        self._reports.send("operator", scope_of_group(self._host.name, self._group), account)

    def _moments(self, processed_ms: float) -> dict[str, Json]:
        """For those who look: when the call began and ended, and how long its snapshot took."""
        now_ms = _now_ms()
        return {"began_ms": self._began_ms, "ended_ms": now_ms, "snapshot_ms": round(now_ms - processed_ms, 1)}

    def _put_out(self, outputs: Iterator[pa.Table]) -> Iterator[pd.DataFrame]:
        if self._onward is not None:
            yield from self._onward.packed(outputs, self._group)
        elif blobs := outputs_to_blobs(outputs):
            yield pd.DataFrame({BLOB: blobs})

    def _clock(self) -> Clock:
        try:
            watermark_ms = max(self._state.getCurrentWatermarkMs(), self._host.base_watermark_ms)
        except PySparkException:  # Spark's way to say that the query has no watermark
            return Clock(self._state.getCurrentProcessingTimeMs())
        return Clock(self._state.getCurrentProcessingTimeMs(), watermark_ms, late_watermark_ms())

    def _account(self) -> dict[str, Json]:
        return {"late": self._held.counters.late_rows}

    def _on_barrier(self, epoch: int) -> dict[str, Json]:
        """Feed the barrier to the group's machine and do what it says; the acknowledgement, if it comes to one."""
        told: dict[str, Json] = {}
        incarnation = Incarnation(self._host.incarnation)
        effects = self._machine.handle(barrier.BarrierArrived(_CHANNEL, Epoch(epoch), incarnation))
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, barrier.CaptureSnapshot):
                told["file"] = self._capture(epoch)
                effects += self._machine.handle(barrier.SnapshotStored(effect.epoch, incarnation))
            elif isinstance(effect, barrier.AckSnapshot):
                told["epoch"] = effect.epoch
        return told

    def _capture(self, epoch: int) -> dict[str, Json] | None:
        capture = self._held.capture(epoch)
        if capture is None:
            return None
        path = f"i{self._host.incarnation}-e{epoch}-g{self._group}-{uuid.uuid4().hex}.parquet"
        written = self._host.location.write_table(path, capture.table)
        self._held.captured(path, written.size_bytes, written.sha256)
        return self._state_file(path, written, capture).model_dump(mode="json")

    def _state_file(self, path: str, written: Written, capture: Capture) -> StateFile:
        return StateFile(
            path=path,
            size_bytes=written.size_bytes,
            sha256=written.sha256,
            rows=capture.table.num_rows,
            key_group=self._group,
            epoch=capture.epoch,
            incarnation=self._host.incarnation,
            kind="full" if capture.kind == "full" else "changes",
        )

    def _arm_timeout(self) -> None:
        """Have Spark call this group when its earliest key times out."""
        due_ms = self._held.earliest_timeout_ms
        if due_ms == NO_TIMEOUT:
            return
        if self._host.operator.timeout == GroupStateTimeout.ProcessingTimeTimeout:
            self._state.setTimeoutDuration(max(1, due_ms - self._state.getCurrentProcessingTimeMs()))
        elif self._host.operator.timeout == GroupStateTimeout.EventTimeTimeout:
            self._state.setTimeoutTimestamp(max(due_ms, self._state.getCurrentWatermarkMs() + 1))


def _now_ms() -> float:
    """By the host's wall clock: tasks and driver compare moments."""
    return round(time.time() * 1000, 1)
