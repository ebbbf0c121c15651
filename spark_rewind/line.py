"""The maximum consistent line at or before a target, and the nearest reachable target if there is no line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from checkpoint_protocols.checkpoints.recovery_line import RecoveryLine, recovery_line
from checkpoint_protocols.ids import ProcessId
from spark_rewind.connections import Index
from spark_rewind.intervals import Allowed, Intervals, Point

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """Result of a search.

    - `found`: the greatest line of points that still exist.
    - `wished`: the greatest line if no point were gone.
    - `intervals`: the graph, with points that the search found to be gone or torn.
    """

    found: RecoveryLine
    wished: RecoveryLine
    intervals: Intervals

    @property
    def exists(self) -> bool:
        """True if a line was found."""
        return self.found.missing is None

    def passed_over(self, process: ProcessId) -> list[Point]:
        """Return points that are gone between the wished line and the found line, newest first."""
        points = self.intervals.points[process]
        indices = [each.index for each in points]
        wished = self.wished.chosen.get(process)
        found = self.found.chosen.get(process)
        last = indices.index(wished.index) if wished is not None else len(points) - 1
        first = indices.index(found.index) if found is not None else -1
        # The search has not asked these points, since it never reached them.
        between = (replace(each, gone=each.gone or each.lost()) for each in points[first + 1 : last + 1])
        return [each for each in reversed(list(between)) if each.gone is not None]


def find_line(intervals: Intervals, allowed: Allowed, *, judge_now: bool = False) -> Line:
    """Return the greatest line that a target allows.

    The state of points is read once a line is found. Points without it are excluded, and the search repeats. A line of
    existing points is never greater than a line of all points, so the search misses none. The current state of a
    process is accepted without a check, unless `judge_now`.
    """
    while True:
        found = _search(intervals, allowed, also_gone=False)
        gone = _gone(intervals, found, allowed, judge_now) if found.missing is None else {}
        if not gone:
            # the wished line tells the user which later points would have served
            return Line(found, _search(intervals, allowed, also_gone=True), intervals)
        # Each round excludes at least one more point, so the search ends.
        intervals = _without(intervals, gone)


def _search(intervals: Intervals, allowed: Allowed, *, also_gone: bool) -> RecoveryLine:
    # These cannot stay as they are, as a failed process of the protocol cannot keep what it lost.
    limited = [each for each in intervals.points if not allowed(each, intervals.newest(each))]
    candidates = {each: intervals.candidates(each, allowed, also_gone=also_gone) for each in intervals.points}
    return recovery_line(candidates, intervals.ends, limited, intervals.lost)


def _gone(
    intervals: Intervals, found: RecoveryLine, allowed: Allowed, judge_now: bool
) -> dict[ProcessId, dict[Index, str]]:
    """Return points of a line whose state is gone or torn, with the points before them that would be next."""
    return {
        process: gone
        for process, chosen in found.chosen.items()
        if (gone := dict(_gone_up_to(intervals, process, chosen.index, allowed, judge_now)))
    }


def _gone_up_to(
    intervals: Intervals, process: ProcessId, index: Index, allowed: Allowed, judge_now: bool
) -> Iterator[tuple[Index, str]]:
    points = intervals.points[process]
    start = next(number for number, each in enumerate(points) if each.index == index)
    for point in reversed(points[: start + 1]):
        if (point is points[-1] and not judge_now) or not allowed(process, point):
            return
        if point.gone is None:
            why = point.lost() or point.torn()
            # earlier points stay unread: only a point of a line, and what it replaces, is worth opening files for
            if why is None:
                return
            yield point.index, why


def _without(intervals: Intervals, gone: Mapping[ProcessId, Mapping[Index, str]]) -> Intervals:
    points = {
        process: [replace(each, gone=each.gone or gone.get(process, {}).get(each.index)) for each in known]
        for process, known in intervals.points.items()
    }
    return replace(intervals, points=points)


def nearest(targets: Sequence[T], reaches: Callable[[T], bool]) -> T | None:
    """Return the first of `targets` that has a line, None without one.

    `targets` are ordered from strict to lenient; each reaches at least as much as the one before.
    """
    if not targets or not reaches(targets[-1]):
        return None
    low, high = 0, len(targets) - 1
    # bisection: reachability is monotonic in this order
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(targets[middle]) else (middle + 1, high)
    return targets[low]
