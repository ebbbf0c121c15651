"""Progress of a target over time, from its committed ends, and the rates."""

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
    """A context whose thread samples the committed ends of a target. A single failed request loses one moment; several in a row are
    raised to the caller.
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
        """Current offsets, summed up."""
        return sum(self.ends[-1]) if self.moments else 0

    @property
    def first_moment(self) -> float | None:
        """Moment of the first committed offsets."""
        count = len(self.moments)
        return next((self.moments[i] for i in range(count) if sum(self.ends[i])), None)

    def changes(self, since: float) -> list[float]:
        """Moments after `since` at which an end moved: commits, for transactional systems."""
        count = len(self.moments)
        return [
            self.moments[i] for i in range(1, count) if self.moments[i] > since and self.ends[i] != self.ends[i - 1]
        ]

    def timeline(self, progress: Progress) -> Timeline:
        """Translate ends to inputs, which only the records can show."""
        count = len(self.moments)
        return Timeline(np.array(self.moments), progress.at(np.array(self.ends[:count])))


@dataclass(frozen=True, eq=False)
class Timeline:
    """Inputs covered: a row per moment, a column per partition."""

    moments: np.ndarray
    covered: np.ndarray

    @property
    def totals(self) -> np.ndarray:
        """Inputs covered over all partitions."""
        return self.covered.sum(axis=1)

    def first_above(self, count: int) -> float | None:
        """First moment with more than `count` covered inputs."""
        rows = np.flatnonzero(self.totals > count)
        return float(self.moments[rows[0]]) if len(rows) else None

    def total_at(self, moment: float) -> int:
        """Inputs covered at a moment."""
        row = np.searchsorted(self.moments, moment, side="right") - 1
        return int(self.totals[row]) if row >= 0 else 0


@dataclass(frozen=True)
class Rate:
    """Inputs per second, and the measured window."""

    per_s: float
    start: float
    stop: float


def rate(timeline: Timeline, start: float, stop: float, inputs: int) -> Rate | None:
    """Rate between the first and the last commit in the window, for each partition by its own commits. Processes of one system may
    commit at different moments; measuring one process's commits by another's clock would be wrong by up to a commit.

    If all `inputs` are covered, the window ends early, at the first partition without more input. If they are not, a partition
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
    """Rows in the window at which the partition moved."""
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
    if waited > 2 * usual and not exhausted:  # longer than a wait for its next commit
        taken += waited
    return float((column[last] - column[first]) / taken)
