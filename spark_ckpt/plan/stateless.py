"""The DataFrame operations that a stream may contain, checked in Spark's analysed plan.

- Operations that keep nothing from one row or batch to the next: nodes of `STATELESS_NODES`.
- Spark's own stateful operators (`STATEFUL_NODES`), where the state of Spark's operators is part of the epochs: inside
  `transform`, before the job's own operators.

Everything else that keeps rows is refused, because every restart would lose it: Spark's checkpoint is disposable here.
A `limit` would pass as many rows once more. A node on no list is refused, too. The static side of a join may be
anything: Spark reads it again.

Functions that return another value when they run again (`rand`, `uuid`, a user's Python function) are allowed. The task
that computes a sink's rows also stages them, and a commit refers to these files. So committed rows are never computed
again, and rows of an uncommitted attempt are never published.

`input_file_name()` is refused where tasks of a source read the files: Spark knows no file there, and its answer is an
empty text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.spark_internals.event_time import CLOCK_NODE
from spark_ckpt.spark_internals.plans import (
    EVENT_TIME_NODES,
    JOIN_NODE,
    REFERENCE_NODE,
    STATEFUL_NODES,
    STATELESS_NODES,
    TEMPLATE_NODE,
    PlanNode,
    analysed,
)

_KEYED = (
    "use groupBy(...) and an operator of the stream itself: agg, applyInPandasWithState or applyVectorized; "
    "for Spark's own after an operator put an edge between: .through('rows')"
)
_FIRST = (
    'call dropDuplicates(["id"]) or dropDuplicatesWithinWatermark(["id"]) on the stream itself: epochs hold their state'
)
_COUNTED = 'number the rows of a key with groupBy(...).agg(outputMode="each row", number=ckpt.count()), then filter'
_ORDER = (
    "rows of a key arrive in the order of the source; order the table or topic where it is read. The whole result of an "
    'aggregation can be sorted, and cut by limit: transform(..., outputMode="complete")'
)
_TWO_STREAMS = (
    'join the streams themselves, on columns of the same name: orders.join(payments, on="k", ttl="1 day");'
    " or read one side as a static DataFrame"
)
_SET = 'join the static DataFrame with how="left_semi" or how="left_anti"'
_INSTEAD = {
    **dict.fromkeys(("Deduplicate", "DeduplicateWithinWatermark", "Distinct"), _FIRST),
    **dict.fromkeys(("GlobalLimit", "LocalLimit", "Offset", "Tail", "Window", "WindowInPandas"), _COUNTED),
    **dict.fromkeys(("WindowGroupLimit",), _COUNTED),
    **dict.fromkeys(("Except", "Intersect"), _SET),
    "Sort": _ORDER,
    "Join": _TWO_STREAMS,
    "AsOfJoin": _TWO_STREAMS,
    "Sample": "filter(F.rand() < 0.1) takes a sample of a stream",
    "EventTimeWatermark": 'call withWatermark("column", "10 minutes") on the stream itself: its clock survives a restart',
}
_UNSEEN_INPUT = "declare every input: job.source(name, source); read a static DataFrame with spark.read"
_POSITIONS = (
    "FilesSource(..., positions=True) adds the columns _file (below the source's folder) and _line to every row"
)
_OF_WHOLE_RESULTS = ("Sort", "GlobalLimit", "LocalLimit")
_TWICE = "declare the source twice, under two names, and union the streams; or make several rows of one with F.explode"


class Refused(GraphInvalid):
    """A recorded operation cannot be part of a stream: it keeps state outside of epochs, or reads an input without a
    cursor, or asks for a file that Spark does not read.
    """

    condition = "CKPT_OPERATION_REFUSED"

    def at(self, verb: str, line: str) -> Refused:
        """Return the same refusal with the verb and the line that recorded the operation."""
        return Refused(f"{verb}: {self.what}", hint=self.hint, **self.context, line=line or None)


@dataclass(frozen=True, slots=True)
class Tried:
    """A recorded operation that was tried on empty streams.

    - `frame`: its result.
    - `keeps`: the operators of Spark in it that keep state, in words; empty for a stateless one.
    - `order`: numbers of the streams given, in the order in which Spark's plan reads them.
    """

    frame: DataFrame
    keeps: tuple[str, ...]
    order: tuple[int, ...]


def check_operation(given: DataFrame, result: object, *, spark_reads: bool = False) -> DataFrame:
    """Check the result of a recorded operation on the stream `given`, a `streaming_template`, and return it.

    `spark_reads`: Spark itself reads the files of the stream's sources.

    Raises `Refused`, or Spark's own `AnalysisException` for operations that Spark cannot stream.
    """
    frame, _ = _checked(result, spark_reads)
    _order([given], frame)
    return frame


def check_with_state(
    given: Sequence[DataFrame], result: object, output_mode: str, *, spark_reads: bool = False
) -> Tried:
    """Check the result of a function of the streams `given`, which may contain Spark's own stateful operators.

    `output_mode`: as Spark's query would have it. Raises as `check_operation`.
    """
    frame, keeps = _checked(result, spark_reads, output_mode=output_mode)
    return Tried(frame, keeps, _order(given, frame))


def check_rows(
    frame: DataFrame, sources: int, clocks: int = 0, *, spark_reads: bool = False, output_mode: str | None = None
) -> DataFrame:
    """Check the plan of a stream's rows just before it runs, with `sources` declared inputs and `clocks` of event time.

    `output_mode`: the mode of Spark's own stateful operators in the plan; None if there may be none. Raises as
    `check_operation`.
    """
    checked, _ = _checked(frame, spark_reads, clocks, output_mode)
    inputs = len(list(_inputs(analysed(checked))))
    if inputs != sources:  # each input is a line of Spark's offset log
        raise Refused(f"the stream reads {inputs} streaming inputs, the job declares {sources}", hint=_UNSEEN_INPUT)
    return frame


def _order(given: Sequence[DataFrame], result: DataFrame) -> tuple[int, ...]:
    """Return the streams' numbers in the order of Spark's plan. Raises `Refused` unless it reads each exactly once."""
    leaves = list(_inputs(analysed(result)))
    if any(leaf.name != TEMPLATE_NODE for leaf in leaves):
        raise Refused("the result reads another stream than the one given", hint=_UNSEEN_INPUT)
    inputs = [list(_inputs(analysed(each))) for each in given]
    if len(leaves) != sum(map(len, inputs)):
        raise Refused(
            "a stream given is read more than once, or not at all; Spark reads it each time to a position of its own",
            hint=_TWICE,
        )
    if len(given) == 1:
        return (0,)
    # each template has column ids of its own, which tell the streams apart
    owners = {leaf.columns: number for number, each in enumerate(inputs) for leaf in each}
    return tuple(dict.fromkeys(owners[leaf.columns] for leaf in leaves if leaf.columns in owners))


def _checked(
    result: object, spark_reads: bool, clocks: int = 0, output_mode: str | None = None
) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the result, and the operators of Spark in it that keep state, in words."""
    from pyspark.sql import DataFrame

    if not isinstance(result, DataFrame):
        raise Refused(f"the result is a {type(result).__name__}", hint="return a DataFrame made from the one given")
    if not result.isStreaming:
        raise Refused("the result is a static DataFrame", hint="return a DataFrame made from the one given")
    plan = analysed(result)
    nodes = list(_streaming(plan))
    keeps = tuple(STATEFUL_NODES[node.name] for node in nodes if _is_stateful(node)) if output_mode else ()
    # the job inserts clocks itself; any other number of them contains a watermark of the user's
    ours = CLOCK_NODE if sum(node.name == CLOCK_NODE for node in nodes) == clocks else None
    # the whole result is sorted and cut again with every batch: nothing is kept; Spark checks that it is one
    free = _OF_WHOLE_RESULTS if output_mode == "complete" and keeps else ()
    for node in nodes:
        if node.name in free:
            continue
        if node.name != ours and not (keeps and (_is_stateful(node) or node.name in EVENT_TIME_NODES)):
            check_node(node)
    # a plan that runs also has the job's own clocks, which are declarations of the same form
    if keeps and clocks == 0:
        _check_event_time(plan, False)
    # Spark counts file functions as non-deterministic, so most plans need no look at their expressions
    if not spark_reads and not plan.is_deterministic:
        _check_file_functions(nodes)
    # outer joins, expressions that cannot stream, operators that the mode does not fit
    plan.check_for_streaming(result.sparkSession, output_mode or "append")
    return result, keeps


def _check_event_time(node: PlanNode, timed: bool) -> None:
    """Raise `Refused` for event time that is declared twice on one path: Spark refuses it in the first batch."""
    declares = node.name == CLOCK_NODE
    if declares and timed:
        raise Refused(
            "a watermark is declared after another one",
            operation=CLOCK_NODE,
            hint="declare it once, on the stream or in the function, before the first operator with state",
        )
    for child in node.children:
        if child.is_streaming:
            _check_event_time(child, timed or declares)


def _is_stateful(node: PlanNode) -> bool:
    if node.name == JOIN_NODE:
        return all(child.is_streaming for child in node.children)  # with a static side nothing is kept
    return node.name in STATEFUL_NODES


def check_node(node: PlanNode) -> None:
    """Raise `Refused` if the operation needs state, or is unknown."""
    name, children = node.name, node.children
    # a leaf is an input, which the callers check
    if not children:
        return
    # an allow-list: a node that a later Spark adds is refused until it is checked
    if _is_stateful(node) or name not in STATELESS_NODES:
        what = "a join of two streams" if name == JOIN_NODE else name
        raise Refused(
            f"{what} needs state, and no epoch has its state: every restart would lose it",
            operation=name,
            hint=_INSTEAD.get(name, _KEYED),
        )


def _check_file_functions(nodes: Iterable[PlanNode]) -> None:
    for name in (name for node in nodes for name in node.file_functions):
        raise Refused(
            f"{name}() has no value here: a source's tasks read its files, and Spark does not know which",
            operation=name,
            hint=_POSITIONS,
        )


def _inputs(plan: PlanNode) -> Iterator[PlanNode]:
    # a reference has its rows from another place of the plan
    return (node for node in _streaming(plan) if not node.children and node.name != REFERENCE_NODE)


def _streaming(plan: PlanNode) -> Iterator[PlanNode]:
    """Yield the node and those below it whose rows are a stream's."""
    if plan.is_streaming:
        yield plan
        for child in plan.children:
            yield from _streaming(child)
