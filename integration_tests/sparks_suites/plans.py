"""Replaces the input in the plan of a streaming DataFrame: the job's source instead of the test's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from spark_ckpt.spark_internals.jvm import java_frame, jvm_of


@dataclass(frozen=True)
class Leaf:
    """One source in the plan of a streaming DataFrame. `options` have lower-case names; `ddl` are its columns."""

    format: str
    options: dict[str, str]
    ddl: str
    columns: tuple[str, ...]


def leaves(frame: DataFrame) -> list[Leaf]:
    """Return the sources in the plan of a frame, from left to right."""
    return [_leaf(frame, plan) for plan in _sources(java_frame(frame).queryExecution().analyzed())]


def on_other_input(frame: DataFrame, inputs: list[DataFrame]) -> DataFrame:
    """Return the frame with `inputs` in place of its sources, in the order of `leaves`.

    A frame of `inputs` gets the ids of the columns that it replaces, by position, so that every expression above it
    stays as the test has written it.
    """
    jvm, session, rest = jvm_of(frame.sparkSession), inputs[0].sparkSession, iter(inputs)
    catalyst = jvm.org.apache.spark.sql.catalyst

    def replaced(leaf: Any) -> Any:
        plan = java_frame(next(rest)).queryExecution().analyzed()
        pairs = zip(_each(leaf.output()), _each(plan.output()), strict=True)
        nothing = jvm.scala.Option.empty()
        renamed = [
            catalyst.expressions.Alias(ours, old.name(), old.exprId(), old.qualifier(), nothing, _seq(jvm, []))
            for old, ours in pairs
        ]
        return catalyst.plans.logical.Project(_seq(jvm, renamed), plan)

    plan = _rebuilt(jvm, java_frame(frame).queryExecution().analyzed(), replaced)
    return DataFrame(
        jvm.org.apache.spark.sql.classic.Dataset.ofRows(java_frame(inputs[0]).sparkSession(), plan), session
    )


def _sources(plan: Any) -> Iterator[Any]:
    if plan.isStreaming():
        children = _each(plan.children())
        if not children:
            yield plan
        for child in children:
            yield from _sources(child)


def _rebuilt(jvm: Any, plan: Any, replaced: Callable[[Any], Any]) -> Any:
    if not plan.isStreaming():
        return plan
    children = _each(plan.children())
    if not children:
        return replaced(plan)
    return plan.withNewChildren(_seq(jvm, [_rebuilt(jvm, child, replaced) for child in children]))


def _leaf(frame: DataFrame, plan: Any) -> Leaf:
    ddl, columns = plan.schema().toDDL(), tuple(plan.schema().fieldNames())
    if plan.getClass().getSimpleName() == "StreamingRelation":
        source, options = plan.dataSource(), _options(plan.dataSource().options())
        if source.catalogTable().isDefined():
            options["path"] = source.catalogTable().get().location().getPath()
        return Leaf(source.className(), options, ddl, columns)
    return Leaf(plan.sourceName(), _options(plan.extraOptions()), ddl, columns)


def _options(given: Any) -> dict[str, str]:
    """Return a map of Java, or of Scala."""
    if isinstance(given, Mapping):
        return {key.lower(): value for key, value in given.items()}
    pairs, found = given.iterator(), {}
    while pairs.hasNext():
        pair = pairs.next()
        found[pair.productElement(0).lower()] = pair.productElement(1)
    return found


def _each(seq: Any) -> list[Any]:
    return [seq.apply(number) for number in range(seq.size())]


def _seq(jvm: Any, values: list[Any]) -> Any:
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(values)
