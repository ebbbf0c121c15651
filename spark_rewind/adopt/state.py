"""The state of a plain query's operator, read by Spark's own reader in Spark tasks, dealt out to key groups by the same tasks.

One Spark action. The driver hears of files, never of keys or values.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_ckpt.driver.query_failures import QueryFailed, failure_by
from spark_ckpt.errors import AdoptionRefused, CheckpointDamaged, CkptError, GraphInvalid
from spark_ckpt.plan.graph import ddl
from spark_ckpt.spark_internals.arrow_types import spark_schema_of
from spark_ckpt.spark_internals.column_names import map_in_arrow
from spark_ckpt.spark_internals.operator_state import reading, state_rows
from spark_ckpt.spark_internals.query_logs import COMMITS, Unreadable, commit_text
from spark_ckpt.store.records import OperatorSnapshot, StateFile
from spark_ckpt.tasks.key_expression import key_hash_of
from spark_ckpt.tasks.rows import DELETE, KEY_GROUP, KEY_HASH, OP, PUT, TIMEOUT, StateSchema, state_schema
from spark_ckpt.tasks.state.state_groups import WRITTEN, GroupWriter
from spark_rewind.adopt.operators import StatefulOperator
from spark_rewind.adopt.plan import Taking
from spark_rewind.adopt.unfinished import FINISH
from spark_rewind.checkpoint import HINT_DAMAGED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_ckpt.store.location import Location

_TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True)
class FoundState:
    """An operator's state in a checkpoint: its rows, not read yet, and its schemas as a job's operator declares them."""

    name: str
    rows: DataFrame
    schema: StateSchema

    @property
    def key_ddl(self) -> str:
        """The key columns as the store writes them down."""
        return ddl(spark_schema_of(self.schema.key))

    @property
    def state_ddl(self) -> str:
        """The state columns as the store writes them down."""
        return ddl(spark_schema_of(self.schema.state))


@dataclass(frozen=True, slots=True)
class Written:
    """What became of it. `timed`: keys that have a timeout; `stateless`: keys that have only that."""

    snapshot: OperatorSnapshot
    timed: int
    stateless: int


@contextmanager
def readable(taking: Taking, spark: SparkSession) -> Iterator[Path]:
    """A checkpoint folder that Spark's reader takes for one in which the batch is committed.

    It is the query's own if the batch is. Else a folder of links to it, with a commit of the batch beside the others: Spark's
    reader asks for one. Tasks have to see that folder, so this is for tasks on this machine. Raises `AdoptionRefused`.
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
    with tempfile.TemporaryDirectory(prefix="spark-ckpt-adopt-") as made:
        view = Path(made)
        for each in os.scandir(taking.folder):
            if each.name != COMMITS:
                (view / each.name).symlink_to(taking.folder / each.name)
        (view / COMMITS).mkdir()
        for each in os.scandir(taking.folder / COMMITS):
            (view / COMMITS / each.name).symlink_to(taking.folder / COMMITS / each.name)
        (view / COMMITS / str(taking.batch)).write_text(commit_text(taking.watermark_ms))
        yield view


def found_state(spark: SparkSession, taking: Taking, folder: Path, name: str) -> FoundState:
    """The state of the operator that the job calls `name`; `folder`: see `readable`. Nothing is read yet but the schema.

    Raises `AdoptionRefused` for columns that no operator of a job can have, `CheckpointDamaged`.
    """
    operator = taking.operators[name]
    with typed_errors(taking.folder, operator):
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
            hint=f"no operator of a job can have such columns ({error.hint}): such a query begins anew as a job",
        ) from error
    return FoundState(name, read, schema)


def counted_keys(found: FoundState, operator: StatefulOperator, folder: Path) -> tuple[int, int]:
    """How many keys there are, and how many of them have a timeout. Runs a Spark job."""
    with typed_errors(folder, operator):
        row = found.rows.agg(F.count("*"), F.count("timeout_ms")).collect()[0]
    return int(row[0]), int(row[1])


def dealt_out(found: FoundState, key_groups: int) -> DataFrame:
    """The rows as state files need them: their columns flat, the hash, and the key group, a group's rows together."""
    keys, values = found.schema.key.names, found.schema.state.names
    columns = [F.col("key").getField(name).alias(name) for name in keys]
    columns += [F.col("state").getField(name).alias(name) for name in values]
    op = F.when(F.col("state").isNull(), F.lit(DELETE)).otherwise(F.lit(PUT)).cast("byte")
    flat = found.rows.select(*columns, op.alias(OP), F.col("timeout_ms").alias(TIMEOUT))
    hashed = flat.withColumn(KEY_HASH, key_hash_of(flat.schema, keys))
    grouped = hashed.withColumn(KEY_GROUP, F.pmod(F.col(KEY_HASH), F.lit(key_groups)).cast("int"))
    tasks = min(key_groups, _TASKS_PER_CORE * found.rows.sparkSession.sparkContext.defaultParallelism)
    return grouped.repartition(tasks, KEY_GROUP).sortWithinPartitions(KEY_GROUP, KEY_HASH)


def written(
    found: FoundState,
    operator: StatefulOperator,
    folder: Path,
    location: Location,
    key_groups: int,
    epoch: int,
    incarnation: int,
) -> Written:
    """Write the operator's state files; durable when it returns. Raises `CheckpointDamaged`, `AdoptionRefused`, a `StoreOutage`."""
    writer = GroupWriter(found.name, found.schema, key_groups, location, epoch, incarnation)
    with typed_errors(folder, operator):
        rows = map_in_arrow(dealt_out(found, key_groups), writer.write, WRITTEN).collect()
    files = [StateFile.model_validate_json(row.file) for row in rows]
    snapshot = OperatorSnapshot(
        operator=found.name,
        key_groups=key_groups,
        key_schema=found.key_ddl,
        state_schema=found.state_ddl,
        files=tuple(sorted(files, key=lambda file: file.key_group)),
    )
    return Written(snapshot, sum(row.timed for row in rows), sum(row.stateless for row in rows))


@contextmanager
def typed_errors(folder: Path, operator: StatefulOperator) -> Iterator[None]:
    """What Spark's reader says of a state that it cannot read, as `CheckpointDamaged`; ours keep their condition."""
    try:
        yield
    except Unreadable as error:
        raise AdoptionRefused(
            f"the state of operator {operator.number} is laid out in a way that is not known: {error}",
            hint="only the state of applyInPandasWithState in format 2 (Spark's default) can be adopted; nothing was changed",
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
