"""Spark's marks of event time in a column's metadata and in the expressions of an analysed plan. On the driver.

Spark's `withWatermark` and `F.window` mark their columns in the metadata. A window struct of a watermarked column has
both marks. A field of the struct loses them, so its definition is looked up in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from spark_ckpt.spark_internals.column_names import column_of
from spark_ckpt.spark_internals.jvm import items_of, java_frame, kind_of
from spark_ckpt.spark_internals.names import SparkName

_CATALYST = "org.apache.spark.sql.catalyst"
_FOLDER = "sql/catalyst/src/main/scala/org/apache/spark/sql/catalyst"
_UNCLOSED = "windows of agg never close: their state grows without bound, late rows are not dropped"
_UNTOLD = "a key that is a part of a window is not recognised: its windows never close"
NAMES = (
    SparkName(
        "spark.watermarkDelayMs",
        f"{_CATALYST}.plans.logical.EventTimeWatermark ({_FOLDER}/plans/logical/EventTimeWatermark.scala)",
        "is_watermarked, watermark_only", _UNCLOSED,
    ),
    SparkName(
        "spark.timeWindow", f"{_CATALYST}.expressions.TimeWindow ({_FOLDER}/expressions/TimeWindow.scala)",
        "is_time_window", _UNCLOSED,
    ),
    SparkName(
        "spark.sessionWindow", f"{_CATALYST}.expressions.SessionWindow ({_FOLDER}/expressions/SessionWindow.scala)",
        "is_session_window", "a session window is taken for a key, and its sessions do not merge",
    ),
    SparkName(
        "GetStructField", f"{_CATALYST}.expressions.GetStructField ({_FOLDER}/expressions/complexTypeExtractors.scala)",
        "window_part", _UNTOLD,
    ),
    SparkName(
        "AttributeReference", f"{_CATALYST}.expressions.AttributeReference ({_FOLDER}/expressions/namedExpressions.scala)",
        "window_part", _UNTOLD,
    ),
    SparkName(
        "CreateNamedStruct.valExprs",
        f"{_CATALYST}.expressions.CreateNamedStruct ({_FOLDER}/expressions/complexTypeCreator.scala)",
        "window_part", "a grouping by the start of a window is refused",
    ),
    SparkName(
        "Project and Alias", f"{_CATALYST}.expressions.Alias ({_FOLDER}/expressions/namedExpressions.scala)",
        "window_part", _UNTOLD,
    ),
    SparkName(
        "Expand.projections",
        f"{_CATALYST}.plans.logical.Expand ({_FOLDER}/plans/logical/basicLogicalOperators.scala)", "window_part",
        "a grouping by a part of a sliding window is not recognised, or refused",
    ),
)  # fmt: skip

WATERMARK, _WINDOW, _SESSION = "spark.watermarkDelayMs", "spark.timeWindow", "spark.sessionWindow"


@dataclass(frozen=True, slots=True)
class WindowPart:
    """A column that is the start or the end of a window of the watermarked column.

    `length_us` is None if it is unknown.
    """

    is_end: bool
    length_us: int | None


class _Definition(NamedTuple):
    """The expression that computes a column, and the plan below it."""

    expression: JavaObject
    below: JavaObject


def is_watermarked(field: StructField) -> bool:
    """Return True if the column is a stream's event time, or a window of it."""
    return WATERMARK in field.metadata


def is_time_window(field: StructField) -> bool:
    """Return True if the column is a struct that `F.window` made."""
    return isinstance(field.dataType, StructType) and _WINDOW in field.metadata


def is_session_window(field: StructField) -> bool:
    """Return True if `F.session_window` made the column."""
    return _SESSION in field.metadata


def without_watermark_mark(field: StructField) -> StructField:
    """Return the column without the mark of event time."""
    return type(field)(field.name, field.dataType, field.nullable, _unmarked(field))


def watermark_only(frame: DataFrame, column: str, delay_ms: int) -> DataFrame:
    """Return the frame with `column` as the only one marked as Spark's `withWatermark` does."""
    for field in frame.schema.fields:
        if is_watermarked(field):
            frame = _with_metadata(frame, field.name, _unmarked(field))
    return _with_metadata(frame, column, {**frame.schema[column].metadata, WATERMARK: delay_ms})


def _with_metadata(frame: DataFrame, column: str, metadata: dict[str, Any]) -> DataFrame:
    # Spark's `withMetadata` would resolve the column's name as an expression.
    return frame.withColumn(column, column_of(column).alias(column, metadata=metadata))


def _unmarked(field: StructField) -> dict[str, Any]:
    return {key: value for key, value in field.metadata.items() if key != WATERMARK}


def window_part(frame: DataFrame, column: str) -> WindowPart | None:
    """Return the part of a window of the watermarked column that this column is; None if it is none."""
    plan = java_frame(frame).queryExecution().analyzed()
    wanted = next(each for each in items_of(plan.output()) if each.name() == column)
    found = _definition(plan, wanted)
    if found is None or kind_of(found.expression) != "GetStructField":
        return None
    struct = found.expression.child()
    marks = struct.metadata() if kind_of(struct) == "AttributeReference" else None
    if marks is None or not (marks.contains(_WINDOW) and marks.contains(WATERMARK)):
        return None
    if found.expression.extractFieldName() == "end":
        return WindowPart(True, None)  # the end itself closes the key; a start needs the length
    return WindowPart(False, _length_us(_definition(found.below, struct)))


def _length_us(window: _Definition | None) -> int | None:
    """Return the window's length in microseconds; None if it is unknown."""
    # Spark computes the end as the start plus a literal of microseconds.
    expression = (
        window.expression.valExprs().apply(1) if window and kind_of(window.expression) == "CreateNamedStruct" else None
    )
    while expression is not None and kind_of(expression) != "Add":
        # Casts and marks around the sum have one child.
        children = items_of(expression.children())
        expression = children[0] if len(children) == 1 else None
    if expression is None or kind_of(expression.right()) != "Literal":
        return None
    return int(expression.right().value())


def _definition(plan: JavaObject, attribute: JavaObject) -> _Definition | None:
    """Return a column's definition, through renames; None if it comes unchanged from a leaf, or from several branches."""
    wanted = attribute.exprId()
    while True:
        children = items_of(plan.children())
        computed = _computed(plan, wanted)
        if computed is not None and kind_of(computed) != "AttributeReference":
            return _Definition(computed, children[0])
        if computed is not None:
            wanted = computed.exprId()
        holding = [child for child in children if any(each.exprId() == wanted for each in items_of(child.output()))]
        # each branch may define the column in another way
        if kind_of(plan) == "Union" or len(holding) != 1:
            return None
        plan = holding[0]


def _computed(plan: JavaObject, wanted: JavaObject) -> JavaObject | None:
    """Return the expression that this node computes the column with; None if it does not compute it."""
    if kind_of(plan) == "Project":
        for named in items_of(plan.projectList()):
            if named.exprId() == wanted:
                return named.child() if kind_of(named) == "Alias" else named
    if kind_of(plan) == "Expand":
        for number, output in enumerate(items_of(plan.output())):
            if output.exprId() == wanted:
                # A projection for each window that a row is in: all windows have the length of the first.
                value = plan.projections().apply(0).apply(number)
                return value.child() if kind_of(value) == "Alias" else value
    return None
