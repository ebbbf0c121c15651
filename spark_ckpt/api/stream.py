"""Streams of a job: DataFrame operations, `groupBy`, an operator, `to(sink)`.

A `Stream` records operations and checks each one immediately on an empty DataFrame of the same schema. So a wrong
column name fails on its own line. Rows that cannot be parsed travel in a hidden column until a Python step diverts
them. Operations that compute something divert them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NoReturn

import pandas as pd
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from spark_ckpt.api.elsewhere import not_on_stream
from spark_ckpt.api.foreach_batch import BatchFunction, ForeachBatchSink
from spark_ckpt.api.grouped import CoGroupedStreams, GroupedStream
from spark_ckpt.config import DurationText, checked_duration_ms
from spark_ckpt.connector import Sink
from spark_ckpt.connector_parts.parsing import OnError, parsed_column
from spark_ckpt.errors import GraphInvalid
from spark_ckpt.plan.graph import (
    EdgeNode,
    EventTimeNode,
    Node,
    OperatorNode,
    SparkNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    event_time_of,
    leaves_of,
    operators_of,
    segment,
)
from spark_ckpt.plan.join_plan import JoinPlan, join_plan
from spark_ckpt.plan.stateless import Refused, check_operation, check_with_state
from spark_ckpt.plan.stateless_graph import is_read_by_spark
from spark_ckpt.plan.users_line import users_line
from spark_ckpt.plan.window_lineage import without_marks
from spark_ckpt.spark_internals.column_names import column_of, map_in_arrow, map_in_pandas, quoted
from spark_ckpt.spark_internals.plans import columns_kept, streaming_template
from spark_ckpt.spark_internals.window_columns import is_watermarked, watermark_only
from spark_ckpt.tasks.operators.stream_join import LEFT, RIGHT
from spark_ckpt.tasks.rejects import divert_rejects
from spark_ckpt.tasks.rows import REJECT

if TYPE_CHECKING:
    from spark_ckpt.api.job import Job

_HINT_STREAMING = (
    'declare the other input, too, payments = job.source("payments", source), and join the streams'
    " themselves, or by Spark: orders.transform(lambda rows, others: rows.join(others, ...), payments)"
)

_BY_COLUMN = frozenset({"select", "selectExpr", "withColumn", "withColumns"})
"""Operations in which an expression may take the name of another column."""


class Stream:
    """A stream of rows inside a job. Operations return new streams; nothing runs before `Job.start`."""

    def __init__(self, job: Job, node: Node, template: DataFrame) -> None:
        self._job = job
        self._node = node
        self._template = template

    @property
    def schema(self) -> StructType:
        """Schema of the rows."""
        return without_marks(self._visible.schema)

    @property
    def columns(self) -> list[str]:
        """Column names of the rows."""
        return self._visible.columns

    @property
    def _visible(self) -> DataFrame:
        return self._template.drop(REJECT)

    @property
    def _hides_rejects(self) -> bool:
        return REJECT in self._template.columns

    def __getitem__(self, name: str) -> Column:
        if name not in self.columns:
            raise GraphInvalid(f"there is no column '{name}'", hint=f"columns: {', '.join(self.columns)}")
        return column_of(name)

    if not TYPE_CHECKING:  # type checkers see the defined attributes only

        def __getattr__(self, name: str) -> NoReturn:
            # no columns for private names: the question for a missing `_template` would lead back here
            raise not_on_stream(name, type(self), () if name.startswith("_") else self.columns)

    def printSchema(self) -> None:
        """Print the schema as Spark does."""
        self._visible.printSchema()

    # -- operations that keep the hidden column --------------------------------------------------------------------

    def select(self, *columns: Column | str) -> Stream:
        """As `DataFrame.select`."""
        return self._selected("select", lambda frame, *hidden: frame.select(*columns, *hidden))

    def selectExpr(self, *expressions: str) -> Stream:
        """As `DataFrame.selectExpr`."""
        return self._selected("selectExpr", lambda frame, *hidden: frame.selectExpr(*expressions, *hidden))

    def withColumnRenamed(self, existing: str, new: str) -> Stream:
        """As `DataFrame.withColumnRenamed`."""
        return self._then("withColumnRenamed", lambda frame: frame.withColumnRenamed(existing, new))

    def withColumnsRenamed(self, names: Mapping[str, str]) -> Stream:
        """As `DataFrame.withColumnsRenamed`."""
        return self._then("withColumnsRenamed", lambda frame: frame.withColumnsRenamed(dict(names)))

    def drop(self, *columns: str) -> Stream:
        """As `DataFrame.drop`."""
        return self._then("drop", lambda frame: frame.drop(*columns))

    # -- operations before which rejected rows are diverted ---------------------------------------------------------

    def filter(self, condition: Column | str) -> Stream:
        """As `DataFrame.filter`."""
        return self._diverted()._then("filter", lambda frame: frame.filter(condition))

    where = filter

    def withColumn(self, name: str, column: Column) -> Stream:
        """As `DataFrame.withColumn`."""
        return self._diverted()._then("withColumn", lambda frame: frame.withColumn(name, column))

    def withColumns(self, columns: Mapping[str, Column]) -> Stream:
        """As `DataFrame.withColumns`."""
        return self._diverted()._then("withColumns", lambda frame: frame.withColumns(dict(columns)))

    def fillna(
        self, value: bool | float | str | Mapping[str, bool | float | str], subset: list[str] | None = None
    ) -> Stream:
        """As `DataFrame.fillna`."""
        # quoted, since Spark reads a dot in a name as a path
        columns = subset if subset is not None else [quoted(name) for name in self.columns]
        filled = dict(value) if isinstance(value, Mapping) else value
        return self._diverted()._then(
            "fillna", lambda frame: frame.fillna(filled, None if isinstance(filled, dict) else columns)
        )

    def dropna(self, how: str = "any", thresh: int | None = None, subset: list[str] | None = None) -> Stream:
        """As `DataFrame.dropna`."""
        return self._diverted()._then("dropna", lambda frame: frame.dropna(how, thresh, subset))

    def join(
        self,
        other: DataFrame | Stream,
        on: str | list[str] | Column | None = None,
        how: str = "inner",
        ttl: DurationText | None = None,
        name: str = "join",
    ) -> Stream:
        """Join with a static (batch) DataFrame as `DataFrame.join`, or with another stream as an operator.

        Two streams join on columns that both have by name, "inner" or "left". Every row joins all earlier rows of its
        key from the other side, so the state called `name` keeps both sides. Rows with a null in the key join nothing.

        With a `ttl` ("1 hour"), a key without rows on both sides for that long (processing time) is removed, once the
        job has read all rows that came before. A left join needs a `ttl`: it then emits the key's unmatched left rows.

        Raises `GraphInvalid`.
        """
        if isinstance(other, Stream):
            return self._joined(other, join_plan(self.schema, other.schema, on, how, ttl), name)
        if not isinstance(other, DataFrame) or other.isStreaming:
            raise GraphInvalid(
                "a stream can be joined with a static DataFrame or another Stream only", hint=_HINT_STREAMING
            )
        if ttl is not None:
            raise GraphInvalid("join: ttl is for two streams; nothing is kept of a static table")
        return self._diverted()._then("join", lambda frame: frame.join(other, on, how))

    def transform(
        self,
        function: Callable[..., DataFrame],
        *args: object,
        outputMode: str = "append",
        **kwargs: object,
    ) -> Stream:
        """Apply a function from DataFrame to DataFrame, as `DataFrame.transform`. It is called again for every incarnation.

        The function may contain Spark's own stateful operators: `withWatermark`, aggregations, `dropDuplicates`,
        `dropDuplicatesWithinWatermark`, `distinct`, stream-stream joins, `applyInPandasWithState`,
        `transformWithState`. Their state is part of every epoch. `outputMode` is that of Spark's query: "append",
        "update", or "complete", whose rows go directly into a sink that replaces its content with each epoch.

        A stream among `args` is passed as its DataFrame: `orders.transform(joined, payments)`.

        Refused on this line, because no epoch has their state: `limit`, a sort, window functions, and stateful operators
        after an operator of the job. Raises `GraphInvalid`.
        """
        streams = [self, *(each for each in args if isinstance(each, Stream))]

        def call(frames: Sequence[DataFrame]) -> DataFrame:
            others = iter(frames[1:])
            given = [next(others) if isinstance(each, Stream) else each for each in args]
            return function(frames[0], *given, **kwargs)

        # after an operator of the job Spark has no watermark, so its own stateful operators are refused there
        if any(operators_of(each._node) for each in streams):
            if len(streams) > 1:
                raise _behind_operator(operators_of(*(each._node for each in streams))[0])
            return self._diverted()._then("transform", lambda frame: call([frame]))
        return self._with_spark(streams, call, checked_mode(outputMode))

    def mapInPandas(
        self, function: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]], schema: StructType | str
    ) -> Stream:
        """As `DataFrame.mapInPandas`."""
        return self._diverted()._then("mapInPandas", lambda frame: map_in_pandas(frame, function, schema))

    def mapInArrow(
        self,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: StructType | str,
    ) -> Stream:
        """As `DataFrame.mapInArrow`."""
        return self._diverted()._then("mapInArrow", lambda frame: map_in_arrow(frame, function, schema))

    def union(self, other: Stream) -> Stream:
        """As `DataFrame.union`: rows of both streams, columns by position."""
        return self._united(other, lambda left, right: left.union(right))

    def unionByName(self, other: Stream, allowMissingColumns: bool = False) -> Stream:
        """As `DataFrame.unionByName`."""
        return self._united(other, lambda left, right: left.unionByName(right, allowMissingColumns))

    def withWatermark(self, eventTime: str, delayThreshold: DurationText) -> Stream:
        """As `DataFrame.withWatermark`; it survives a restore. The column must still exist at `groupBy`.

        After an operator it needs an edge in between (`through`). Raises `GraphInvalid`, `ConfigInvalid`.
        """
        behind = next(iter(operators_of(self._node)), None)
        if behind is not None:
            raise GraphInvalid(
                f"withWatermark follows operator '{behind.name}'; event time begins at sources",
                hint=f"declare it on the input of '{behind.name}', and name the column of its output that is event time:"
                f" withEventTime('{eventTime}'); or put an edge between: .through('{behind.name}-out')",
            )
        kept = next((each for each in segment(self._node) if isinstance(each, SparkNode)), None)
        if kept is not None:
            raise GraphInvalid(
                f"withWatermark follows {kept.verb}, whose rows have the watermark of its input",
                hint="declare it before; or put an edge between, where event time starts again: .through('rows')",
            )
        self._check_time("withWatermark", eventTime)
        delay_ms = checked_duration_ms("withWatermark", delayThreshold)
        marked = watermark_only(self._template, eventTime, delay_ms)
        return self._next(WatermarkNode(self._node, eventTime, delay_ms), marked)

    def withEventTime(self, eventTime: str) -> Stream:
        """Declare a column as event time for the next operator, after operators whose input has a watermark.

        All operators of a job have one watermark. If the next operator judges rows by time, a row is late as it would
        be at the operator above. A time that this operator emitted before the watermark passed it is on time. Raises
        `GraphInvalid`.
        """
        self._check_time("withEventTime", eventTime)
        untimed = [leaf for leaf in leaves_of(self._node) if not (isinstance(leaf, OperatorNode) and leaf.event_time)]
        if untimed:
            raise GraphInvalid(
                f"withEventTime: rows come from '{untimed[0].name}', where no event time arrives",
                hint="after a source or an edge declare withWatermark; above an operator, on its input",
            )
        return self._next(EventTimeNode(self._node, eventTime), watermark_only(self._template, eventTime, 0))

    def _check_time(self, verb: str, column: str) -> None:
        if column not in self.columns or not isinstance(self.schema[column].dataType, TimestampType):
            raise GraphInvalid(
                f"{verb} needs a timestamp column, '{column}' is none", hint=f"columns: {self.schema.simpleString()}"
            )

    def parse(
        self,
        column: str,
        schema: StructType | str,
        alias: str | None = None,
        format: Literal["json", "csv"] = "json",
        on_error: OnError = "fail",
    ) -> Stream:
        """Parse text (or bytes) in `column` into a struct column `alias`.

        `on_error` is the policy for records that cannot be parsed. A null value stays null.

        - "fail": stop the run with an error that contains topic, partition and offset (or file and line).
        - "drop": divert the record. It is counted (`run.lastProgress["rejected"]`, each epoch's manifest) and, if the
          job has `rejectsTo(sink)`, written there with its reason, exactly once.
        """
        name = alias or column
        apply = parsed_column(self.columns, column, schema, name, format, on_error)
        return self._then("parse", apply)

    def groupBy(self, *keys: str | Column) -> GroupedStream:
        """Group rows by key, as `DataFrame.groupBy`, for the operator that follows.

        It also works after another operator.
        """
        stream, names = self, []
        for key in keys:
            stream, name = _named_key(stream, key)
            if name in names:
                raise GraphInvalid(f"groupBy: '{name}' is a key twice", hint="give each key once")
            names.append(name)
        if not names:
            raise GraphInvalid("groupBy needs at least one key")
        return GroupedStream(stream, tuple(names))

    def dropDuplicates(self, subset: Sequence[str] | None = None, name: str = "deduplicate") -> Stream:
        """As `DataFrame.dropDuplicates`: the first row of every key `subset` (default: all columns), by an operator.

        `name` identifies the operator's state in the store. After `withWatermark`, late rows are dropped and counted.
        A key with the watermark's column among its columns is forgotten when the watermark reaches its time. Other keys
        stay for ever, as in Spark. Raises `GraphInvalid`.
        """
        return self._keyed_by(subset)._first_rows(name, within_watermark=False)

    def dropDuplicatesWithinWatermark(self, subset: Sequence[str] | None = None, name: str = "deduplicate") -> Stream:
        """As `DataFrame.dropDuplicatesWithinWatermark`: `dropDuplicates` that forgets every key.

        A key is forgotten when the watermark reaches the time of its first row plus the watermark's delay. Raises
        `GraphInvalid`.
        """
        return self._keyed_by(subset)._first_rows(name, within_watermark=True)

    def _keyed_by(self, subset: Sequence[str] | None) -> GroupedStream:
        keys = self.columns if subset is None else subset
        # Spark tells no names apart by their case; of two columns that it does not tell apart, a key is the one written so.
        known = {each.lower(): each for each in self.columns} | {each: each for each in self.columns}
        # a text would count as the list of its letters
        if isinstance(keys, str) or not all(isinstance(key, str) and key.lower() in known for key in keys):
            raise GraphInvalid(
                f"dropDuplicates needs a list of columns, not {keys!r}", hint=f"columns: {', '.join(self.columns)}"
            )
        return self.groupBy(*dict.fromkeys(known.get(key, known[key.lower()]) for key in keys))

    def to(self, sink: Sink, name: str | None = None, publish_every: DurationText | None = None) -> Stream:
        """Write this stream's rows to a sink, exactly once. The stream may continue to an operator and to other sinks.

        - `name` identifies the sink in the store; default: its kind.
        - `publish_every`: a duration such as "1 minute", or "0 seconds" for every epoch. Rows of the epochs in between
          are deferred, and one publish makes all of them visible. Savepoints and a stop publish immediately. Default:
          every epoch; the sink's preference if each micro-batch ends an epoch.
        """
        self._job._bind(sink, self._node, self.schema, name, publish_every)
        return self

    def foreachBatch(
        self, function: BatchFunction, name: str = "foreachBatch", publish_every: DurationText | None = None
    ) -> Stream:
        """Call `function(frame, epoch)` with the rows of each epoch, as `DataStreamWriter.foreachBatch` does per batch.

        The call is made after the commit of the epoch; when it returns, the epoch is acknowledged. So the function sees
        every row at least once: if the driver dies in or after a call, or the function raises, it is called again, with
        the same number and equal rows, read from the epoch's staged files. Write idempotently by the number, and each row
        counts once: numbers grow and never repeat for other rows, also after a restore.

        - `frame`: a DataFrame of the job's session, without an order. It can be read until the function returns.
        - `epoch`: number of the epoch. An epoch without rows makes no call.
        - `name`, `publish_every`: as for `to`.

        Spark reads the rows from the store, which it has to reach. Raises `ConfigInvalid` for a function of other
        arguments.
        """
        return self.to(ForeachBatchSink(function), name, publish_every)

    def through(self, name: str, topic: Sink | None = None, key: str | None = None, stage: str | None = None) -> Stream:
        """Pass the rows through an edge, a durable log in the store that is part of every epoch.

        They arrive one micro-batch later.

        After an edge, streams may split and join as after a source, and `withWatermark` may be declared. `name`
        identifies the edge in the store.

        `topic` publishes the edge for other programs, each row once, as soon as its epoch is committed. Rows with a
        column `value` are written unchanged; others as JSON in `value`, with column `key` as text. The sink has the
        edge's name.

        `stage` ends a stage of the program here: what follows is stage `stage`, a query of its own with its own epochs
        and its own store. `Job.start_stages` runs them. Rows arrive one epoch later. Stage "main" has what comes from
        sources alone. Raises `GraphInvalid` if `topic` or `key` is given, too.
        """
        if stage is not None:
            if topic is not None or key is not None:
                raise GraphInvalid(
                    "through: topic and key are for an edge inside of a stage",
                    hint="write the topic by to(...) as well",
                )
            read = self._job._bind_stage(name, stage, self._node, self.schema)
            return self._next(read, streaming_template(self._job.spark, read.schema))
        if topic is not None:
            self._as_records(key).to(topic, name=name)
        edge = EdgeNode(self._job._edge_name(name), self.schema.toNullable(), feedback=False)
        self._job._bind_edge(edge, self._node)
        return self._next(edge, streaming_template(self._job.spark, edge.schema))

    def _as_records(self, key: str | None) -> Stream:
        if "value" in self.columns:
            if key is not None:
                raise GraphInvalid("through: rows that have a column 'value' are records already; 'key' is for others")
            return self
        if key is not None and key not in self.columns:
            raise GraphInvalid(f"through: there is no column '{key}'", hint=f"columns: {', '.join(self.columns)}")
        value = F.to_json(F.struct(*map(column_of, self.columns))).alias("value")
        return self.select(value) if key is None else self.select(column_of(key).cast("string").alias("key"), value)

    # -- the recording ------------------------------------------------------------------------------------------------

    def _next(self, node: Node, template: DataFrame) -> Stream:
        """Return a stream of the same job."""
        return Stream(self._job, node, template)

    @contextmanager
    def _refusals_at(self, verb: str, line: str) -> Iterator[None]:
        """Raise what refuses an operation with its verb and the user's line."""
        try:
            yield
        except Refused as error:
            raise error.at(verb, line) from None
        except AnalysisException as error:
            raise GraphInvalid(
                f"{verb}: {_first_line(error)}", hint=f"the stream has {self.schema.simpleString()}", line=line
            ) from None

    def _then(self, verb: str, apply: Callable[[DataFrame], DataFrame]) -> Stream:
        # before the operation runs: errors carry the user's line, also when Spark fails later
        line = users_line()
        with self._refusals_at(verb, line):
            spark_reads = is_read_by_spark(self._node)
            tried = check_operation(self._template, apply(self._template), spark_reads=spark_reads)
        self._check_event_time(verb, tried, line)
        return self._next(TransformNode(self._node, verb, apply, line), tried)

    def _check_event_time(self, verb: str, after: DataFrame, line: str) -> None:
        """Refuse another column in the place of the watermark's: rows in time would count as late by it."""
        declared = event_time_of(self._node)
        # Spark marks no column of a Python function or a union. There the name tells.
        if declared is None or verb not in _BY_COLUMN or declared.column not in after.columns:
            return
        # A column that has been dropped, or has a name in another case, may come back.
        marked = declared.column not in self.columns or is_watermarked(self._template.schema[declared.column])
        if marked and not is_watermarked(after.schema[declared.column]):
            raise GraphInvalid(
                f"{verb}: another column takes the place of '{declared.column}', which has the watermark",
                hint="give the new column a name of its own, or call withWatermark after it",
                line=line,
            )

    def _with_spark(
        self, streams: Sequence[Stream], call: Callable[[Sequence[DataFrame]], DataFrame], output_mode: str
    ) -> Stream:
        """Record a function that may contain Spark's own stateful operators."""
        line = users_line()
        given = [each._diverted() for each in streams]  # a user's function must not see rejected rows
        frames = [each._template for each in given]
        with self._refusals_at("transform", line):
            spark_reads = all(is_read_by_spark(each._node) for each in given)
            tried = check_with_state(frames, call(frames), output_mode, spark_reads=spark_reads)
        # Without state it is an operation like any other, and may stand after operators of the job.
        if not tried.keeps and len(given) == 1:
            node: Node = TransformNode(given[0]._node, "transform", lambda frame: call([frame]), line)
            return self._next(node, tried.frame)
        # Spark numbers inputs in the order in which its plan reads them, as the parents do; the function has an order of its own.
        place = {number: at for at, number in enumerate(tried.order)}
        verb = ", ".join(dict.fromkeys(tried.keeps)) or "transform"
        parents = tuple(given[number]._node for number in tried.order)
        spark = SparkNode(
            parents, verb, lambda rows: call([rows[place[n]] for n in range(len(rows))]), output_mode, line
        )
        # The plan ends here: what follows is tried on rows of this schema, with Spark's marks of event time.
        return self._next(spark, streaming_template(self._job.spark, tried.frame.schema))

    def _selected(self, verb: str, select: Callable[..., DataFrame]) -> Stream:
        stream = self
        if self._hides_rejects:
            with suppress(AnalysisException):  # `_then` raises it with the user's line
                # An expression must not run for a rejected row: a generator drops or repeats it, a user's function gets
                # nulls, and `struct(*)` has the hidden column.
                if columns_kept(select(streaming_template(self._job.spark, self._visible.schema))) is None:
                    stream = self._diverted()
        return stream._then(verb, lambda frame: _with_hidden(frame, select))

    def _joined(self, other: Stream, join: JoinPlan, name: str) -> Stream:
        for stream in (self, other):
            if event_time_of(stream._node) is not None:
                raise GraphInvalid(
                    "join: a stream with a watermark cannot be joined with another stream",
                    hint="for Spark's join by event time write left.transform(lambda rows, others: rows.join(others, ...), right);"
                    " for this join drop withWatermark: ttl forgets keys by the time that passes",
                )
        keys = list(join.keys)
        # A row with a null key joins nothing; NaN is a key, as in Spark's join, and `dropna` would drop it.
        present = " AND ".join(f"{quoted(key)} IS NOT NULL" for key in keys)
        left = self if join.keeps_left else self.filter(present)
        sides = {LEFT: left.groupBy(*keys), RIGHT: other.filter(present).groupBy(*keys)}
        together = CoGroupedStreams(sides)
        return together._operate(join.operator(together._plan), name)

    def _diverted(self) -> Stream:
        return self._then("divert rejected rows", divert_rejects) if self._hides_rejects else self

    def _united(self, other: Stream, combine: Callable[[DataFrame, DataFrame], DataFrame]) -> Stream:
        left, right = self._diverted(), other._diverted()  # a union needs equal columns, also hidden ones
        try:
            tried = combine(left._template, right._template)
        except AnalysisException as error:
            raise GraphInvalid(f"union: {_first_line(error)}") from None
        return self._next(UnionNode((left._node, right._node), combine), tried)


def checked_mode(output_mode: str) -> str:
    """Return the output mode of Spark's own operators, in lower case. Raises `GraphInvalid` for one that Spark does not have."""
    plain = str(output_mode).lower()
    if plain not in ("append", "update", "complete"):
        raise GraphInvalid(
            f"transform: outputMode={output_mode!r} is no output mode",
            hint='"append" emits final rows, "update" the changed ones, "complete" the whole result',
        )
    return plain


def _behind_operator(operator: OperatorNode) -> Refused:
    return Refused(
        f"transform: streams meet after operator '{operator.name}', where Spark has no watermark",
        hint=f"put an edge after it: .through('{operator.name}-out')",
    )


def _named_key(stream: Stream, key: str | Column) -> tuple[Stream, str]:
    if isinstance(key, str) and key in stream.columns:
        return stream, key
    expression = F.expr(key) if isinstance(key, str) else key
    name = stream.select(expression).columns[0]
    # Spark tells no names apart by their case: a new column would take the place of this one.
    alike = [each for each in stream.columns if each.lower() == name.lower()]
    known = name if name in alike else next(iter(alike), None)
    if known is None:
        # an expression becomes a column with the name that Spark gives it
        return stream.withColumn(name, expression), name
    # In a select Spark calls a cast like the column inside of it, and a field like the last part of its path.
    if columns_kept(streaming_template(stream._job.spark, stream.schema).select(expression)) != {name: known}:
        raise GraphInvalid(
            f"groupBy: key {expression} would be called '{name}', and the stream has a column of that name",
            hint='give the key a name of its own: groupBy(F.col("at").cast("date").alias("day"))',
        )
    return stream, known


def _with_hidden(frame: DataFrame, select: Callable[..., DataFrame]) -> DataFrame:
    chosen = select(frame)
    # `*` already contains the hidden column
    return select(frame, REJECT) if REJECT in frame.columns and REJECT not in chosen.columns else chosen


def _first_line(error: AnalysisException) -> str:
    return str(error).split("\n", 1)[0].split(" SQLSTATE")[0]
