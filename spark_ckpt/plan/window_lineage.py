"""Finds columns that are parts of an event-time window of the watermarked column, in Spark's analysed plan."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType, TimestampType

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.spark_internals.window_columns import (
    is_session_window,
    is_time_window,
    is_watermarked,
    window_part,
    without_watermark_mark,
)
from spark_ckpt.tasks.operators.window_keys import Closing


def without_marks(schema: StructType) -> StructType:
    """Return the schema without the mark of `watermark_only`, which sinks must not see."""
    return StructType([without_watermark_mark(field) if is_watermarked(field) else field for field in schema.fields])


def is_window(field: StructField) -> bool:
    """Return True if the column comes from `F.window`. Raises `GraphInvalid` for a session window."""
    if is_session_window(field):
        raise GraphInvalid(
            f"'{field.name}' is a session window: its keys merge, which agg does not do",
            hint="Spark's own aggregation merges them: stream.transform(lambda rows: rows.groupBy(...).agg(...)); "
            "or keep sessions with applyInPandasWithState and a timeout",
        )
    return is_time_window(field)


def closing_of(frame: DataFrame, keys: Sequence[str]) -> Closing | None:
    """Return the rule that closes keys of this grouping as the watermark advances; None if no key closes.

    Raises `GraphInvalid` for the start of a window of unknown length.
    """
    for name in keys:
        field = frame.schema[name]
        if isinstance(field.dataType, TimestampType):
            closing = Closing(name) if is_watermarked(field) else _window_part(frame, name)
            if closing is not None:  # one column that closes is enough
                return closing
    return None


def _window_part(frame: DataFrame, name: str) -> Closing | None:
    part = window_part(frame, name)
    # an end closes its key by itself; a start needs the window's length
    if part is None or part.is_end:
        return Closing(name) if part else None
    if part.length_us is None:
        raise GraphInvalid(
            f"key '{name}' is the start of an event-time window of unknown length",
            hint='group by the window itself, or by its end: groupBy("key", F.window("at", "10 minutes"))',
        )
    return Closing(name, part.length_us)
