"""The join of two streams as an operator: every row joins all earlier rows of its key from the other side.

The state is both sides' rows of a key, in order of arrival. `ttl` removes a key that had no rows for that long, by the
clock of the inputs (`driver/input_clock`). A left join then emits its unmatched left rows. Flink's regular join also
keeps both sides ("Joins", Flink SQL documentation).
This module runs in tasks; `join_plan` sets it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.tasks.operators.named_inputs import field_of
from spark_ckpt.tasks.operators.vectorized import KeyBatch, KeyResult
from spark_ckpt.tasks.rows import Int64s, column

if TYPE_CHECKING:
    from spark_ckpt.tasks.rows import Array

LEFT, RIGHT = "left", "right"
"""The operator's inputs."""
LEFT_ROWS, RIGHT_ROWS = "left_rows", "right_rows"
"""Columns of its state."""
PAIRS = 100_000
"""Rows of one part of a batch's output."""
PRESENT = "present"
"""Field of a row in the state, for a side that has key columns only."""


@dataclass(frozen=True, slots=True)
class StreamJoin:
    """Function for `applyVectorized`: joins new left rows with all right ones, older left rows with new right ones.

    - `left`, `right`: columns of each side other than the `keys`.
    - `keeps_left`: True for a left join.
    - `ttl_ms`: milliseconds without rows after which a key is removed; None keeps keys.
    """

    keys: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    keeps_left: bool
    ttl_ms: int | None

    def __call__(self, batch: KeyBatch) -> KeyResult:
        """Return the batch's output and the new state."""
        if batch.timed_out:
            return self._forgotten(batch)
        left, right = self._sides(batch)
        old, fresh = np.arange(left.old), np.arange(left.old, len(left.key))
        # each pair exactly once: old left rows have met the old right ones in earlier batches
        pairs = [
            _pairs(left.key, right.key, fresh, np.arange(len(right.key))),
            _pairs(left.key, right.key, old, np.arange(right.old, len(right.key))),
        ]
        left_at, right_at = (np.concatenate(each) for each in zip(*pairs, strict=True))
        # In parts: an array of texts holds 2 GiB at most, and a key with many rows on both sides gives more.
        parts = [slice(first, first + PAIRS) for first in range(0, max(len(left_at), 1), PAIRS)]
        output = pa.concat_tables(self._joined(batch, left, left_at[part], right, right_at[part]) for part in parts)
        state = pa.table({LEFT_ROWS: left.lists(len(batch)), RIGHT_ROWS: right.lists(len(batch))})
        # Each batch with rows of a key moves its end: `ttl` counts from the key's last row.
        due = None if self.ttl_ms is None else np.full(len(batch), batch.processing_ms + self.ttl_ms)
        return KeyResult(output, state, timeout_ms=due)

    def _sides(self, batch: KeyBatch) -> tuple[_Side, _Side]:
        return _Side.of(batch, LEFT, LEFT_ROWS, self.left), _Side.of(batch, RIGHT, RIGHT_ROWS, self.right)

    def _forgotten(self, batch: KeyBatch) -> KeyResult:
        left, right = self._sides(batch)
        # Only rows that met none: a left row has joined every right row of its key already.
        alone = np.flatnonzero(~np.isin(left.key, right.key)) if self.keeps_left else np.empty(0, np.int64)
        nothing = pa.nulls(len(alone), right.rows.type)
        output = self._output(batch, left.key[alone], left.rows.take(alone), nothing)
        return KeyResult(output, remove=np.full(len(batch), True))

    def _joined(self, batch: KeyBatch, left: _Side, left_at: Int64s, right: _Side, right_at: Int64s) -> pa.Table:
        return self._output(batch, left.key[left_at], left.rows.take(left_at), right.rows.take(right_at))

    def _output(self, batch: KeyBatch, key: Int64s, left: Array, right: Array) -> pa.Table:
        keys = batch.keys.take(key)
        columns = {name: column(keys, name) for name in self.keys}
        for side, names in ((left, self.left), (right, self.right)):
            columns |= {name: field_of(side, name) for name in names}
        return pa.table(columns)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side's rows: the `old` ones of the state first, then the batch's.

    `key[i]` is the number of row i's key in the batch.
    """

    rows: Array
    key: Int64s
    old: int

    @classmethod
    def of(cls, batch: KeyBatch, side: str, kept: str, names: Sequence[str]) -> _Side:
        """Collect a side. `kept` is its column of the state, `names` its columns other than the key."""
        state, given = column(batch.state, kept), batch[side]
        old: Array = state.flatten()
        fresh = _structs(given.rows.select(names), old.type)
        parents = pc.list_parent_indices(state).to_numpy(zero_copy_only=False)  # of each old row, the number of its key
        return cls(
            pa.concat_arrays([old, fresh]), np.concatenate([parents, given.key_index]).astype(np.int64), len(old)
        )

    def lists(self, keys: int) -> Array:
        """Return the rows of every key, in order of arrival."""
        ends = np.cumsum(np.bincount(self.key, minlength=keys))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        # a stable sort keeps older rows first
        return pa.ListArray.from_arrays(offsets, self.rows.take(np.argsort(self.key, kind="stable")))


def _structs(rows: pa.Table, kind: pa.DataType) -> Array:
    """Return every row in the form of the state."""
    if not rows.num_columns:
        # A struct needs a field, or its rows could not be counted.
        rows = pa.table({PRESENT: pa.repeat(pa.scalar(True), rows.num_rows)})
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return pa.StructArray.from_arrays([column(rows, each.name).cast(each.type) for each in fields], fields=fields)


def _pairs(left: Int64s, right: Int64s, left_at: Int64s, right_at: Int64s) -> tuple[Int64s, Int64s]:
    """Return the positions of all pairs of one of `left_at` and one of `right_at` with equal keys."""
    keys = int(max(left.max(initial=-1), right.max(initial=-1))) + 1
    by_key = right_at[np.argsort(right[right_at], kind="stable")]
    counts = np.bincount(right[right_at], minlength=keys)
    starts = np.cumsum(counts) - counts
    # A left row meets `times` right rows, which are side by side in `by_key`.
    times = counts[left[left_at]]
    number = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    return np.repeat(left_at, times), by_key[np.repeat(starts[left[left_at]], times) + number]
