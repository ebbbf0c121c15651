"""Reports of tasks to the driver about a batch, as values, and the parts of a batch's duration. Pure.

`tasks/reports.py` transports the reports. The parts are for metrics only: no decision depends on them. Tasks report
times of their hosts' clocks, the driver reports times of its own clock. On one host the parts are exact. If clocks
differ, the times are clamped to the action, so that the parts still add up to its duration.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

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

    `scope` distinguishes several reports of one task (key groups, files).
    """

    step: Step
    partition: int
    attempt: int
    scope: str
    body: Mapping[str, Json]


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


def scope_of_group(operator: str, group: int) -> str:
    """Return the scope of a key group's report. A barrier's report of a task has that of its least key group."""
    return f"{operator}/{group}"


def operator_of(report: Report) -> str:
    """Return the operator in the report of an "operator" step."""
    return report.scope.rpartition("/")[0]


def edge_of(report: Report) -> str | None:
    """Return the edge of a report about a segment; None for other reports."""
    return report.scope.removeprefix(EDGE) if report.scope.startswith(EDGE) else None


def staged_file(body: Mapping[str, object]) -> StagedFile:
    """Return the `StagedFile` in the body of a report."""
    return StagedFile(**json.loads(json.dumps(body)))


def place_of(report: Report) -> tuple[str, int, str]:
    """Return the part of a batch's work that a report is about: each attempt of a task reports it again."""
    match report.step:
        case "input":
            return report.step, report.partition, report.scope.removesuffix(FILE)
        case "operator":
            return report.step, report.partition, operator_of(report)
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
    groups = [report for report in reports if report.step == "operator" and "began_ms" in report.body]
    if "began_ms" not in action or not groups:
        return {}
    began, ended = _ms(action, "began_ms"), _ms(action, "ended_ms")
    first = _within(began, ended, min(_ms(group.body, "began_ms") for group in groups))
    last = _within(first, ended, max(_ms(group.body, "ended_ms") for group in groups))
    snapshot = min(last - first, _longest_snapshot_ms(groups))
    parts = {"fetch": first - began, "operator": last - first - snapshot, "snapshot": snapshot, "staging": ended - last}
    return {name: round(took_ms) for name, took_ms in parts.items()}


def _longest_snapshot_ms(groups: Sequence[Report]) -> float:
    """Return the longest snapshot time of a task; a task runs its key groups one after the other."""
    by_task: dict[tuple[str, int], float] = defaultdict(float)
    for group in groups:
        by_task[operator_of(group), group.partition] += _ms(group.body, "snapshot_ms")
    return max(by_task.values())


def _within(least: float, most: float, value: float) -> float:
    return max(least, min(most, value))


def _ms(body: Mapping[str, Json], name: str) -> float:
    value = body.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0
