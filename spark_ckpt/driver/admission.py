"""How much a batch may take: little in the first one of a job that is behind, from then on what its sources say.

A query's first batch is slow, row by row: Java compiles what it runs, the Python workers are new. A job that is behind ends
its first epoch with it, so that its output is visible seconds sooner if the batch is small (docs/design/performance.md).
Spark's admission control has one limit per source and query, so the sources are read with the small one, and the first
batch puts the configured one in its place before Spark plans the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_ckpt.connector import LimitsBatches, Source
from spark_ckpt.spark_internals.running_query import Execution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_BATCH_ROWS = 20_000


def small(source: Source) -> Source:
    """`source` with small batches, itself if it cannot or need not have them."""
    return _limited(source) or source


def lift_limits(spark: SparkSession, query_name: str, sources: Mapping[int, Source]) -> None:
    """Give the sources of a query that were read `small` their own limits. `sources`: by number in the plan.

    To be called from the query's own thread, between two plannings.
    """
    rows = {
        number: source.rows_per_batch
        for number, source in sources.items()
        if isinstance(source, LimitsBatches) and _limited(source) is not None
    }
    Execution.of(spark, query_name).limit_rows(rows)


def _limited(source: Source) -> Source | None:
    return source.limited(FIRST_BATCH_ROWS) if isinstance(source, LimitsBatches) else None
