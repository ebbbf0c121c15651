"""Which clock an operator's timeouts follow, and which rows come too late for it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.state import GroupStateTimeout

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.runtime.group_state import KeyGroupState
from spark_ckpt.runtime.operator import Clock

_KINDS = (
    GroupStateTimeout.NoTimeout,
    GroupStateTimeout.ProcessingTimeTimeout,
    GroupStateTimeout.EventTimeTimeout,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Spark's timeout configuration and the watermarked column."""

    kind: str = GroupStateTimeout.NoTimeout
    event_time: str | None = None

    def check(self, operator: str) -> None:
        """Raise `GraphInvalid` for a setting that cannot work."""
        if self.kind not in _KINDS:
            raise GraphInvalid(
                f"unknown timeout {self.kind!r}", operator=operator, hint=f"use one of {', '.join(_KINDS)}"
            )
        if self.kind == GroupStateTimeout.EventTimeTimeout and self.event_time is None:
            raise GraphInvalid(
                "EventTimeTimeout needs a watermark",
                operator=operator,
                hint="call withWatermark() before groupBy()",
            )

    def now(self, clock: Clock) -> int | None:
        """The time before which a timeout is due, None when there are none."""
        if self.kind == GroupStateTimeout.ProcessingTimeTimeout:
            return clock.processing_ms
        return clock.watermark_ms if self.kind == GroupStateTimeout.EventTimeTimeout else None

    def on_time(self, rows: pa.Table, group: KeyGroupState, clock: Clock) -> pa.Table:
        """The rows after the watermark; as in Spark only with EventTimeTimeout, and a null time is
        never late.
        """
        if self.kind != GroupStateTimeout.EventTimeTimeout or clock.watermark_ms is None:
            return rows
        times = rows.column(self.event_time)
        limit = pa.scalar(clock.watermark_ms, pa.timestamp("ms", tz="UTC")).cast(times.type)
        kept = rows.filter(pc.fill_null(pc.greater(times, limit), True))
        group.counters.late_rows += rows.num_rows - kept.num_rows
        return kept
