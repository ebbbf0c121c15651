"""Spark's own conversions between Arrow and pandas, so that a user's function gets the same values as in Spark.

In tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion

from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import StructType

_CONVERSION = "pyspark.sql.conversion (python/pyspark/sql/conversion.py)"
NAMES = (
    SparkName(
        "ArrowBatchTransformer.to_pandas", _CONVERSION, "columns_to_pandas", "no user's function gets its frames",
    ),
    SparkName(
        "PandasToArrowConversion.convert", _CONVERSION, "frame_to_arrow", "no user's function can yield a frame",
    ),
)  # fmt: skip


def columns_to_pandas(table: pa.Table, *, timezone: str, prefer_int_ext_dtype: bool) -> list[pd.Series[float]]:
    """Convert column by column as in `applyInPandas`; timestamps become naive in `timezone`."""
    series = ArrowBatchTransformer.to_pandas(
        table,
        timezone=timezone,
        schema=None,
        struct_in_pandas="dict",
        ndarray_as_list=False,
        prefer_int_ext_dtype=prefer_int_ext_dtype,
        df_for_struct=False,
    )
    return cast("list[pd.Series[float]]", series)


def frame_to_arrow(
    frame: pd.DataFrame,
    schema: StructType,
    *,
    timezone: str,
    safecheck: bool,
    assign_cols_by_name: bool,
    int_to_decimal_coercion: bool,
) -> pa.RecordBatch:
    """Convert a frame that a user's function yielded, as `applyInPandas` does. Raises PySpark's errors, and Arrow's."""
    return PandasToArrowConversion.convert(
        frame,
        schema,
        timezone=timezone,
        safecheck=safecheck,
        arrow_cast=True,
        assign_cols_by_name=assign_cols_by_name,
        int_to_decimal_coercion_enabled=int_to_decimal_coercion,
    )
