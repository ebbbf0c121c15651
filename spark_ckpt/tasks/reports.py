"""Transport of tasks' reports to the driver through one accumulator, so a batch needs one Spark action.

Spark merges a task's reports only if the task succeeds, so failed attempts report nothing. `coordination/reports.py`
defines reports, how the calls of a task become one of them, and the rule for those that count.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import Accumulator, AccumulatorParam, SparkContext, TaskContext

from spark_ckpt.connector import Json
from spark_ckpt.coordination.reports import Report, Step, add, latest_attempts


class _Joining(AccumulatorParam[list[Report]]):
    def zero(self, value: list[Report]) -> list[Report]:
        return []  # a new one: `addInPlace` changes its first argument

    def addInPlace(self, value1: list[Report], value2: list[Report]) -> list[Report]:
        for report in value2:
            add(value1, report)
        return value1


class Reports:
    """Channel for reports. Made on the driver, shipped to tasks inside their functions."""

    def __init__(self, context: SparkContext) -> None:
        self._reports: Accumulator[list[Report]] = context.accumulator([], _Joining())

    def send(self, step: Step, scope: str, body: Mapping[str, Json]) -> None:
        """Send a report from a task. It arrives if the task succeeds."""
        task = TaskContext.get()
        # The driver keeps one attempt of each partition: a map task that Spark runs again reports a second time.
        partition, attempt = (task.partitionId(), task.taskAttemptId()) if task else (0, 0)
        self._reports.add([Report(step, partition, attempt, scope, body)])

    def drain(self) -> list[Report]:
        """Return the reports that count, ordered by partition. Call it on the driver after the batch's action."""
        # the accumulator is shared by all batches of the query, so each batch empties it
        reports, self._reports.value = self._reports.value, []
        return latest_attempts(reports)
