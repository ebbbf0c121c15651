"""How long the parts of an epoch take, for those who look: no decision depends on it. Pure; time is passed in.

barrier: from the moment it is offered until the batch begins that it is in. snapshot: that batch, its rows included. decision: the
commit of the manifest. publish, per sink: from the decision until the sink has the epoch, attempts and waiting included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ckpt.store.records import PartTime, Timings

_MOST = 64
"""Measurements that wait for an epoch to be written with."""


@dataclass(slots=True)
class EpochClock:
    """Of one incarnation. Times are seconds of a clock that only grows."""

    _offered_s: dict[int, float] = field(default_factory=dict)
    _batch_ms: int = 0
    _decided_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _told_later: list[PartTime] = field(default_factory=list)

    def offered(self, epoch: int, now_s: float) -> None:
        """A barrier goes into the control stream. That of the next epoch may go ahead while one is being decided."""
        self._offered_s[epoch] = now_s

    def batch_ended(self, duration_ms: int) -> None:
        """A batch is over; the one that a barrier is in is the last one before its epoch is stored."""
        self._batch_ms = duration_ms

    def timings(self, epoch: int, now_s: float, lag_rows: Mapping[str, int]) -> Timings:
        """What is known when an epoch's manifest is about to be stored, and what earlier ones could not say of themselves."""
        offered_s = self._offered_s.get(epoch)
        self._offered_s = {later: at_s for later, at_s in self._offered_s.items() if later > epoch}
        if offered_s is None:
            return Timings(earlier=tuple(self._told_later), lag_rows=dict(lag_rows))
        took_ms = max(0, round((now_s - offered_s) * 1000))
        snapshot_ms = min(self._batch_ms, took_ms)
        return Timings(
            barrier_ms=took_ms - snapshot_ms,
            snapshot_ms=snapshot_ms,
            earlier=tuple(self._told_later),
            lag_rows=dict(lag_rows),
        )

    def stored(self, epoch: int, began_s: float, now_s: float) -> int:
        """The epoch is decided: what its manifest said need not be said again. Milliseconds that the decision took."""
        took_ms = max(0, round((now_s - began_s) * 1000))
        self._told_later = [PartTime(epoch=epoch, part="decision", duration_ms=took_ms)]
        return took_ms

    def publishing(self, sink: str, epoch: int, now_s: float) -> None:
        """A decided epoch is handed to a sink's thread; again, if an attempt failed."""
        self._decided_s.setdefault((sink, epoch), now_s)

    def published(self, sink: str, epoch: int, now_s: float) -> int:
        """A sink has the epoch. Milliseconds since it was first handed over."""
        began_s = self._decided_s.pop((sink, epoch), now_s)
        took_ms = max(0, round((now_s - began_s) * 1000))
        self._told_later.append(PartTime(epoch=epoch, part="publish", sink=sink, duration_ms=took_ms))
        del self._told_later[:-_MOST]
        return took_ms
