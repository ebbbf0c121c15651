"""Session settings that operators need; read on the driver, shipped with the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.settings import assigns_columns_by_name, converts_safely
from spark_ckpt.tasks.operators.pandas_rows import PandasOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pandas_options(spark: SparkSession) -> PandasOptions:
    """Return the settings of Spark's pandas conversion in this session."""
    return PandasOptions(
        timezone=_text(spark, "spark.sql.session.timeZone"),
        prefer_int_ext_dtype=_flag(spark, "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"),
        safecheck=converts_safely(spark),
        assign_cols_by_name=assigns_columns_by_name(spark),
        int_to_decimal_coercion=_flag(spark, "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
    )


def _text(spark: SparkSession, key: str) -> str:
    """Read a setting with Spark's own default for a missing key."""
    return str(spark.conf.get(key))


def _flag(spark: SparkSession, key: str) -> bool:
    return _text(spark, key).lower() == "true"
