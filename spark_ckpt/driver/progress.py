"""Progress of a run in the shape that Spark users know: one JSON-like record per micro-batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from spark_ckpt.connector import Cursor, Json
from spark_ckpt.coordination.edges import UNBOUNDED, Bound
from spark_ckpt.driver.query.batch_phases import Phases
from spark_ckpt.events.listener import OutageEvent

_KEPT = 100  # as many as Spark's `recentProgress`


@dataclass(slots=True)
class Progress:
    """The latest records, newest last. Spark's and the coordinator's threads write them, the user's threads read
    them.
    """

    job: str
    bound: Bound = UNBOUNDED
    _records: deque[dict[str, Json]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    standby: Callable[[], dict[str, Json] | None] = lambda: None
    """State of the standby; None if this driver is none."""
    outage_ended: Callable[[OutageEvent], None] = lambda event: None
    """Called with the last event of an outage that is over."""
    _outage: OutageEvent | None = None
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
        """Record one finished micro-batch and return its record. `epoch`: the newest committed one.

        `in_flight`: rows on every edge after the batch. Edges over their limit are its `backpressure`: the next batch
        reads no source. `late`: late rows by operator. `parts_ms`: durations of the action's parts
        (`coordination.reports`).
        """
        rows = counts.get("numInputRows", 0)
        with self._lock:
            for name, count in counts.items():
                self._totals[name] += count
            # A new dict for each batch, because other threads read it without the lock.
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
        """Add what Spark measured to the record of a batch that Spark has finished; None if there is no record.

        The phases join our `batch` in `durationMs`. `triggerTimestamp`: when Spark began to look for the batch's rows.
        """
        with self._lock:
            # From the newest: Spark's phases come some 50 ms after the batch.
            for at in range(len(self._records) - 1, -1, -1):
                record = self._records[at]
                # Batch numbers of an earlier incarnation return in a later one.
                if (record["incarnation"], record["batchId"]) == (incarnation, phases.batch):
                    self._records[at] = _with_phases(record, phases)
                    return dict(self._records[at])
        return None

    @property
    def lag(self) -> Mapping[str, int]:
        """Rows that wait at the sources, as counted last; empty if the lag is not counted."""
        return self._lag

    def lag_is(self, rows: Mapping[str, int]) -> None:
        """Record the sources' lag."""
        self._lag = dict(rows)  # replaced as a whole, so `lag` reads it without the lock

    def epoch_took(self, parts_ms: Mapping[str, int]) -> None:
        """Record the durations of the newest epoch's parts: until its barrier was in a batch, that batch, the commit."""
        self._parts_ms = dict(parts_ms)

    def shown(self) -> list[dict[str, Json]]:
        """Return the records like `recent`, the newest one with the current outage."""
        last = self.last()
        return [] if last is None or "batchId" not in last else [*self.recent()[:-1], last]

    def cursors(self) -> Mapping[str, Cursor]:
        """Return the positions of the sources after the last micro-batch."""
        return self._cursors

    def outage_began(self, event: OutageEvent) -> None:
        """Record that the job waits for the end of an outage."""
        self._outage = event

    def outage_over(self) -> None:
        """Record that the job works, or has ended."""
        before, self._outage = self._outage, None
        if before is not None:
            self.outage_ended(before)

    def last(self) -> dict[str, Json] | None:
        """Return the newest record with the current `outage`.

        None before the first batch, unless the job waits or is a standby.
        """
        outage, standby = None if self._outage is None else asdict(self._outage), self.standby()
        if standby is not None:
            return {"job": self.job, "standby": standby, "outage": outage}
        with self._lock:
            if not self._records:
                return None if outage is None else {"job": self.job, "outage": outage}
            lag: dict[str, Json] = {"lagRows": dict(self._lag)} if self._lag else {}
            parts: dict[str, Json] = {"epochPartsMs": dict(self._parts_ms)} if self._parts_ms else {}
            return {**self._records[-1], **lag, **parts, "outage": outage}

    def longest_batch_ms(self) -> int:
        """Return the longest of the recent micro-batches, including Spark's own phases if known; 0 before the first."""
        with self._lock:
            durations = [record["durationMs"] for record in self._records]
        parts = [each.values() for each in durations if isinstance(each, Mapping)]
        return max((ms for each in parts for ms in each if isinstance(ms, int)), default=0)

    def recent(self) -> list[dict[str, Json]]:
        """Return up to the last 100 records, oldest first."""
        with self._lock:
            return [dict(record) for record in self._records]


def _with_phases(record: Mapping[str, Json], phases: Phases) -> dict[str, Json]:
    # A new record, because other threads hold parts of the old one.
    ours = record["durationMs"]
    took_ms: dict[str, Json] = {**phases.took_ms, **(ours if isinstance(ours, Mapping) else {})}
    return {
        **record,
        "triggerTimestamp": phases.began,
        "durationMs": took_ms,
        "eventTime": dict(phases.event_time),
        "stateOperators": [dict(each) for each in phases.operators],
    }
