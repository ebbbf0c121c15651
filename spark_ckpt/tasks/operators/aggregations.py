"""Built-in running aggregates: declared, vectorised, with Spark's types and null rules.

There are three output modes. "update" returns one row per key that has rows in the batch, and "append" one row per key
when the watermark has closed it, both as in Spark. "each row" returns every input row with the aggregates after it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import StructType

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.spark_internals.arrow_types import is_collated, spark_schema_of
from spark_ckpt.tasks.failures import ArithmeticOverflow
from spark_ckpt.tasks.operators.folds import (
    CountFold,
    FirstFold,
    Fold,
    LastFold,
    MaxFold,
    MeanFold,
    MinFold,
    StddevFold,
    SumFold,
)
from spark_ckpt.tasks.operators.operator import Binding, Clock, checked_output_mode
from spark_ckpt.tasks.operators.pandas_rows import key_tuples
from spark_ckpt.tasks.operators.segments import Segments
from spark_ckpt.tasks.operators.timeouts import Timeouts
from spark_ckpt.tasks.operators.window_keys import Closing, WindowKey, nested, nested_schema
from spark_ckpt.tasks.rows import (
    KEY_HASH,
    Int64s,
    arrow_schema,
    column,
    conform,
    state_schema,
    taken,
    user_columns,
)
from spark_ckpt.tasks.state.group_state import KeyGroupState, Resolved
from spark_ckpt.tasks.state.key_index import Keys, distinct_keys

if TYPE_CHECKING:
    from spark_ckpt.tasks.rows import Array

EACH_ROW, APPEND, UPDATE = "each row", "append", "update"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One declared aggregate. `column` is None for a count of rows."""

    kind: str
    column: str | None
    name: str
    skip_nulls: bool = False

    def alias(self, name: str) -> Aggregate:
        """Return the same aggregate under another name."""
        return dataclasses.replace(self, name=name)


def count(column: str | None = None) -> Aggregate:
    """Count rows, or values of `column` that are not null. A long."""
    return Aggregate("count", column, "count" if column is None else f"count_{column}")


def sum(column: str) -> Aggregate:
    """Sum the values that are not null; null without such values. Whole numbers give a long, and overflow is an error."""
    return Aggregate("sum", column, f"sum_{column}")


def min(column: str) -> Aggregate:
    """Return the least value that is not null. NaN is greater than any number."""
    return Aggregate("min", column, f"min_{column}")


def max(column: str) -> Aggregate:
    """Return the greatest value that is not null. NaN is greater than any number."""
    return Aggregate("max", column, f"max_{column}")


def mean(column: str) -> Aggregate:
    """Average the values that are not null: a double, or a decimal for decimals."""
    return Aggregate("mean", column, f"mean_{column}")


avg = mean


def stddev(column: str) -> Aggregate:
    """Return the sample standard deviation, a double; null for fewer than two values."""
    return Aggregate("stddev", column, f"stddev_{column}")


def last(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Return the value of the last row in order of arrival. It may be null unless `ignore_nulls`."""
    return Aggregate("last", column, f"last_{column}", ignore_nulls)


def first(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Return the value of the first row in order of arrival. It may be null unless `ignore_nulls`."""
    return Aggregate("first", column, f"first_{column}", ignore_nulls)


_NUMERIC: dict[str, type[SumFold | MeanFold | StddevFold]] = {"sum": SumFold, "mean": MeanFold, "stddev": StddevFold}
_ORDERED: dict[str, type[MinFold | MaxFold]] = {"min": MinFold, "max": MaxFold}
_ANY: dict[str, type[LastFold | FirstFold]] = {"last": LastFold, "first": FirstFold}


def fold_of(spec: Aggregate, schema: pa.Schema) -> Fold:
    """Return the fold of a declared aggregate.

    Raises `GraphInvalid` for a missing column or a type that the aggregate does not accept.
    """
    kind = pa.null() if spec.column is None else _type_of(spec.column, schema)
    if spec.kind == "count":
        return CountFold(kind)
    if spec.kind in _ANY:
        return _ANY[spec.kind](kind, skip_nulls=spec.skip_nulls)
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if spec.kind in _NUMERIC and numeric:
        return _NUMERIC[spec.kind](kind)
    if spec.kind in _ORDERED and not pa.types.is_nested(kind):
        return _ORDERED[spec.kind](kind)
    raise GraphInvalid(f"{spec.kind}({spec.column!r}) cannot take type {kind}", hint="cast the column first")


def _check_order(specs: Sequence[Aggregate], schema: StructType) -> None:
    """Raise `GraphInvalid` for the least or greatest text by a collation: Arrow compares bytes."""
    for spec in specs:
        if spec.kind in _ORDERED and spec.column is not None and is_collated(schema[spec.column].dataType):
            raise GraphInvalid(
                f"{spec.kind}({spec.column!r}) cannot take type {schema[spec.column].dataType.simpleString()}",
                hint="compare bytes, collate(name, 'UTF8_BINARY'), or use Spark's own aggregation inside of transform",
            )


def _type_of(name: str, schema: pa.Schema) -> pa.DataType:
    if name not in schema.names:
        raise GraphInvalid(f"there is no column {name!r}", hint=f"the columns are {', '.join(schema.names)}")
    kind: pa.DataType = schema.field(name).type
    return kind


class RunningAggregates:
    """Operator of `aggregates`, which are named by their output columns.

    - `schema`: the input's schema; `keys`: the key columns.
    - `output_mode`: "update", "append" or "each row".
    - `windows`: windows whose two key columns are one struct in the output.

    If the watermark closes keys, late rows are dropped and counted, and the state of closed keys is removed. Spark's
    own aggregation does the same. Raises `GraphInvalid`.
    """

    def __init__(
        self,
        aggregates: Mapping[str, Aggregate],
        schema: StructType,
        keys: Sequence[str],
        output_mode: str = UPDATE,
        windows: Sequence[WindowKey] = (),
    ) -> None:
        self._mode = checked_output_mode(output_mode, (UPDATE, APPEND, EACH_ROW))
        rows = arrow_schema(schema)
        # For Spark, output of "each row" is appended: no row of it replaces an earlier one.
        self.output_mode = UPDATE if output_mode == UPDATE else APPEND
        self.timeout = GroupStateTimeout.NoTimeout
        self._specs = tuple(each.alias(name) for name, each in aggregates.items())
        self._folds = tuple(fold_of(spec, rows) for spec in self._specs)
        _check_order(self._specs, schema)
        self.schema = state_schema(StructType([schema[key] for key in keys]), self._state_type())
        self._windows = tuple(windows)
        self._arrow = self._output_schema(rows)
        self.output = spark_schema_of(self._arrow)
        self._timeouts = Timeouts()
        self._binding = Binding()
        self._closing: Closing | None = None

    def bind(self, binding: Binding) -> RunningAggregates:
        """Return a copy that has its name, the watermark column, and the rule by which the watermark closes keys.

        Raises `GraphInvalid` for "append" without such a rule.
        """
        if self._mode == APPEND and binding.closing is None:
            raise GraphInvalid(
                'agg("append") emits a key when the watermark has closed it, and no watermark closes this grouping',
                operator=binding.name,
                hint='agg("each row", ...) emits every input row with the values as of that row, agg("update", ...) one row '
                'per changed key and batch; for "append" group by a window of the watermark\'s column: '
                'withWatermark("at", "10 minutes").groupBy(F.window("at", "1 hour"))',
            )
        bound = copy.copy(self)
        bound._binding, bound._timeouts = binding, self._timeouts.bound(binding)
        bound._closing = binding.closing
        if binding.closing is not None:
            bound.timeout = GroupStateTimeout.EventTimeTimeout
        return bound

    def process(self, rows: pa.Table | None, group: KeyGroupState, clock: Clock) -> Iterator[pa.Table]:
        """Update every key's aggregates with its rows, then remove the keys that the watermark has closed."""
        if group.is_restored and self._closing is not None:
            self._closing.time_restored(group)
        if rows is not None and rows.num_rows:
            # rows first: keys are closed with this batch's watermark, rows are late by the previous one
            yield from self._on_rows(self._on_time(rows, group, clock), group)
        yield from self._close(group, clock)

    def _on_time(self, rows: pa.Table, group: KeyGroupState, clock: Clock) -> pa.Table:
        rows = self._timeouts.on_time(rows, group, clock)
        if self._closing is None or clock.late_ms is None:
            return rows
        kept = self._closing.on_time(rows, clock.late_ms)
        group.late_rows += rows.num_rows - kept.num_rows
        return kept

    def _on_rows(self, rows: pa.Table, group: KeyGroupState) -> Iterator[pa.Table]:
        if not rows.num_rows:
            return
        keys = distinct_keys(rows, self.schema.key.names)
        segments = Segments(keys.row_key, len(keys.hashes))
        after = self._run(rows, segments, keys, group.resolve(keys.table, keys.hashes))
        # The state after a key's last row is its new state.
        latest = [[taken(part, segments.last_rows) for part in parts] for parts in after]
        state = pa.table([part for parts in latest for part in parts], schema=self.schema.state)
        # Spark calls an idle key group only for a timeout, so each key that can close has one.
        timeouts = self._closing.timeouts_ms(keys.table) if self._closing else None
        group.put(keys.table, keys.hashes, state, timeout_ms=timeouts)
        # In this mode a key's result comes when the watermark closes it.
        if self._mode == APPEND:
            return
        yield self._with_each_row(rows, keys, after) if self._mode == EACH_ROW else self._per_key(keys, latest)

    def _close(self, group: KeyGroupState, clock: Clock) -> Iterator[pa.Table]:
        """Remove the keys that the watermark has closed, and in "append" emit them."""
        if self._closing is None or clock.watermark_ms is None:
            return
        closed = group.expired(clock.watermark_ms)
        gone = np.ones(len(closed.hashes), np.bool_)
        group.put(closed.keys, closed.hashes, closed.resolved.state, removed=gone)
        if self._mode == APPEND and len(gone):
            at = np.arange(len(gone))
            keys = Keys(closed.keys, closed.hashes, row_key=at, first_row=at)
            # From the removed state: the rows of a closed window came in earlier batches.
            yield self._per_key(keys, self._by_fold(closed.resolved.state))

    def _run(self, rows: pa.Table, segments: Segments, keys: Keys, resolved: Resolved) -> list[list[Array]]:
        after = []
        for spec, fold, before in zip(self._specs, self._folds, self._by_fold(resolved.state), strict=True):
            # a count of rows counts the hash, which is never null
            values = (
                column(rows, KEY_HASH) if spec.column is None else _as_in_state(column(rows, spec.column), fold.kind)
            )
            with self._placed(spec, keys, keys.row_key):
                after.append(fold.run(segments, values, before))
        return after

    def _by_fold(self, state: pa.Table) -> list[list[Array]]:
        """Return the state columns of every aggregate."""
        names = iter(self.schema.state.names)
        return [[column(state, next(names)) for _ in fold.parts] for fold in self._folds]

    @contextmanager
    def _placed(self, spec: Aggregate, keys: Keys, key_of: Int64s) -> Iterator[None]:
        """Add operator, key and column to an overflow error. `key_of` is for each value the position of its key."""
        try:
            yield
        except ArithmeticOverflow as error:
            at = None if error.row is None else int(key_of[error.row])
            key = None if at is None else key_tuples(keys.table.slice(at, 1), self._binding.options)[0]
            error.at(self._binding.name, key)
            error.context.setdefault("column", spec.name)
            raise

    def _with_each_row(self, rows: pa.Table, keys: Keys, after: Sequence[Sequence[Array]]) -> pa.Table:
        table = user_columns(rows)
        for at, name in enumerate(table.column_names):
            if name in keys.table.column_names and pa.types.is_floating(table.schema.field(at).type):
                # the key as all of its rows have it: no -0.0, one NaN
                table = table.set_column(at, name, taken(column(keys.table, name), keys.row_key))
        for spec, values in zip(self._specs, self._shown(after, keys, keys.row_key), strict=True):
            table = table.append_column(spec.name, values)
        return conform(table, self._arrow)

    def _per_key(self, keys: Keys, latest: Sequence[Sequence[Array]]) -> pa.Table:
        shown = self._shown(latest, keys, np.arange(len(keys)))
        names = [*self.schema.key.names, *(spec.name for spec in self._specs)]
        return nested(pa.table([*keys.table.columns, *shown], names=names), self._windows).cast(self._arrow)

    def _shown(self, states: Sequence[Sequence[Array]], keys: Keys, key_of: Int64s) -> list[Array]:
        shown = []
        for spec, fold, state in zip(self._specs, self._folds, states, strict=True):
            with self._placed(spec, keys, key_of):
                shown.append(fold.show(state))
        return shown

    def _state_type(self) -> StructType:
        fields = [
            pa.field(spec.name + part, kind)
            for spec, fold in zip(self._specs, self._folds, strict=True)
            for part, kind in zip(fold.parts, fold.types(), strict=True)
        ]
        return spark_schema_of(pa.schema(fields))

    def _output_schema(self, rows: pa.Schema) -> pa.Schema:
        shown = [pa.field(spec.name, fold.shown()) for spec, fold in zip(self._specs, self._folds, strict=True)]
        parts = {part for window in self._windows for part in (window.start, window.end)}
        given = [field for field in rows if field.name not in parts]  # the struct itself is among them
        schema = pa.schema([*(given if self._mode == EACH_ROW else self.schema.key), *shown])
        # Spark and Delta tell no names apart by their case.
        names = [name.lower() for name in schema.names]
        twice = next((name for name in reversed(schema.names) if names.count(name.lower()) > 1), None)
        if twice is not None:
            raise GraphInvalid(f"output column {twice!r} occurs twice", hint="rename the aggregate with .alias()")
        return schema if self._mode == EACH_ROW else nested_schema(schema, self._windows)


def _as_in_state(values: Array, kind: pa.DataType) -> Array:
    # The same instants: Spark labels times with the session's zone, also nested ones; those of the state are labelled UTC.
    return values if values.type.equals(kind) else values.cast(kind)
