"""Checks of the names in files of Spark: a query's checkpoint, its logs, an operator's state and its metadata."""

from __future__ import annotations

import inspect

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

from integration_tests.spark_private.checks import entry, of
from integration_tests.spark_private.watched_query import SEED_ID, SEEDED_AT, STARTED_S_AGO, Seen
from spark_ckpt.spark_internals import (
    checkpoint_files,
    loggers,
    operator_metadata,
    operator_state,
    pipeline_flows,
    query_logs,
)
from spark_ckpt.spark_internals.jvm import jvm_of

# -- checkpoint_files -----------------------------------------------------------------------------------------------------


def offsets_of(seen: Seen) -> checkpoint_files.Offsets:
    return dict(checkpoint_files.logged_offsets(seen.checkpoint))[0]


@of("offsets/<batch>", "sources/<number>/0")
def _(seen: Seen) -> None:
    reached = int(offsets_of(seen).lines[0] or 0)
    assert STARTED_S_AGO <= reached < STARTED_S_AGO + 600
    assert sorted(value for value in seen.values if value is not None) == list(range(SEEDED_AT, reached))


@of("batchWatermarkMs")
def _(seen: Seen) -> None:
    assert offsets_of(seen).watermark_ms == 0


@of("commits/<batch>", "metadata")
def _(seen: Seen) -> None:
    assert seen.values  # of batch 0, after the batches that the seed pretends
    assert str(seen.java.id().toString()) == SEED_ID


@of("OffsetSeqMetadata.apply")
def _(spark: SparkSession) -> None:
    assert '"spark.sql.shuffle.partitions": "7"' in checkpoint_files.batch_metadata(spark, 7)


@of("CHECKPOINT_FOLDERS")
def _(seen: Seen) -> None:
    made = {path.name for path in seen.checkpoint.iterdir() if path.is_dir()} - {"sources"}
    assert made <= set(checkpoint_files.CHECKPOINT_FOLDERS)
    assert {"offsets", "commits"} <= made


# -- query_logs, state_files ----------------------------------------------------------------------------------------------

STREAMING = "org.apache.spark.sql.execution.streaming"


def members_of(spark: SparkSession, name: str) -> set[str]:
    """Names of the fields and methods of a Scala class, including private ones; of private methods only the last part."""
    found = jvm_of(spark).org.apache.spark.util.Utils.classForName(name, True, False)
    members = [*found.getDeclaredFields(), *found.getDeclaredMethods()]
    return {str(each.getName()).rpartition("$$")[2] for each in members}


@of("stateUniqueIds")
def _(spark: SparkSession) -> None:
    assert "stateUniqueIds" in members_of(spark, f"{STREAMING}.checkpointing.CommitMetadataV2")


@of("batchTimestampMs")
def _(seen: Seen) -> None:
    text = (seen.checkpoint / "offsets" / "0").read_text()
    began_s = query_logs.parse_batch(text).began_ms / 1000
    assert abs((seen.checkpoint / "offsets" / "0").stat().st_mtime - began_s) < 60


@of("logOffset")
def _(spark: SparkSession) -> None:
    assert "logOffset" in members_of(spark, f"{STREAMING}.runtime.FileStreamSourceOffset")


@of("<version>.delta")
def _(spark: SparkSession) -> None:
    assert {"deltaFile", "snapshotFile"} <= members_of(spark, f"{STREAMING}.state.HDFSBackedStateStoreProvider")


@of("<version>.zip")
def _(spark: SparkSession) -> None:
    assert {"dfsBatchZipFile", "dfsChangelogFile"} <= members_of(spark, f"{STREAMING}.state.RocksDBFileManager")


@of("dfsSstFileName")
def _(spark: SparkSession) -> None:
    assert "dfsSstFileName" in members_of(spark, f"{STREAMING}.state.RocksDBSstFile")


@of("_checkpoints")
def _(spark: SparkSession) -> None:
    loader = jvm_of(spark).org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    opened = loader.getResourceAsStream("org/apache/spark/sql/pipelines/graph/FlowSystemMetadata.class")
    assert pipeline_flows.FLOWS.encode() in bytes(opened.readAllBytes())


# -- loggers --------------------------------------------------------------------------------------------------------------


@of(*(name.name for name in loggers.NAMES))
def _(spark: SparkSession) -> None:
    loggers.quiet(spark)
    log4j = jvm_of(spark).org.apache.logging.log4j
    in_file = loggers.CONFIGURATION.read_text()
    for name in loggers.NAMES:
        kind = name.lives_in.partition(" ")[0]
        assert jvm_of(spark).org.apache.spark.util.Utils.classForName(kind, False, False).getName() == kind
        if name in loggers.IN_FILE_ONLY:
            assert f".name = {kind}\n" in in_file
        else:
            assert log4j.LogManager.getLogger(kind).getLevel().name() == "ERROR"


# -- operator_metadata, operator_state ------------------------------------------------------------------------------------


@of("operatorInfo")
def _(spark: SparkSession) -> None:
    assert {"operatorInfo", "stateStoreInfo"} <= members_of(spark, f"{STREAMING}.state.OperatorStateMetadataV1")


@of("nextBatchWatermarkMs")
def _(seen: Seen) -> None:
    text = (seen.checkpoint / "commits" / "0").read_text()
    commit = query_logs.parse_commit(text)
    assert f'"nextBatchWatermarkMs":{commit.next_watermark_ms}' in text
    assert query_logs.parse_commit(query_logs.commit_text(commit.next_watermark_ms)) == commit


@of("FLAT_MAP_GROUPS_IN_PANDAS_WITH_STATE_EXEC_OP_NAME")
def _(spark: SparkSession) -> None:
    names = jvm_of(spark).org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorsUtils
    assert names.FLAT_MAP_GROUPS_IN_PANDAS_WITH_STATE_EXEC_OP_NAME() == operator_metadata.PANDAS


@of("SparkSession._streamingCheckpointManager")
def _(spark: SparkSession) -> None:
    """Repartitioned state: integration_tests/runtime/test_state_of_sparks_operators.py."""
    repartition = spark._streamingCheckpointManager.repartition  # noqa: SLF001
    assert list(inspect.signature(repartition).parameters)[:2] == ["checkpoint_location", "num_partitions"]


@of("groupState", "timeoutTimestamp")
def _(spark: SparkSession) -> None:
    """States of format 2, with timeouts."""
    jvm = jvm_of(spark)
    stateful = jvm.org.apache.spark.sql.execution.streaming.operators.stateful
    state = jvm.org.apache.spark.sql.types.DataType.fromJson(StructType().add("n", LongType()).json())
    encoder = jvm.org.apache.spark.sql.catalyst.encoders.ExpressionEncoder.apply(state)
    helper = stateful.flatmapgroupswithstate.FlatMapGroupsWithStateExecHelper
    schema = helper.createStateManager(encoder, True, 2).stateSchema()
    assert list(schema.fieldNames()) == ["groupState", "timeoutTimestamp"]


@of("spark.sql.streaming.stateStore.checkpointFormatVersion")
def _(spark: SparkSession) -> None:
    entry(spark, operator_state.FORMAT)
    before = spark.conf.get(operator_state.FORMAT, None)
    with operator_state.reading(spark, with_ids=True):
        assert spark.conf.get(operator_state.FORMAT) == "2"
    assert spark.conf.get(operator_state.FORMAT, None) == before
