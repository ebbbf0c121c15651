"""Clock of an operator's timeouts, and late rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.state import GroupStateTimeout

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.wording import did_you_mean

_KINDS = (
    GroupStateTimeout.NoTimeout,
    GroupStateTimeout.ProcessingTimeTimeout,
    GroupStateTimeout.EventTimeTimeout,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Spark's timeout configuration and the watermarked column.

    `waits_for_inputs`: a processing time is not due while a row that came before it may wait in an input.
    """

    kind: str = GroupStateTimeout.NoTimeout
    event_time: str | None = None
    waits_for_inputs: bool = False

    @classmethod
    def of(cls, kind: str, *, waits_for_inputs: bool = False) -> Timeouts:
        """Return timeouts of a kind that Spark knows. Raises `GraphInvalid` for others."""
        if kind not in _KINDS:
            meant = did_you_mean(str(kind), _KINDS)
            raise GraphInvalid(
                f"unknown timeout {kind!r}", hint=f"{meant + ' ' if meant else ''}use one of {', '.join(_KINDS)}"
            )
        return cls(kind, waits_for_inputs=waits_for_inputs)

    def bound(self, binding: Binding) -> Timeouts:
        """Return a copy with the watermarked column. Raises `GraphInvalid` for EventTimeTimeout without one."""
        if self.kind == GroupStateTimeout.EventTimeTimeout and binding.event_time is None:
            raise GraphInvalid(
                "EventTimeTimeout needs a watermark",
                operator=binding.name,
                hint='call withWatermark("column", "10 minutes") before groupBy',
            )
        return replace(self, event_time=binding.event_time)

    def now(self, clock: Clock) -> int | None:
        """Return the time that due timeouts are before, in epoch milliseconds; None without timeouts."""
        if self.kind == GroupStateTimeout.ProcessingTimeTimeout:
            if not self.waits_for_inputs or clock.inputs_ms is None:
                return clock.processing_ms
            # The inputs' clock stands still while a source does not answer, and the machine's does not.
            return min(clock.processing_ms, clock.inputs_ms)
        return clock.watermark_ms if self.kind == GroupStateTimeout.EventTimeTimeout else None

    def on_time(self, rows: pa.Table, group: KeyGroupState, clock: Clock) -> pa.Table:
        """Drop and count late rows; call it once per batch.

        As in Spark, rows are late only with EventTimeTimeout, and by the watermark of the previous batch. A null time
        is never late.
        """
        if self.event_time is None or self.kind != GroupStateTimeout.EventTimeTimeout or clock.late_ms is None:
            return rows
        times = rows.column(self.event_time)
        # At the watermark as well, as in Spark.
        late = pc.less_equal(times, pa.scalar(clock.late_ms, pa.timestamp("ms", tz="UTC")).cast(times.type))
        kept = rows.filter(pc.invert(pc.fill_null(late, pa.scalar(False))))
        group.late_rows += rows.num_rows - kept.num_rows
        return kept
