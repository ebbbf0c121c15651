"""Whether an operator may hand its rows to the next one in its own task (`onward`). On the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_ckpt.plan.graph import OperatorNode, build, reads_of
from spark_ckpt.plan.session_settings import pandas_options
from spark_ckpt.spark_internals.plans import columns_kept, streaming_template
from spark_ckpt.tasks.group_host import GroupHost
from spark_ckpt.tasks.key_hash import can_hash
from spark_ckpt.tasks.onward import Onward
from spark_ckpt.tasks.rows import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOBS_MAX = 1024
"""Of a batch between two operators with other keys: each key group may give each of the next one's a blob, and one costs 0.1 ms."""


def onward_between(
    spark: SparkSession, before: OperatorNode, node: OperatorNode, hosts: Mapping[str, GroupHost]
) -> Onward | None:
    """How the output of `before` becomes the input of `node`; None where Spark is needed: an expression lies between them, rows
    come from elsewhere too, event time is to be seen, a key has a type that only Spark hashes, or its groups are too many."""
    if len(reads_of(node.parent)) > 1 or node.event_time is not None:
        return None
    given = streaming_template(spark, before.operator.output)
    rows = build(node.parent, lambda _: given)
    columns = columns_kept(rows)
    if columns is None:
        return None
    schema = arrow_schema(rows.schema, pandas_options(spark).timezone)
    onward = Onward(columns, schema, node.keys, hosts[node.name].shuffle_keys)
    hashed = all(can_hash(rows.schema[key].dataType) for key in node.keys)
    return onward if hashed and grouping_fits(onward, before.keys, hosts[before.name].key_groups) else None


def grouping_fits(onward: Onward, keys: tuple[str, ...], key_groups: int) -> bool:
    """Whether the groups of the next operator are those of the one with `keys` and `key_groups`, or both have few."""
    alike = (tuple(onward.columns[key] for key in onward.keys), len(onward.shuffle_keys)) == (keys, key_groups)
    return alike or key_groups * len(onward.shuffle_keys) <= BLOBS_MAX
