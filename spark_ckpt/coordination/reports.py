"""What tasks tell the driver about a batch, as values. How the reports travel is `tasks/reports.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from spark_ckpt.connector import Json, StagedFile

Step = Literal["input", "operator", "tap"]
"""A sink gets its rows in a "tap", on a stream's way or at its end."""

FILE = "/file"
"""Ends the scope of an "input" step's report of a staged file."""


EDGE = "edge:"
"""Begins the scope of a report of a segment of an edge; no sink has such a name."""


@dataclass(frozen=True, slots=True)
class Report:
    """One task's account of one step of its work. `scope` tells apart several accounts of one task (key groups, files)."""

    step: Step
    partition: int
    attempt: int
    scope: str
    body: Mapping[str, Json]


def latest_attempts(reports: Iterable[Report]) -> list[Report]:
    """Drop what an earlier attempt of the same step and partition said.

    A map task that is run again after its output was lost reports again: the latest attempt of a partition counts. "input"
    steps may sit in several stages of one batch (before the operator, behind it, behind a join), so there every
    scope is told apart; operators and taps likewise: the tasks of one may run in another stage than those of the next.
    """
    everything = list(reports)
    newest: dict[tuple[str, int, str], int] = {}
    for report in everything:
        newest[_place(report)] = max(newest.get(_place(report), report.attempt), report.attempt)
    counted = [report for report in everything if report.attempt == newest[_place(report)]]
    return sorted(counted, key=lambda report: (report.step, report.partition, report.scope))


def scope_of_group(operator: str, group: int) -> str:
    """The scope of a key group's account."""
    return f"{operator}/{group}"


def group_of(report: Report) -> tuple[str, int]:
    """The operator and the number of the key group that an "operator" step reports of."""
    operator, group = report.scope.rsplit("/", 1)
    return operator, int(group)


def edge_of(report: Report) -> str | None:
    """The edge that a step which stages rows reports a segment of; None if it reports something else."""
    return report.scope.removeprefix(EDGE) if report.scope.startswith(EDGE) else None


def staged_file(body: Mapping[str, object]) -> StagedFile:
    """A `StagedFile` from a report's body."""
    return StagedFile(**json.loads(json.dumps(body)))


def _place(report: Report) -> tuple[str, int, str]:
    match report.step:
        case "input":
            return report.step, report.partition, report.scope.removesuffix(FILE)
        case "operator":
            return report.step, report.partition, group_of(report)[0]
    return report.step, report.partition, report.scope
