"""Decides on the driver if an operator can pass its rows to the next one within its own task (`onward`)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from spark_ckpt.plan.graph import OperatorNode, build, reads_of
from spark_ckpt.spark_internals.plans import columns_kept, streaming_template
from spark_ckpt.spark_internals.settings import assigns_columns_by_name, converts_safely, flag
from spark_ckpt.tasks.group_host import GroupHost
from spark_ckpt.tasks.key_hash import can_hash
from spark_ckpt.tasks.onward import Onward
from spark_ckpt.tasks.operators.pandas_rows import PandasOptions
from spark_ckpt.tasks.rows import arrow_schema


def pandas_options(spark: SparkSession) -> PandasOptions:
    """Return the settings of Spark's pandas conversion in this session."""
    return PandasOptions(
        timezone=str(spark.conf.get("spark.sql.session.timeZone")),
        prefer_int_ext_dtype=flag(spark, "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"),
        safecheck=converts_safely(spark),
        assign_cols_by_name=assigns_columns_by_name(spark),
        int_to_decimal_coercion=flag(spark, "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
    )


BLOBS_MAX = 1024
"""Largest number of blobs per batch between two operators with different keys.

Each key group may produce one blob for each of the next operator's groups, and a blob costs 0.1 ms.
"""


def onward_between(
    spark: SparkSession, before: OperatorNode, node: OperatorNode, hosts: Mapping[str, GroupHost]
) -> Onward | None:
    """Return the conversion from the output of `before` to the input of `node`; None if the rows must pass Spark.

    They must in these cases:

    - An expression lies between the operators.
    - The next operator also reads rows from elsewhere, or has event time, which Spark must see.
    - Only Spark can hash a key's type.
    - The operators have too many key groups (`grouping_fits`).
    """
    if len(reads_of(node.parent)) > 1 or node.event_time is not None:
        return None
    # only the plan between the operators is looked at, so an empty stream will do
    given = streaming_template(spark, before.operator.output)
    rows = build(node.parent, lambda _: given)
    columns = columns_kept(rows)
    if columns is None:  # an expression lies between
        return None
    schema = arrow_schema(rows.schema, pandas_options(spark).timezone)
    onward = Onward(columns, schema, node.keys, hosts[node.name].shuffle_keys)
    hashed = all(can_hash(rows.schema[key].dataType) for key in node.keys)
    return onward if hashed and grouping_fits(onward, before.keys, hosts[before.name].key_groups) else None


def grouping_fits(onward: Onward, keys: tuple[str, ...], key_groups: int) -> bool:
    """Return True if both operators group alike, or have few groups.

    `keys` and `key_groups` are those of the first operator. Operators group alike if keys and number of groups are
    equal.
    """
    alike = (tuple(onward.columns[key] for key in onward.keys), len(onward.shuffle_keys)) == (keys, key_groups)
    return alike or key_groups * len(onward.shuffle_keys) <= BLOBS_MAX
