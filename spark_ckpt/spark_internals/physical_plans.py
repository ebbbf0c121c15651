"""The computations of a physical plan. On the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.jvm import items_of, java_frame, kind_of
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/execution"
_UNKNOWN = "no batch of a job runs whose streams part after an operator"
NAMES = (
    SparkName(
        "QueryExecution.executedPlan",
        f"org.apache.spark.sql.execution.QueryExecution ({_FOLDER}/QueryExecution.scala)", "times_computed", _UNKNOWN,
    ),
    SparkName(
        "RDDScanExec.rdd", f"org.apache.spark.sql.execution.RDDScanExec ({_FOLDER}/ExistingRDD.scala)", "times_computed",
        _UNKNOWN,
    ),
    SparkName(
        "ReusedExchangeExec",
        f"org.apache.spark.sql.execution.exchange.ReusedExchangeExec ({_FOLDER}/exchange/Exchange.scala)", "times_computed",
        _UNKNOWN,
    ),
)  # fmt: skip


def times_computed(frame: DataFrame, part: DataFrame) -> int:
    """Return how often the plan of `frame` computes the rows of `part`; 0 if it does not.

    The rows of `part` must be an RDD's, as those of `foreachBatch` are.
    """
    wanted = next(_scanned(part), None)
    return list(_scanned(frame)).count(wanted) if wanted is not None else 0


def _scanned(frame: DataFrame) -> Iterator[int]:
    """Yield the ids of the RDDs that a plan's leaves read; a reused exchange is a leaf of another kind."""
    for leaf in items_of(java_frame(frame).queryExecution().executedPlan().collectLeaves()):
        if kind_of(leaf) == "RDDScanExec":
            yield int(leaf.rdd().id())
