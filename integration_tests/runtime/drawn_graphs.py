"""Graphs drawn at random, as values: built as a job's streams, and computed by plain Python over all rows at once.

A stream's rows are whole numbers from 0 to 6. An operator's output depends only on its number of rows per key, so a graph's output
is one multiset, for any ends of batches and any order of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import functions as F

import spark_ckpt as ckpt
from spark_ckpt.connector import Sink

VALUES = 7
SOURCES = ("one", "two")
STEPS = ("filter", "map", "union", "number", "join", "cogroup", "edge", "loop")
TWO_INPUTS = ("union", "join", "cogroup")
OPERATORS = ("number", "join", "cogroup")

Rows = Counter[int]


@dataclass(frozen=True)
class Step:
    """A stream made of earlier ones, given by number; the sources are the first. `argument`: of a filter, a map, a key."""

    verb: str
    inputs: tuple[int, ...]
    argument: int


@dataclass(frozen=True)
class Graph:
    """`sinks`: numbers of the streams that end in a sink or pass one."""

    steps: tuple[Step, ...]
    sinks: frozenset[int]

    def output(self, rows: Mapping[str, list[int]]) -> dict[int, Rows]:
        """Rows of each sink, by the number of its stream."""
        found = [Counter(rows[name]) for name in SOURCES]
        for step in self.steps:
            found.append(_computed(step, [found[number] for number in step.inputs]))
        return {number: found[number] for number in self.sinks}

    def build(self, job: ckpt.Job, sources: list[ckpt.Stream], sink: Callable[[str], Sink]) -> None:
        """Build the graph as streams of a job. A sink is named after its stream."""
        found = list(sources)
        for number, stream in enumerate(found):
            self._sunk(number, stream, sink)
        for step in self.steps:
            number = len(found)
            found.append(_built(job, step, [found[at] for at in step.inputs], f"op{number}"))
            self._sunk(number, found[number], sink)

    def _sunk(self, number: int, stream: ckpt.Stream, sink: Callable[[str], Sink]) -> None:
        if number in self.sinks:
            stream.to(sink(f"s{number}"), name=f"s{number}")


def _computed(step: Step, inputs: list[Rows]) -> Rows:
    first, last = inputs[0], inputs[-1]
    match step.verb:
        case "edge":
            return first
        case "loop":
            return _summed(less for value in first.elements() for less in range(value + 1))
        case "filter":
            return Counter({value: times for value, times in first.items() if value % 3 != step.argument % 3})
        case "map":
            return _summed((value * step.argument + 1) % VALUES for value in first.elements())
        case "union":
            return first + last
        case "join":
            return Counter({value: times * last[value] for value, times in first.items() if last[value]})
        case "cogroup":
            return _numbered(first, step) + _numbered(last, step)
    return _numbered(first, step)


def _numbered(rows: Rows, step: Step) -> Rows:
    keys = _summed(value % (step.argument + 1) for value in rows.elements())
    return _summed(number % VALUES for times in keys.values() for number in range(1, times + 1))


_summed = Counter[int]


def _built(job: ckpt.Job, step: Step, inputs: list[ckpt.Stream], name: str) -> ckpt.Stream:
    first, last = inputs[0], inputs[-1]
    match step.verb:
        case "edge":
            return first.through(name)
        case "loop":
            return _counted_down(job, first, name)
        case "filter":
            return first.filter(f"v % 3 != {step.argument % 3}")
        case "map":
            return first.select(((F.col("v") * step.argument + 1) % VALUES).alias("v"))
        case "union":
            return first.union(last)
        case "join":
            return first.join(last, on="v", name=name)
        case "cogroup":
            return _each_numbered(job, first, last, step.argument, name)
    keyed = first.select((F.col("v") % (step.argument + 1)).alias("key"))
    return keyed.groupBy("key").agg("each row", name, n=ckpt.count()).select((F.col("n") % VALUES).alias("v"))


def _counted_down(job: ckpt.Job, first: ckpt.Stream, name: str) -> ckpt.Stream:
    """Every row iterates until it is 0, decreased by one each time."""
    loop = job.feedback(name, "v long")
    rows = first.union(loop)
    loop.close(rows.filter("v > 0").select((F.col("v") - 1).alias("v")))
    return rows


def _each_numbered(job: ckpt.Job, first: ckpt.Stream, last: ckpt.Stream, argument: int, name: str) -> ckpt.Stream:
    """Number every row among the rows of its key in its own input."""
    inputs = {"first": (first, "one"), "last": (last, "other")}
    keyed = {
        each: stream.select((F.col("v") % (argument + 1)).alias(key)).groupBy(key)
        for each, (stream, key) in inputs.items()
    }

    def number(batch: ckpt.KeyBatch) -> ckpt.KeyResult:
        counts = {each: batch.state_values(each).astype("int64") for each in ("first", "last")}
        numbers = [batch[each].cumulative_count(counts[each]) % VALUES for each in counts]
        state = {each: counts[each] + batch[each].count_per_key() for each in counts}
        return ckpt.KeyResult(pa.table({"v": np.concatenate(numbers)}), pa.table(state))

    return job.cogroup(keyed).applyVectorized(number, "v long", "first long, last long", name)


@dataclass
class _Drawing:
    """The graph drawn so far. A stream after an operator has one successor only, a stream after an edge any number."""

    steps: list[Step] = field(default_factory=list)
    behind: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)

    @property
    def number(self) -> int:
        return len(SOURCES) + len(self.steps)

    @property
    def free(self) -> list[int]:
        return [number for number in range(self.number) if number not in self.behind & self.taken]

    def add(self, step: Step) -> None:
        if step.verb in OPERATORS or (step.verb != "edge" and self.behind & set(step.inputs)):
            self.behind.add(self.number)
        self.taken |= set(step.inputs)
        self.steps.append(step)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to six steps. Every stream without a successor has a sink, and so have some others."""
    drawing = _Drawing()
    for _ in range(draw(st.integers(2, 6))):
        verb = draw(st.sampled_from(STEPS))
        behind = drawing.behind if verb == "loop" else ()  # the loop's rows are also read twice
        first = draw(st.sampled_from([number for number in drawing.free if number not in behind]))
        inputs = (first,)
        if verb in TWO_INPUTS:
            others = [number for number in drawing.free if number != first or first not in drawing.behind]
            inputs = (first, draw(st.sampled_from(others)))
        drawing.add(Step(verb, inputs, draw(st.integers(1, 3))))
    ends = set(range(drawing.number)) - drawing.taken - set(range(len(SOURCES)))
    more = draw(st.sets(st.integers(0, drawing.number - 1), max_size=2))
    return Graph(tuple(drawing.steps), frozenset(ends | more))
