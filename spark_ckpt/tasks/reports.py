"""How tasks' reports reach the driver: small JSON texts through one accumulator, so that a batch needs one Spark action.

Spark merges a task's reports only when the task succeeds, so attempts that failed say nothing.  What a report is, and
which ones count, is `coordination/reports.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark import AccumulatorParam, TaskContext

from spark_ckpt.connector import Json
from spark_ckpt.coordination.reports import Report, Step, latest_attempts

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext


class _Texts(AccumulatorParam[list[str]]):
    def zero(self, value: list[str]) -> list[str]:
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:
        value1.extend(value2)
        return value1


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
