"""Arguments of `agg`: aggregates of spark_ckpt and functions of Spark, by name or with an alias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.spark_internals.aggregate_columns import AggregateCall, aggregate_call
from spark_ckpt.tasks.operators import aggregations as ours
from spark_ckpt.tasks.operators.aggregations import Aggregate

AGGREGATE = "aggregate"
"""Default name of the operator, which identifies its state in the store."""

_EXAMPLE = 'agg(total=F.sum("value"), n=F.count("*")), or with functions of spark_ckpt: agg(total=ckpt.sum("value"))'
_KINDS = {
    **{name: name for name in ("sum", "min", "max", "count", "first", "last", "stddev")},
    **{"avg": "mean", "mean": "mean", "stddev_samp": "stddev", "first_value": "first", "last_value": "last"},
}
"""Kinds of `Aggregate` by the names of Spark's functions."""


@dataclass(frozen=True, slots=True)
class AggCall:
    """A checked call of `agg`. `aggregates` are named by their output columns."""

    output_mode: str
    name: str
    aggregates: Mapping[str, Aggregate]


def agg_call(given: Sequence[object], output_mode: object, name: object, named: Mapping[str, object]) -> AggCall:
    """Return the checked arguments of `agg`.

    `given` are its positional ones: texts are the output mode and the name, others are aggregates with an alias.
    Raises `GraphInvalid`.
    """
    texts = [each for each in given if isinstance(each, str)]
    mode = texts[0] if texts else output_mode
    called = texts[1] if len(texts) > 1 else name
    # an aggregate for an output column that is called like a setting arrives as that setting
    for setting in (mode, called):
        if isinstance(setting, Aggregate | Column):
            raise GraphInvalid(
                "agg: 'name' and 'outputMode' are settings, no aggregates",
                hint="call the aggregate else, and rename its column",
            )
        if not isinstance(setting, str):
            raise GraphInvalid(f"agg: a setting is a {type(setting).__name__}, not a text", hint=_EXAMPLE)
    if len(texts) > 2:
        raise GraphInvalid(f"agg: {texts[2]!r} is a text, no aggregate", hint=_EXAMPLE)
    aggregates: dict[str, Aggregate] = {}
    for each in given:
        if not isinstance(each, str):
            column, aggregate = _aliased(each)
            if column in aggregates:
                raise GraphInvalid(f"agg: two aggregates are called '{column}'", hint="give each an alias of its own")
            aggregates[column] = aggregate
    for column, each in named.items():
        if column in aggregates:
            raise GraphInvalid(f"agg: two aggregates are called '{column}'", hint="give each a name of its own")
        aggregates[column] = each if isinstance(each, Aggregate) else _of_spark(_call(f"'{column}'", each))
    if not aggregates:
        raise GraphInvalid("agg needs at least one aggregate", hint=f"for example {_EXAMPLE}")
    return AggCall(str(mode), str(called), aggregates)


def _aliased(given: object) -> tuple[str, Aggregate]:
    """Return a positional aggregate and its output column."""
    if isinstance(given, Aggregate):
        return given.name, given
    call = _call("an argument", given)
    if call.alias is None:
        raise GraphInvalid(
            f"agg: {call.function}(...) has no name for its output column",
            hint=f'name it: agg(total=F.{call.function}(...)), or F.{call.function}(...).alias("total")',
        )
    return call.alias, _of_spark(call)


def _call(what: str, given: object) -> AggregateCall:
    if not isinstance(given, Column):
        raise GraphInvalid(
            f"agg: {what} is a {type(given).__name__}, no aggregate",
            hint=f"name each aggregate by its output column: {_EXAMPLE}",
        )
    call = aggregate_call(given)
    if call is None:
        raise GraphInvalid(
            f"agg: {what} is {given}, no single aggregate function",
            hint="compute expressions of aggregates after agg, with withColumn; " + _EXAMPLE,
        )
    return call


def _of_spark(call: AggregateCall) -> Aggregate:
    """Return the aggregate of a call of Spark's function. Raises `GraphInvalid`."""
    kind = _KINDS.get(call.function)
    if kind is None and call.columns is None:
        raise GraphInvalid(
            f"agg: {call.function}(...) of expressions is no single aggregate function",
            hint=f"compute expressions of aggregates after agg, with withColumn; {_EXAMPLE}",
        )
    if kind is None or call.distinct:
        distinct = "a distinct " if call.distinct else ""
        raise GraphInvalid(
            f"agg: no running aggregate is {distinct}{call.function}(...)",
            hint=f"there are {', '.join(sorted(set(_KINDS) - {'first_value', 'last_value', 'stddev_samp'}))}; for distinct "
            "values dropDuplicates first; all functions of Spark run in its own aggregation: "
            "stream.transform(lambda rows: rows.groupBy(...).agg(...), outputMode=...)",
        )
    if call.columns is None or len(call.columns) > 1:
        raise GraphInvalid(
            f"agg: {call.function}(...) takes one column by its name, no expression",
            hint=f'compute it first: withColumn("amount2", ...), then F.{call.function}("amount2")',
        )
    if kind == "count" and None in call.literals:
        raise GraphInvalid(
            "agg: count(NULL) is 0 for every key",
            hint='count rows, F.count("*"), or the values of a column that are not null, F.count("amount")',
        )
    if kind == "count" and not call.columns:  # count("*")
        return ours.count()
    if not call.columns:
        raise GraphInvalid(f"agg: {call.function}(...) names no column", hint=_EXAMPLE)
    # the only literal argument of first and last is ignorenulls
    skip_nulls = kind in ("first", "last") and any(literal is True for literal in call.literals)
    return Aggregate(kind, call.columns[0], call.columns[0], skip_nulls)
