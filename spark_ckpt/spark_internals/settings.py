"""Spark's internal settings (`internal` in `SQLConf`): for performance, fixed formats, and pandas conversion.

On the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = (
    "org.apache.spark.sql.internal.SQLConf (sql/catalyst/src/main/scala/org/apache/spark/sql/internal/SQLConf.scala)"
)
NAMES = (
    SparkName(
        "spark.sql.execution.arrow.maxBytesPerBatch", _CONF, "QUERY_SETTINGS",
        "bringing records to Python takes a sixth more time",
    ),
    SparkName(
        "spark.sql.streaming.minBatchesToRetain", _CONF, "QUERY_SETTINGS", "a checkpoint keeps a hundred batches' files",
    ),
    SparkName(
        "spark.sql.streaming.checkpoint.fileChecksum.enabled", _CONF, "QUERY_SETTINGS",
        "a file more for each file of the checkpoint",
    ),
    SparkName(
        "spark.sql.execution.arrow.useLargeVarTypes", _CONF, "QUERY_SETTINGS",
        "an operator ends with its first text, if the session has it on",
    ),
    SparkName(
        "spark.sql.execution.arrow.maxRecordsPerOutputBatch", _CONF, "QUERY_SETTINGS",
        "every batch ends with an error of Arrow, if the session has a bound: Spark cannot slice structs",
    ),
    SparkName(
        "spark.sql.execution.arrow.maxBytesPerOutputBatch", _CONF, "QUERY_SETTINGS",
        "every batch ends with an error of Arrow, if the session has a bound: Spark cannot slice structs",
    ),
    SparkName(
        "spark.sql.streaming.stateStore.providerClass", _CONF, "QUERY_SETTINGS",
        "an operator ends with its first batch, if the session has RocksDB",
    ),
    SparkName(
        "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion", _CONF, "QUERY_SETTINGS",
        "an operator's state has another layout, if the session has format 1",
    ),
    SparkName(
        "spark.sql.streaming.offsetLog.formatVersion", _CONF, "QUERY_SETTINGS",
        "no batch's end can be read, if the session has format 2",
    ),
    SparkName(
        "spark.sql.streaming.queryEvolution.enableSourceEvolution", _CONF, "QUERY_SETTINGS, unfit_setting",
        "no query starts, if the session has it on: its sources need names",
    ),
    SparkName(
        "spark.sql.streaming.queryEvolution.enableSinkEvolution", _CONF, "QUERY_SETTINGS",
        "no query starts, if the session has it on: its sink needs a name",
    ),
    SparkName(
        "spark.sql.streaming.noDataMicroBatches.enabled", _CONF, "QUERY_SETTINGS",
        "no timeout is due on a stream without rows, if the session has it off",
    ),
    SparkName("spark.sql.parquet.binaryAsString", _CONF, "PUBLISHING_SETTINGS", "bytes are published as text"),
    SparkName(
        "spark.sql.parquet.inferTimestampNTZ.enabled", _CONF, "PUBLISHING_SETTINGS",
        "times without a zone are published as instants",
    ),
    SparkName(
        "spark.sql.parquet.datetimeRebaseModeInRead", _CONF, "PUBLISHING_SETTINGS", "dates before 1582 are published as others",
    ),
    SparkName("spark.sql.files.ignoreMissingFiles", _CONF, "PUBLISHING_SETTINGS", "rows of a file that vanishes are lost"),
    SparkName("spark.sql.files.ignoreCorruptFiles", _CONF, "PUBLISHING_SETTINGS", "rows of a damaged file are lost"),
    SparkName("spark.sql.runSQLOnFiles", _CONF, "PUBLISHING_SETTINGS", "a merge does not find its table by its path"),
    SparkName("spark.sql.defaultCatalog", _CONF, "PUBLISHING_SETTINGS", "a merge looks for its table in another catalog"),
    SparkName(
        "spark.sql.streaming.unsupportedOperationCheck", _CONF, "CHAINED_SETTINGS",
        "a job of more than one operator does not start",
    ),
    SparkName(
        "spark.sql.streaming.statefulOperator.allowMultiple", _CONF, "CHAINED_SETTINGS",
        "an operator whose event time comes from another one has a watermark of zero: no timeout of its is due",
    ),
    SparkName(
        "spark.sql.exchange.reuse", _CONF, "PARTING_SETTINGS",
        "no batch of a job runs whose streams part after an operator, if the session has it off",
    ),
    SparkName(
        "spark.sql.optimizer.excludedRules", _CONF, "complete_settings",
        "a limit of a whole result has no effect in a batch without input",
    ),
    SparkName(
        "EliminateLimits",
        "org.apache.spark.sql.catalyst.optimizer.EliminateLimits "
        "(sql/catalyst/src/main/scala/org/apache/spark/sql/catalyst/optimizer/Optimizer.scala)",
        "complete_settings", "a limit of a whole result has no effect in a batch without input",
    ),
    SparkName(
        "spark.sql.streaming.checkpointFileManagerClass", _CONF, "LOCAL_CHECKPOINT_SETTINGS",
        "Spark starts a process for each operation on a file of the checkpoint",
    ),
    SparkName(
        "FileSystemBasedCheckpointFileManager",
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager (sql/core/src/main/scala"
        "/org/apache/spark/sql/execution/streaming/checkpointing/CheckpointFileManager.scala)",
        "LOCAL_CHECKPOINT_SETTINGS", "a query with a local checkpoint does not start",
    ),
    SparkName(
        "spark.sql.execution.pandas.convertToArrowArraySafely", _CONF, "converts_safely",
        "a lossy value of a user's function is cut off where Spark would refuse it",
    ),
    SparkName(
        "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", _CONF, "assigns_columns_by_name",
        "columns of a user's frames are taken by name where the session says by position",
    ),
)  # fmt: skip

QUERY_SETTINGS = {
    # Ten thousand rows bound an Arrow batch. An additional bound in bytes makes Spark add up all vectors' sizes at every row,
    # a sixth of the time it takes to bring Kafka records to Python.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # The rest are Spark's defaults, pinned: tasks expect these types, and the driver reads the files.
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.execution.arrow.maxRecordsPerOutputBatch": "-1",
    "spark.sql.execution.arrow.maxBytesPerOutputBatch": "-1",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.streaming.queryEvolution.enableSinkEvolution": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}
"""For a query whose checkpoint is disposable; the session's own values apply to its other queries."""

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PARTITIONS = "spark.sql.shuffle.partitions"


@contextmanager
def set_for_a_while(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set the session's settings within the block; afterwards it has its own again."""
    # None: the session has no value of its own, and must follow Spark's default again.
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def state_settings(spark: SparkSession, provider: str | None, checkpoint_format: int | None) -> dict[str, str]:
    """Return the settings of a query whose epochs have the state of Spark's own operators.

    `provider`, `checkpoint_format`: of the state to continue from; None to take the session's.
    """
    return {
        PROVIDER: provider or str(spark.conf.get(PROVIDER, QUERY_SETTINGS[PROVIDER])),
        CHECKPOINT_FORMAT: str(checkpoint_format or spark.conf.get(CHECKPOINT_FORMAT, "1")),
        # Spark's default: an epoch names the files of its last batch after batches that followed.
        "spark.sql.streaming.minBatchesToRetain": "100",
    }


_FRAME_LIMITS = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch")


def frame_limits(spark: SparkSession) -> dict[str, str]:
    """Return the limits of frames that the session sets: a function of Spark's operators gets frames as in a plain query."""
    own = {key: spark.conf.get(key, None) for key in _FRAME_LIMITS}
    return {key: value for key, value in own.items() if value is not None}


def keeps_state_in_rocksdb(settings: Mapping[str, str]) -> bool:
    """Return True if the state stores are RocksDB's, which need Hadoop's own local file system."""
    return "RocksDB" in settings.get(PROVIDER, "")


UNCHECKED_SETTINGS = {"spark.sql.streaming.unsupportedOperationCheck": "false"}
"""For a query with operators of Spark and of ours: Spark refuses ours after its own. Each part is checked as it is
recorded (`stateless.check_with_state`)."""

_EXCLUDED = "spark.sql.optimizer.excludedRules"


def complete_settings(spark: SparkSession) -> dict[str, str]:
    """Return the settings of a query in output mode "complete", besides the session's own.

    Spark drops a limit over rows that cannot be as many, and counts a batch's input for that: not the rows in its state.
    """
    own = str(spark.conf.get(_EXCLUDED, "") or "")
    return {_EXCLUDED: ",".join(filter(None, [own, "org.apache.spark.sql.catalyst.optimizer.EliminateLimits"]))}


PUBLISHING_SETTINGS = {
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.runSQLOnFiles": "true",
    "spark.sql.defaultCatalog": "spark_catalog",
}
"""For a publisher's own session: it reads staged files as they were written, and a table by its path."""

CHAINED_SETTINGS = {
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    "spark.sql.streaming.statefulOperator.allowMultiple": "false",
}
"""For a query of several operators.

Spark refuses one operator after another, because its own operators would lose rows that are late by a common watermark.
Ours judge lateness themselves. Users' operations are checked as each is recorded (`stateless.check_operation`), without
Spark's check. All operators have the query's watermark. Otherwise Spark would set none after one of our operators,
whose rows may have any time.
"""

PARTING_SETTINGS = {"spark.sql.exchange.reuse": "true"}
"""For a query with streams that split after an operator: they share one shuffle, so the operator runs once."""

LOCAL_CHECKPOINT_SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""For local checkpoints, in addition to `QUERY_SETTINGS`.

Spark's default starts a `readlink` process per file operation.
"""


_NAMED_SOURCES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def unfit_setting(spark: SparkSession) -> str | None:
    """Return the name of a session setting that prevents Spark from analysing a job's streams; None if there is none."""
    return _NAMED_SOURCES if str(spark.conf.get(_NAMED_SOURCES, "false")).lower() == "true" else None


def converts_safely(spark: SparkSession) -> bool:
    """Return True if Spark refuses a lossy value of a user's frame."""
    return flag(spark, "spark.sql.execution.pandas.convertToArrowArraySafely")


def assigns_columns_by_name(spark: SparkSession) -> bool:
    """Return True if Spark assigns columns of a user's frame by name, False if by position."""
    return flag(spark, "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName")


def flag(spark: SparkSession, key: str) -> bool:
    """Read a setting with Spark's own default for a missing key."""
    return str(spark.conf.get(key)).lower() == "true"
