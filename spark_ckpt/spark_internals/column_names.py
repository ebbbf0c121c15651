"""Columns with any name that a schema may have, in Spark's expressions and for `mapInArrow` and `mapInPandas`.

There PySpark resolves a column's name as an expression: it reads `a.b` as field `b` of column `a`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_SPECIAL = (".", "`")


def quoted(name: str) -> str:
    """Return the name as an identifier for Spark's expressions and schemas."""
    return "`" + name.replace("`", "``") + "`"


def column_of(name: str) -> Column:
    """Return the column of exactly this name."""
    return F.col(quoted(name))


def map_in_arrow(
    rows: DataFrame,
    step: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    """Return `rows.mapInArrow(step, schema)`, for columns of any name."""
    # Most schemas need no second step.
    names = rows.columns
    if _all_plain(names):
        return rows.mapInArrow(step, schema)

    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return step(batch.rename_columns(names) for batch in batches)

    # numbered names pass PySpark's resolution; `named` restores the real ones in the task
    return _numbered(rows).mapInArrow(named, schema)


def map_in_pandas(
    rows: DataFrame,
    function: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]],
    schema: StructType | str,
) -> DataFrame:
    """Return `rows.mapInPandas(function, schema)`, for columns of any name."""
    names = rows.columns
    if _all_plain(names):
        return rows.mapInPandas(function, schema)

    def named(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return function(frame.set_axis(names, axis="columns") for frame in frames)

    return _numbered(rows).mapInPandas(named, schema)


def _all_plain(names: Sequence[str]) -> bool:
    return not any(special in name for name in names for special in _SPECIAL)


def _numbered(rows: DataFrame) -> DataFrame:
    return rows.toDF(*(f"c{place}" for place in range(len(rows.columns))))
