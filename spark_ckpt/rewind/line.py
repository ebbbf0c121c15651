"""The maximum consistent line at or before a target, and the nearest target that can be reached if there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from spark_ckpt.protocol.ids import ProcessId
from spark_ckpt.protocol.recovery_line import RecoveryLine, recovery_line
from spark_ckpt.rewind.intervals import Allowed, Intervals, Point

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
        return [each for each in reversed(points[first + 1 : last + 1]) if each.gone is not None]


def find_line(intervals: Intervals, allowed: Allowed) -> Line:
    """The greatest line that a target allows; the files of its points are looked into, and torn ones passed over."""
    while True:
        line = _search(intervals, allowed)
        torn = _torn(line) if line.exists else {}
        if not torn:
            return line
        intervals = _without(intervals, torn)


def _search(intervals: Intervals, allowed: Allowed) -> Line:
    limited = [each for each in intervals.points if not allowed(each, intervals.newest(each))]
    lines = []
    for also_gone in (False, True):
        candidates = {each: intervals.candidates(each, allowed, also_gone=also_gone) for each in intervals.points}
        lines.append(recovery_line(candidates, intervals.ends, limited, intervals.lost))
    return Line(lines[0], lines[1], intervals)


def _torn(line: Line) -> dict[ProcessId, tuple[Point, str]]:
    """Points of the line whose files are not whole; one that is the present stays, whatever its files are."""
    found = {}
    for process, chosen in line.found.chosen.items():
        point = line.intervals.point(process, chosen.index)
        if point is not line.intervals.newest(process) and (why := point.torn()) is not None:
            found[process] = (point, why)
    return found


def _without(intervals: Intervals, torn: Mapping[ProcessId, tuple[Point, str]]) -> Intervals:
    points = {
        process: [
            replace(each, gone=torn[process][1]) if process in torn and each is torn[process][0] else each
            for each in known
        ]
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
