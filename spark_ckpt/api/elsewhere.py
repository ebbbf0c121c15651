"""Hints for Spark names that a stream or a job lacks: their equivalent here, or the reason that a stream has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.wording import did_you_mean

_SINK = 'end a stream with to(sink), for example stream.to(DeltaSink("/data/out")); job.start() runs the job'
_BATCHES = (
    "stream.foreachBatch(function) calls a function per epoch; better end the stream with to(sink): to(DeltaSink(path)) appends, "
    'to(DeltaSink(path, engine="spark", keys=["id"])) merges by key (newest_by="at" keeps the newest row by event time), '
    "to(KafkaSink(servers, topic)) sends; for another system write a sink (docs/writing-a-connector.md)"
)
_VIEW = (
    'make the view inside of transform, and return what reads it: frame.createOrReplaceTempView("x") and then '
    'frame.sparkSession.sql("select ... from x"), in a function that is given to transform(...)'
)
_SOURCE = 'declare inputs with job.source("name", source), for example FilesSource, DeltaSource or KafkaSource'
_START = "job.start() runs the job and returns a run with awaitTermination, stop, lastProgress and savepoint"
_LOOK = "nothing runs before job.start(), and a stream has no end: look at what the sink holds, or at run.lastProgress"
_AGG = 'groupBy("key").agg(n=ckpt.count(), total=ckpt.sum("value")) keeps running aggregates in epochs'
_SPARKS = "stream.transform(function, outputMode=...) takes Spark's own: a function that gets the DataFrame"
_GROUP_FIRST = 'state is kept per key: group first, stream.groupBy("key").applyInPandasWithState(...)'
_FIRST = "write dropDuplicates(): it keeps the first of equal rows"
_COUNTED = 'number the rows of a key with groupBy(...).agg(outputMode="each row", number=ckpt.count()), then filter'
_ORDER = "rows of a key arrive in the order of the source; order the table or topic where it is read"
_NOWHERE = "a stream's rows are nowhere until a sink holds them; what is read again and again is a static DataFrame"
_STATE = "use applyInPandasWithState (Spark's signature), applyVectorized (whole key groups) or agg"
_PROCESSOR = (
    "call it inside of transform, unchanged: stream.transform(lambda rows: "
    'rows.groupBy("key").transformWithStateInPandas(...), outputMode="update")'
)

_STATE_OF_SEVERAL = "use applyInPandasWithState (frames by input name) or applyVectorized (whole key groups)"
_TOGETHER = "aggregates over several streams: give them the same columns, union them, then groupBy(...).agg(...)"

_ON_STREAM = {
    **dict.fromkeys(("write", "writeStream", "writeTo", "toTable"), _SINK),
    **dict.fromkeys(("foreach", "foreachPartition"), _BATCHES),
    **dict.fromkeys(
        ("createTempView", "createOrReplaceTempView", "createGlobalTempView", "createOrReplaceGlobalTempView"), _VIEW
    ),
    **dict.fromkeys(("read", "readStream", "source"), _SOURCE),
    **dict.fromkeys(("start", "stop", "awaitTermination", "trigger", "queryName", "outputMode"), _START),
    **dict.fromkeys(
        ("count", "collect", "show", "head", "take", "first", "tail", "toPandas", "toArrow", "isEmpty"), _LOOK
    ),
    **dict.fromkeys(("agg", "cube", "rollup", "groupingSets", "pivot", "describe", "summary"), f"{_AGG}; {_SPARKS}"),
    **dict.fromkeys(("distinct", "drop_duplicates"), _FIRST),
    **dict.fromkeys(("applyInPandasWithState", "applyVectorized"), _GROUP_FIRST),
    **dict.fromkeys(("limit", "offset"), _COUNTED),
    **dict.fromkeys(("sort", "orderBy", "sortWithinPartitions"), _ORDER),
    **dict.fromkeys(("rdd", "cache", "persist", "unpersist", "checkpoint", "localCheckpoint"), _NOWHERE),
    # after the lists: these entries override theirs
    "count": f"{_AGG}; {_LOOK}",
    "na": "write fillna(...) or dropna(...); others inside of transform: lambda frame: frame.na.replace(...)",
    "explain": "job.explain() prints the whole graph",
    "groupby": 'write groupBy("key")',
    "unionAll": "write union(other)",
}
_ON_GROUPED = {
    **dict.fromkeys(("count", "sum", "avg", "mean", "min", "max"), _AGG),
    "pivot": f"{_AGG}; {_SPARKS}",
    **dict.fromkeys(("transformWithState", "transformWithStateInPandas"), _PROCESSOR),
    **dict.fromkeys(("apply", "applyInPandas", "applyInArrow", "flatMapGroupsWithState", "mapGroupsWithState"), _STATE),
    **dict.fromkeys(("to", "select", "filter", "where"), f"an operator comes after groupBy: {_STATE}"),
    "cogroup": 'name the inputs: job.cogroup({"orders": orders.groupBy("id"), "payments": payments.groupBy("order_id")})',
}
_ON_CO_GROUPED = {
    **dict.fromkeys(("agg", "count", "sum", "avg", "mean", "min", "max"), _TOGETHER),
    **dict.fromkeys(("applyInPandas", "applyInArrow", "apply"), _STATE_OF_SEVERAL),
    **dict.fromkeys(("to", "select", "filter", "where"), f"an operator comes after cogroup: {_STATE_OF_SEVERAL}"),
}
_ON_JOB = {
    **dict.fromkeys(("read", "readStream", "table", "sql", "load", "format"), _SOURCE),
    **dict.fromkeys(("write", "writeStream", "sink", "to", "foreachBatch"), _SINK),
    **dict.fromkeys(("run", "stop", "awaitTermination", "lastProgress", "savepoint", "streams", "trigger"), _START),
}


class NotHere(GraphInvalid, AttributeError):
    """The program uses a method of Spark that a stream or a job lacks. It is also an `AttributeError`, so `hasattr` works."""

    condition = "CKPT_NOT_HERE"


def not_on_stream(name: str, kind: type, columns: Sequence[str]) -> AttributeError:
    """Return the error of `stream.name`, with a hint for public names of a DataFrame and for the stream's columns."""
    if name in columns:
        return NotHere(
            f"a stream has no attribute '{name}'", hint=f'the column is stream["{name}"], or F.col("{name}")'
        )
    return _not_here("stream", name, _ON_STREAM) or _stateless(name) or _mistyped(kind, "stream", name, columns)


def not_on_grouped(name: str, kind: type) -> AttributeError:
    """Return the error of `stream.groupBy(...).name`."""
    return _not_here("grouped stream", name, _ON_GROUPED) or _mistyped(kind, "grouped stream", name)


def not_on_co_grouped(name: str, kind: type) -> AttributeError:
    """Return the error of `job.cogroup(...).name`."""
    return _not_here("co-group", name, _ON_CO_GROUPED) or _mistyped(kind, "co-group", name)


def not_on_job(name: str, kind: type) -> AttributeError:
    """Return the error of `job.name`."""
    return _not_here("job", name, _ON_JOB) or _mistyped(kind, "job", name)


def _not_here(what: str, name: str, hints: Mapping[str, str]) -> NotHere | None:
    return NotHere(f"a {what} has no '{name}'", hint=hints[name]) if name in hints else None


def _stateless(name: str) -> NotHere | None:
    from pyspark.sql import DataFrame

    if name.startswith("_") or not hasattr(DataFrame, name):
        return None
    return NotHere(
        f"a stream has no '{name}'",
        hint=f"transform(lambda frame: frame.{name}(...)) takes any DataFrame operation that remembers no rows",
    )


def _mistyped(kind: type, what: str, name: str, columns: Sequence[str] = ()) -> AttributeError:
    """Return the error of a name that is near a name of the class or a column; else a plain `AttributeError`."""
    public = [each for each in dir(kind) if not each.startswith("_")]
    meant = "" if name.startswith("_") else did_you_mean(name, [*public, *columns])
    if meant:
        return NotHere(f"a {what} has no '{name}'", hint=meant)
    return AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
