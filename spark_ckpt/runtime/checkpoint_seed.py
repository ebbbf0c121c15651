"""A fresh Spark checkpoint in which sources of Spark's own begin at a cut.

Such a source goes on from the last offsets in the checkpoint, so these are written before the query starts. The first batch is
number 0 as always, on which Spark's state depends: state before batch 0 is empty, before batch 1 it is a file.
A source that finds its place by itself has no offset there.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_ckpt.connector import BeginsAtSeed, Cursor, Seed, Source
from spark_ckpt.spark_private.checkpoint_files import batch_metadata, seeded_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ckpt.store.location import Location


def seed_checkpoint(
    spark: SparkSession, checkpoint: Location, places: Sequence[tuple[Source, Cursor]], shuffle_partitions: int
) -> None:
    """Write what the sources that need it begin from. `places`: source and cursor, in the order of the plan.

    The session holds the settings that the query is going to have.
    """
    seeds = [source.seed(cursor) if isinstance(source, BeginsAtSeed) else None for source, cursor in places]
    if any(seeds):
        for path, text in seed_files(seeds, batch_metadata(spark, shuffle_partitions), str(uuid.uuid4())).items():
            checkpoint.write_bytes(path, text.encode())


def seed_files(seeds: Sequence[Seed | None], metadata: str, query: str) -> dict[str, str]:
    """The checkpoint's files, the one that Spark looks for first comes last. The control source follows the sources."""
    offsets = [seed.offset if seed else None for seed in seeds]
    return seeded_checkpoint([*offsets, None], [seed.files if seed else {} for seed in seeds], metadata, query)
