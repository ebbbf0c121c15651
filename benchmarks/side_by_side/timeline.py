"""How far a target has come at each moment, from its committed ends, and the rates that follow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.side_by_side.oracle import Progress
from benchmarks.side_by_side.sampling import Sampling

_EVERY_S = 0.1
_FAILURES = 10
_TOGETHER_S = 1.0
"""Commits of all partitions within this time count as one commit."""


class Watch(Sampling):
    """Samples the committed ends of a target in a thread, as a context. One failure to ask is a moment missed, several in a row
    are the caller's to raise.
    """

    def __init__(self, ends: Callable[[], tuple[int, ...]]) -> None:
        self.moments: list[float] = []
        self.ends: list[tuple[int, ...]] = []
        self.failure: Exception | None = None
        self._ask = ends
        super().__init__("watch")

    def _sample(self) -> None:
        failures = 0
        while failures < _FAILURES and not self._ended.wait(_EVERY_S):
            try:
                ends = self._ask()
            except Exception as error:  # noqa: BLE001 - raised again in the thread that waits for records
                failures += 1
                self.failure = error if failures == _FAILURES else None
            else:
                failures = 0
                self.ends.append(ends)
                self.moments.append(time.monotonic())

    @property
    def total(self) -> int:
        """Offsets now."""
        return sum(self.ends[-1]) if self.moments else 0

    @property
    def first_moment(self) -> float | None:
        """When the first offsets were committed."""
        count = len(self.moments)
        return next((self.moments[i] for i in range(count) if sum(self.ends[i])), None)

    def changes(self, since: float) -> list[float]:
        """Moments after `since` at which an end had moved: commits, of transactional systems."""
        count = len(self.moments)
        return [
            self.moments[i] for i in range(1, count) if self.moments[i] > since and self.ends[i] != self.ends[i - 1]
        ]

    def timeline(self, progress: Progress) -> Timeline:
        """Ends read as inputs, which only the records can tell."""
        count = len(self.moments)
        return Timeline(np.array(self.moments), progress.at(np.array(self.ends[:count])))


@dataclass(frozen=True, eq=False)
class Timeline:
    """Inputs covered: a row per moment, a column per partition."""

    moments: np.ndarray
    covered: np.ndarray

    @property
    def totals(self) -> np.ndarray:
        """Over all partitions."""
        return self.covered.sum(axis=1)

    def first_above(self, count: int) -> float | None:
        """When more than `count` inputs were covered."""
        rows = np.flatnonzero(self.totals > count)
        return float(self.moments[rows[0]]) if len(rows) else None

    def total_at(self, moment: float) -> int:
        """Inputs covered then."""
        row = np.searchsorted(self.moments, moment, side="right") - 1
        return int(self.totals[row]) if row >= 0 else 0


@dataclass(frozen=True)
class Rate:
    """Inputs per second, and the window that it was measured in."""

    per_s: float
    start: float
    stop: float


def rate(timeline: Timeline, start: float, stop: float, inputs: int) -> Rate | None:
    """Between the first and the last commit in the window, each partition by its own: processes of one system may commit at
    different moments, and counting one process's commits to the other's clock would be wrong by up to a commit.

    The window ends early where the first partition has no more to come, if all `inputs` came out. If they did not, a partition
    that stands still at the end was slow: its time counts to the end.
    """
    commits = [_commits(timeline, partition, start, stop) for partition in range(timeline.covered.shape[1])]
    active = [each for each in commits if len(each) > 1]
    if not active:
        return None
    lasts = [float(timeline.moments[each[-1]]) for each in active]
    exhausted = timeline.total_at(stop) >= inputs
    end = min(lasts) + _TOGETHER_S if exhausted else stop
    parts = [
        _partition_rate(timeline, partition, each, end, exhausted=exhausted) for partition, each in enumerate(commits)
    ]
    first = min(float(timeline.moments[each[0]]) for each in active)
    return Rate(sum(parts), first, min(max(lasts), end))


def _commits(timeline: Timeline, partition: int, start: float, stop: float) -> np.ndarray:
    """Rows in the window at which the partition had moved."""
    column, moments = timeline.covered[:, partition], timeline.moments
    moved = np.flatnonzero(np.diff(column, prepend=column[:1]) > 0)
    return moved[(moments[moved] >= start) & (moments[moved] <= stop)]


def _partition_rate(timeline: Timeline, partition: int, commits: np.ndarray, end: float, *, exhausted: bool) -> float:
    commits = commits[timeline.moments[commits] <= end]
    if len(commits) < 2:
        return 0.0
    column, moments = timeline.covered[:, partition], timeline.moments
    first, last = commits[0], commits[-1]
    taken = moments[last] - moments[first]
    waited = end - moments[last]
    usual = float(np.diff(moments[commits]).max())
    if waited > 2 * usual and not exhausted:  # it did not merely wait for its next commit
        taken += waited
    return float((column[last] - column[first]) / taken)
