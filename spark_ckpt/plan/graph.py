"""A job's graph as a description that can be rebuilt: every incarnation starts fresh queries from it.

Nodes are immutable. `build` turns a node into a DataFrame: it replays the recorded operations on the DataFrames of the
leaf nodes (sources, edges, or an operator's output).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import reduce
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from pyspark.errors import ParseException
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_ckpt.connector import ReplacesRows, Sink, Source
from spark_ckpt.epochs.records import GraphNode
from spark_ckpt.errors import GraphInvalid
from spark_ckpt.spark_internals.arrow_types import spark_schema_of
from spark_ckpt.spark_internals.column_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_ckpt.tasks.operators.operator import KeyedOperator


def graph_nodes(
    sources: Sequence[SourceNode],
    operators: Sequence[OperatorNode],
    edges: Sequence[EdgeBinding],
    bindings: Sequence[SinkBinding],
) -> tuple[GraphNode, ...]:
    """Return sources, operators, edges and sinks, each with the ids of its direct inputs. Ids are `kind/name`."""
    return (
        *(GraphNode(id=_id(source)) for source in sources),
        *(GraphNode(id=f"operator/{operator.name}", inputs=_inputs(operator.parent)) for operator in operators),
        *(GraphNode(id=_id(each.edge), inputs=_inputs(each.node)) for each in edges),
        *(GraphNode(id=f"sink/{each.name}", inputs=_inputs(each.node)) for each in bindings),
    )


def _inputs(node: Node) -> tuple[str, ...]:
    return tuple(_id(leaf) for leaf in leaves_of(node))


def _id(leaf: Leaf) -> str:
    match leaf:
        case SourceNode():
            return f"source/{leaf.name}"
        case EdgeNode():
            return f"edge/{leaf.name}"
        case OperatorNode():
            return f"operator/{leaf.name}"


def check_edges(
    bindings: Sequence[SinkBinding], edges: Sequence[EdgeBinding], over_stages: AbstractSet[str] = frozenset()
) -> None:
    """Raise `GraphInvalid` for an edge that no stream reads, and for a feedback that does not feed itself.

    `over_stages`: names of feedbacks that feed themselves through other stages of the program.
    """
    nodes = [*(binding.node for binding in bindings), *(edge.node for edge in edges)]
    read = {each.name for each in edges_of(*nodes)}
    loops = loops_of(edges) | over_stages
    for each in edges:
        name = each.edge.name
        if name not in read:
            raise GraphInvalid(
                f"no stream reads edge '{name}': its rows would stay in flight for ever",
                hint="end a stream that begins at it with to(sink), or drop it",
            )
        if each.edge.feedback and name not in loops:
            raise GraphInvalid(
                f"feedback '{name}' is closed by a stream that does not come from it: there is no loop",
                hint=f"for rows that only continue, use stream.through('{name}')",
            )


_WORD = re.compile(r"\w+")  # DDL takes such names without backticks


# nodes are compared by identity (eq=False): two equal operations are two places of the graph
@dataclass(frozen=True, slots=True, eq=False)
class SourceNode:
    """A named input; `schema` is that of the connector's rows, with the reject column if there is one."""

    name: str
    source: Source
    schema: StructType


@dataclass(frozen=True, slots=True, eq=False)
class EdgeNode:
    """The output of an edge: rows that another place of the graph wrote to it, one micro-batch later.

    An edge is a durable log in the store.

    - `feedback`: True if the edge's input rows depend on its output rows.
    - `schema`: every field is nullable, since rows from an older program have no value for a new column.
    """

    name: str
    schema: StructType
    feedback: bool


@dataclass(frozen=True, slots=True, eq=False)
class TransformNode:
    """A stateless DataFrame operation, with the user's `verb` and the program's `line` that recorded it."""

    parent: Node
    verb: str
    apply: Callable[[DataFrame], DataFrame]
    line: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class InputNode:
    """A stream as the input `name` of an operator with several inputs: grouped by `keys`, with its own columns.

    `tag` marks its rows, so that tasks can separate the inputs.
    """

    parent: Node
    name: str
    keys: tuple[str, ...]
    tag: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, eq=False)
class UnionNode:
    """Several streams of one shape, combined from the left."""

    parents: tuple[Node, ...]
    combine: Callable[[DataFrame, DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, eq=False)
class SparkNode:
    """Spark's own stateful operators, as a user's function builds them from one or several streams.

    - `parents`: the streams, in the order in which Spark's plan reads them.
    - `apply`: the function; it takes their DataFrames in this order.
    - `output_mode`: "append", "update" or "complete".
    - `line`: the program's line that recorded it.
    """

    parents: tuple[Node, ...]
    verb: str
    apply: Callable[[Sequence[DataFrame]], DataFrame]
    output_mode: str
    line: str = ""

    @property
    def is_complete(self) -> bool:
        """True if every batch has the whole result."""
        return self.output_mode == "complete"


@dataclass(frozen=True, slots=True, eq=False)
class WatermarkNode:
    """Event time in `column` (timestamp), late by at most `delay_ms` milliseconds."""

    parent: Node
    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class EventTimeNode:
    """Rows of operators with event time in `column`.

    No time is below the watermark that decides which of the operators' own rows are late.
    """

    parent: Node
    column: str


@dataclass(frozen=True, slots=True, eq=False)
class OperatorNode:
    """A keyed operator: it applies rows of one key to the key's state. `operator` runs in tasks.

    `event_time` is the watermarked column of its rows.
    """

    parent: Node
    name: str
    keys: tuple[str, ...]
    operator: KeyedOperator
    event_time: str | None = None

    @property
    def key_ddl(self) -> str:
        """The key columns as DDL, the store's form."""
        return ddl(spark_schema_of(self.operator.schema.key))

    @property
    def state_ddl(self) -> str:
        """The state columns as DDL, the store's form."""
        return ddl(spark_schema_of(self.operator.schema.state))


Leaf = SourceNode | EdgeNode | OperatorNode
"""Origin of the rows of a chain of operations."""

Node = Leaf | TransformNode | InputNode | UnionNode | SparkNode | WatermarkNode | EventTimeNode


@dataclass(frozen=True, slots=True, eq=False)
class SinkBinding:
    """A sink and the stream that ends in it.

    `publish_every_ms` is the user's setting in milliseconds; None without one.
    """

    name: str
    sink: Sink
    node: Node
    schema: StructType
    publish_every_ms: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EdgeBinding:
    """An edge and the stream whose rows go into it."""

    edge: EdgeNode
    node: Node


def ddl(schema: StructType) -> str:
    """Return names and types of a schema, always as the same text: customer string, `total amount` double."""
    return ", ".join(f"{_identifier(field.name)} {_type_text(field.dataType)}" for field in schema.fields)


def _identifier(name: str) -> str:
    return name if _WORD.fullmatch(name) else quoted(name)


def _type_text(kind: DataType) -> str:
    """Return Spark's `simpleString` of a type, with names in a form that can be parsed."""
    match kind:
        case StructType():
            fields = (f"{_identifier(field.name)}:{_type_text(field.dataType)}" for field in kind.fields)
            return f"struct<{','.join(fields)}>"
        case ArrayType():
            return f"array<{_type_text(kind.elementType)}>"
        case MapType():
            return f"map<{_type_text(kind.keyType)},{_type_text(kind.valueType)}>"
    return kind.simpleString()


def struct_of(schema: StructType | str) -> StructType:
    """Return a user's schema as a StructType: a StructType, or DDL such as `customer string, total double`.

    Raises `GraphInvalid` for a text that cannot be parsed.
    """
    if isinstance(schema, StructType):
        return schema
    try:
        parsed = StructType.fromDDL(schema)
    except ParseException as error:
        raise GraphInvalid(
            f"the schema {schema!r} cannot be parsed", hint=str(error).strip().split("\n", 1)[0]
        ) from None
    # as in Spark, a single type is the schema of one column `value`
    return parsed if isinstance(parsed, StructType) else StructType().add("value", parsed)


def _as_it_is(_: Node, frame: DataFrame) -> DataFrame:
    return frame


def build(
    node: Node,
    leaf: Callable[[Leaf], DataFrame],
    at: Callable[[Node, DataFrame], DataFrame] = _as_it_is,
) -> DataFrame:
    """Replay the operations above the leaves; `leaf` returns a leaf's DataFrame.

    `at` is applied to the rows of every node.
    """
    match node:
        case SourceNode() | EdgeNode() | OperatorNode():
            rows = leaf(node)
        case UnionNode():
            rows = reduce(node.combine, [build(parent, leaf, at) for parent in node.parents])
        case SparkNode():
            rows = node.apply([build(parent, leaf, at) for parent in node.parents])
        case TransformNode():
            rows = node.apply(build(node.parent, leaf, at))
        case InputNode():
            rows = node.tag(build(node.parent, leaf, at))
        case WatermarkNode() | EventTimeNode():
            rows = build(node.parent, leaf, at)
    return at(node, rows)


def ends_of(bindings: Sequence[SinkBinding | EdgeBinding]) -> tuple[Node, ...]:
    """Return the streams with sinks or edges that no other such stream reads, in order.

    Streams that split after an operator come first. Raises as `parting_of`.
    """
    sunk = list(dict.fromkeys(binding.node for binding in bindings))
    # the first one is the node itself
    passed = {above for node in sunk for above in islice(upstream(node), 1, None)}
    # a sink further up takes its rows from a tap in the same plan, so it needs no output of the query
    ends = [node for node in sunk if node not in passed]
    _check_spark_runs_once(ends)
    parting = parting_of(*ends)
    # the sort is stable: other ends keep their order, which Spark's numbering of inputs follows
    return tuple(sorted(ends, key=lambda end: parting not in leaves_of(end)))


def parting_of(*ends: Node) -> OperatorNode | None:
    """Return the operator after which streams split; None if there is none.

    Spark would run the operator once per stream in these cases, so they raise `GraphInvalid`:

    - Streams split after several operators.
    - A stream of the split continues to another operator, or joins another input.
    """
    parting = _needed_twice(*ends)
    if not parting:
        return None
    first, *others = parting
    if others:
        raise _cannot_part(first, f"streams part after operator '{first.name}' and after operator '{others[0].name}'")
    # the streams split in the batch's own plan, which has no state for an operator and no other input
    behind = next((each.name for each in operators_of(*ends) if first in leaves_of(each.parent)), None)
    if behind is not None:
        raise _cannot_part(
            first, f"streams part after operator '{first.name}', and operator '{behind}' reads one of them"
        )
    if any(first in leaves_of(end) and len(leaves_of(end)) > 1 for end in ends):
        raise _cannot_part(first, f"streams part after operator '{first.name}', and one of them meets another input")
    return first


def heads_of(ends: Sequence[Node]) -> tuple[Node, ...]:
    """Return the query's outputs from the left: the ends, or one operator in place of the ends that split after it."""
    parting = parting_of(*ends)
    if parting is None:
        return tuple(ends)
    return (parting, *(end for end in ends if parting not in leaves_of(end)))


def check_read_once(node: Node) -> None:
    """Raise `GraphInvalid` if an operator on `node` would read the output of one operator above in two places."""
    for first in _needed_twice(node):
        raise _cannot_part(first, f"an operator cannot read two streams that part after operator '{first.name}'")


def _needed_twice(*ends: Node) -> list[OperatorNode]:
    """Return the operators whose output has more than one reader."""
    # each end and each operator's input is built into the plan by itself
    readers = [*ends, *(each.parent for each in operators_of(*ends))]
    times = Counter(leaf for node in readers for leaf in reads_of(node) if isinstance(leaf, OperatorNode))
    return [leaf for leaf, count in times.items() if count > 1]


def _check_spark_runs_once(ends: Sequence[Node]) -> None:
    """Raise `GraphInvalid` if Spark would run its own operators once per stream, each with a state of its own."""
    readers = [*ends, *(each.parent for each in operators_of(*ends))]
    times = Counter(above for node in readers for above in segment(node) if isinstance(above, SparkNode))
    if twice := next((node for node, count in times.items() if count > 1), None):
        raise GraphInvalid(
            f"streams part after {twice.verb}, whose operators keep state: Spark would keep it once per stream",
            hint="put an edge after it, where streams may part as after a source: .through('rows')",
            line=twice.line or None,
        )


def complete_node(node: Node) -> SparkNode | None:
    """Return the function of output mode "complete" that the node's rows come from; None if there is none."""
    return next((each for each in segment(node) if isinstance(each, SparkNode) and each.is_complete), None)


def check_complete(
    bindings: Sequence[SinkBinding], operators: Sequence[OperatorNode], edges: Sequence[EdgeBinding]
) -> None:
    """Raise `GraphInvalid` for rows of output mode "complete" that do not go into a sink that replaces its rows.

    Each batch has the whole result, so an operator or an edge would take every row again with each batch.
    """
    readers = [(f"operator '{each.name}'", each.parent) for each in operators]
    readers += [(f"edge '{each.edge.name}'", each.node) for each in edges]
    for reader, node in readers:
        if (complete := complete_node(node)) is not None:
            raise _whole_result(complete, f"{reader} would take all its rows again")
    for binding in bindings:
        complete = complete_node(binding.node)
        if complete is None:
            continue
        if any(isinstance(each, UnionNode) for each in segment_below(binding.node, complete)):
            raise _whole_result(complete, f"sink '{binding.name}' would replace rows of the other stream of a union")
        # a sink that could replace rows may be set to merge them by keys
        if not (isinstance(binding.sink, ReplacesRows) and binding.sink.replaces_rows):
            raise _whole_result(complete, f"sink '{binding.name}' cannot replace its rows in one step")


def _whole_result(complete: SparkNode, what: str) -> GraphInvalid:
    return GraphInvalid(
        f"outputMode 'complete' gives the whole result with every batch: {what}",
        hint="write it to a DeltaSink without keys; or use outputMode='update', which gives the changed rows",
        line=complete.line or None,
    )


def segment_below(node: Node, above: Node) -> list[Node]:
    """Return the node and the nodes above it, up to but without `above`."""
    return list(takewhile(lambda each: each is not above, segment(node)))


def spark_nodes_of(*nodes: Node) -> list[SparkNode]:
    """Return the places above the nodes with Spark's own stateful operators, including operators' inputs."""
    return list(dict.fromkeys(above for node in nodes for above in upstream(node) if isinstance(above, SparkNode)))


def _cannot_part(operator: OperatorNode, what: str) -> GraphInvalid:
    return GraphInvalid(
        what,
        operator=operator.name,
        hint="after one operator of a job streams may part if each ends in sinks or edges; else put an edge after the operator,"
        f" where streams may part as after a source: .through('{operator.name}-out')",
    )


def segment(node: Node) -> Iterator[Node]:
    """Yield the node and the nodes above it, up to and including operators, edges and sources.

    A union's inputs are yielded from the left.
    """
    yield node
    if isinstance(node, UnionNode | SparkNode):
        for parent in node.parents:
            yield from segment(parent)
    elif not isinstance(node, Leaf):
        yield from segment(node.parent)


def upstream(node: Node) -> Iterator[Node]:
    """Yield the node and everything above it up to edges, including operators' inputs; a union's inputs from the left."""
    for above in segment(node):
        yield above
        if isinstance(above, OperatorNode):
            yield from upstream(above.parent)


def reads_of(node: Node) -> list[Leaf]:
    """Return the leaves that the node's rows come from directly, once per place where `build` reads them."""
    return [above for above in segment(node) if isinstance(above, Leaf)]


def leaves_of(node: Node) -> list[Leaf]:
    """Return the leaves that the node's rows come from directly, each once."""
    return list(dict.fromkeys(reads_of(node)))


def operators_of(*nodes: Node) -> list[OperatorNode]:
    """Return every operator above the nodes, each after the operators that it reads from."""
    nearest = [leaf for node in nodes for leaf in leaves_of(node) if isinstance(leaf, OperatorNode)]
    return list(dict.fromkeys(each for leaf in nearest for each in (*operators_of(leaf.parent), leaf)))


def sources_of(*nodes: Node) -> list[SourceNode]:
    """Return the sources above the nodes, including operators' inputs, in the order of Spark's numbering.

    Spark's offset log numbers an input where the plan meets it first.
    """
    return list(dict.fromkeys(above for node in nodes for above in upstream(node) if isinstance(above, SourceNode)))


def edges_of(*nodes: Node) -> list[EdgeNode]:
    """Return the edges whose rows reach the nodes, including operators' inputs."""
    return list(dict.fromkeys(above for node in nodes for above in upstream(node) if isinstance(above, EdgeNode)))


def loops_of(edges: Sequence[EdgeBinding]) -> set[str]:
    """Return the names of the edges on a cycle: their input depends on their output, also through other edges."""
    return on_cycles({each.edge.name: {above.name for above in edges_of(each.node)} for each in edges})


def on_cycles(feeds: Mapping[str, set[str]]) -> set[str]:
    """Return the names that reach themselves. `feeds`: by name the names that feed it."""
    return {name for name in feeds if name in _reached(name, feeds)}


def _reached(start: str, feeds: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()  # without `start`, which counts only if a path comes back to it
    waiting = [start]
    while waiting:
        new = feeds.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def event_time_of(node: Node) -> WatermarkNode | EventTimeNode | None:
    """Return the nearest event time declared above, up to the next operator; None if there is none.

    Spark's own operators end it as ours do: their rows may be older than the watermark.
    """
    match node:
        case WatermarkNode() | EventTimeNode():
            return node
        case UnionNode():
            found = [declared for parent in node.parents if (declared := event_time_of(parent)) is not None]
            return found[0] if found else None
        case TransformNode() | InputNode():
            return event_time_of(node.parent)
        case _:  # sources, edges and operators: event time begins again
            return None


@dataclass(frozen=True, slots=True)
class Mark:
    """Event time of an operator's input.

    `input` is the name of a co-group's input, otherwise the names of the sources and edges above. Repeated names get a
    number.
    """

    operator: str
    input: str
    node: WatermarkNode


def marks_of(*operators: OperatorNode) -> list[Mark]:
    """Return the nearest event times declared above the operators, in the order in which their rows are read."""
    marks: list[Mark] = []
    for operator in operators:
        times: Counter[str] = Counter()
        for name, node in _nearest_marks(operator.parent, ""):
            # several branches of one source may each declare event time
            times[name] += 1
            marks.append(Mark(operator.name, name if times[name] == 1 else f"{name}#{times[name]}", node))
    return marks


def _nearest_marks(node: Node, name: str) -> Iterator[tuple[str, WatermarkNode]]:
    match node:
        case WatermarkNode():
            yield name or "+".join(leaf.name for leaf in leaves_of(node)), node
        case InputNode():
            yield from _nearest_marks(node.parent, node.name)
        case UnionNode():
            for parent in node.parents:
                yield from _nearest_marks(parent, name)
        case TransformNode():
            yield from _nearest_marks(node.parent, name)
