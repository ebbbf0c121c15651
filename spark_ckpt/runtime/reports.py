"""What tasks tell the driver: small JSON reports through one accumulator, so that a batch needs one Spark action.

Spark merges a task's reports only when the task succeeds, so attempts that failed say nothing.  A map task that is run
again after its output was lost reports again: reports carry the partition and the attempt, and the latest attempt of
a partition counts.  "input" steps may sit in several stages of one batch (before the operator, behind it, behind a
join), so there every scope is told apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyspark import AccumulatorParam, TaskContext

from spark_ckpt.connector import Json

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

Step = Literal["input", "operator", "stage"]


FILE = "/file"
"""Ends the scope of a report of a staged file that does not come from the last step."""


class _Texts(AccumulatorParam[list[str]]):
    def zero(self, value: list[str]) -> list[str]:
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:
        value1.extend(value2)
        return value1


@dataclass(frozen=True, slots=True)
class Report:
    """One task's account of one step of its work. `scope` tells apart several accounts of one task (key groups, files)."""

    step: Step
    partition: int
    attempt: int
    scope: str
    body: Mapping[str, Json]


class Reports:
    """The channel. Made on the driver, shipped to tasks inside their functions."""

    def __init__(self, context: SparkContext) -> None:
        self._texts: Accumulator[list[str]] = context.accumulator([], _Texts())

    def send(self, step: Step, scope: str, body: Mapping[str, Json]) -> None:
        """From a task: arrives with the task's success, or not at all."""
        task = TaskContext.get()
        partition, attempt = (task.partitionId(), task.taskAttemptId()) if task else (0, 0)
        self._texts.add([json.dumps([step, partition, attempt, scope, body])])

    def drain(self) -> list[Report]:
        """On the driver, after the batch's action: the reports that count, in order of partition."""
        texts, self._texts.value = list(self._texts.value), []
        return latest_attempts(Report(*json.loads(text)) for text in texts)


def latest_attempts(reports: Iterable[Report]) -> list[Report]:
    """Drop what an earlier attempt of the same step and partition said."""
    everything = list(reports)
    newest: dict[tuple[str, int, str], int] = {}
    for report in everything:
        newest[_place(report)] = max(newest.get(_place(report), report.attempt), report.attempt)
    counted = [report for report in everything if report.attempt == newest[_place(report)]]
    return sorted(counted, key=lambda report: (report.step, report.partition, report.scope))


def _place(report: Report) -> tuple[str, int, str]:
    return report.step, report.partition, report.scope.removesuffix(FILE) if report.step == "input" else ""
