"""The maximum consistent line at or before a target, and the nearest target that can be reached if there is none."""

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
    """`found`: the greatest line of points that can be had. `wished`: the greatest if nothing were gone.

    `intervals`: with what was found to be torn on the way.
    """

    found: RecoveryLine
    wished: RecoveryLine
    intervals: Intervals

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        return self.found.missing is None

    def passed_over(self, process: ProcessId) -> list[Point]:
        """Points between the line that was wished for and the one found that are gone, newest first."""
        points = self.intervals.points[process]
        indices = [each.index for each in points]
        wished = self.wished.chosen.get(process)
        found = self.found.chosen.get(process)
        last = indices.index(wished.index) if wished is not None else len(points) - 1
        first = indices.index(found.index) if found is not None else -1
        between = (replace(each, gone=each.gone or each.lost()) for each in points[first + 1 : last + 1])
        return [each for each in reversed(list(between)) if each.gone is not None]


def find_line(intervals: Intervals, allowed: Allowed, *, judge_now: bool = False) -> Line:
    """The greatest line that a target allows.

    The state of its points is looked at once the line is found, and what is gone is passed over: a line of points that can
    be had is never greater than one of all points, so going on from there misses none. What is now stays, unless `judge_now`.
    """
    while True:
        found = _search(intervals, allowed, also_gone=False)
        gone = _gone(intervals, found, allowed, judge_now) if found.missing is None else {}
        if not gone:
            return Line(found, _search(intervals, allowed, also_gone=True), intervals)
        intervals = _without(intervals, gone)


def _search(intervals: Intervals, allowed: Allowed, *, also_gone: bool) -> RecoveryLine:
    limited = [each for each in intervals.points if not allowed(each, intervals.newest(each))]
    candidates = {each: intervals.candidates(each, allowed, also_gone=also_gone) for each in intervals.points}
    return recovery_line(candidates, intervals.ends, limited, intervals.lost)


def _gone(
    intervals: Intervals, found: RecoveryLine, allowed: Allowed, judge_now: bool
) -> dict[ProcessId, dict[Index, str]]:
    """Points of a line whose state is gone or torn, and those before that would be next."""
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
    """The first of targets, ordered from strict to lenient, that has a line. What a target reaches, later ones do too."""
    if not targets or not reaches(targets[-1]):
        return None
    low, high = 0, len(targets) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(targets[middle]) else (middle + 1, high)
    return targets[low]
