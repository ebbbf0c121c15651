"""A recorded graph's plans, checked as they are about to run: a function may make another plan at the start than it made when
it was recorded. A refusal names the recorded operation that brought it in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_ckpt.graph import Node, OperatorNode, SourceNode, TransformNode, build, operator_of, sources_of, upstream
from spark_ckpt.runtime.stateless import Refused, check_operation, check_rows
from spark_ckpt.spark_private.plans import streaming_template

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Leaf = Callable[[SourceNode | OperatorNode], "DataFrame"]


def checked_rows(node: Node, read: Leaf) -> DataFrame:
    """The rows of `node` as a plan over what `read` gives for its sources. Raises `Refused`."""
    return _checked(node, lambda part: check_rows(build(part, read), len(sources_of(part))))


def checked_output(spark: SparkSession, node: Node) -> None:
    """What is recorded behind the operator. Each batch has its own plan there, so it is tried on a stream of no rows."""
    operator = operator_of(node)
    assert operator is not None, "there is an operator to be behind of"  # noqa: S101
    rows = streaming_template(spark, operator.operator.output)
    _checked(node, lambda part: check_operation(rows, build(part, lambda _: rows)) if operator_of(part) else rows)


def _checked(node: Node, check: Callable[[Node], DataFrame]) -> DataFrame:
    try:
        return check(node)
    except Refused as error:
        raise _named(node, check, error) from None


def _named(node: Node, check: Callable[[Node], DataFrame], refused: Refused) -> Refused:
    """The refusal with the name of the first recorded step that leads to it."""
    for step in reversed(list(upstream(node))):
        try:
            check(step)
        except Refused as error:
            if isinstance(step, TransformNode):
                return error.at(step.verb, step.line)
            return error.at(f"source '{step.name}'", "") if isinstance(step, SourceNode) else error
    return refused
