"""Deduplication: the first row of every key, with the late rows and the forgetting of Spark's `dropDuplicates`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StructField, StructType

from spark_ckpt.tasks.operators.vectorized import KeyBatch, KeyResult
from spark_ckpt.tasks.rows import Int64s, column

_FORGET = "forget_ms"
STATE = StructType([StructField(_FORGET, LongType())])
"""State of a key: the watermark that it is forgotten after, in epoch milliseconds; null for a key that stays."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Function of a vectorised operator with the state `STATE`; it emits the first row of every key.

    - `time`: timestamp column of a key's first row; the key is forgotten when the watermark reaches it. None: keys stay.
    - `delay_ms`: added to that time. None: `time` is a part of the key, and a key without a time stays.
    """

    time: str | None = None
    delay_ms: int | None = None

    def __call__(self, batch: KeyBatch) -> KeyResult:
        """Return the first rows of new keys, in order of arrival; forget the keys that are due."""
        if batch.timed_out:
            return KeyResult(remove=np.full(len(batch), True))
        fresh = ~np.asarray(batch.exists)
        # In order of arrival: Spark keeps the row that it sees first.
        first = batch.rows.take(batch.segments.first_rows)
        known = batch.state_values(_FORGET, -1)
        # A known key keeps its own, unless a version without this watermark wrote it.
        due = np.where(known < 0, self._due_ms(first), known)
        state = pa.table({_FORGET: pa.array(due, pa.int64(), mask=due < 0)})
        changed = fresh | (due != known)
        return KeyResult(first.filter(fresh), state, changed, timeout_ms=None if self.time is None else due)

    def _due_ms(self, rows: pa.Table) -> Int64s:
        """Return for each row the last watermark that still knows its key; -1 for none."""
        if self.time is None:
            return np.full(rows.num_rows, -1, np.int64)
        times = column(rows, self.time).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        # as in Spark, a row without a time is one of 1970 if its time is no part of the key
        numbers = pc.fill_null(times, pa.scalar(0, pa.int64())).to_numpy(zero_copy_only=False)
        # a timeout is due when the watermark is greater, and a key is forgotten when the watermark reaches its time
        last = np.maximum(-(-numbers // 1000) + (self.delay_ms or 0) - 1, 0)  # microseconds to milliseconds, rounded up
        stays = times.is_null().to_numpy(zero_copy_only=False) & (self.delay_ms is None)
        return cast("Int64s", np.where(stays, -1, last))
