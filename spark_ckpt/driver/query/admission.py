"""Rows per batch: few in the first batch of a job that finds rows waiting, then the sources' own limits.

The first batch of a query is slow per row: Java compiles the code, and the Python workers are new. A job that finds
rows waiting ends its first epoch with this batch. If the batch is small, its output is visible seconds sooner
(docs/design/performance.md).

An epoch is no shorter than a batch. So while a standby waits and epochs are to be shorter (`standby_interval`), a
batch is kept as short as such an epoch.

Spark's admission control has one limit per source and query. So the sources are read with the small limit. After a
batch the next one's limits are set, before Spark plans it.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_ckpt.connector import LimitsBatches, Source

FIRST_BATCH_ROWS = 20_000
"""Limit of rows per source in the first batch, and the least limit of a later one."""
_FULL = 0.9
"""Share of its limit from which a batch is full: a source divides the limit among its partitions."""


class Admission:
    """Limits of the sources of one query. `short_ms`: longest batch while a standby waits; None for any length."""

    def __init__(self, sources: Mapping[str, Source], short_ms: int | None) -> None:
        self._small: dict[str, Source] = {}
        self._own: dict[str, int | None] = {}
        for name, source in sources.items():
            if isinstance(source, LimitsBatches) and (small := source.limited(FIRST_BATCH_ROWS)) is not None:
                self._small[name], self._own[name] = small, source.rows_per_batch
        self._short_ms = short_ms
        self._limits: dict[str, int] = {}
        self.standby_waits = False

    def small(self) -> Mapping[str, Source]:
        """Return the sources of a job that is behind, with small first batches, as far as they support or need them."""
        self._limits = dict.fromkeys(self._small, FIRST_BATCH_ROWS)
        return self._small

    def after_batch(self, rows: Mapping[str, int], took_ms: int) -> dict[str, int | None]:
        """Return the limits that change with the next batch; None for no limit.

        `rows`: what the batch read, by source. `took_ms`: its duration.
        """
        longest_ms = self._short_ms if self.standby_waits else None
        limits: dict[str, int] = {}
        for name, own in self._own.items():
            fitting = None if longest_ms is None else _fitting(rows[name], took_ms, longest_ms, self._limits.get(name))
            # The user's limit is never exceeded.
            if fitting is not None and (own is None or fitting < own):
                limits[name] = fitting
        changed = {name for name in self._own if limits.get(name) != self._limits.get(name)}
        # Only changes are returned: a limit is set through Java, and most batches change none.
        self._limits = limits
        return {name: limits.get(name, self._own[name]) for name in changed}


def _fitting(rows: int, took_ms: int, longest_ms: int, limit: int | None) -> int | None:
    """Return as many rows as a batch would have read in `longest_ms`; the limit so far, if this one says nothing."""
    if took_ms <= longest_ms and (limit is None or rows < _FULL * limit):
        return limit
    # Not below: a batch has a fixed cost, and tiny ones would only fall behind.
    return max(FIRST_BATCH_ROWS, rows * longest_ms // max(1, took_ms))
