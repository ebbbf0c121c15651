"""A fresh Spark checkpoint in which sources of Spark's own begin at a cut.

Such a source goes on from the last offsets in the checkpoint, so these are written before the query starts: a batch -1
that is committed, and a batch -2 that ended in the same place (Spark asks older sources for the rows between the two).
The first batch is number 0 as always, on which Spark's state depends: state before batch 0 is empty, before batch 1 it is a file.
A source that finds its place by itself has no offset there. Spark takes offsets only beside the query's id (`metadata`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_ckpt.connector import BeginsAtSeed, Cursor, Seed, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ckpt.store.location import Location

_ENDED, _BEFORE = -1, -2
_VERSION = "v1"
_NO_OFFSET = "-"
_COMMITTED = f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}'


def seed_checkpoint(
    spark: SparkSession, checkpoint: Location, places: Sequence[tuple[Source, Cursor]], shuffle_partitions: int
) -> None:
    """Write what the sources that need it begin from. `places`: source and cursor, in the order of the plan.

    The session holds the settings that the query is going to have.
    """
    seeds = [source.seed(cursor) if isinstance(source, BeginsAtSeed) else None for source, cursor in places]
    if any(seeds):
        for path, text in seed_files(seeds, _metadata(spark, shuffle_partitions), str(uuid.uuid4())).items():
            checkpoint.write_bytes(path, text.encode())


def seed_files(seeds: Sequence[Seed | None], metadata: str, query: str) -> dict[str, str]:
    """The checkpoint's files, the one that Spark looks for first comes last. The control source follows the sources."""
    files = {"metadata": json.dumps({"id": query})}
    files |= {
        f"sources/{number}/{name}": text
        for number, seed in enumerate(seeds)
        for name, text in (seed.files.items() if seed else ())
    }
    lines = [_NO_OFFSET if seed is None else seed.offset for seed in seeds]
    offsets = "\n".join([_VERSION, metadata, *lines, _NO_OFFSET])
    return files | {f"commits/{_ENDED}": _COMMITTED, f"offsets/{_BEFORE}": offsets, f"offsets/{_ENDED}": offsets}


def _metadata(spark: SparkSession, shuffle_partitions: int) -> str:
    """A batch's metadata as Spark writes it. A setting that is left out would be what it was in an old version of Spark."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a classic session has a JVM"  # noqa: S101 - Spark Connect is refused before
    log = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    metadata = json.loads(log.OffsetSeqMetadata.apply(0, 0, spark._jsparkSession.conf()).json())
    metadata["conf"]["spark.sql.shuffle.partitions"] = str(shuffle_partitions)
    return json.dumps(metadata)
