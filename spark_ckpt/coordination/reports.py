"""Reports of tasks to the driver about a batch, as values. `tasks/reports.py` transports them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    everything = list(reports)
    newest: dict[tuple[str, int, str], int] = {}
    for report in everything:
        newest[_place(report)] = max(newest.get(_place(report), report.attempt), report.attempt)
    counted = [report for report in everything if report.attempt == newest[_place(report)]]
    return sorted(counted, key=lambda report: (report.step, report.partition, report.scope))


def scope_of_group(operator: str, group: int) -> str:
    """Return the scope of a key group's report."""
    return f"{operator}/{group}"


def group_of(report: Report) -> tuple[str, int]:
    """Return the operator and the number of the key group in the report of an "operator" step."""
    operator, group = report.scope.rsplit("/", 1)
    return operator, int(group)


def edge_of(report: Report) -> str | None:
    """Return the edge of a report about a segment; None for other reports."""
    return report.scope.removeprefix(EDGE) if report.scope.startswith(EDGE) else None


def staged_file(body: Mapping[str, object]) -> StagedFile:
    """Return the `StagedFile` in the body of a report."""
    return StagedFile(**json.loads(json.dumps(body)))


def _place(report: Report) -> tuple[str, int, str]:
    match report.step:
        case "input":
            return report.step, report.partition, report.scope.removesuffix(FILE)
        case "operator":
            return report.step, report.partition, group_of(report)[0]
    return report.step, report.partition, report.scope
