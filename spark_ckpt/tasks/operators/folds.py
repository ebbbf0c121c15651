"""Folds of the built-in aggregates: the state per key, its update, and the result, for all rows of a batch at once.

A fold computes the state *after* each row. So one computation serves running values, final values and the state. Nulls
are skipped as Spark does. Results equal those of a loop over the rows in order of arrival.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.tasks.failures import ArithmeticOverflow
from spark_ckpt.tasks.operators.decimals import decimals, unscaled
from spark_ckpt.tasks.operators.segments import Segments
from spark_ckpt.tasks.rows import Bools, Int64s, taken

if TYPE_CHECKING:
    from spark_ckpt.tasks.operators.segments import Values
    from spark_ckpt.tasks.rows import Array

_SAFE = float(1 << 62)
_NEVER = np.iinfo(np.int64).max
_HINT = (
    "cast the column to decimal(20, 0) before: the sum is a decimal then, and the state widens to it; a double needs a new name "
    "of the operator, since it does not hold every long"
)


def valid(values: Array) -> Bools:
    """Return a mask of the values that are not null."""
    return cast("Bools", values.is_valid().to_numpy(zero_copy_only=False))


def filled(values: Array, default: float) -> Values:
    """Return a numeric column as numpy, with `default` for null."""
    whole = pc.fill_null(values, pa.scalar(default, values.type)) if values.null_count else values
    return cast("Values", whole.to_numpy(zero_copy_only=False))


def arrow(values: Values, shown: Bools, kind: pa.DataType) -> Array:
    """Return numpy values as an Arrow column of type `kind`, null outside of the mask `shown`."""
    return pa.array(values, mask=None if shown.all() else ~shown).cast(kind)


def seen(segments: Segments, values: Array, before: Array) -> Bools:
    """Return for each row: did its key have a non-null value, in this batch so far or in the state `before`?"""
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    some: Bools = segments.accumulate(np.logical_or, valid(values), valid(before))
    return some


class Fold(ABC):
    """One aggregate over a column of Arrow type `kind`."""

    parts: ClassVar[tuple[str, ...]] = ("",)
    """Suffixes of the state columns."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    def types(self) -> tuple[pa.DataType, ...]:
        """Return the types of the state columns; by default the aggregate's own."""
        return (self.shown(),)

    def shown(self) -> pa.DataType:
        """Return the type of the aggregate; by default the column's."""
        return self.kind

    @abstractmethod
    def run(self, segments: Segments, values: Array, before: Sequence[Array]) -> list[Array]:
        """Return the state columns after each row; `before` is the state per key, null for a key without state."""

    def show(self, state: Sequence[Array]) -> Array:
        """Return the aggregate's value for given states."""
        return state[0]


class CountFold(Fold):
    """Count of rows, or of values that are not null. A long."""

    def shown(self) -> pa.DataType:
        """Return a long."""
        return pa.int64()

    def run(self, segments: Segments, values: Array, before: Sequence[Array]) -> list[Array]:
        """Continue the counts in `before`."""
        return [pa.array(self.counts(segments, values, before[0]))]

    @staticmethod
    def counts(segments: Segments, values: Array, before: Array) -> Int64s:
        """Return the running counts as numpy."""
        start: Int64s = filled(before, 0)
        if not values.null_count:
            # Without nulls a count is the row's number within its key.
            return segments.numbering + start[segments.row_key]
        return segments.accumulate(np.add, valid(values).astype(np.int64), start)


def exact_sum(segments: Segments, values: Values, start: Values) -> Values:
    """Return running sums of whole numbers: int64 if no sum can overflow it, else Python ints."""
    wide = values.dtype == object or start.dtype == object
    # no partial sum exceeds the sum of magnitudes; the limit 2**62 absorbs the rounding of doubles
    if not wide and np.abs(values.astype(np.float64)).sum() + np.abs(start.astype(np.float64)).max(initial=0) < _SAFE:
        return segments.accumulate(np.add, values, start)
    return segments.accumulate(np.add, values.astype(object), start.astype(object))


class SumFold(Fold):
    """Spark's sum: whole numbers give a long, floats a double, decimal(p, s) a decimal(p + 10, s). Null without values."""

    def shown(self) -> pa.DataType:
        """Return the widened type."""
        if pa.types.is_decimal(self.kind):
            return pa.decimal128(_least(self.kind.precision + 10, 38), self.kind.scale)
        return pa.float64() if pa.types.is_floating(self.kind) else pa.int64()

    def run(self, segments: Segments, values: Array, before: Sequence[Array]) -> list[Array]:
        """Continue the sums in `before`. Raises `ArithmeticOverflow`."""
        return [self.sums(segments, values, before[0])]

    def sums(self, segments: Segments, values: Array, before: Array) -> Array:
        """Return the running sums, null until the first value. Raises `ArithmeticOverflow`."""
        some, kind = seen(segments, values, before), self.shown()
        if pa.types.is_decimal(kind):
            return decimals(exact_sum(segments, unscaled(values), unscaled(before)), ~some, kind)
        # A null adds nothing; `some` decides if the sum is shown at all.
        numbers, start = filled(values.cast(kind), 0), filled(before, 0)
        if pa.types.is_floating(kind):
            return arrow(segments.accumulate(np.add, numbers, start), some, kind)
        return arrow(_long(exact_sum(segments, numbers, start)), some, kind)


def _long(values: Values) -> Int64s:
    if values.dtype == object:
        out = [row for row, each in enumerate(values) if not -(1 << 63) <= each < 1 << 63]
        if out:
            refused = ArithmeticOverflow("a sum left the range of a long", hint=_HINT)
            refused.row = out[0]
            raise refused
    return values.astype(np.int64)


class MeanFold(Fold):
    """Spark's avg: a double, or decimal(p + 4, s + 4), rounded half up. The state is sum and count."""

    parts = ("_sum", "_count")

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._sum = SumFold(kind if pa.types.is_decimal(kind) else pa.float64())

    def types(self) -> tuple[pa.DataType, ...]:
        """Return the types of sum and count."""
        return (self._sum.shown(), pa.int64())

    def shown(self) -> pa.DataType:
        """Return the mean's type."""
        if pa.types.is_decimal(self.kind):
            return pa.decimal128(_least(self.kind.precision + 4, 38), _least(self.kind.scale + 4, 38))
        return pa.float64()

    def run(self, segments: Segments, values: Array, before: Sequence[Array]) -> list[Array]:
        """Continue the sums and counts in `before`. Raises `ArithmeticOverflow`."""
        # Not safe: a long beyond 2**53 is rounded, as by Spark's avg.
        numbers = values if pa.types.is_decimal(self.kind) else values.cast(pa.float64(), safe=False)
        counts = CountFold.counts(segments, values, before[1])
        return [self._sum.sums(segments, numbers, before[0]), pa.array(counts)]

    def show(self, state: Sequence[Array]) -> Array:
        """Return sum over count, null without values. Raises `ArithmeticOverflow`."""
        counts: Int64s = filled(state[1], 0)
        some = counts > 0
        if not pa.types.is_decimal(self.kind):
            return arrow(filled(state[0], 0.0) / np.where(some, counts, 1), some, pa.float64())
        shift = self.shown().scale - self.kind.scale
        quotients = [
            _half_up(total * 10**shift, count) if count else 0
            for total, count in zip(unscaled(state[0]).tolist(), counts.tolist(), strict=True)
        ]
        return decimals(np.array(quotients, object), ~some, self.shown())


def _half_up(number: int, divisor: int) -> int:
    # Whole numbers only: a double does not hold the digits of a decimal.
    size = (2 * abs(number) + divisor) // (2 * divisor)
    return size if number >= 0 else -size


def _least(left: int, right: int) -> int:
    return left if left < right else right


class ExtremeFold(Fold):
    """Spark's min or max: NaN is greater than every number; strings compare by bytes. Null without values."""

    fold: ClassVar[np.ufunc]
    float_fold: ClassVar[np.ufunc]
    lowest: ClassVar[bool]

    def run(self, segments: Segments, values: Array, before: Sequence[Array]) -> list[Array]:
        """Return the extreme so far."""
        some = seen(segments, values, before[0])
        if pa.types.is_floating(values.type):
            # fmin ignores NaN, so NaN is min's neutral element; maximum propagates NaN, as Spark's max does
            neutral = np.nan if self.lowest else -np.inf
            parts = filled(values, neutral), filled(before[0], neutral)
            return [arrow(segments.accumulate(self.float_fold, *parts), some, self.shown())]
        if pa.types.is_integer(values.type):
            bound = np.iinfo(values.type.to_pandas_dtype())
            neutral = int(bound.max if self.lowest else bound.min)
            parts = filled(values, neutral), filled(before[0], neutral)
            return [arrow(segments.accumulate(self.fold, *parts), some, self.shown())]
        return [self._by_rank(segments, pa.concat_arrays([values, before[0]]), some)]

    def _by_rank(self, segments: Segments, values: Array, some: Bools) -> Array:
        """Fold any ordered type: fold the positions in sorted order, then look the values up."""
        # Nulls take the places that lose against every value.
        order = pc.array_sort_indices(values, null_placement="at_end" if self.lowest else "at_start")
        places = order.to_numpy().astype(np.int64)
        ranks = np.empty_like(places)
        ranks[places] = np.arange(len(places))
        rows = len(segments.row_key)
        best = segments.accumulate(self.fold, ranks[:rows], ranks[rows:])  # the batch's rows, then the states
        return taken(values, places[best], ~some)


class MinFold(ExtremeFold):
    """Spark's min."""

    fold, float_fold, lowest = np.minimum, np.fmin, True


class MaxFold(ExtremeFold):
    """Spark's max."""

    fold, float_fold, lowest = np.maximum, np.maximum, False


class LastFold(Fold):
    """The value of the last row, or with `skip_nulls` the last value that is not null."""

    def __init__(self, kind: pa.DataType, *, skip_nulls: bool = False) -> None:
        super().__init__(kind)
        self.skip_nulls = skip_nulls

    def run(self, segments: Segments, values: Array, before: Sequence[Array]) -> list[Array]:
        """Return the last value so far."""
        # The value after each row is the row's own.
        if not self.skip_nulls:
            return [values]
        rows = len(values)
        # The running maximum of positions leads to the last value so far.
        at = np.where(valid(values), np.arange(rows), -1)
        last = segments.accumulate(np.maximum, at, np.full(segments.keys, -1, np.int64))
        # without a value in this batch, take the key's state, which follows the rows
        at = np.where(last >= 0, last, rows + segments.row_key)
        return [taken(pa.concat_arrays([values, before[0]]), at)]


class FirstFold(LastFold):
    """The value of the first row, or with `skip_nulls` the first value that is not null."""

    parts = ("", "_seen")

    def types(self) -> tuple[pa.DataType, ...]:
        """Return the types of the value and of a flag: a value exists (a first value may be null)."""
        return (self.shown(), pa.bool_())

    def run(self, segments: Segments, values: Array, before: Sequence[Array]) -> list[Array]:
        """Return the first value so far."""
        rows = len(values)
        had = filled(before[1].cast(pa.int8()), 0).astype(np.bool_)  # null for a key without state
        # A first value may be null, so a flag of its own says that there was one.
        candidates = valid(values) if self.skip_nulls else np.ones(rows, np.bool_)
        at = np.where(candidates, np.arange(rows), _NEVER)
        first = segments.accumulate(np.minimum, at, np.full(segments.keys, _NEVER))
        # A key that has a first value keeps it.
        old = had[segments.row_key]
        some = old | (first != _NEVER)
        at = np.where(old, rows + segments.row_key, np.where(some, first, 0))
        return [taken(pa.concat_arrays([values, before[0]]), at, ~some), pa.array(some)]


class StddevFold(Fold):
    """Spark's stddev_samp: a double, null for fewer than two values. It sums distances from a value near the mean."""

    parts = ("_count", "_mean", "_m2")

    def types(self) -> tuple[pa.DataType, ...]:
        """Return the types of count, mean, and sum of squared distances from the mean."""
        return (pa.int64(), pa.float64(), pa.float64())

    def shown(self) -> pa.DataType:
        """Return a double."""
        return pa.float64()

    def run(self, segments: Segments, values: Array, before: Sequence[Array]) -> list[Array]:
        """Return count, mean and squared distances after each row.

        Each key's values are shifted by the mean so far, or by its first value. So the squares do not cancel.
        """
        numbers, real, key = (
            filled(values.cast(pa.float64(), safe=False), 0.0),
            valid(values),
            segments.row_key,
        )
        counts = CountFold.counts(segments, values, before[0])
        shift = np.where(filled(before[0], 0) > 0, filled(before[1], 0.0), _first(segments, numbers, real))
        with np.errstate(all="ignore"):
            apart = np.where(real, numbers - shift[key], 0.0)
            squared = apart * apart
        # Distances from a key's own mean add up to zero, and its m2 is their squares: both sums go on from there.
        sums = segments.accumulate(np.add, apart, np.zeros(segments.keys))
        squares = segments.accumulate(np.add, squared, filled(before[2], 0.0))
        some = np.maximum(counts, 1)
        with np.errstate(all="ignore"):
            # rounding can make the difference slightly negative
            m2 = np.maximum(squares - sums * sums / some, 0.0)
            means = shift[key] + sums / some
        return [pa.array(counts), pa.array(means), pa.array(m2)]

    def show(self, state: Sequence[Array]) -> Array:
        """Return the square root of m2 / (count - 1)."""
        # `counts - 1` is 0 or less for a key that is shown as null: it divides by 1.
        counts = filled(state[0], 0)
        return arrow(np.sqrt(filled(state[2], 0.0) / np.maximum(counts - 1, 1)), counts > 1, pa.float64())


def _first(segments: Segments, numbers: Values, real: Bools) -> Values:
    """Return for each key its first real number, 0 without one."""
    at = np.where(real, np.arange(len(numbers)), _NEVER)
    first = segments.accumulate(np.minimum, at, np.full(segments.keys, _NEVER))[segments.last_rows]
    return np.where(first == _NEVER, 0.0, numbers[np.where(first == _NEVER, 0, first)])
