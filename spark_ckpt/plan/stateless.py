"""The DataFrame operations that a stream may contain: operations that keep nothing from one row or batch to the next.

Spark's checkpoint is disposable here, so everything that Spark keeps between batches is lost at every restart. A
deduplication would show rows again, an aggregation would start empty, and a limit would pass as many rows once more.
Only the stage's own operator has state that epochs hold. So the analysed plan of a stream's rows may contain only nodes
of `STATELESS_NODES`. A node on no list is refused, too. The static side of a join may be anything: Spark reads it
again.

Functions that return another value when they run again (`rand`, `uuid`, a user's Python function) are allowed. The task
that computes a sink's rows also stages them, and a commit refers to these files. So committed rows are never computed
again, and rows of an uncommitted attempt are never published.

`input_file_name()` is refused where tasks of a source read the files: Spark knows no file there, and its answer is an
empty text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.spark_internals.event_time import CLOCK_NODE
from spark_ckpt.spark_internals.plans import (
    JOIN_NODE,
    REFERENCE_NODE,
    STATELESS_NODES,
    TEMPLATE_NODE,
    PlanNode,
    analysed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEYED = "use groupBy(...) and an operator of the stream itself: agg, applyInPandasWithState or applyVectorized"
_FIRST = (
    'call dropDuplicates(["id"]) or dropDuplicatesWithinWatermark(["id"]) on the stream itself: epochs hold their state'
)
_COUNTED = 'number the rows of a key with groupBy(...).agg(outputMode="each row", number=ckpt.count()), then filter'
_ORDER = "rows of a key arrive in the order of the source; order the table or topic where it is read"
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
_TWICE = "declare the source twice, under two names, and union the streams; or make several rows of one with F.explode"


class Refused(GraphInvalid):
    """A recorded operation cannot be part of a stream: it keeps state outside of epochs, or reads an input without a
    cursor, or asks for a file that Spark does not read.
    """

    condition = "CKPT_OPERATION_REFUSED"

    def at(self, verb: str, line: str) -> Refused:
        """Return the same refusal with the verb and the line that recorded the operation."""
        return Refused(f"{verb}: {self.what}", hint=self.hint, **self.context, line=line or None)


def check_operation(given: DataFrame, result: object, *, spark_reads: bool = False) -> DataFrame:
    """Check the result of a recorded operation on the stream `given`, a `streaming_template`, and return it.

    `spark_reads`: Spark itself reads the files of the stream's sources.

    Raises `Refused`, or Spark's own `AnalysisException` for operations that Spark cannot stream.
    """
    frame = _checked(result, spark_reads)
    inputs = list(_inputs(analysed(frame)))
    if any(leaf.name != TEMPLATE_NODE for leaf in inputs):
        raise Refused("the result reads another stream than the one given", hint=_UNSEEN_INPUT)
    if len(inputs) != len(list(_inputs(analysed(given)))):
        raise Refused(
            "the stream given is read more than once; Spark reads it each time to a position of its own", hint=_TWICE
        )
    return frame


def check_rows(frame: DataFrame, sources: int, clocks: int = 0, *, spark_reads: bool = False) -> DataFrame:
    """Check the plan of a stream's rows just before it runs, with `sources` declared inputs and `clocks` of event time.

    Raises as `check_operation`.
    """
    inputs = len(list(_inputs(analysed(_checked(frame, spark_reads, clocks)))))
    if inputs != sources:  # each input is a line of Spark's offset log
        raise Refused(f"the stream reads {inputs} streaming inputs, the job declares {sources}", hint=_UNSEEN_INPUT)
    return frame


def _checked(result: object, spark_reads: bool, clocks: int = 0) -> DataFrame:
    from pyspark.sql import DataFrame

    if not isinstance(result, DataFrame):
        raise Refused(f"the result is a {type(result).__name__}", hint="return a DataFrame made from the one given")
    if not result.isStreaming:
        raise Refused("the result is a static DataFrame", hint="return a DataFrame made from the one given")
    plan = analysed(result)
    nodes = list(_streaming(plan))
    # the job inserts clocks itself; any other number of them contains a watermark of the user's
    ours = CLOCK_NODE if sum(node.name == CLOCK_NODE for node in nodes) == clocks else None
    for node in nodes:
        if node.name != ours:
            _check_node(node)
    if not spark_reads and not plan.is_deterministic:
        _check_file_functions(nodes)
    plan.check_for_streaming(result.sparkSession)  # outer joins, expressions that cannot stream
    return result


def _check_node(node: PlanNode) -> None:
    name, children = node.name, node.children
    # a leaf is an input, which the callers check
    if not children:
        return
    # an allow-list: a node that a later Spark adds is refused until it is checked
    both = name == JOIN_NODE and all(child.is_streaming for child in children)
    if both or name not in STATELESS_NODES:
        what = "a join of two streams" if both else name
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
    return (node for node in _streaming(plan) if not node.children and node.name != REFERENCE_NODE)


def _streaming(plan: PlanNode) -> Iterator[PlanNode]:
    """Yield the node and those below it whose rows are a stream's."""
    if plan.is_streaming:
        yield plan
        for child in plan.children:
            yield from _streaming(child)
