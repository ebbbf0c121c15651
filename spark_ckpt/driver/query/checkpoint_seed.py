"""A fresh Spark checkpoint that makes Spark's built-in sources continue from the positions of an epoch.

Such a source continues from the last offsets in the checkpoint, so these are written before the query starts. The
first batch is number 0, as always, because Spark's state depends on it. State before batch 0 is empty; state before
batch 1 would be a file. With the state of Spark's own operators, the first batch follows the epoch's last one. A source
that restores its position itself has no offset there.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from spark_ckpt.connector import BeginsAtSeed, Cursor, Seed, Source
from spark_ckpt.driver.query.spark_state import CheckpointState
from spark_ckpt.plan.plan_order import PlanOrder
from spark_ckpt.spark_internals.checkpoint_files import COMMITTED, batch_metadata, seeded_checkpoint
from spark_ckpt.store.location import Location


def seed_checkpoint(
    spark: SparkSession,
    checkpoint: Location,
    order: PlanOrder,
    cursors: Mapping[str, Cursor],
    shuffle_partitions: int,
    state: CheckpointState | None = None,
) -> None:
    """Write the initial offsets of the sources that need them, and lay out the `state` of Spark's own operators.

    The session must have the settings that the query will run with. Raises `EpochDamaged`, and a `StoreOutage`.
    """
    # In the order of the plan: Spark has no names for the lines of its offset log.
    seeds = [_seed(node.source, cursors[node.name]) if node else None for node in order.sources]
    laid_out = state.lay_out() if state is not None else None
    if state is not None and laid_out is not None and state.last_batch is not None:
        last = LastBatch(laid_out.metadata, state.last_batch, laid_out.commit)
    elif any(seeds):
        last = LastBatch(batch_metadata(spark, shuffle_partitions))
    else:
        # Without offsets or state Spark needs no checkpoint to begin with: each source finds its place by its cursor.
        return
    for path, text in seed_files(seeds, order, last, str(uuid.uuid4())).items():
        checkpoint.write_bytes(path, text.encode())


@dataclass(frozen=True, slots=True)
class LastBatch:
    """Spark's texts about the batch that a checkpoint begins behind; see `seeded_checkpoint`."""

    metadata: str
    number: int = -1  # the first batch is 0
    commit: str = COMMITTED


def seed_files(seeds: Sequence[Seed | None], order: PlanOrder, last: LastBatch, query: str) -> dict[str, str]:
    """Return the checkpoint's files; the one that Spark looks for first comes last.

    `seeds`: by number in the plan. A source's own folder has another number: there every input counts once.
    """
    offsets = [seed.offset if seed else None for seed in seeds]
    first = [seeds[order.inputs.index(each)] for each in order.once]
    files = [seed.files if seed else {} for seed in first]
    return seeded_checkpoint(offsets, files, last.metadata, query, last.number, last.commit)


def _seed(source: Source, cursor: Cursor) -> Seed | None:
    return source.seed(cursor) if isinstance(source, BeginsAtSeed) else None
