"""How much a batch may take: little in the first one of a job that is behind, from then on what its sources say.

A query's first batch is slow, row by row: Java compiles what it runs, the Python workers are new. A job that is behind ends
its first epoch with it, so that its output is visible seconds sooner if the batch is small (docs/design/performance.md). While its
sinks are owed epochs of the time before, batches stay small: what these have decided is visible sooner, and no later epoch can be
visible before it. Spark's admission control has one limit per source and query, so the sources are read with the small one, and
a batch puts the configured one in its place before Spark plans the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from spark_ckpt.connector import LimitsBatches, Source
from spark_ckpt.spark_private.running_query import Execution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_BATCH_ROWS = 20_000
PATIENCE_S = 10.0
"""A sink may be away for long: so long batches stay small for its sake."""


class SmallBatches:
    """Of a query whose sources are read `small`, until `lift_if_due` lifts their limits. `owes`: whether a sink is owed an epoch
    of the time before the query."""

    def __init__(
        self, lift: Callable[[], None], owes: Callable[[], bool], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._lift = lift
        self._owes = owes
        self._now_s = now_s
        self._began_s = now_s()
        self._lifted = False

    def lift_if_due(self) -> None:
        """To be called from the query's own thread, between two plannings."""
        if not self._lifted and (self._now_s() - self._began_s >= PATIENCE_S or not self._owes()):
            self._lifted = True
            self._lift()


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
