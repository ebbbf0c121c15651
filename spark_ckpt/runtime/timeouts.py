"""Which clock an operator's timeouts follow, and which rows come too late for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.state import GroupStateTimeout

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.runtime.group_state import KeyGroupState
from spark_ckpt.runtime.operator import Binding, Clock

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

    @classmethod
    def of(cls, kind: str) -> Timeouts:
        """Timeouts of a kind that Spark knows, else `GraphInvalid`."""
        if kind not in _KINDS:
            raise GraphInvalid(f"unknown timeout {kind!r}", hint=f"use one of {', '.join(_KINDS)}")
        return cls(kind)

    def bound(self, binding: Binding) -> Timeouts:
        """With the watermarked column, which EventTimeTimeout needs."""
        if self.kind == GroupStateTimeout.EventTimeTimeout and binding.event_time is None:
            raise GraphInvalid(
                "EventTimeTimeout needs a watermark",
                operator=binding.name,
                hint='call withWatermark("column", "10 minutes") before groupBy',
            )
        return replace(self, event_time=binding.event_time)

    def now(self, clock: Clock) -> int | None:
        """The time before which a timeout is due, None when there are none."""
        if self.kind == GroupStateTimeout.ProcessingTimeTimeout:
            return clock.processing_ms
        return clock.watermark_ms if self.kind == GroupStateTimeout.EventTimeTimeout else None

    def on_time(self, rows: pa.Table, group: KeyGroupState, clock: Clock) -> pa.Table:
        """Count rows, note the greatest event time, and drop late rows.

        As in Spark, rows at or before the watermark are late, only with EventTimeTimeout; a null time
        never is.
        """
        group.counters.rows_in += rows.num_rows
        if self.event_time is None or not rows.num_rows:
            return rows
        times = rows.column(self.event_time)
        greatest = pc.max(times).cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        if greatest.is_valid:
            group.observe_event_time(greatest.as_py())
        if self.kind != GroupStateTimeout.EventTimeTimeout or clock.watermark_ms is None:
            return rows
        limit = pa.scalar(clock.watermark_ms, pa.timestamp("ms", tz="UTC")).cast(times.type)
        late = pc.fill_null(pc.less_equal(times, limit), pa.scalar(False))
        kept = rows.filter(pc.invert(late))
        group.counters.late_rows += rows.num_rows - kept.num_rows
        return kept
