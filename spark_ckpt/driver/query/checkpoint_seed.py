"""A fresh Spark checkpoint that makes Spark's built-in sources continue from the positions of an epoch.

Such a source continues from the last offsets in the checkpoint, so these are written before the query starts. The
first batch is number 0, as always, because Spark's state depends on it. State before batch 0 is empty; state before
batch 1 would be a file. A source that restores its position itself has no offset there.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spark_ckpt.connector import BeginsAtSeed, Cursor, Seed, Source
from spark_ckpt.spark_internals.checkpoint_files import batch_metadata, seeded_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ckpt.plan.plan_order import PlanOrder
    from spark_ckpt.store.location import Location


def seed_checkpoint(
    spark: SparkSession,
    checkpoint: Location,
    order: PlanOrder,
    cursors: Mapping[str, Cursor],
    shuffle_partitions: int,
) -> None:
    """Write the initial offsets of the sources that need them.

    The session must have the settings that the query will run with.
    """
    seeds = [_seed(node.source, cursors[node.name]) if node else None for node in order.sources]
    if any(seeds):
        metadata = batch_metadata(spark, shuffle_partitions)
        for path, text in seed_files(seeds, order, metadata, str(uuid.uuid4())).items():
            checkpoint.write_bytes(path, text.encode())


def seed_files(seeds: Sequence[Seed | None], order: PlanOrder, metadata: str, query: str) -> dict[str, str]:
    """Return the checkpoint's files; the one that Spark looks for first comes last.

    `seeds`: by number in the plan. A source's own folder has another number: there every input counts once.
    """
    offsets = [seed.offset if seed else None for seed in seeds]
    first = [seeds[order.inputs.index(each)] for each in order.once]
    files = [seed.files if seed else {} for seed in first]
    return seeded_checkpoint(offsets, files, metadata, query)


def _seed(source: Source, cursor: Cursor) -> Seed | None:
    return source.seed(cursor) if isinstance(source, BeginsAtSeed) else None
