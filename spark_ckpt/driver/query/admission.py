"""Rows per batch: few in the first batch of a job that finds rows waiting, then the sources' own limits.

The first batch of a query is slow per row: Java compiles the code, and the Python workers are new. A job that finds
rows waiting ends its first epoch with this batch. If the batch is small, its output is visible seconds sooner
(docs/design/performance.md).

Spark's admission control has one limit per source and query. So the sources are read with the small limit. The first
batch sets the configured one before Spark plans the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_ckpt.connector import LimitsBatches, Source
from spark_ckpt.spark_internals.running_query import Execution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_BATCH_ROWS = 20_000
"""Limit of rows per source in the first batch."""


def small(source: Source) -> Source:
    """Return `source` with small batches, or itself if it does not support or need them."""
    return _limited(source) or source


def lift_limits(spark: SparkSession, query_name: str, sources: Mapping[int, Source]) -> None:
    """Restore the configured limits of sources that were read `small`.

    `sources`: by number in the plan. Call it on the query's own thread, between two plannings.
    """
    rows = {
        number: source.rows_per_batch
        for number, source in sources.items()
        if isinstance(source, LimitsBatches) and _limited(source) is not None
    }
    Execution.of(spark, query_name).limit_rows(rows)


def _limited(source: Source) -> Source | None:
    return source.limited(FIRST_BATCH_ROWS) if isinstance(source, LimitsBatches) else None
