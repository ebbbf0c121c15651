"""State of a plain query's operator: Spark tasks read it with Spark's own reader and repartition it to key groups.

One Spark action per operator. The driver receives names of files, never keys or values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_ckpt.driver.query.failures import QueryFailed, failure_by
from spark_ckpt.epochs.records import OperatorSnapshot, StateFile
from spark_ckpt.errors import AdoptionRefused, CheckpointDamaged, CkptError, GraphInvalid
from spark_ckpt.plan.graph import ddl
from spark_ckpt.spark_internals.arrow_types import spark_schema_of
from spark_ckpt.spark_internals.column_names import map_in_arrow
from spark_ckpt.spark_internals.operator_state import reading, state_rows
from spark_ckpt.spark_internals.query_logs import COMMITS, Unreadable, commit_text
from spark_ckpt.tasks.key_expression import key_hash_of
from spark_ckpt.tasks.rows import DELETE, KEY_GROUP, KEY_HASH, OP, PUT, TIMEOUT, StateSchema, state_schema
from spark_ckpt.tasks.state.state_groups import WRITTEN, GroupWriter
from spark_ckpt.temporary_folder import TemporaryFolder
from spark_rewind.adopt.operators import StatefulOperator
from spark_rewind.adopt.plan import Taking
from spark_rewind.adopt.unfinished import FINISH
from spark_rewind.reading import HINT_DAMAGED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_ckpt.store.location import Location

_TASKS_PER_CORE = 4
_INSIDE = (
    "a job that has the query's operators inside of transform takes their state as it is: --spark-operators in place of "
    "--operator; or start the query as a new job, without its state; nothing was changed"
)


@dataclass(frozen=True, slots=True)
class FoundState:
    """An operator's state in a checkpoint: its unread rows, and its schemas as a job's operator declares them."""

    name: str
    rows: DataFrame
    schema: StateSchema

    @property
    def key_ddl(self) -> str:
        """Key columns as DDL, in the form that the store records."""
        return ddl(spark_schema_of(self.schema.key))

    @property
    def state_ddl(self) -> str:
        """State columns as DDL, in the form that the store records."""
        return ddl(spark_schema_of(self.schema.state))


@dataclass(frozen=True, slots=True)
class WrittenState:
    """Result of a write. `timed`: number of keys with a timeout; `stateless`: number of keys with only a timeout."""

    snapshot: OperatorSnapshot
    timed: int
    stateless: int


@contextmanager
def readable(taking: Taking, spark: SparkSession) -> Iterator[Path]:
    """Yield a checkpoint folder in which Spark's reader finds the batch committed.

    This is the query's own folder if the batch is committed. Otherwise it is a folder of links with a commit of the
    batch, which Spark's reader requires. Tasks must see that folder, so it serves tasks on this machine only. Raises
    `AdoptionRefused`.
    """
    with reading(spark, taking.state_has_ids), _committed(taking, spark) as folder:
        yield folder


@contextmanager
def _committed(taking: Taking, spark: SparkSession) -> Iterator[Path]:
    if taking.committed:
        yield taking.folder
        return
    if not str(spark.sparkContext.master).startswith("local"):
        raise AdoptionRefused(
            f"the state after batch {taking.batch}, which is not committed, can be read by tasks on this machine only",
            hint=f"run this with a local master; or {FINISH}",
        )
    with TemporaryFolder("adopt") as view:
        # a commit file in the query's own folder would change the checkpoint
        for each in os.scandir(taking.folder):
            if each.name != COMMITS:
                (view / each.name).symlink_to(taking.folder / each.name)
        (view / COMMITS).mkdir()
        for each in os.scandir(taking.folder / COMMITS):
            (view / COMMITS / each.name).symlink_to(taking.folder / COMMITS / each.name)
        (view / COMMITS / str(taking.batch)).write_text(commit_text(taking.watermark_ms))
        yield view


def found_state(spark: SparkSession, taking: Taking, folder: Path, name: str) -> FoundState:
    """Return the state of the operator with the job's name `name`. Reads the schema only. `folder`: see `readable`.

    Raises `AdoptionRefused` for columns that no operator of a job can have, `CheckpointDamaged`.
    """
    operator = taking.operators[name]
    with typed_errors(taking.folder, operator):
        # With a scheme: Spark would look for a bare path on its default file system, such as HDFS.
        read = state_rows(spark, f"file://{folder}", operator.number, taking.batch)
        key, state = read.schema["key"].dataType, read.schema["state"].dataType
    if not isinstance(key, StructType) or not isinstance(state, StructType):
        raise CheckpointDamaged(
            f"{taking.folder}: the state of operator {operator.number} has no columns", hint=HINT_DAMAGED
        )
    try:
        schema = state_schema(key, state)
    except GraphInvalid as error:
        raise AdoptionRefused(
            f"operator '{name}': {error.what}",
            key=ddl(key),
            state=ddl(state),
            hint=f"no operator of a job can have such columns ({error.hint}); {_INSIDE}",
        ) from error
    return FoundState(name, read, schema)


def counted_keys(found: FoundState, operator: StatefulOperator, folder: Path) -> tuple[int, int]:
    """Return the numbers of keys and of keys with a timeout. Runs a Spark job."""
    with typed_errors(folder, operator):
        # `count` of a column leaves out nulls, the keys without a timeout.
        row = found.rows.agg(F.count("*"), F.count("timeout_ms")).collect()[0]
    return int(row[0]), int(row[1])


def dealt_out(found: FoundState, key_groups: int) -> DataFrame:
    """Return the rows as state files need them: flat columns, hash and key group, with a group's rows together."""
    keys, values = found.schema.key.names, found.schema.state.names
    columns = [F.col("key").getField(name).alias(name) for name in keys]
    columns += [F.col("state").getField(name).alias(name) for name in values]
    # A key without state may still have a timeout, which must fire in the job.
    op = F.when(F.col("state").isNull(), F.lit(DELETE)).otherwise(F.lit(PUT)).cast("byte")
    flat = found.rows.select(*columns, op.alias(OP), F.col("timeout_ms").alias(TIMEOUT))
    hashed = flat.withColumn(KEY_HASH, key_hash_of(flat.schema, keys))
    # `pmod`, since hashes may be negative.
    grouped = hashed.withColumn(KEY_GROUP, F.pmod(F.col(KEY_HASH), F.lit(key_groups)).cast("int"))
    # Some tasks per core even out groups of different sizes; more tasks than groups would have no rows.
    tasks = min(key_groups, _TASKS_PER_CORE * found.rows.sparkSession.sparkContext.defaultParallelism)
    # tasks look keys up by hash: state files are sorted by it
    return grouped.repartition(tasks, KEY_GROUP).sortWithinPartitions(KEY_GROUP, KEY_HASH)


def written(
    found: FoundState,
    operator: StatefulOperator,
    folder: Path,
    location: Location,
    key_groups: int,
    epoch: int,
    incarnation: int,
) -> WrittenState:
    """Write the operator's state files; they are durable when this returns.

    Raises `CheckpointDamaged`, `AdoptionRefused`, a `StoreOutage`.
    """
    writer = GroupWriter(found.name, found.schema, key_groups, location, epoch, incarnation)
    with typed_errors(folder, operator):
        rows = map_in_arrow(dealt_out(found, key_groups), writer.write, WRITTEN).collect()
    files = [StateFile.model_validate_json(row.file) for row in rows]
    snapshot = OperatorSnapshot(
        operator=found.name,
        key_groups=key_groups,
        key_schema=found.key_ddl,
        state_schema=found.state_ddl,
        files=tuple(sorted(files, key=lambda file: file.path)),
    )
    return WrittenState(snapshot, sum(row.timed for row in rows), sum(row.stateless for row in rows))


@contextmanager
def typed_errors(folder: Path, operator: StatefulOperator) -> Iterator[None]:
    """Raise an error of Spark's reader as `CheckpointDamaged`. Errors of spark_ckpt keep their condition."""
    try:
        yield
    except Unreadable as error:
        raise AdoptionRefused(
            f"the state of operator {operator.number} is laid out in a way that is not known: {error}",
            hint=f"an operator of a job takes only state in format 2 (Spark's default); {_INSIDE}",
        ) from error
    except (PySparkException, Py4JError) as error:
        raise _typed(error, folder, operator) from error


def _typed(error: Exception, folder: Path, operator: StatefulOperator) -> CkptError:
    ours = failure_by(error)
    if not isinstance(ours, QueryFailed):
        return ours
    return CheckpointDamaged(
        f"Spark cannot read the state of operator {operator.number} of {folder}: {ours.what}", hint=HINT_DAMAGED
    )
