"""Reads a Column such as `F.sum("x").alias("total")`: the function, its arguments and the alias. On the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.jvm import items_of, kind_of
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import Column

_NODES = "org.apache.spark.sql.internal ({}) (sql/api/src/main/scala/org/apache/spark/sql/internal/columnNodes.scala)"
_LOST = "agg takes no functions of Spark, only those of spark_ckpt"
NAMES = (
    SparkName(
        "Column._jc",
        "pyspark.sql.classic.column.Column (python/pyspark/sql/classic/column.py)",
        "aggregate_call",
        _LOST,
    ),
    SparkName("Alias.name", _NODES.format("Alias"), "aggregate_call", _LOST),
    SparkName("UnresolvedFunction.arguments", _NODES.format("UnresolvedFunction"), "aggregate_call", _LOST),
    SparkName("UnresolvedAttribute.nameParts", _NODES.format("UnresolvedAttribute"), "aggregate_call", _LOST),
    SparkName("Literal.value", _NODES.format("Literal"), "aggregate_call", _LOST),
)


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """A call of a function of Spark.

    - `columns`: names of the argument columns. None if an argument is an expression.
    - `literals`: constant arguments, in order.
    - `alias`: name given with `.alias(...)`; None without one.
    """

    function: str
    columns: tuple[str, ...] | None
    literals: tuple[object, ...] = ()
    distinct: bool = False
    alias: str | None = None


def aggregate_call(column: Column) -> AggregateCall | None:
    """Return the call that a Column consists of; None for another expression, and for a Column of Spark Connect."""
    java = getattr(column, "_jc", None)
    if java is None:
        return None
    node, alias = java.node(), None
    if kind_of(node) == "Alias":
        names = items_of(node.name())
        node, alias = node.child(), str(names[0]) if len(names) == 1 else None
    if kind_of(node) != "UnresolvedFunction":
        return None
    # The star of count(*) is no column: the call counts rows.
    arguments = [each for each in items_of(node.arguments()) if kind_of(each) != "UnresolvedStar"]
    literals = tuple(each.value() for each in arguments if kind_of(each) == "Literal")
    named = [each for each in arguments if kind_of(each) != "Literal"]
    columns = tuple(filter(None, map(_column_name, named)))
    return AggregateCall(
        str(node.functionName()).lower(),
        columns if len(columns) == len(named) else None,
        literals,
        bool(node.isDistinct()),
        alias,
    )


def _column_name(node: JavaObject) -> str | None:
    """Return the name of a column; None for a field of a struct and for an expression."""
    if kind_of(node) != "UnresolvedAttribute":
        return None
    parts = items_of(node.nameParts())
    return str(parts[0]) if len(parts) == 1 else None
