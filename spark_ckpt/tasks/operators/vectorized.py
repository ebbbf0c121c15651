"""The vectorised operator: the user's function `func(KeyBatch) -> KeyResult` gets all keys of a key group at once, as
Arrow tables.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import StructType

from spark_ckpt.errors import CkptError
from spark_ckpt.tasks.failures import OutputInvalid, bounded, user_function_failed
from spark_ckpt.tasks.operators.named_inputs import NamedInput
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.operators.output_rows import to_table
from spark_ckpt.tasks.operators.pandas_rows import key_tuples
from spark_ckpt.tasks.operators.segments import Segments
from spark_ckpt.tasks.operators.timeouts import Timeouts
from spark_ckpt.tasks.rows import (
    NO_TIMEOUT,
    Bools,
    Int64s,
    arrow_schema,
    column,
    rows_at,
    state_schema,
    taken,
    user_columns,
)
from spark_ckpt.tasks.state.group_state import KeyGroupState, Resolved
from spark_ckpt.tasks.state.key_index import distinct_keys
from spark_ckpt.wording import counted

if TYPE_CHECKING:
    from spark_ckpt.tasks.operators.segments import Values
    from spark_ckpt.tasks.rows import Array, ChunkedArray

    Mask: TypeAlias = Sequence[bool] | npt.NDArray[np.bool_] | Array | ChunkedArray | pd.Series[bool]
    Column: TypeAlias = Sequence[object] | npt.NDArray[np.generic] | Array | ChunkedArray | pd.Series[float]
    Table: TypeAlias = pa.Table | pd.DataFrame


_WITH_TIMEOUTS = (
    'give applyVectorized timeoutConf="ProcessingTimeTimeout" or "EventTimeTimeout", or return no timeout_ms'
)
_MILLISECONDS = (
    "give whole epoch milliseconds, for example batch.processing_ms + 60_000; null or a negative number for none"
)


@dataclass(frozen=True)
class KeyBatch:
    """Rows of many keys and the state of those keys.

    - `rows`: the user's columns in order of arrival.
    - `keys`: one row per distinct key.
    - `key_index[i]`: the row of `keys` that row i belongs to.
    - `state`: aligned with `keys`, null for keys without state (`exists` is false).
    - `timed_out`: the keys' timeouts have passed and there are no rows.

    In a co-group, `batch["orders"]` has the rows of the input `orders`, with the same keys and state. There the batch's
    own `rows` are the keys of all inputs' rows. For a key without rows of an input, count, sum, first and last value
    are 0.
    """

    rows: pa.Table
    keys: pa.Table
    key_index: Int64s
    state: pa.Table
    exists: Bools
    clock: Clock
    timed_out: bool = False
    inputs: Mapping[str, KeyBatch] = field(default_factory=dict)

    def __getitem__(self, name: str) -> KeyBatch:
        """Return one input's part of a co-group's batch. Raises `KeyError`."""
        if name not in self.inputs:
            raise KeyError(f"there is no input {name!r}; there are {', '.join(self.inputs) or 'no named ones'}")
        return self.inputs[name]

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.exists)

    @property
    def processing_ms(self) -> int:
        """The batch's processing time in epoch milliseconds."""
        return self.clock.processing_ms

    @property
    def watermark_ms(self) -> int | None:
        """The watermark in epoch milliseconds; None without one."""
        return self.clock.watermark_ms

    @cached_property
    def segments(self) -> Segments:
        """Rows by key, for your own running computations."""
        return Segments(self.key_index, len(self))

    def values(self, name: str, default: float = 0) -> Values:
        """Return a numeric column of `rows` as numpy, `default` for null."""
        return _numeric(self.rows, name, default)

    def state_values(self, name: str, default: float = 0) -> Values:
        """Return a numeric column of `state` as numpy, `default` for null and for keys without state."""
        return _numeric(self.state, name, default)

    def per_row(self, per_key: Column) -> Values:
        """Repeat values aligned with `keys` for every row."""
        return np.asarray(per_key)[self.key_index]

    def cumulative_sum(self, values: Column, initial: Column | None = None) -> Values:
        """Return for each row the sum of its key's `initial` and rows so far, added left to right.

        Whole numbers and booleans are summed as 64 bits, as by numpy's own sum.
        """
        numbers = np.asarray(values)
        # In its own type a sum of bytes would wrap at 128, and one of booleans would be "or".
        whole = numbers.astype(np.sum(numbers[:0]).dtype, copy=False) if numbers.dtype.kind in "biu" else numbers
        return self._cumulative(np.add, whole, 0, initial)

    def cumulative_count(self, initial: Column | None = None) -> Int64s:
        """Return for each row its number within its key, from 1, after `initial` earlier ones."""
        numbering = self.segments.numbering
        return numbering if initial is None else numbering + self.per_row(initial).astype(np.int64)

    def cumulative_min(self, values: Column, initial: Column | None = None) -> Values:
        """Return for each row the least of its key's `initial` and rows so far."""
        return self._cumulative(np.minimum, values, None, initial)

    def cumulative_max(self, values: Column, initial: Column | None = None) -> Values:
        """Return for each row the greatest of its key's `initial` and rows so far."""
        return self._cumulative(np.maximum, values, None, initial)

    def last_per_key(self, values: Column) -> Values:
        """Return each key's last of values aligned with `rows`. After a cumulative computation it is the key's total."""
        return self._chosen(values, self.segments.last_rows)

    def first_per_key(self, values: Column) -> Values:
        """Return each key's first of values aligned with `rows`."""
        return self._chosen(values, self.segments.first_rows)

    def _chosen(self, values: Column, rows: Int64s) -> Values:
        given = np.asarray(values)
        if self.segments.all_have_rows:
            return given[rows]
        found = np.zeros(len(self), given.dtype)
        has = self.segments.counts > 0
        found[has] = given[rows[has]]
        return found

    def sum_per_key(self, values: Column) -> Values:
        """Return for each key the sum over its rows."""
        return self.last_per_key(self.cumulative_sum(values))

    def count_per_key(self) -> Int64s:
        """Return for each key the number of its rows."""
        return self.segments.counts

    def _cumulative(self, fold: np.ufunc, values: Column, neutral: float | None, initial: Column | None) -> Values:
        numbers = np.asarray(values)
        if initial is not None:
            start = np.asarray(initial)
        elif neutral is None:
            # min and max have no neutral number for every type; each key's first value serves as one
            start = self.first_per_key(numbers)
        else:
            start = np.full(len(self), neutral, numbers.dtype)
        return self.segments.accumulate(fold, numbers, start)


def _numeric(table: pa.Table, name: str, default: float) -> Values:
    values = column(table, name)
    # A long has more digits than most decimals, so that Arrow does not cast one.
    given = Decimal(str(default)) if pa.types.is_decimal(values.type) else default
    return cast("Values", values.fill_null(pa.scalar(given).cast(values.type)).to_numpy(zero_copy_only=False))


@dataclass(frozen=True, slots=True)
class KeyResult:
    """Result of the function. Everything per key is aligned with `KeyBatch.keys`.

    - `output`: rows of the output schema, or None.
    - `state`: new values, or None for unchanged.
    - `changed`: mask of the keys whose row of `state` is written (default: all).
    - `remove`: mask of the keys whose state is removed.
    - `timeout_ms`: epoch milliseconds; negative or null for none. Without it, a key's timeout is cleared, as in Spark.
    """

    output: Table | None = None
    state: Table | None = None
    changed: Mask | None = None
    remove: Mask | None = None
    timeout_ms: Column | None = None


VectorizedFunction = Callable[[KeyBatch], KeyResult]


class VectorizedOperator:
    """Operator over `func(KeyBatch) -> KeyResult`.

    - `schema`: the input's schema; `keys`: the key columns.
    - `output`, `state`: schemas of the output and of the state.
    - `inputs`: if given, the batch has each input by its name.
    - `ttl_ms`: least time of a key in milliseconds. If given, keys time out only when the job has read all rows that
      came before.

    Raises `GraphInvalid`.
    """

    def __init__(
        self,
        func: VectorizedFunction,
        schema: StructType,
        keys: Sequence[str],
        output: StructType,
        state: StructType,
        timeout: str = GroupStateTimeout.NoTimeout,
        *,
        inputs: tuple[NamedInput, ...] = (),
        ttl_ms: int | None = None,
    ) -> None:
        self.schema = state_schema(StructType([schema[key] for key in keys]), state)
        self.output = output
        self.output_mode = "append"
        self.timeout = timeout
        self.ttl_ms = ttl_ms
        self._func = func
        self._input = arrow_schema(schema)
        self._inputs = inputs
        self._state_type = state
        self._timeouts = Timeouts.of(timeout, waits_for_inputs=ttl_ms is not None)
        self._binding = Binding()

    def bind(self, binding: Binding) -> VectorizedOperator:
        """Return a copy that has its name, watermark column and pandas settings. Raises `GraphInvalid`."""
        bound = copy.copy(self)
        bound._binding, bound._timeouts = binding, self._timeouts.bound(binding)
        return bound

    def process(self, rows: pa.Table | None, group: KeyGroupState, clock: Clock) -> Iterator[pa.Table]:
        """Call the function once for the keys with rows, and once for the keys whose timeout has passed."""
        # A program without a `ttl` may have written the state: without a timeout its keys would stay for ever.
        if group.is_restored and self.ttl_ms is not None:
            group.time_untimed(clock.processing_ms + self.ttl_ms)
        if group.is_restored and self._binding.closing is not None:
            self._binding.closing.time_restored(group)
        if rows is not None:
            yield from self._on_rows(self._timeouts.on_time(rows, group, clock), group, clock)
        # after the rows: a key whose timeout they moved is no longer due
        now = self._timeouts.now(clock)
        if now is not None:
            yield from self._on_timeouts(now, group, clock)

    def _on_rows(self, rows: pa.Table, group: KeyGroupState, clock: Clock) -> Iterator[pa.Table]:
        if not rows.num_rows:
            return
        keys = distinct_keys(rows, self.schema.key.names)
        resolved = group.resolve(keys.table, keys.hashes)
        batch = KeyBatch(user_columns(rows), keys.table, keys.row_key, resolved.state, resolved.exists, clock)
        yield from self._call(self._by_input(batch, rows), keys.hashes, resolved, group)

    def _on_timeouts(self, now: int, group: KeyGroupState, clock: Clock) -> Iterator[pa.Table]:
        due = group.expired(now)
        if not len(due.hashes):
            return
        none, rows = np.empty(0, np.int64), self._input.empty_table()
        state, exists = due.resolved.state, due.resolved.exists
        batch = KeyBatch(user_columns(rows), due.keys, none, state, exists, clock, timed_out=True)
        yield from self._call(self._by_input(batch, rows), due.hashes, due.resolved, group)

    def _by_input(self, batch: KeyBatch, rows: pa.Table) -> KeyBatch:
        """Return the batch with every input's part. `rows` are all inputs' rows, in order of arrival."""
        inputs = {}
        for each in self._inputs:
            own, at = each.rows_of(rows)
            inputs[each.name] = replace(batch, rows=own, key_index=batch.key_index[at])
        return replace(batch, inputs=inputs)

    def _call(self, batch: KeyBatch, hashes: Int64s, before: Resolved, group: KeyGroupState) -> Iterator[pa.Table]:
        result = self._answer(batch)
        reading = _Reading(self._binding, self.schema.state, self._state_type, batch.keys, self.timeout)
        change = reading.change(result, before)
        # `expired` counts its keys as handled, so a timeout that the function left as it was is written again.
        _write(batch.keys, hashes, before, change, group, everything=batch.timed_out)
        if result.output is not None and len(result.output):
            yield to_table(result.output, self.output, self._binding.options, self._binding.name)

    def _answer(self, batch: KeyBatch) -> KeyResult:
        try:
            result = self._func(batch)
        # An error of this library has its own condition and advice.
        except CkptError:
            raise
        except Exception as error:
            raise user_function_failed(self._binding.name, f"a batch of {counted(len(batch), 'key')}", error) from error
        if not isinstance(result, KeyResult):
            raise OutputInvalid(
                f"the function returned {type(result).__name__}",
                operator=self._binding.name,
                hint="return a KeyResult",
            )
        return result


@dataclass(frozen=True, slots=True)
class _StateUpdate:
    """A checked result, aligned with the keys."""

    state: pa.Table
    written: Bools
    removed: Bools
    timeouts: Int64s


@dataclass(frozen=True, slots=True)
class _Reading:
    """Checks a result against its batch."""

    binding: Binding
    schema: pa.Schema
    state_type: StructType
    key_table: pa.Table
    timeout: str

    @property
    def keys(self) -> int:
        """Number of keys of the batch."""
        return int(self.key_table.num_rows)

    def change(self, result: KeyResult, before: Resolved) -> _StateUpdate:
        state = before.state if result.state is None else self._state(result.state)
        removed = self._mask("remove", result.remove, default=False)
        written = self._mask("changed", result.changed, default=result.state is not None)
        # A mask says where to write, but there is nothing to write: surely a mistake of the function.
        if result.state is None and result.changed is not None and written.any():
            self._refuse("changed", "was given without a state")
        # A key that is both changed and removed is removed.
        return _StateUpdate(state, written & ~removed, removed, self._timeouts(result.timeout_ms))

    def _state(self, state: Table) -> pa.Table:
        try:
            table = to_table(state, self.state_type, self.binding.options, self.binding.name, "state").cast(self.schema)
        except OutputInvalid as error:
            # The function may have returned more rows than there are keys.
            if error.row is not None and error.row < self.keys:
                error.at(self.binding.name, key_tuples(self.key_table.slice(error.row, 1), self.binding.options)[0])
            raise
        if table.num_rows != self.keys:
            self._refuse("state", f"has {counted(table.num_rows, 'row')} for {counted(self.keys, 'key')}")
        return table

    def _mask(self, name: str, mask: Mask | None, *, default: bool) -> Bools:
        if mask is None:
            return np.full(self.keys, default)
        values = np.asarray(mask)
        if values.shape != (self.keys,) or values.dtype != np.bool_:
            self._refuse(name, f"is {bounded(values.dtype)} of shape {values.shape} for {counted(self.keys, 'key')}")
        return values

    def _timeouts(self, timeouts: Column | None) -> Int64s:
        if timeouts is None:
            return np.full(self.keys, NO_TIMEOUT)
        try:
            # From pandas: a NaN is no timeout.
            given = (
                timeouts if isinstance(timeouts, pa.Array | pa.ChunkedArray) else pa.array(timeouts, from_pandas=True)
            )
            kind = given.type
            # A time would be cast to its own unit, and a timeout in microseconds would never be due.
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
                self._refuse("timeout_ms", f"is of type {kind}", _MILLISECONDS)
            whole = given.cast(pa.int64())
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            self._refuse("timeout_ms", f"has another value: {bounded(str(error))}", _MILLISECONDS)
        values = pc.fill_null(whole, pa.scalar(-1, pa.int64())).to_numpy()
        if values.shape != (self.keys,):
            self._refuse("timeout_ms", f"has shape {values.shape} for {counted(self.keys, 'key')}")
        if self.timeout == GroupStateTimeout.NoTimeout and (values >= 0).any():
            self._refuse("timeout_ms", "has a timeout, and the operator was declared without any", _WITH_TIMEOUTS)
        return np.where(values < 0, NO_TIMEOUT, values)

    def _refuse(self, part: str, why: str, hint: str = "align everything with KeyBatch.keys") -> NoReturn:
        raise OutputInvalid(f"KeyResult.{part} {why}", operator=self.binding.name, hint=hint)


def _write(
    keys: pa.Table, hashes: Int64s, before: Resolved, change: _StateUpdate, group: KeyGroupState, *, everything: bool
) -> None:
    """Write the changes: values, removals, and keys with a new timeout only; with `everything` all keys."""
    # a key without state whose timeout moved is written as deleted, with its timeout
    gone = change.removed | (~change.written & ~before.exists)
    moved = change.timeouts != before.timeout_ms
    touched = change.written | (change.removed & before.exists) | moved | everything
    if not touched.any():
        return
    at = np.flatnonzero(touched)
    fresh = change.written[at]
    # A key that is touched without a new value keeps its old row: only its timeout moves.
    state = change.state if fresh.all() else _chosen(change.state, before.state, change.written)
    group.put(rows_at(keys, at), hashes[at], rows_at(state, at), removed=gone[at], timeout_ms=change.timeouts[at])


def _chosen(new: pa.Table, old: pa.Table, written: Bools) -> pa.Table:
    """Return row by row the new state if written, else the old one."""
    both = pa.concat_tables([new, old.cast(new.schema)]).combine_chunks()
    rows = len(written)
    at = np.where(written, np.arange(rows), np.arange(rows) + rows)
    return pa.table([taken(column(both, name), at) for name in new.column_names], schema=new.schema)
