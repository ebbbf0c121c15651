"""Functions written for Spark's `applyInPandasWithState`, called key by key inside one key group.

Key, frames, `GroupState` and errors are Spark's; the cost per key is lower. Beyond Spark, the function may yield
tuples, Rows or dicts, which never become a frame.

One difference is deliberate: each call clears the key's timeout unless the function sets it, as Spark documents. Spark
4.2's Python path keeps the old timeout if the function changes nothing at all.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import Row, StructType

from spark_ckpt.errors import CkptError
from spark_ckpt.spark_internals.key_state import NO_TIMESTAMP, KeyState, key_states, value_given_to_update
from spark_ckpt.tasks.failures import OutputInvalid, bounded, types_of, user_function_failed
from spark_ckpt.tasks.operators.key_frames import FramesByInput, FramesOf, KeyFrames, OneInput
from spark_ckpt.tasks.operators.named_inputs import NamedInput
from spark_ckpt.tasks.operators.operator import Binding, Clock, checked_output_mode
from spark_ckpt.tasks.operators.output_rows import OutputRows
from spark_ckpt.tasks.operators.pandas_rows import key_tuples
from spark_ckpt.tasks.operators.timeouts import Timeouts
from spark_ckpt.tasks.rows import NO_TIMEOUT, Bools, Int64s, state_schema
from spark_ckpt.tasks.state.group_state import KeyGroupState, Resolved
from spark_ckpt.tasks.state.key_index import distinct_keys
from spark_ckpt.tasks.state.python_values import row_copier, to_arrow, to_python
from spark_ckpt.tasks.user_frames import user_traceback
from spark_ckpt.wording import counted

_ALLOCATIONS_PER_COLLECTION = 200_000

Key = tuple[Hashable, ...]
Yielded = pd.DataFrame | tuple[object, ...] | dict[str, object]
UserFunction = Callable[[Key, Iterable[pd.DataFrame], GroupState], Iterable[Yielded]]
CoGroupFunction = Callable[[Key, Mapping[str, pd.DataFrame], GroupState], Iterable[Yielded]]


class _KeyRows(NamedTuple):
    """Distinct keys to call the function for, and their state."""

    keys: pa.Table
    hashes: Int64s
    resolved: Resolved
    timed_out: bool


class KeyedFunction:
    """Operator over `func(key, frames, state)`.

    - `schema`: the input's schema; `keys`: the key columns.
    - `output`, `state`: schemas of the output and of the state.
    - `inputs`: if given, frames are a mapping by input name.

    With EventTimeTimeout, late rows are dropped and counted, as in Spark. Raises `GraphInvalid`.
    """

    def __init__(
        self,
        func: UserFunction | CoGroupFunction,
        schema: StructType,
        keys: Sequence[str],
        output: StructType,
        state: StructType,
        output_mode: str = "append",
        timeout: str = GroupStateTimeout.NoTimeout,
        inputs: tuple[NamedInput, ...] = (),
    ) -> None:
        self.schema = state_schema(StructType([schema[key] for key in keys]), state)
        self.output = output
        plain = output_mode.lower() if isinstance(output_mode, str) else output_mode  # Spark takes it in any case
        self.output_mode = checked_output_mode(plain, ("append", "update"))
        self.timeout = timeout
        self._func = cast("Callable[[Key, KeyFrames, GroupState], Iterable[Yielded]]", func)
        self._frames: FramesOf = FramesByInput(inputs) if inputs else OneInput(tuple(schema.names))
        self._state_type = state
        self._copied = row_copier(state)
        self._timeouts = Timeouts.of(timeout)
        self._binding = Binding()

    def bind(self, binding: Binding) -> KeyedFunction:
        """Return a copy that has its name, watermark column and pandas settings. Raises `GraphInvalid`."""
        bound = copy.copy(self)
        bound._binding, bound._timeouts = binding, self._timeouts.bound(binding)
        return bound

    def process(self, rows: pa.Table | None, group: KeyGroupState, clock: Clock) -> Iterator[pa.Table]:
        """Call the function for every key with rows, then for every key whose timeout has passed."""
        output = OutputRows(self.output, self._binding.options, self._binding.name)
        # a frame is a slice that no other reader uses
        with pd.option_context("mode.chained_assignment", None), _rare_garbage_collection():
            if rows is not None:
                self._on_rows(rows, group, clock, output)
            # after the rows: a key whose timeout they moved is no longer due
            self._on_timeouts(group, clock, output)
        yield from output.tables()

    def _on_rows(self, rows: pa.Table, group: KeyGroupState, clock: Clock, output: OutputRows) -> None:
        rows = self._timeouts.on_time(rows, group, clock)
        if not rows.num_rows:
            return
        keys = distinct_keys(rows, self.schema.key.names)
        frames = self._frames.of(rows, keys.row_key, self._binding.options)
        resolved = group.resolve(keys.table, keys.hashes)
        called = _KeyRows(keys.table, keys.hashes, resolved, timed_out=False)
        self._call(called, frames, group, clock, output)

    def _on_timeouts(self, group: KeyGroupState, clock: Clock, output: OutputRows) -> None:
        now = self._timeouts.now(clock)
        if now is None:
            return
        due = group.expired(now)
        if len(due.hashes):
            called = _KeyRows(due.keys, due.hashes, due.resolved, timed_out=True)
            self._call(called, self._frames.of_none(self._binding.options), group, clock, output)

    def _call(
        self,
        called: _KeyRows,
        frames: Callable[[int], KeyFrames],
        group: KeyGroupState,
        clock: Clock,
        output: OutputRows,
    ) -> None:
        states = self._states(called, clock)
        func, add = self._func, output.add
        # The changes are written after the last call: a function that fails leaves the state as it was.
        for i, (key, state) in enumerate(zip(key_tuples(called.keys, self._binding.options), states, strict=True)):
            output.begins(key)
            try:
                # The function may be a generator: its body, and so its changes of the state, runs within this loop.
                for item in _iterable(func(key, frames(i), state)):
                    add(item)
                if self._copied is not None and state.updated:
                    # Written after the last call: a function may use one list for all keys.
                    state.update(tuple(self._copied(state.value)))
            except OutputInvalid as error:
                error.at(self._binding.name, key)
                raise
            except Exception as error:
                raise self._failed(key, error) from error
        self._write(called, states, group)

    def _states(self, called: _KeyRows, clock: Clock) -> list[KeyState]:
        exists = called.resolved.exists.tolist()
        return key_states(
            self._values(called.resolved.state, len(exists)),
            exists,
            state=self._state_type,
            timeout=self._timeouts.kind,
            timed_out=called.timed_out,
            processing_ms=clock.processing_ms,
            watermark_ms=clock.watermark_ms,
        )

    def _values(self, state: pa.Table, count: int) -> Iterable[Row]:
        columns = [to_python(state.column(i), field.dataType) for i, field in enumerate(self._state_type.fields)]
        return map(Row, *columns) if columns else [Row()] * count  # a state may have no column

    def _write(self, called: _KeyRows, states: Sequence[KeyState], group: KeyGroupState) -> None:
        """Write the changes of the calls: all new values at once, then keys with a new timeout only."""
        timeouts = np.fromiter((state.timeout_timestamp_ms for state in states), np.int64, len(states))
        # Spark's -1 would be the earliest of all timeouts; the index of due keys needs the latest number.
        timeouts[timeouts == NO_TIMESTAMP] = NO_TIMEOUT
        updated = np.fromiter((state.updated for state in states), np.bool_, len(states))
        removed = np.fromiter((state.removed for state in states), np.bool_, len(states))
        before = called.resolved
        moved = timeouts != before.timeout_ms
        # a key without state whose timeout moved is written as deleted, with its timeout
        gone = ~updated & (removed | ~before.exists)
        self._put(called, updated, timeouts, group, self._updated_state(called, states, updated), None)
        rest = ~updated & ((removed & before.exists) | moved)
        # only the timeout changes, so the old state is written with it
        kept = before.state.filter(pa.array(rest))
        self._put(called, rest, timeouts, group, kept, gone[rest])

    def _put(
        self,
        called: _KeyRows,
        rows: Bools,
        timeouts: Int64s,
        group: KeyGroupState,
        state: pa.Table,
        removed: Bools | None,
    ) -> None:
        if rows.any():
            keys = called.keys.filter(pa.array(rows))
            group.put(keys, called.hashes[rows], state, removed=removed, timeout_ms=timeouts[rows])

    def _updated_state(self, called: _KeyRows, states: Sequence[KeyState], updated: Bools) -> pa.Table:
        values = [state.value for state in states if state.updated]
        try:
            return self._state_table(values)
        except OutputInvalid as error:
            key = None
            if error.row is not None:
                keys = called.keys.slice(int(np.flatnonzero(updated)[error.row]), 1)
                key = key_tuples(keys, self._binding.options)[0]
            error.at(self._binding.name, key)
            raise

    def _state_table(self, values: Sequence[tuple[object, ...]]) -> pa.Table:
        width = len(self._state_type)
        wrong = next((i for i, value in enumerate(values) if len(value) != width), None)
        if wrong is not None:
            given = values[wrong]
            refused = OutputInvalid(
                f"update() was given {counted(len(given), 'value')} ({types_of(given)}), the state has {counted(width, 'column')}",
                hint=f"the state columns are {', '.join(self._state_type.names)}",
            )
            refused.row = wrong
            raise refused
        columns = list(zip(*values, strict=True)) or [()] * width  # without values `zip` gives no column
        fields = zip(columns, self._state_type.fields, self.schema.state, strict=True)
        return pa.table([to_arrow(each, field, to.type) for each, field, to in fields], schema=self.schema.state)

    def _failed(self, key: Key, error: Exception) -> CkptError:
        """Return the error of the function, or of a single value that it gave to `update` in place of a tuple."""
        given = value_given_to_update(error)
        if given is None:
            return user_function_failed(self._binding.name, key, error)
        names = ", ".join(self._state_type.names)
        refused = OutputInvalid(
            f"update() was given {bounded(given[0])} ({type(given[0]).__name__}), not a tuple of the state's columns",
            hint=f"write state.update(({names},)): a tuple, also for one column",
            traceback=user_traceback(error) or None,
        )
        refused.at(self._binding.name, key)
        return refused


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect garbage rarely: thousands of small objects live until the batch ends."""
    # Measured with 10,000 keys of a batch: 1.56 instead of 1.78 s of processor time.
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _ALLOCATIONS_PER_COLLECTION), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _iterable(result: object) -> Iterable[object]:
    """Return the function's result if it is an iterable of rows or frames. Raises `OutputInvalid`."""
    if result is None:
        raise OutputInvalid(
            "the function returned None, not rows: it has no yield",
            hint="yield each output row, for example `yield (key[0], total)`; a function without output rows ends with "
            "`return iter(())`",
        )
    if isinstance(result, pd.DataFrame | dict | str):
        kind = "DataFrame" if isinstance(result, pd.DataFrame) else type(result).__name__
        raise OutputInvalid(
            f"the function returned a {kind}, not an iterable of rows or frames",
            hint="write `yield` instead of `return`: a function emits any number of rows or frames for a key",
        )
    if not isinstance(result, Iterable):
        raise OutputInvalid(
            f"the function returned {bounded(result)} ({type(result).__name__}), not an iterable of rows or frames",
            hint="yield each output row as a tuple, a dict or a DataFrame",
        )
    return result
