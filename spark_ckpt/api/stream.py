"""Streams as the user writes them: DataFrame operations, `groupBy`, an operator, `to(sink)`.

A `Stream` records operations and checks each one at once on an empty DataFrame of the same schema, so that a wrong
column name fails on the line that wrote it.  Rows that could not be parsed travel in a hidden column until a Python
step can divert them; operations that would lose that column divert them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NoReturn

import pandas as pd
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from spark_ckpt.api.elsewhere import not_on_stream
from spark_ckpt.api.grouped import CoGroupedStreams, GroupedStream
from spark_ckpt.config import duration_ms
from spark_ckpt.connector import Sink
from spark_ckpt.connector_parts.parsing import OnError, parsed_column
from spark_ckpt.errors import ConfigInvalid, GraphInvalid
from spark_ckpt.plan.graph import (
    EdgeNode,
    EventTimeNode,
    Node,
    OperatorNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    event_time_of,
    leaves_of,
    operators_of,
)
from spark_ckpt.plan.join_plan import JoinPlan, join_plan
from spark_ckpt.plan.stateless import Refused, check_operation
from spark_ckpt.plan.users_line import users_line
from spark_ckpt.plan.window_lineage import without_marks
from spark_ckpt.spark_internals.column_names import column_of, map_in_arrow, map_in_pandas, quoted
from spark_ckpt.spark_internals.plans import streaming_template
from spark_ckpt.spark_internals.window_columns import watermark_only
from spark_ckpt.tasks.operators.stream_join import LEFT, RIGHT
from spark_ckpt.tasks.rejects import divert_rejects
from spark_ckpt.tasks.rows import REJECT

if TYPE_CHECKING:
    from spark_ckpt.api.job import Job

_HINT_NATIVE = "run it on a static DataFrame, or express it with groupBy(...) and an operator"


class Stream:
    """A stream of rows inside a job. Operations return new streams; nothing runs before `Job.start`."""

    def __init__(self, job: Job, node: Node, template: DataFrame) -> None:
        self._job = job
        self._node = node
        self._template = template

    @property
    def schema(self) -> StructType:
        """The rows' schema."""
        return without_marks(self._visible.schema)

    @property
    def columns(self) -> list[str]:
        """The rows' column names."""
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

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> NoReturn:
            raise not_on_stream(name, () if name.startswith("_") else self.columns)

    def printSchema(self) -> None:
        """Print the schema as Spark does."""
        self._visible.printSchema()

    # -- operations that keep the hidden column by themselves or with a little help ------------------------------

    def select(self, *columns: Column | str) -> Stream:
        """As `DataFrame.select`."""
        return self._then("select", lambda frame: _keeping(frame, lambda *hidden: frame.select(*columns, *hidden)))

    def selectExpr(self, *expressions: str) -> Stream:
        """As `DataFrame.selectExpr`."""
        return self._then(
            "selectExpr", lambda frame: _keeping(frame, lambda *hidden: frame.selectExpr(*expressions, *hidden))
        )

    def filter(self, condition: Column | str) -> Stream:
        """As `DataFrame.filter`."""
        wanted = F.expr(condition) if isinstance(condition, str) else condition
        kept = (wanted | F.col(REJECT).isNotNull()) if self._hides_rejects else wanted
        return self._then("filter", lambda frame: frame.filter(kept))

    where = filter

    def withColumn(self, name: str, column: Column) -> Stream:
        """As `DataFrame.withColumn`."""
        return self._then("withColumn", lambda frame: frame.withColumn(name, column))

    def withColumns(self, columns: Mapping[str, Column]) -> Stream:
        """As `DataFrame.withColumns`."""
        return self._then("withColumns", lambda frame: frame.withColumns(dict(columns)))

    def withColumnRenamed(self, existing: str, new: str) -> Stream:
        """As `DataFrame.withColumnRenamed`."""
        return self._then("withColumnRenamed", lambda frame: frame.withColumnRenamed(existing, new))

    def withColumnsRenamed(self, names: Mapping[str, str]) -> Stream:
        """As `DataFrame.withColumnsRenamed`."""
        return self._then("withColumnsRenamed", lambda frame: frame.withColumnsRenamed(dict(names)))

    def drop(self, *columns: str) -> Stream:
        """As `DataFrame.drop`."""
        return self._then("drop", lambda frame: frame.drop(*columns))

    def fillna(
        self, value: bool | float | str | Mapping[str, bool | float | str], subset: list[str] | None = None
    ) -> Stream:
        """As `DataFrame.fillna`."""
        columns = subset if subset is not None else [quoted(name) for name in self.columns]
        filled = dict(value) if isinstance(value, Mapping) else value
        return self._then("fillna", lambda frame: frame.fillna(filled, None if isinstance(filled, dict) else columns))

    # -- operations before which rejected rows are diverted ---------------------------------------------------------

    def dropna(self, how: str = "any", thresh: int | None = None, subset: list[str] | None = None) -> Stream:
        """As `DataFrame.dropna`."""
        return self._diverted()._then("dropna", lambda frame: frame.dropna(how, thresh, subset))

    def join(
        self,
        other: DataFrame | Stream,
        on: str | list[str] | Column | None = None,
        how: str = "inner",
        ttl: str | None = None,
        name: str = "join",
    ) -> Stream:
        """As `DataFrame.join` with a static (batch) DataFrame on the right; or with another stream, which is an operator.

        Two streams are joined on columns that both have by name, "inner" or "left". Every row meets all rows of its key that came
        before it on the other side, so both sides are kept, in the state called `name`. With a `ttl` ("1 hour") a key goes that
        has had no row on either side for so long (processing time); a left join, which needs one, puts out the key's left rows
        then if they met nothing. Rows with a null in the key meet nothing.
        """
        if isinstance(other, Stream):
            return self._joined(other, join_plan(self.schema, other.schema, on, how, ttl), name)
        if not isinstance(other, DataFrame) or other.isStreaming:
            raise GraphInvalid(
                "a stream can be joined with a static DataFrame or another Stream only", hint=_HINT_NATIVE
            )
        if ttl is not None:
            raise GraphInvalid("join: ttl is for two streams; nothing is kept of a static table")
        return self._diverted()._then("join", lambda frame: frame.join(other, on, how))

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Any stateless DataFrame-to-DataFrame function. It is called again for every incarnation or batch.

        What needs to remember rows (an aggregation, `dropDuplicates`, `limit`, a sort, a join of two streams, Spark's own
        stateful functions) is refused on this line: no epoch would hold its state.
        """
        return self._diverted()._then("transform", function)

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

    def withWatermark(self, eventTime: str, delayThreshold: str) -> Stream:
        """As `DataFrame.withWatermark`; the column must still be there at `groupBy`. Survives restore. Behind an operator an edge
        has to be between (`through`)."""
        behind = next(iter(operators_of(self._node)), None)
        if behind is not None:
            raise GraphInvalid(
                f"withWatermark is behind operator '{behind.name}'; event time begins at sources",
                hint=f"declare it on the input of '{behind.name}', and name the column of its output that is event time:"
                f" withEventTime('{eventTime}'); or put an edge between: .through('{behind.name}-out')",
            )
        self._check_time("withWatermark", eventTime)
        try:
            delay_ms = duration_ms(delayThreshold)
        except (TypeError, ValueError) as error:
            raise ConfigInvalid(f"withWatermark: {error}") from None
        marked = watermark_only(self._template, eventTime, delay_ms)
        return self._next(WatermarkNode(self._node, eventTime, delay_ms), marked)

    def withEventTime(self, eventTime: str) -> Stream:
        """Behind operators whose input has a watermark: this column of their rows is event time, for the operator that follows.

        All operators of a job have one watermark. A row is late here, if its operator judges rows by it, as one would be at the
        operator above: a time that this one has put out before the watermark passed it is in time.
        """
        self._check_time("withEventTime", eventTime)
        untimed = [leaf for leaf in leaves_of(self._node) if not (isinstance(leaf, OperatorNode) and leaf.event_time)]
        if untimed:
            raise GraphInvalid(
                f"withEventTime: rows come from '{untimed[0].name}', where no event time arrives",
                hint="behind a source or an edge declare withWatermark; above an operator, on its input",
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
        onError: OnError = "fail",
    ) -> Stream:
        """Parse text (or bytes) in `column` into a struct column `alias`, with a policy for what cannot be parsed.

        `onError`: "fail" stops the run naming topic, partition and offset (or file and line); "drop" diverts the record:
        it is counted (`run.lastProgress["rejected"]`, each epoch's manifest) and, if the job has `rejectsTo(sink)`,
        written there with its reason, exactly once. A null value stays null.
        """
        name = alias or column
        apply = parsed_column(self.columns, column, schema, name, format, onError)
        return self._then("parse", apply)

    def groupBy(self, *keys: str | Column) -> GroupedStream:
        """Rows of one key together, as `DataFrame.groupBy`; follow with an operator. Behind another operator as well."""
        stream, names = self, []
        for key in keys:
            stream, name = _named_key(stream, key)
            names.append(name)
        if not names:
            raise GraphInvalid("groupBy needs at least one key")
        return GroupedStream(stream, tuple(names))

    def to(self, sink: Sink, name: str | None = None, publish_every: str | float | None = None) -> Stream:
        """Write this stream's rows to a sink, exactly once; the stream may go on to an operator and other sinks. `name` identifies
        the sink in the store; default: its kind.

        `publish_every`: epochs between two publishes hold the rows back, and one publish shows the rows of them all; a duration
        such as "1 minute", "0 seconds" for every epoch. Savepoints and a stop publish at once. Default: every epoch; where each
        micro-batch ends an epoch, what the sink prefers.
        """
        self._job._bind(sink, self._node, self.schema, name, publish_every)
        return self

    def through(self, name: str, topic: Sink | None = None, key: str | None = None) -> Stream:
        """The same rows, one micro-batch later: they pass an edge, a durable log in the store that is part of every epoch.

        Behind an edge streams may part and meet as behind a source, and `withWatermark` may be declared. `name` identifies the
        edge in the store.

        `topic`: other programs read the edge there, each row once, as soon as its epoch is decided. Rows with a column `value` go
        there as they are; others as JSON in `value`, with column `key` as text. The sink has the edge's name.
        """
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
        """A stream of the same job."""
        return Stream(self._job, node, template)

    def _then(self, verb: str, apply: Callable[[DataFrame], DataFrame]) -> Stream:
        line = users_line()
        try:
            tried = check_operation(self._template, apply(self._template))
        except Refused as error:
            raise error.at(verb, line) from None
        except AnalysisException as error:
            raise GraphInvalid(
                f"{verb}: {_first_line(error)}", hint=f"the stream has {self.schema.simpleString()}", line=line
            ) from None
        return self._next(TransformNode(self._node, verb, apply, line), tried)

    def _joined(self, other: Stream, join: JoinPlan, name: str) -> Stream:
        for stream in (self, other):
            if event_time_of(stream._node) is not None:
                raise GraphInvalid(
                    "join: a stream with a watermark cannot be joined with another stream",
                    hint="drop withWatermark; ttl forgets keys by the time that passes",
                )
        keys = list(join.keys)
        named = [quoted(key) for key in keys]
        left = self if join.keeps_left else self.dropna(subset=named)  # a null key meets nothing
        sides = {LEFT: left.groupBy(*keys), RIGHT: other.dropna(subset=named).groupBy(*keys)}
        together = CoGroupedStreams(sides)
        return together._operate(join.operator(together._plan), name)

    def _diverted(self) -> Stream:
        return self._then("divert rejected rows", divert_rejects) if self._hides_rejects else self

    def _united(self, other: Stream, combine: Callable[[DataFrame, DataFrame], DataFrame]) -> Stream:
        left, right = self._diverted(), other._diverted()
        try:
            tried = combine(left._template, right._template)
        except AnalysisException as error:
            raise GraphInvalid(f"union: {_first_line(error)}") from None
        return self._next(UnionNode((left._node, right._node), combine), tried)


def _named_key(stream: Stream, key: str | Column) -> tuple[Stream, str]:
    if isinstance(key, str) and key in stream.columns:
        return stream, key
    expression = F.expr(key) if isinstance(key, str) else key
    name = stream.select(expression).columns[0]
    return (stream, name) if name in stream.columns else (stream.withColumn(name, expression), name)


def _keeping(frame: DataFrame, select: Callable[..., DataFrame]) -> DataFrame:
    """The selection, and the hidden column with it; `*` has it already."""
    chosen = select()
    return select(REJECT) if REJECT in frame.columns and REJECT not in chosen.columns else chosen


def _first_line(error: AnalysisException) -> str:
    return str(error).split("\n", 1)[0].split(" SQLSTATE")[0]
