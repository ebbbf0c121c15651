"""Checks a recorded graph's plans just before they run.

A function may build another plan at that time than when it was recorded. A refusal names the recorded operation that
causes it.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_ckpt.connector import BeginsAtSeed
from spark_ckpt.plan.graph import (
    Leaf,
    Node,
    OperatorNode,
    SourceNode,
    SparkNode,
    TransformNode,
    build,
    leaves_of,
    reads_of,
    segment,
)
from spark_ckpt.plan.stateless import Refused, check_operation, check_rows
from spark_ckpt.spark_internals.plans import streaming_template

Read = Callable[[Leaf], "DataFrame"]


def checked_rows(
    node: Node,
    read: Read,
    at: Callable[[Node, DataFrame], DataFrame],
    clocks: Callable[[Node], int] = lambda _: 0,
) -> DataFrame:
    """Return the rows of `node` as a plan over the DataFrames that `read` returns for its sources.

    `at` is as for `build`; `clocks` is the number of event-time clocks that it adds to the plan of a node's rows.
    Raises `Refused`.
    """

    def check(part: Node) -> DataFrame:
        modes = {each.output_mode for each in segment(part) if isinstance(each, SparkNode)}
        rows, spark_reads = build(part, read, at), is_read_by_spark(part)
        # a job with several modes is refused at its start
        mode = modes.pop() if modes else None
        return check_rows(rows, len(reads_of(part)), clocks(part), spark_reads=spark_reads, output_mode=mode)

    return _checked(node, check)


def is_read_by_spark(node: Node) -> bool:
    """Return True if all rows of `node` come directly from sources that Spark itself reads (`SparkSource`)."""
    leaves = leaves_of(node)
    return all(isinstance(leaf, SourceNode) and isinstance(leaf.source, BeginsAtSeed) for leaf in leaves)


def checked_behind(spark: SparkSession, node: Node) -> None:
    """Check the operations after operators, on streams without rows.

    The plan above them keeps state, so it is left out.

    Raises `Refused`.
    """
    rows = {leaf: streaming_template(spark, _schema(leaf)) for leaf in leaves_of(node)}
    if len(reads_of(node)) == 1:
        (given,) = rows.values()
        _checked(node, lambda part: check_operation(given, build(part, lambda _: given)))
    else:
        checked_rows(node, lambda leaf: rows[leaf], lambda _, frame: frame)


def _schema(leaf: Leaf) -> StructType:
    return leaf.operator.output if isinstance(leaf, OperatorNode) else leaf.schema


def _checked(node: Node, check: Callable[[Node], DataFrame]) -> DataFrame:
    try:
        return check(node)
    except Refused as error:
        raise _named(node, check, error) from None


def _named(node: Node, check: Callable[[Node], DataFrame], refused: Refused) -> Refused:
    """Return the refusal with the name of the first recorded step that leads to it."""
    # from the leaves on: the first step that fails is the cause
    for step in reversed(list(segment(node))):
        try:
            check(step)
        except Refused as error:
            if isinstance(step, TransformNode | SparkNode):
                return error.at(step.verb, step.line)
            return error.at(f"source '{step.name}'", "") if isinstance(step, SourceNode) else error
    return refused
