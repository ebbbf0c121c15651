"""State of Spark's own operators at an epoch, read with Spark's state reader from a checkpoint that is laid out for it."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ckpt.epochs.records import SparkState
from spark_ckpt.errors import ConfigInvalid, EpochNotFound
from spark_ckpt.spark_internals.checkpoint_files import seeded_checkpoint
from spark_ckpt.spark_internals.operator_metadata import place_schemas
from spark_ckpt.spark_internals.query_logs import STATE
from spark_ckpt.spark_internals.settings import CHECKPOINT_FORMAT
from spark_ckpt.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def operator_number(state: SparkState, name: str, epoch: int) -> int:
    """Return Spark's number of an operator: by its name, or NUMBER:NAME. Raises `EpochNotFound`."""
    names = [f"{number}:{each}" for number, each in enumerate(state.operators)]
    found = [number for number, each in enumerate(names) if name in (each, state.operators[number])]
    if len(found) != 1:
        what = f"epoch {epoch} has no state of operator '{name}'" if not found else f"operator '{name}' is not unique"
        raise EpochNotFound(what, operators=", ".join(names), hint="choose one of these")
    return found[0]


def sparks_rows(
    spark: SparkSession, store: Store, state: SparkState, epoch: int, operator: int, options: Mapping[str, str]
) -> DataFrame:
    """Return the rows of Spark's state reader; see `state_frame`.

    Its folder of links stays until retention drops the epoch. Raises `ConfigInvalid` if the session has another format of
    state files, `EpochDamaged`, and Spark's errors for a missing option.
    """
    if str(state.checkpoint_format) != str(spark.conf.get(CHECKPOINT_FORMAT, "1")):
        raise ConfigInvalid(
            f"the state has checkpoint format {state.checkpoint_format}, the session another one",
            hint=f"spark.conf.set('{CHECKPOINT_FORMAT}', '{state.checkpoint_format}') until the rows are read",
        )
    checkpoint = _laid_out(store, state, epoch)
    spark.streams.active  # noqa: B018 - tasks that open a state store look for the coordinator that this starts
    reader = spark.read.format("statestore").option("operatorId", operator).option("batchId", state.batch)
    return reader.options(**options).load(str(checkpoint))


def _laid_out(store: Store, state: SparkState, epoch: int) -> Path:
    """Return a checkpoint that ends with the epoch's batch."""
    target = store.reading_folder(epoch, state.index)
    if not target.is_dir():
        # complete or absent: another reader may do the same
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        index, _ = store.spark_states.lay_out(state, part / STATE, epoch)
        texts = seeded_checkpoint([None], [], index.metadata, str(uuid.uuid4()), state.batch, index.commit)
        for path, text in texts.items():
            (part / path).parent.mkdir(parents=True, exist_ok=True)
            (part / path).write_text(text)
        try:
            part.rename(target)
        except OSError:  # another reader was first
            shutil.rmtree(part, ignore_errors=True)
        place_schemas(target / STATE)
    return target
