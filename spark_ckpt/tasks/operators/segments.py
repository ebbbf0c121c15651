"""Running computations per key without a Python loop per key: exact left folds, equal to a row-by-row loop.

Rows of one key are a segment. Segments are laid into matrices, with one numpy `accumulate` each. A matrix's width is
the next power of two (at most twice the cells), so the number of matrices is logarithmic in the longest segment. A
single cumulative sum minus the bases would be faster and wrong: floats of one key would leak into the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_ckpt.tasks.rows import Bools, Int64s

if TYPE_CHECKING:
    from typing import Any

    Values: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Segments:
    """The rows of a batch, by key. `row_key[i]` in [0, keys) is the key of row i; rows are in order of arrival.

    A key without rows has -1 in `first_rows` and `last_rows`.
    """

    row_key: Int64s
    keys: int

    @cached_property
    def counts(self) -> Int64s:
        """Rows per key."""
        counts: Int64s = np.bincount(self.row_key, minlength=self.keys)
        return counts

    @cached_property
    def all_have_rows(self) -> bool:
        """True if every key has a row."""
        return bool((self.counts > 0).all())

    @cached_property
    def order(self) -> Int64s:
        """Positions of the rows sorted by key, order of arrival kept."""
        # numpy sorts sixteen-bit numbers by radix, which is faster
        small = self.row_key.astype(np.uint16) if self.keys <= np.iinfo(np.uint16).max else self.row_key
        return np.argsort(small, kind="stable")

    @cached_property
    def starts(self) -> Int64s:
        """For each key the start of its rows in `order`."""
        starts: Int64s = np.cumsum(self.counts) - self.counts
        return starts

    @cached_property
    def last_rows(self) -> Int64s:
        """For each key the position of its last row."""
        return self._rows_at(self.starts + self.counts - 1)

    @cached_property
    def first_rows(self) -> Int64s:
        """For each key the position of its first row."""
        return self._rows_at(self.starts)

    def _rows_at(self, places: Int64s) -> Int64s:
        """Return the row positions at places of `order`; -1 for keys without rows."""
        if self.all_have_rows:
            return self.order[places]
        rows = np.full(self.keys, -1)
        rows[self.counts > 0] = self.order[places[self.counts > 0]]
        return rows

    @cached_property
    def numbering(self) -> Int64s:
        """For each row its number within its key, from 1."""
        within = np.arange(len(self.row_key)) - np.repeat(self.starts, self.counts)
        numbering: Int64s = self._unsorted(within + 1)
        return numbering

    def accumulate(self, fold: np.ufunc, values: Values, initial: Values) -> Values:
        """Return for each row `fold` over the key's `initial` and its rows up to this one, strictly left to right."""
        ordered = values[self.order]
        result = np.empty_like(ordered, dtype=np.result_type(ordered, initial))
        if not len(ordered):
            return result
        for keys, cells, real in self._matrices:
            # One column more: every fold begins with the key's initial value.
            matrix = np.empty((len(keys), cells.shape[1] + 1), result.dtype)
            matrix[:, 0] = initial[keys]
            matrix[:, 1:] = ordered[cells]
            with np.errstate(all="ignore"):  # inf - inf is NaN, as in Spark, and no warning
                fold.accumulate(matrix, axis=1, out=matrix)
            result[cells[real]] = matrix[:, 1:][real]  # padded cells repeat a row, so they are left out
        return self._unsorted(result)

    @cached_property
    def _matrices(self) -> list[tuple[Int64s, Int64s, Bools]]:
        """For each width: its keys, each cell's place in `order` (padded with the last), a mask of real cells."""
        widths = np.ceil(np.log2(np.maximum(self.counts, 1))).astype(np.int64)
        return [self._matrix(np.flatnonzero(widths == width), 1 << int(width)) for width in np.unique(widths)]

    def _matrix(self, keys: Int64s, width: int) -> tuple[Int64s, Int64s, Bools]:
        counts, at = self.counts[keys, None], np.arange(width)
        # A key without rows gets a padded cell, and no real one.
        return keys, self.starts[keys, None] + np.minimum(at, counts - 1), at < counts

    def _unsorted(self, ordered: Values) -> Values:
        result = np.empty_like(ordered)
        result[self.order] = ordered
        return result

    def any(self, mask: Bools) -> Bools:
        """Return for each key: does `mask` hold for at least one of its rows?"""
        return np.bincount(self.row_key[mask], minlength=self.keys) > 0
