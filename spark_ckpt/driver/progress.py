"""A run's progress in the shape Spark users know: one JSON-like record per micro-batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from spark_ckpt.connector import Cursor, Json
from spark_ckpt.coordination.edges import UNBOUNDED, Bound
from spark_ckpt.driver.batch_phases import Phases
from spark_ckpt.driver.listener import OutageEvent

_KEPT = 100


@dataclass(slots=True)
class Progress:
    """The latest records, newest last. Written by Spark's and the coordinator's thread, read by the user's."""

    job: str
    bound: Bound = UNBOUNDED
    _records: deque[dict[str, Json]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    standby: Callable[[], dict[str, Json] | None] = lambda: None
    """What a standby is doing; None if this is none."""
    _outage: dict[str, Json] | None = None
    _lag: Mapping[str, int] = field(default_factory=dict)
    _parts_ms: Mapping[str, int] = field(default_factory=dict)
    _cursors: Mapping[str, Cursor] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _totals: dict[str, int] = field(
        default_factory=lambda: {"numInputRows": 0, "numOutputRows": 0, "rejected": 0, "late": 0}
    )

    def add(
        self,
        batch: int,
        incarnation: int,
        epoch: int,
        counts: Mapping[str, int],
        duration_ms: int,
        sources: Mapping[str, Cursor],
        in_flight: Mapping[str, int],
        late: Mapping[str, int],
        parts_ms: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[str, Json]:
        """Record one finished micro-batch; `epoch` is the last committed one. The record.

        `in_flight`: rows on every edge behind it; the full ones are its `backpressure`: the next batch has no row of a source.
        `late`: late rows by operator. `parts_ms`: what the batch's action was spent on (`coordination.action_parts`).
        """
        rows = counts.get("numInputRows", 0)
        with self._lock:
            for name, count in counts.items():
                self._totals[name] += count
            self._cursors = dict(sources)
            record: dict[str, Json] = {
                "job": self.job,
                "incarnation": incarnation,
                "epoch": epoch,
                "batchId": batch,
                "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
                **counts,
                "processedRowsPerSecond": round(rows * 1000 / max(duration_ms, 1), 1),
                "durationMs": {"batch": duration_ms, **parts_ms},
                "sources": dict(sources),
                "inFlightRows": dict(in_flight),
                "backpressure": list(self.bound.full(in_flight)),
                "lateRows": dict(late),
                "totals": dict(self._totals),
            }
            self._records.append(record)
            return dict(record)

    def spark_took(self, incarnation: int, phases: Phases) -> dict[str, Json] | None:
        """Spark is through with a batch: its record as it is now, with Spark's phases beside our `batch`; None if there is none.

        `triggerTimestamp`: when Spark began to look for the batch's rows.
        """
        with self._lock:
            for at in range(len(self._records) - 1, -1, -1):
                record = self._records[at]
                if (record["incarnation"], record["batchId"]) == (incarnation, phases.batch):
                    self._records[at] = _with_phases(record, phases)
                    return dict(self._records[at])
        return None

    @property
    def lag(self) -> Mapping[str, int]:
        """Rows that wait at the sources, as they said last; nothing if nobody asks them."""
        return self._lag

    def lag_is(self, rows: Mapping[str, int]) -> None:
        """The sources were asked."""
        self._lag = dict(rows)

    def epoch_took(self, parts_ms: Mapping[str, int]) -> None:
        """Of the newest epoch: milliseconds until its barrier was in a batch, of that batch, of the decision."""
        self._parts_ms = dict(parts_ms)

    def shown(self) -> list[dict[str, Json]]:
        """As `recent`, the newest with what the job waits for."""
        last = self.last()
        return [] if last is None or "batchId" not in last else [*self.recent()[:-1], last]

    def cursors(self) -> Mapping[str, Cursor]:
        """Where the sources stand behind the last micro-batch."""
        return self._cursors

    def outage_began(self, event: OutageEvent) -> None:
        """From now on the job waits, as `event` says."""
        self._outage = asdict(event)

    def outage_over(self) -> None:
        """The job works."""
        self._outage = None

    def last(self) -> dict[str, Json] | None:
        """The newest record with `outage` as it is now; none before the first batch, unless the job waits, or stands by."""
        standby = self.standby()
        if standby is not None:
            return {"job": self.job, "standby": standby, "outage": self._outage}
        with self._lock:
            outage = self._outage
            if not self._records:
                return None if outage is None else {"job": self.job, "outage": outage}
            lag: dict[str, Json] = {"lagRows": dict(self._lag)} if self._lag else {}
            parts: dict[str, Json] = {"epochPartsMs": dict(self._parts_ms)} if self._parts_ms else {}
            return {**self._records[-1], **lag, **parts, "outage": outage}

    def longest_batch_ms(self) -> int:
        """Of the recent micro-batches, with Spark's own phases where they are known; 0 before the first."""
        with self._lock:
            durations = [record["durationMs"] for record in self._records]
        parts = [each.values() for each in durations if isinstance(each, Mapping)]
        return max((ms for each in parts for ms in each if isinstance(ms, int)), default=0)

    def recent(self) -> list[dict[str, Json]]:
        """Up to the last 100 records, oldest first."""
        with self._lock:
            return [dict(record) for record in self._records]


def _with_phases(record: Mapping[str, Json], phases: Phases) -> dict[str, Json]:
    """A new record, since parts of the old one are in the hands of others."""
    ours = record["durationMs"]
    took_ms: dict[str, Json] = {**phases.took_ms, **(ours if isinstance(ours, Mapping) else {})}
    return {**record, "triggerTimestamp": phases.began, "durationMs": took_ms}
