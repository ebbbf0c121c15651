"""Durations of an epoch's parts, for observability only. Pure; time is passed in.

- barrier: from its offer until the batch that contains it begins.
- snapshot: that batch, including its rows.
- decision: the commit of the manifest.
- publish, per sink: from the commit until the sink has the epoch, including attempts and waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ckpt.epochs.records import PartTime, Timings

_MOST = 64
"""Maximum number of measurements that wait for a manifest to carry them."""


@dataclass(slots=True)
class EpochClock:
    """Durations of one incarnation's epochs. Times are seconds of a monotonic clock."""

    _offered_s: dict[int, float] = field(default_factory=dict)
    _batch_ms: int = 0
    _committed_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _late_timings: list[PartTime] = field(default_factory=list)

    def offered(self, epoch: int, now_s: float) -> None:
        """Record that a barrier enters the control stream; the next epoch's barrier may do so while an epoch commits."""
        self._offered_s[epoch] = now_s

    def batch_ended(self, duration_ms: int) -> None:
        """Record the duration of a batch; a barrier is in the last batch before its epoch's commit."""
        self._batch_ms = duration_ms

    def timings(self, epoch: int, now_s: float, lag_rows: Mapping[str, int]) -> Timings:
        """Return the known durations of an epoch before its commit, and those that earlier epochs could not record."""
        offered_s = self._offered_s.get(epoch)
        # Barriers of aborted epochs are dropped here, too.
        self._offered_s = {later: at_s for later, at_s in self._offered_s.items() if later > epoch}
        if offered_s is None:
            return Timings(earlier=tuple(self._late_timings), lag_rows=dict(lag_rows))
        took_ms = max(0, round((now_s - offered_s) * 1000))
        snapshot_ms = min(self._batch_ms, took_ms)
        return Timings(
            barrier_ms=took_ms - snapshot_ms,
            snapshot_ms=snapshot_ms,
            earlier=tuple(self._late_timings),
            lag_rows=dict(lag_rows),
        )

    def stored(self, epoch: int, began_s: float, now_s: float) -> int:
        """Record a commit and return its duration in milliseconds; the measurements in its manifest are dropped here."""
        took_ms = max(0, round((now_s - began_s) * 1000))
        self._late_timings = [PartTime(epoch=epoch, part="decision", duration_ms=took_ms)]
        return took_ms

    def publishing(self, sink: str, epoch: int, now_s: float) -> None:
        """Record that a committed epoch is handed to a sink's thread; repeated after a failed attempt."""
        # The first hand-over counts: the duration contains failed attempts and the pauses between them.
        self._committed_s.setdefault((sink, epoch), now_s)

    def published(self, sink: str, epoch: int, now_s: float) -> int:
        """Record that a sink has the epoch; return the milliseconds since it was first handed over."""
        began_s = self._committed_s.pop((sink, epoch), now_s)
        took_ms = max(0, round((now_s - began_s) * 1000))
        self._late_timings.append(PartTime(epoch=epoch, part="publish", sink=sink, duration_ms=took_ms))
        del self._late_timings[:-_MOST]
        return took_ms
