"""Which of a stream's columns are parts of an event-time window of the watermarked column, told from Spark's analysed plan.

Spark marks both in a column's metadata: what `withWatermark` names, and what `F.window` makes; a struct made of a watermarked
column has both marks. A field of the struct loses them, so that its definition is looked up in the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import StructType, TimestampType

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.runtime.window_keys import Closing

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

WATERMARK, WINDOW, SESSION = "spark.watermarkDelayMs", "spark.timeWindow", "spark.sessionWindow"


class _Definition(NamedTuple):
    """The expression that computes a column, and the plan below that it computes from."""

    expression: JavaObject
    below: JavaObject


def watermarked(frame: DataFrame, column: str, delay_ms: int) -> DataFrame:
    """The frame with `column`, and no other, marked as Spark's `withWatermark` does."""
    for field in frame.schema.fields:
        if WATERMARK in field.metadata:
            frame = frame.withMetadata(field.name, {k: v for k, v in field.metadata.items() if k != WATERMARK})
    return frame.withMetadata(column, {**frame.schema[column].metadata, WATERMARK: delay_ms})


def without_marks(schema: StructType) -> StructType:
    """The schema without `watermarked`'s mark: sinks know nothing of it."""
    marked = StructType([*schema.fields])
    for number, field in enumerate(marked.fields):
        if WATERMARK in field.metadata:
            marked.fields[number] = type(field)(
                field.name, field.dataType, field.nullable, {k: v for k, v in field.metadata.items() if k != WATERMARK}
            )
    return marked


def is_window(field: StructField) -> bool:
    """Whether the column is what `F.window` makes. Raises `GraphInvalid` for a session window."""
    if SESSION in field.metadata:
        raise GraphInvalid(
            f"'{field.name}' is a session window: its keys merge, which agg does not do",
            hint="keep sessions with applyInPandasWithState and a timeout",
        )
    return isinstance(field.dataType, StructType) and WINDOW in field.metadata


def closing_of(frame: DataFrame, keys: Sequence[str]) -> Closing | None:
    """What closes keys of this grouping as the watermark moves on; None if nothing does."""
    for name in keys:
        field = frame.schema[name]
        if isinstance(field.dataType, TimestampType):
            closing = Closing(name) if WATERMARK in field.metadata else _window_part(frame, name)
            if closing is not None:
                return closing
    return None


def _window_part(frame: DataFrame, name: str) -> Closing | None:
    plan = frame._jdf.queryExecution().analyzed()
    wanted = next(each for each in _items(plan.output()) if each.name() == name)
    found = _definition(plan, wanted)
    if found is None or _kind(found.expression) != "GetStructField":
        return None
    struct = found.expression.child()
    marks = struct.metadata() if _kind(struct) == "AttributeReference" else None
    if marks is None or not (marks.contains(WINDOW) and marks.contains(WATERMARK)):
        return None
    if found.expression.extractFieldName() == "end":
        return Closing(name)
    return Closing(name, _length_us(name, _definition(found.below, struct)))


def _length_us(name: str, window: _Definition | None) -> int:
    """The window's length. Spark computes its end as the start and a literal of microseconds."""
    expression = (
        window.expression.valExprs().apply(1) if window and _kind(window.expression) == "CreateNamedStruct" else None
    )
    while expression is not None and _kind(expression) != "Add":
        children = _items(expression.children())
        expression = children[0] if len(children) == 1 else None
    if expression is None or _kind(expression.right()) != "Literal":
        raise GraphInvalid(
            f"key '{name}' is the start of an event-time window whose length cannot be told",
            hint='group by the window itself, or by its end: groupBy("key", F.window("at", "10 minutes"))',
        )
    return int(expression.right().value())


def _definition(plan: JavaObject, attribute: JavaObject) -> _Definition | None:
    """Where a column comes from, renamings followed; None if it comes so from a leaf, or from several branches."""
    wanted = attribute.exprId()
    while True:
        children = _items(plan.children())
        computed = _computed(plan, wanted)
        if computed is not None and _kind(computed) != "AttributeReference":
            return _Definition(computed, children[0])
        if computed is not None:
            wanted = computed.exprId()
        holding = [child for child in children if any(each.exprId() == wanted for each in _items(child.output()))]
        if _kind(plan) == "Union" or len(holding) != 1:
            return None
        plan = holding[0]


def _computed(plan: JavaObject, wanted: JavaObject) -> JavaObject | None:
    """The expression that this node computes the column from, if it does."""
    if _kind(plan) == "Project":
        for named in _items(plan.projectList()):
            if named.exprId() == wanted:
                return named.child() if _kind(named) == "Alias" else named
    if _kind(plan) == "Expand":
        for number, output in enumerate(_items(plan.output())):
            if output.exprId() == wanted:
                value = plan.projections().apply(0).apply(number)
                return value.child() if _kind(value) == "Alias" else value
    return None


def _items(items: JavaObject) -> list[JavaObject]:
    return [items.apply(number) for number in range(items.size())]


def _kind(thing: JavaObject) -> str:
    return str(thing.getClass().getSimpleName())
