"""Streams grouped by key, before their operator: one stream, or several as the named inputs of one operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import StructType

from spark_ckpt.api.aggregates import AGGREGATE, agg_call
from spark_ckpt.api.elsewhere import not_on_co_grouped, not_on_grouped
from spark_ckpt.errors import GraphInvalid
from spark_ckpt.plan.graph import (
    InputNode,
    OperatorNode,
    UnionNode,
    WatermarkNode,
    check_read_once,
    event_time_of,
    struct_of,
)
from spark_ckpt.plan.input_plan import TIME, GroupedInput, input_plan
from spark_ckpt.plan.onward_plan import pandas_options
from spark_ckpt.plan.window_lineage import closing_of, is_window
from spark_ckpt.spark_internals.column_names import column_of
from spark_ckpt.spark_internals.plans import streaming_template
from spark_ckpt.tasks.operators.aggregations import EACH_ROW, UPDATE, Aggregate, RunningAggregates
from spark_ckpt.tasks.operators.first_rows import STATE, FirstRows
from spark_ckpt.tasks.operators.keyed_function import CoGroupFunction, KeyedFunction, UserFunction
from spark_ckpt.tasks.operators.operator import Binding, KeyedOperator
from spark_ckpt.tasks.operators.vectorized import VectorizedFunction, VectorizedOperator
from spark_ckpt.tasks.operators.window_keys import Closing, WindowKey
from spark_ckpt.tasks.rows import check_not_reserved

if TYPE_CHECKING:
    from spark_ckpt.api.stream import Stream


class GroupedStream:
    """A stream grouped by key, before its operator."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._keys = keys

    def applyInPandasWithState(
        self,
        func: UserFunction,
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        outputMode: str,
        timeoutConf: str,
        name: str | None = None,
    ) -> Stream:
        """Apply a function per key, with Spark's own signature and semantics, inside key groups.

        `func(key, pandas frames, state)` may yield DataFrames as in Spark. It may also yield tuples or dicts of one row
        each, at a fraction of the cost. `name` identifies the operator's state in the store; default: the function's
        name.
        """
        operator = KeyedFunction(
            func,
            self._schema,
            self._keys,
            struct_of(outputStructType),
            struct_of(stateStructType),
            outputMode,
            timeoutConf,
        )
        return self._operate(operator, name or _function_name(func))

    def applyVectorized(
        self,
        func: VectorizedFunction,
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        name: str | None = None,
        timeoutConf: str = GroupStateTimeout.NoTimeout,
    ) -> Stream:
        """Apply a function to all keys of a key group at once: `func(KeyBatch) -> KeyResult`, Arrow tables in and out.

        `timeoutConf` is Spark's `GroupStateTimeout`. The function sets each key's timeout (`KeyResult.timeout_ms`). It
        is called with the keys whose timeouts have passed (`KeyBatch.timed_out`). `name` is as for
        `applyInPandasWithState`.
        """
        output, state = struct_of(outputStructType), struct_of(stateStructType)
        operator = VectorizedOperator(func, self._schema, self._keys, output, state, timeout=timeoutConf)
        return self._operate(operator, name or _function_name(func))

    def agg(
        self,
        *given: str | Aggregate | Column,
        outputMode: str = UPDATE,
        name: str = AGGREGATE,
        **aggregates: Aggregate | Column,
    ) -> Stream:
        """Compute running aggregates: `agg(total=F.sum("v"), n=F.count("*"))`, or `agg(F.sum("v").alias("total"))`.

        Spark's functions `sum`, `count`, `avg`, `min`, `max`, `first`, `last` and `stddev` of a column are taken, and
        those of spark_ckpt (`ckpt.sum("v")`, `ckpt.count()`). The first text is the output mode, the second the name.

        Output modes:

        - "update": one row per changed key and batch (keys and aggregates), as in Spark.
        - "append": one row per key when the watermark has closed it, as in Spark. Only for groupings that close.
        - "each row": every input row with the running values as of that row.

        Windows: `groupBy("k", F.window("at", "10 minutes"))`, or its `start` or `end` as a column, after
        `withWatermark("at", ...)`. As in Spark, a row is late if the previous batch's watermark has reached its
        window's end. Late rows are dropped and counted (`run.lastProgress["late"]`). When the batch's own watermark
        reaches a window's end, the window's state is removed.

        Other groupings are never closed: no row is late, and the state stays. A grouping closes only with a window of
        the watermark's column, or with that column itself.

        Raises `GraphInvalid`.
        """
        call = agg_call(given, outputMode, name, aggregates)
        # in mode "each row" the input rows come out, with their window
        flat, windows = self._with_flat_windows(keep=call.output_mode == EACH_ROW)
        operator = RunningAggregates(call.aggregates, flat._schema, flat._keys, call.output_mode, windows)
        # without a watermark no key can close
        timed = event_time_of(flat._stream._node) is not None
        return flat._operate(operator, call.name, closing_of(flat._stream._template, flat._keys) if timed else None)

    def _first_rows(self, name: str, within_watermark: bool) -> Stream:
        """Emit the first row of every key; see `Stream.dropDuplicates` and `Stream.dropDuplicatesWithinWatermark`."""
        declared, rule, closing = event_time_of(self._stream._node), FirstRows(), None
        if within_watermark:
            if not isinstance(declared, WatermarkNode):
                raise GraphInvalid(
                    "dropDuplicatesWithinWatermark needs a watermark on its own input",
                    hint='call withWatermark("column", "10 minutes") first; after an operator put an edge between, '
                    'through("name")',
                )
            rule = FirstRows(declared.column, declared.delay_ms)
        # a key that has its time closes by itself: no row of it can come once the watermark has reached it
        elif declared is not None and declared.column in self._keys:
            rule, closing = FirstRows(declared.column), Closing(declared.column)
        timeout = GroupStateTimeout.NoTimeout if declared is None else GroupStateTimeout.EventTimeTimeout
        operator = VectorizedOperator(rule, self._schema, self._keys, self._schema, STATE, timeout)
        return self._operate(operator, name, closing)

    def _with_flat_windows(self, keep: bool) -> tuple[GroupedStream, list[WindowKey]]:
        """Return the same grouping with every window struct as two columns.

        With `keep`, the struct also stays in the rows.
        """
        stream, keys, windows = self._stream, list(self._keys), []
        for key in self._keys:
            if is_window(self._schema[key]):
                window = WindowKey(key, f"{key}_start", f"{key}_end")
                parts = {window.start: column_of(key)["start"], window.end: column_of(key)["end"]}
                if taken := sorted(parts.keys() & set(self._stream.columns)):
                    raise GraphInvalid(
                        f"groupBy: the bounds of window '{key}' become the columns {' and '.join(parts)}, and the stream has "
                        f"{' and '.join(taken)} already",
                        hint=f"rename it before: withColumnRenamed('{taken[0]}', ...)",
                    )
                stream = stream.withColumns(parts) if keep else stream.withColumns(parts).drop(key)
                at = keys.index(key)
                # a struct cannot be a key column of the state; its two parts take its place
                keys[at : at + 1] = parts
                windows.append(window)
        return GroupedStream(stream, tuple(keys)), windows

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise not_on_grouped(name, type(self))

    @property
    def _schema(self) -> StructType:
        return self._stream.schema

    def _operate(self, operator: KeyedOperator, name: str, closing: Closing | None = None) -> Stream:
        check_not_reserved(self._schema.names)
        return _operated(self._stream, self._keys, operator, name, _event_time(self._stream), closing)


class CoGroupedStreams:
    """Several streams grouped by the same key, as the named inputs of one operator with one state per key."""

    def __init__(self, inputs: Mapping[str, GroupedStream]) -> None:
        for name, each in inputs.items():
            if not isinstance(each, GroupedStream):
                raise GraphInvalid(
                    f"cogroup: input '{name}' is a {type(each).__name__}",
                    hint=f'group every stream: cogroup({{"{name}": stream.groupBy("key"), ...}})',
                )
        # tagging selects columns and would lose the hidden column of rejected rows
        self._inputs = {name: GroupedStream(each._stream._diverted(), each._keys) for name, each in inputs.items()}
        self._plan = input_plan({name: GroupedInput(each._schema, each._keys) for name, each in self._inputs.items()})
        self._times = self._event_times()

    def applyInPandasWithState(
        self,
        func: CoGroupFunction,
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        outputMode: str,
        timeoutConf: str,
        name: str | None = None,
    ) -> Stream:
        """Apply a function per key; `func(key, frames, state)` gets a mapping of pandas frames by input name.

        Otherwise it equals `GroupedStream.applyInPandasWithState`. Every frame has its input's columns and the key's
        rows of this batch, in order of arrival. An input without rows gives an empty frame. The order between rows of
        different inputs is not kept.
        """
        output, state = struct_of(outputStructType), struct_of(stateStructType)
        operator = KeyedFunction(
            func, self._plan.schema, self._plan.keys, output, state, outputMode, timeoutConf, self._plan.named
        )
        return self._operate(operator, name or _function_name(func))

    def applyVectorized(
        self,
        func: VectorizedFunction,
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        name: str | None = None,
        timeoutConf: str = GroupStateTimeout.NoTimeout,
    ) -> Stream:
        """Apply `func(KeyBatch) -> KeyResult` to all keys of a key group at once.

        `batch["orders"]` is the part of the input `orders` in the batch.
        """
        output, state = struct_of(outputStructType), struct_of(stateStructType)
        rows, named = self._plan.schema, self._plan.named
        operator = VectorizedOperator(func, rows, self._plan.keys, output, state, timeout=timeoutConf, inputs=named)
        return self._operate(operator, name or _function_name(func))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise not_on_co_grouped(name, type(self))

    def _event_times(self) -> dict[str, str]:
        found = {name: _event_time(each._stream, name) for name, each in self._inputs.items()}
        return {name: column for name, column in found.items() if column is not None}

    def _operate(self, operator: KeyedOperator, name: str) -> Stream:
        return _operated(self._together(), self._plan.keys, operator, name, TIME if self._times else None)

    def _together(self) -> Stream:
        """Return the rows of all inputs, each tagged with its input."""
        first = next(iter(self._inputs.values()))._stream
        nodes, frames = [], []
        for name, each in self._inputs.items():
            tag = partial(self._plan.tagged, name, times=self._times)
            nodes.append(InputNode(each._stream._node, name, each._keys, tag))
            frames.append(tag(each._stream._template))
        return first._next(UnionNode(tuple(nodes), DataFrame.union), reduce(DataFrame.union, frames))


def _operated(
    stream: Stream,
    keys: tuple[str, ...],
    operator: KeyedOperator,
    name: str,
    event_time: str | None,
    closing: Closing | None = None,
) -> Stream:
    """Return the operator's output for the rows of `stream`. `event_time` is their watermarked column."""
    job = stream._job
    check_read_once(stream._node)
    # with settings of the session, which tasks do not have
    bound = operator.bind(Binding(name, event_time, pandas_options(job.spark), closing))
    node = OperatorNode(stream._node, job._operator_name(name, keys), keys, bound, event_time)
    return stream._next(node, streaming_template(job.spark, operator.output))


def _event_time(stream: Stream, input_name: str = "") -> str | None:
    """Return the stream's watermarked column, if it has one.

    Raises `GraphInvalid` if an operation has removed the column.
    """
    declared = event_time_of(stream._node)
    if declared is not None and declared.column not in stream.columns:
        of = f" of input '{input_name}'" if input_name else ""
        raise GraphInvalid(
            f"the watermark's column '{declared.column}' is gone at groupBy{of}", hint="keep it in the select"
        )
    return declared.column if declared else None


def _function_name(function: Callable[..., object]) -> str:
    """Return the function's name if it can name state in the store, else "operator" (for example for a lambda)."""
    name = str(getattr(function, "__name__", ""))
    return name if name.isidentifier() else "operator"
