"""The state of a plain query's operator, read with Spark's own state reader. On the driver; the rows stay in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_ckpt.spark_internals.names import SparkName
from spark_ckpt.spark_internals.query_logs import Unreadable
from spark_ckpt.spark_internals.settings import set_for_a_while

_HELPER = (
    "org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate.FlatMapGroupsWithStateExecHelper"
    " (sql/core/src/main/scala/org/apache/spark/sql/execution/streaming/operators/stateful/flatmapgroupswithstate/)"
)
_NOT_ADOPTED = "a plain query with state cannot become a job"
NAMES = (
    SparkName("groupState", _HELPER, "state_rows", _NOT_ADOPTED),
    SparkName("timeoutTimestamp", _HELPER, "state_rows", _NOT_ADOPTED),
    SparkName(
        "spark.sql.streaming.stateStore.checkpointFormatVersion",
        "org.apache.spark.sql.internal.SQLConf (sql/catalyst/src/main/scala/org/apache/spark/sql/internal/SQLConf.scala)",
        "reading, QUERY_SETTINGS",
        "a plain query whose state's files have ids cannot become a job; an operator fails if the session has format 2",
    ),
)

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""Format setting, which the reader takes from the session, not from the checkpoint.

With 1 it looks for files without ids.
"""

_STATE, _TIMEOUT, _NO_TIMEOUT = "groupState", "timeoutTimestamp", -1


@contextmanager
def reading(spark: SparkSession, with_ids: bool) -> Iterator[None]:
    """Let the session read states whose files have ids (`with_ids`) or none, according to their commits.

    Tasks that open a state store contact the driver's state store coordinator. It exists after the first access to
    `spark.streams`.
    """
    spark.streams.active  # noqa: B018 - needed for its side effect
    # The reader takes it from the session, which may run queries of the other format.
    with set_for_a_while(spark, {FORMAT: "2" if with_ids else "1"}):
        yield


def state_rows(spark: SparkSession, checkpoint: str, operator: int, batch: int) -> DataFrame:
    """Return the state of `applyInPandasWithState` after a batch: `key` and `state`, both structs, and `timeout_ms`.

    `state` is null for a key that has only a timeout; `timeout_ms` is null for a key without one. Provider and settings
    are those of the batch. Call it, and use its result, inside of `reading`.

    Raises Spark's errors, and `Unreadable` for a state with another layout.
    """
    read = spark.read.format("statestore").option("operatorId", operator).option("batchId", batch).load(checkpoint)
    value = read.schema["value"].dataType
    if not isinstance(value, StructType) or value.names not in ([_STATE], [_STATE, _TIMEOUT]):
        raise Unreadable(f"its values are {value.simpleString()}")
    if _TIMEOUT not in value.names:
        timeout = F.lit(None).cast("long")
    else:
        at = F.col(f"value.{_TIMEOUT}")
        timeout = F.when(at != F.lit(_NO_TIMEOUT), at)
    return read.select("key", F.col(f"value.{_STATE}").alias("state"), timeout.alias("timeout_ms"))
