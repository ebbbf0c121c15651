"""Transport of tasks' reports to the driver through one accumulator, so a batch needs one Spark action.

A report is a small JSON text. Spark merges a task's reports only if the task succeeds, so failed attempts report
nothing. `coordination/reports.py` defines reports and the rule for those that count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import starmap
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
    """Channel for reports. Made on the driver, shipped to tasks inside their functions."""

    def __init__(self, context: SparkContext) -> None:
        self._texts: Accumulator[list[str]] = context.accumulator([], _Texts())

    def send(self, step: Step, scope: str, body: Mapping[str, Json]) -> None:
        """Send a report from a task. It arrives if the task succeeds."""
        task = TaskContext.get()
        partition, attempt = (task.partitionId(), task.taskAttemptId()) if task else (0, 0)
        self._texts.add([json.dumps([step, partition, attempt, scope, body])])

    def drain(self) -> list[Report]:
        """Return the reports that count, ordered by partition. Call it on the driver after the batch's action."""
        # the accumulator is shared by all batches of the query, so each batch empties it
        texts, self._texts.value = list(self._texts.value), []
        return parsed(texts)


def parsed(texts: Sequence[str]) -> list[Report]:
    """Return the reports that count among those that tasks sent as JSON, ordered by partition."""
    # one parse of all texts: a batch has a report per key group
    return latest_attempts(starmap(Report, json.loads(f"[{','.join(texts)}]")))
