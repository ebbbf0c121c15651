"""A running query's execution inside Spark: what is known there and nowhere in Spark's public interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from py4j.java_gateway import is_instance_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway, JavaObject
    from pyspark.sql import SparkSession

_OF_A_SOURCE = "org.apache.spark.sql.execution.StreamSourceAwareSparkPlan"


def execution_of(spark: SparkSession, query_name: str) -> JavaObject:
    """The execution of a query that runs."""
    return next(query._jsq.streamingQuery() for query in spark.streams.active if query.name == query_name)


def rows_delivered(gateway: JavaGateway, execution: JavaObject, sources: int) -> int:
    """Rows that the query's first `sources` sources gave the batch that ran last, as Spark's own progress counts them.

    Counted where they leave a source, before the first filter; what a batch reads of static tables is not among them, nor
    what comes from sources of a higher number (the control rows).
    """
    streams = execution.sources()
    counted = [streams.apply(number) for number in range(sources)]
    rows = 0
    for scan in _leaves(execution.lastExecution().executedPlan()):
        stream = scan.getStream() if is_instance_of(gateway, scan, _OF_A_SOURCE) else None
        if stream is not None and stream.isDefined() and stream.get() in counted:
            metric = scan.metrics().get("numOutputRows")
            rows += int(metric.get().value()) if metric.isDefined() else 0
    return rows


def _leaves(plan: JavaObject) -> Iterator[JavaObject]:
    """The scans of a physical plan, also of one whose stages Spark adapts while it runs."""
    leaves = plan.collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        kind = str(leaf.getClass().getSimpleName())
        if kind == "AdaptiveSparkPlanExec":
            yield from _leaves(leaf.executedPlan())
        elif kind.endswith("QueryStageExec"):
            yield from _leaves(leaf.plan())
        else:
            yield leaf
