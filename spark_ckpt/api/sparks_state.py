"""State of Spark's own operators at an epoch, read with Spark's state reader from a checkpoint that is laid out for it."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import NullType, StructType

from spark_ckpt.driver.query.spark_state import shared_folder
from spark_ckpt.epochs.records import SparkState
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.spark_internals.checkpoint_files import write_ended_checkpoint
from spark_ckpt.spark_internals.column_names import quoted
from spark_ckpt.spark_internals.operator_metadata import WORDS, place_schemas
from spark_ckpt.spark_internals.query_logs import STATE
from spark_ckpt.spark_internals.settings import CHECKPOINT_FORMAT
from spark_ckpt.store.store import Store

_JOIN, _VARIABLES = "symmetricHashJoin", "transformWithState"
_KEYS = ("key", "user_map_key")
_PARTITION = "partition_id"


def sparks_rows(
    spark: SparkSession, store: Store, state: SparkState, epoch: int, operator: int, options: Mapping[str, str]
) -> DataFrame:
    """Return the rows of Spark's state reader; see `state_frame`.

    Its folder of links stays until retention drops the epoch. Raises `ConfigInvalid` for a missing option, and if the
    session has another format of state files; `EpochDamaged`, and Spark's errors.
    """
    _check_options(state.operators[operator], options)
    if str(state.checkpoint_format) != str(spark.conf.get(CHECKPOINT_FORMAT, "1")):
        raise ConfigInvalid(
            f"the state has checkpoint format {state.checkpoint_format}, the session another one",
            hint=f"spark.conf.set('{CHECKPOINT_FORMAT}', '{state.checkpoint_format}') until the rows are read",
        )
    checkpoint = laid_out(spark, store, state, epoch)
    spark.streams.active  # noqa: B018 - tasks that open a state store look for the coordinator that this starts
    reader = spark.read.format("statestore").option("operatorId", operator).option("batchId", state.batch)
    return reader.options(**options).load(str(checkpoint))


def sparks_rows_now(
    spark: SparkSession, store: Store, state: SparkState, epoch: int, operator: int, options: Mapping[str, str]
) -> DataFrame:
    """Return the same rows in a session of their own, which reads any format of state files. Raises as `sparks_rows`."""
    session = spark.newSession()
    session.conf.set(CHECKPOINT_FORMAT, str(state.checkpoint_format))
    return sparks_rows(session, store, state, epoch, operator, options)


def _check_options(kind: str, options: Mapping[str, str]) -> None:
    """Raise `ConfigInvalid` if Spark's reader cannot tell which of an operator's states is meant."""
    given = {name.lower() for name in options}
    if kind == _JOIN and "joinside" not in given:
        raise ConfigInvalid(
            "the state of a join has two sides", hint="name one with Spark's option joinSide: left or right"
        )
    if kind.startswith(_VARIABLES) and not given & {"statevarname", "readregisteredtimers"}:
        raise ConfigInvalid(
            f"{WORDS.get(kind, kind)} keeps a state for each of its variables",
            hint="name one with Spark's option stateVarName, or its timers with readRegisteredTimers",
        )


def reading_folder(spark: SparkSession, store: Store, state: SparkState, epoch: int) -> Path:
    """Return a folder for Spark's reader, in the store or, if that is in an object store, one that ends with the process."""
    return store.reading_folder(epoch, state.index) or shared_folder(spark, store.location) / state.index


def laid_out(spark: SparkSession, store: Store, state: SparkState, epoch: int) -> Path:
    """Return a checkpoint that ends with the epoch's batch. Raises `ConfigInvalid`, `EpochDamaged`, and a `StoreOutage`."""
    target = reading_folder(spark, store, state, epoch)
    if not target.is_dir():
        # complete or absent: another reader may do the same
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        try:
            index, _ = store.spark_states.lay_out(state, part / STATE, epoch)
            write_ended_checkpoint(part, state.batch, index.metadata, index.commit)
            # Before the rename: a reader that dies after it would leave schemas that lead nowhere, for all later readers.
            place_schemas(part / STATE, target / STATE)
            with suppress(OSError):  # another reader was first
                part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def flat_rows(rows: DataFrame) -> tuple[DataFrame, list[str]]:
    """Return rows of Spark's state reader with a column for each field of key and value, and the names of the key's.

    A name that several columns would have keeps its struct's: `value.k`. Columns that are always null are left out.
    """
    columns = [
        (field.name, inner.name)
        for field in rows.schema.fields
        if isinstance(field.dataType, StructType)
        for inner in field.dataType.fields
        if not isinstance(inner.dataType, NullType)
    ]
    columns += [
        (field.name, "")
        for field in rows.schema.fields
        # The partition is no part of a row's state.
        if field.name != _PARTITION and not isinstance(field.dataType, StructType | NullType)
    ]
    times = Counter(inner or outer for outer, inner in columns)
    names = [name if times[name := inner or outer] == 1 else f"{outer}.{inner}" for outer, inner in columns]
    paths = [f"{quoted(outer)}.{quoted(inner)}" if inner else quoted(outer) for outer, inner in columns]
    flat = rows.select(*(F.col(path).alias(name) for path, name in zip(paths, names, strict=True)))
    return flat, [name for name, (outer, _) in zip(names, columns, strict=True) if outer in _KEYS]
