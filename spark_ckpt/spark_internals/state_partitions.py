"""Spark's own command that repartitions the state in a checkpoint of a stopped query. On the driver; the state stays in tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.names import SparkName
from spark_ckpt.spark_internals.settings import CHECKPOINT_FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = (
    SparkName(
        "SparkSession._streamingCheckpointManager",
        "pyspark.sql.session.SparkSession (python/pyspark/sql/session.py)",
        "repartition_state", "`spark-ckpt rescale STORE --partitions N` fails; nothing is changed",
    ),
)  # fmt: skip


def repartition_state(spark: SparkSession, checkpoint: Path, partitions: int, checkpoint_format: int) -> None:
    """Add a batch without rows to a checkpoint, with the state of the batch before it in `partitions` partitions.

    `checkpoint_format`: of the state's files. Raises Spark's errors; the new batch then has no commit.
    """
    # A session of its own: the format is set for this command, not for the user's other queries.
    session = spark.newSession()
    session.conf.set(CHECKPOINT_FORMAT, str(checkpoint_format))
    session.streams.active  # noqa: B018 - tasks that open a state store look for the coordinator that this starts
    session._streamingCheckpointManager.repartition(checkpoint.as_uri(), partitions)  # noqa: SLF001 - Spark has no public one
