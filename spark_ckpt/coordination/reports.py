"""Reports of tasks to the driver about a batch, as values, and the parts of a batch's duration. Pure.

`tasks/reports.py` transports the reports. The parts are for metrics only: no decision depends on them. Tasks report
times of their hosts' clocks, the driver reports times of its own clock. On one host the parts are exact. If clocks
differ, the times are clamped to the action, so that the parts still add up to its duration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from spark_ckpt.connector import Json, StagedFile

Step = Literal["input", "operator", "tap"]
"""Steps of a task's work. A "tap" stages the rows of a sink, in the middle of a stream or at its end."""

FILE = "/file"
"""Suffix of the scope in an "input" step's report of a staged file."""


EDGE = "edge:"
"""Prefix of the scope in a report of a segment of an edge; no sink has such a name."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report of one task about one step of its work.

    `scope` distinguishes several reports of one task (files). In an "operator" step it is the operator's name.
    """

    step: Step
    partition: int
    attempt: int
    scope: str
    body: Mapping[str, Json]

    def __reduce__(self) -> tuple[type[Report], tuple[object, ...]]:
        # The generated way to pickle looks at all fields in Python; a batch has a report per task and step.
        return Report, (self.step, self.partition, self.attempt, self.scope, self.body)


def latest_attempts(reports: Iterable[Report]) -> list[Report]:
    """Return the reports of the latest attempt of each step and partition, sorted.

    A map task reports again if it runs again after its output was lost; then the latest attempt of the partition
    counts. "input" steps may run in several stages of one batch: before the operator, after it, after a join. So each
    scope counts separately. Operators and taps are separated in the same way: their tasks may run in different
    stages.
    """
    placed = [(place_of(report), report) for report in reports]
    newest: dict[tuple[str, int, str], int] = {}
    for place, report in placed:
        newest[place] = max(newest.get(place, report.attempt), report.attempt)
    counted = [report for place, report in placed if report.attempt == newest[place]]
    return sorted(counted, key=attrgetter("step", "partition", "scope"))


def add(reports: list[Report], new: Report) -> None:
    """Add a report of a task to those before it. A task has one report about an operator.

    Spark calls the key groups of a task one after another, so only the newest report can be about the same task.
    """
    if reports and new.step == "operator" and _attempt_of(reports[-1]) == _attempt_of(new):
        reports[-1] = replace(new, body=joined(reports[-1].body, new.body))
    else:
        reports.append(new)


def _attempt_of(report: Report) -> tuple[str, int, int, str]:
    return report.step, report.partition, report.attempt, report.scope


def joined(first: Mapping[str, Json], second: Mapping[str, Json]) -> dict[str, Json]:
    """Return the body of a task's report from two of its calls: counts are added, the times span both.

    Everything else is about the task as a whole, and the later call says it.
    """
    return {
        **first,
        **second,
        "late": _number(first, "late") + _number(second, "late"),
        "began_ms": min(_number(first, "began_ms"), _number(second, "began_ms")),
        "snapshot_ms": round(_number(first, "snapshot_ms") + _number(second, "snapshot_ms"), 1),
    }


def edge_of(report: Report) -> str | None:
    """Return the edge of a report about a segment; None for other reports."""
    return report.scope.removeprefix(EDGE) if report.scope.startswith(EDGE) else None


def staged_file(body: Mapping[str, Any]) -> StagedFile:
    """Return the `StagedFile` in the body of a report."""
    return StagedFile(**body)


def place_of(report: Report) -> tuple[str, int, str]:
    """Return the part of a batch's work that a report is about: each attempt of a task reports it again."""
    # A step's file and its counts are of one attempt, so the newest attempt of either counts for both.
    if report.step == "input":
        return report.step, report.partition, report.scope.removesuffix(FILE)
    return report.step, report.partition, report.scope


SOURCES = "sources"
"""Scope of the driver's own report of a batch."""


def action_parts_ms(reports: Sequence[Report]) -> dict[str, int]:
    """Return the parts of a batch's action in milliseconds, by name; empty if no times were reported or no operator
    ran.

    - `fetch`: from the begin of the action to the first call of a key group; includes everything before the shuffle.
    - `operator`: from there to the end of the last group of the last operator, less `snapshot`.
    - `snapshot`: writing state files, in the task that took longest for them.
    - `staging`: from there to the end of the action.
    """
    action = next((report.body for report in reports if report.scope == SOURCES), {})
    tasks = [report.body for report in reports if report.step == "operator" and "began_ms" in report.body]
    if "began_ms" not in action or not tasks:
        return {}
    began, ended = _number(action, "began_ms"), _number(action, "ended_ms")
    # Tasks read the clock of their own host, which may differ from the driver's.
    first = _within(began, ended, min(_number(task, "began_ms") for task in tasks))
    last = _within(first, ended, max(_number(task, "ended_ms") for task in tasks))
    snapshot = min(last - first, max(_number(task, "snapshot_ms") for task in tasks))
    parts = {"fetch": first - began, "operator": last - first - snapshot, "snapshot": snapshot, "staging": ended - last}
    return {name: round(took_ms) for name, took_ms in parts.items()}


def _within(least: float, most: float, value: float) -> float:
    return max(least, min(most, value))


def _number(body: Mapping[str, Json], name: str) -> float:
    value = body.get(name, 0)
    return value if isinstance(value, int | float) else 0
