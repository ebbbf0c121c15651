"""Spark's analysed plans: their nodes, a stream without a source, Spark's check for streaming. On the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.jvm import (
    frame_of,
    items_of,
    java_frame,
    java_session,
    jvm_of,
    kind_of,
    scala_object,
    seq,
)
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CATALYST = "org.apache.spark.sql.catalyst"
_FOLDER = "sql/catalyst/src/main/scala/org/apache/spark/sql/catalyst"
_UNTRIED = "operations cannot be tried: none can be recorded"
_FILELESS = "input_file_name() is not refused: it is an empty text"
NAMES = (
    SparkName(
        "QueryExecution.analyzed",
        "org.apache.spark.sql.execution.QueryExecution "
        "(sql/core/src/main/scala/org/apache/spark/sql/execution/QueryExecution.scala)",
        "analysed", _UNTRIED,
    ),
    SparkName(
        "LogicalPlan.isStreaming", f"{_CATALYST}.plans.logical.LogicalPlan ({_FOLDER}/plans/logical/LogicalPlan.scala)",
        "PlanNode.is_streaming", _UNTRIED,
    ),
    SparkName(
        "LogicalPlan.children", f"{_CATALYST}.trees.TreeNode ({_FOLDER}/trees/TreeNode.scala)", "PlanNode.children",
        _UNTRIED,
    ),
    SparkName(
        "STATELESS_NODES", f"{_CATALYST}.plans.logical ({_FOLDER}/plans/logical/basicLogicalOperators.scala)",
        "STATELESS_NODES", "an operation whose node has another name is refused",
    ),
    SparkName(
        "DataTypeUtils.toAttributes", f"{_CATALYST}.types.DataTypeUtils ({_FOLDER}/types/DataTypeUtils.scala)",
        "streaming_template", _UNTRIED,
    ),
    SparkName(
        "Project.projectList",
        f"{_CATALYST}.plans.logical.Project ({_FOLDER}/plans/logical/basicLogicalOperators.scala)", "columns_kept",
        "rows between two operators always go through Spark's expressions",
    ),
    SparkName(
        "NamedExpression.exprId",
        f"{_CATALYST}.expressions.NamedExpression ({_FOLDER}/expressions/namedExpressions.scala)", "columns_kept",
        "rows between two operators always go through Spark's expressions",
    ),
    SparkName(
        "LocalRelation", f"{_CATALYST}.plans.logical.LocalRelation ({_FOLDER}/plans/logical/LocalRelation.scala)",
        "streaming_template", _UNTRIED,
    ),
    SparkName(
        "Dataset.ofRows",
        "org.apache.spark.sql.classic.Dataset (sql/core/src/main/scala/org/apache/spark/sql/classic/Dataset.scala)",
        "streaming_template", _UNTRIED,
    ),
    SparkName(
        "UnsupportedOperationChecker.checkForStreaming",
        f"{_CATALYST}.analysis.UnsupportedOperationChecker ({_FOLDER}/analysis/UnsupportedOperationChecker.scala)",
        "check_for_streaming", _UNTRIED,
    ),
    SparkName(
        "QueryPlan.expressions", f"{_CATALYST}.plans.QueryPlan ({_FOLDER}/plans/QueryPlan.scala)",
        "PlanNode.file_functions", _FILELESS,
    ),
    SparkName(
        "QueryPlan.deterministic", f"{_CATALYST}.plans.QueryPlan ({_FOLDER}/plans/QueryPlan.scala)",
        "PlanNode.is_deterministic", _FILELESS,
    ),
    SparkName(
        "InputFileName",
        f"{_CATALYST}.expressions.InputFileName ({_FOLDER}/expressions/inputFileBlock.scala)",
        "PlanNode.file_functions", _FILELESS,
    ),
)  # fmt: skip

PIPE_NODE = "PipeOperator"
"""Mark of a step after `|>`, in Spark's package of expressions. The optimiser removes it."""
STATELESS_NODES = frozenset(
    {
        *("Project", "Filter", "Generate", "Expand", "Unpivot", "DataFrameDropColumns", "Union", "Join", "LateralJoin"),
        *("MapInPandas", "MapInArrow", "MapElements", "MapPartitions", "TypedFilter"),
        *("DeserializeToObject", "SerializeFromObject", "AppendColumns"),
        *("Repartition", "RepartitionByExpression", "RebalancePartitions", "ResolvedHint", "CollectMetrics"),
        *("SubqueryAlias", "View", "WithCTE", "CTERelationDef", "CTERelationRef"),
        # The body of a table function in SQL: a mark that the optimiser removes, too.
        *(PIPE_NODE, "SQLFunctionNode"),
    }
)
"""Logical nodes, by class name, that keep nothing from row to row. A join is one if only one side is a stream."""
_PROJECT, _ALIAS_NODE = "Project", "SubqueryAlias"
"""Node of columns by expression; node that names the plan below it."""
REFERENCE_NODE, TEMPLATE_NODE, JOIN_NODE = "CTERelationRef", "LocalRelation", "Join"
"""Leaf for rows read elsewhere in the plan; leaf of a `streaming_template`; a join."""

STATEFUL_NODES = {
    "Aggregate": "an aggregation",
    "Distinct": "distinct",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithStateInPySpark": "transformWithState",
    "Join": "a join of two streams",
}
"""Logical nodes, by class name, whose state Spark keeps in its state stores, with the words that users know. A join is one
if both sides are streams."""
EVENT_TIME_NODES = frozenset({"EventTimeWatermark", "UpdateEventTimeWatermarkColumn"})
"""Logical nodes, by class name, that declare event time."""

FILE_FUNCTIONS = frozenset({"InputFileName", "InputFileBlockStart", "InputFileBlockLength"})
"""Expressions, by class name, whose value is of the file that Spark itself reads in the task."""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A node of a logical plan."""

    _node: JavaObject

    @property
    def name(self) -> str:
        """Simple name of its class."""
        return kind_of(self._node)

    @property
    def is_streaming(self) -> bool:
        """True if its rows are a stream's."""
        return bool(self._node.isStreaming())

    @property
    def children(self) -> list[PlanNode]:
        """The nodes it reads from."""
        return [PlanNode(child) for child in items_of(self._node.children())]

    @property
    def is_deterministic(self) -> bool:
        """True if no expression of the node or below it may give another value when it runs again."""
        return bool(self._node.deterministic())

    @property
    def file_functions(self) -> list[str]:
        """Names of the node's functions that ask for the file that Spark reads, such as `input_file_name`."""
        return [name for each in items_of(self._node.expressions()) for name in _file_functions(each)]

    @property
    def columns(self) -> frozenset[int]:
        """Ids of the columns of its rows."""
        return frozenset(each.exprId().id() for each in items_of(self._node.output()))

    def check_for_streaming(self, spark: SparkSession, output_mode: str) -> None:
        """Run Spark's check of a query before its start, in mode "append", "update" or "complete".

        Raises Spark's `AnalysisException`.
        """
        jvm = jvm_of(spark)
        checker = scala_object(jvm.org.apache.spark.sql.catalyst.analysis, "UnsupportedOperationChecker")
        modes = jvm.org.apache.spark.sql.streaming.OutputMode
        mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[output_mode]
        checker.checkForStreaming(self._node, mode())  # Java has methods for the modes, not values


def _file_functions(expression: JavaObject) -> Iterator[str]:
    # Spark counts them as nondeterministic, so most expressions need no walk.
    if expression.deterministic():
        return
    if kind_of(expression) in FILE_FUNCTIONS:
        yield str(expression.prettyName())
    for child in items_of(expression.children()):
        yield from _file_functions(child)


def analysed(frame: DataFrame) -> PlanNode:
    """Return the plan of a DataFrame after analysis, before optimisation."""
    return PlanNode(java_frame(frame).queryExecution().analyzed())


def columns_kept(frame: DataFrame) -> dict[str, str] | None:
    """Return for each column the column of the plan's one leaf that it is, by name.

    The frame's rows must be the leaf's, with columns dropped, reordered or renamed. Return None for any other
    operation, and for repeated names.
    """
    plan = java_frame(frame).queryExecution().analyzed()
    origins = _origins(plan)
    if origins is None:
        return None
    kept = [(str(each.name()), origins[each.exprId().id()]) for each in items_of(plan.output())]
    # Spark compares names without case
    return dict(kept) if len({name.lower() for name, _ in kept}) == len(kept) else None


def _origins(plan: JavaObject) -> dict[int, str] | None:
    """Return the leaf's columns by their ids in the plan's output."""
    if kind_of(plan) == TEMPLATE_NODE:
        return {each.exprId().id(): str(each.name()) for each in items_of(plan.output())}
    # Any other node may drop, repeat or compute rows, so they go through Spark.
    if kind_of(plan) not in (_PROJECT, _ALIAS_NODE):
        return None
    origins = _origins(plan.children().apply(0))
    if origins is None or kind_of(plan) == _ALIAS_NODE:
        return origins
    kept: dict[int, str] = {}
    for each in items_of(plan.projectList()):
        column = each.child() if kind_of(each) == "Alias" else each
        if kind_of(column) != "AttributeReference":
            return None
        kept[each.exprId().id()] = origins[column.exprId().id()]
    return kept


def streaming_template(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a streaming DataFrame of this schema without a source. Its plan is one `TEMPLATE_NODE`."""
    jvm = jvm_of(spark)
    attributes = jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(
        jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    )
    nothing = scala_object(jvm.scala, "None")
    # No rows, a stream (True), and no source behind it.
    empty = jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation(attributes, seq(spark, []), True, nothing)
    return frame_of(jvm.org.apache.spark.sql.classic.Dataset.ofRows(java_session(spark), empty), spark)
