"""Spark's own watermarks: declared in a plan, their clocks read and set after a batch. On the driver.

Spark keeps one clock per declaration of event time in the plan. The least of them is the query's watermark, and Spark
stores only that one: all clocks of a new query start at zero.
"""

from __future__ import annotations

from collections.abc import Mapping

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from spark_ckpt.spark_internals.column_names import column_of
from spark_ckpt.spark_internals.jvm import kind_of
from spark_ckpt.spark_internals.names import SparkName
from spark_ckpt.spark_internals.window_columns import WATERMARK

_OPERATORS = "org.apache.spark.sql.execution.streaming.operators.stateful"
_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/execution/streaming/operators/stateful"
_FILE = f"{_FOLDER}/EventTimeWatermarkExec.scala"
_STANDING = "watermarks stand still: no window closes, no event-time timeout is due"
NAMES = (
    SparkName(
        "EventTimeWatermarkExec.eventTime", f"{_OPERATORS}.EventTimeWatermarkExec ({_FILE})", "EventClocks", _STANDING
    ),
    SparkName(
        "EventTimeWatermarkExec.eventTimeStats", f"{_OPERATORS}.EventTimeWatermarkExec ({_FILE})", "EventClocks", _STANDING
    ),
    SparkName(
        "EventTimeStatsAccum.add", f"{_OPERATORS}.EventTimeStatsAccum ({_FILE})", "EventClocks.seed",
        "after a restart a job of several watermarks waits for rows of all inputs",
    ),
    SparkName("EventTimeStats.max", f"{_OPERATORS}.EventTimeStats ({_FILE})", "EventClocks.newest_ms", _STANDING),
    SparkName("EventTimeStats.count", f"{_OPERATORS}.EventTimeStats ({_FILE})", "EventClocks.newest_ms", _STANDING),
    SparkName(
        "TreeNode.apply",
        "org.apache.spark.sql.catalyst.trees.TreeNode "
        "(sql/catalyst/src/main/scala/org/apache/spark/sql/catalyst/trees/TreeNode.scala)",
        "EventClocks", _STANDING,
    ),
)  # fmt: skip

_CLOCK, _LONG = "ckpt_clock_", 1 << 31  # from here on py4j passes a number as a Java long
CLOCK_NODE = "EventTimeWatermark"
"""Logical node that `with_clock` adds."""


def with_clock(frame: DataFrame, column: str, delay_ms: int, number: int) -> DataFrame:
    """Return the rows; their event time in `column` advances the clock `number` of the query that reads them."""
    # The name finds the clock in the physical plan; its node stays when the column is dropped.
    name = f"{_CLOCK}{number}"
    return frame.withColumn(name, column_of(column)).withWatermark(name, f"{delay_ms} milliseconds").drop(name)


def in_event_time(frame: DataFrame, column: str) -> DataFrame:
    """Return the rows with a null event time `column`.

    A grouping of them may set event-time timeouts, and Spark drops none of the rows.
    """
    return frame.withColumn(column, F.lit(None).cast(TimestampType()).alias(column, metadata={WATERMARK: 0}))


class EventClocks:
    """The clocks in the physical plans of one query, one plan per batch."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}

    def newest_ms(self, plan: JavaObject) -> dict[int, int]:
        """Return the greatest event time that each clock received in the batch of `plan`, in epoch milliseconds.

        Clocks without a time in that batch are absent.
        """
        # The accumulator of the batch's plan; Spark itself reads it only when the batch is over.
        stats = {number: node.eventTimeStats().value() for node, number in self._nodes(plan)}
        return {number: int(each.max()) for number, each in stats.items() if each.count() > 0}

    def seed(self, plan: JavaObject, newest_ms: Mapping[int, int]) -> None:
        """Give every clock this event time, in the batch of `plan`, before Spark reads the clocks after the batch.

        Times before 1970-01-26 are skipped: py4j passes them as another type than a clock accepts.
        """
        for node, number in self._nodes(plan):
            if newest_ms.get(number, 0) >= _LONG:
                node.eventTimeStats().add(newest_ms[number])

    def _nodes(self, plan: JavaObject) -> list[tuple[JavaObject, int]]:
        """Return the clocks' nodes, from their positions in the previous plan, since most plans have the same shape."""
        at_places = {place: plan.apply(place) for place in self._places}
        # Each question to a node is a call through py4j; a plan has dozens of nodes, and few of them are clocks.
        if not self._places or any(_clock_of(node) != self._places[place] for place, node in at_places.items()):
            at_places = dict(enumerate(_all_nodes(plan)))
            numbers = {place: _clock_of(node) for place, node in at_places.items()}
            self._places = {place: number for place, number in numbers.items() if number is not None}
        return [(at_places[place], number) for place, number in self._places.items()]


def _all_nodes(plan: JavaObject) -> list[JavaObject]:
    nodes: list[JavaObject] = []
    # `TreeNode.apply` counts in pre-order, and has null after the last node.
    while (node := plan.apply(len(nodes))) is not None:
        nodes.append(node)
    return nodes


def _clock_of(node: JavaObject | None) -> int | None:
    if node is None or kind_of(node) != "EventTimeWatermarkExec":
        return None
    name = str(node.eventTime().name())
    return int(name.removeprefix(_CLOCK)) if name.startswith(_CLOCK) else None
