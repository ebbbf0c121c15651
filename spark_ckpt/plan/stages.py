"""Stages of one program: the parts of its graph that durable edges join. Each runs as a query with a store of its own.

A stage is what shares sources, operators, or edges of a query. So streams that meet are of one stage, and an operator
runs once. `through(name, stage=...)` ends a stage and names the one that reads on; rows that come from sources alone
are of stage `main`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.plan.graph import (
    EdgeBinding,
    EdgeNode,
    Leaf,
    Node,
    OperatorNode,
    SinkBinding,
    SourceNode,
    TransformNode,
    edges_of,
    on_cycles,
    sources_of,
    upstream,
)
from spark_ckpt.tasks.rows import REJECT

MAIN = "main"
"""The stage of streams that come from sources alone."""

_PARSED = "parse"  # verb of `Stream.parse`


@dataclass(frozen=True, slots=True, eq=False)
class StageInput:
    """The reading end of an edge between two stages: `source`, whose name is that of the edge, in `stage`."""

    stage: str
    source: SourceNode


@dataclass(frozen=True, slots=True)
class StageGraph:
    """One stage: what it writes, its edges inside of the query, and by source name the stages that send to it."""

    name: str
    bindings: tuple[SinkBinding, ...]
    edges: tuple[EdgeBinding, ...]
    senders: Mapping[str, str]


def cut(
    bindings: Sequence[SinkBinding], edges: Sequence[EdgeBinding], inputs: Sequence[StageInput]
) -> dict[str, StageGraph]:
    """Return the stages by name, senders before their readers; in a loop, in the order of their first sink.

    Raises `GraphInvalid` if streams of two stages meet, if a stage would read its own edge, or if no stream of a stage
    ends in a sink.
    """
    labels = {each.source: each.stage for each in inputs}
    stage_of = dict[SinkBinding | EdgeBinding, str]()
    for part in _parts([*bindings, *edges]):
        name = _label(part, labels)
        stage_of |= dict.fromkeys(part, name)
    sent_by = {binding.name: stage_of[binding] for binding in bindings}
    # Of sinks only: a stage without one is refused below.
    names = list(dict.fromkeys(stage_of[binding] for binding in bindings))
    for each in inputs:
        edge = each.source.name
        if each.stage not in names:
            raise GraphInvalid(
                f"no stream of stage '{each.stage}' ends in a sink: nothing reads edge '{edge}'",
                hint="end the stream after through(...) with to(sink), or drop it",
            )
        if sent_by[edge] == each.stage:
            raise GraphInvalid(
                f"stage '{each.stage}' reads its own edge '{edge}': after it the rows meet a stream from before it",
                hint=f"pass that stream into stage '{each.stage}' by an edge of its own:"
                f" .through('NAME', stage='{each.stage}')",
            )
    graphs = {
        name: StageGraph(
            name,
            tuple(each for each in bindings if stage_of[each] == name),
            tuple(each for each in edges if stage_of[each] == name),
            {each.source.name: sent_by[each.source.name] for each in inputs if each.stage == name},
        )
        for name in names
    }
    return {name: graphs[name] for name in _senders_first(graphs)}


def loop_of(graphs: Mapping[str, StageGraph]) -> tuple[str, ...]:
    """Return the stages of the graph's loops, and those between them; empty without a loop."""
    # A stage that nothing of the rest feeds, or that feeds nothing of the rest, is on no loop.
    left = dict(graphs)
    while free := [
        name
        for name, graph in left.items()
        if not left.keys() & set(graph.senders.values()) or not _readers(left, name)
    ]:
        left = {name: graph for name, graph in left.items() if name not in free}
    return tuple(left)


def loops_over_stages(
    bindings: Sequence[SinkBinding], edges: Sequence[EdgeBinding], inputs: Sequence[StageInput]
) -> set[str]:
    """Return the names of the edges on a cycle of the whole program: those of a query, and those that join stages."""
    joining = {each.source.name for each in inputs}
    ends = {each.edge.name: each.node for each in edges}
    ends |= {each.name: each.node for each in bindings if each.name in joining}  # such a sink has the name of its edge
    return on_cycles(
        {
            name: {edge.name for edge in edges_of(node)} | {each.name for each in sources_of(node)} & joining
            for name, node in ends.items()
        }
    )


def parses(graph: StageGraph) -> bool:
    """Return True if the stage itself parses records, so that it may have some to reject."""
    ends: list[SinkBinding | EdgeBinding] = [*graph.bindings, *graph.edges]
    return any(_may_reject(node) for end in ends for node in upstream(end.node))


def _may_reject(node: Node) -> bool:
    if isinstance(node, SourceNode):
        return REJECT in node.schema.names
    return isinstance(node, TransformNode) and node.verb == _PARSED


def chosen_stages(graphs: Mapping[str, StageGraph], wanted: Sequence[str]) -> dict[str, StageGraph]:
    """Return the wanted stages, all of them for none. Raises `GraphInvalid` for a name that the program has not."""
    if unknown := [name for name in wanted if name not in graphs]:
        raise GraphInvalid(
            f"the program has no stage '{unknown[0]}'", hint=f"its stages: {', '.join(graphs) or 'none'}"
        )
    return {name: graph for name, graph in graphs.items() if not wanted or name in wanted}


def _readers(graphs: Mapping[str, StageGraph], name: str) -> list[str]:
    return [each for each, graph in graphs.items() if name in graph.senders.values()]


def _senders_first(graphs: Mapping[str, StageGraph]) -> list[str]:
    left, order = dict(graphs), list[str]()
    while left:
        free = [name for name, graph in left.items() if not left.keys() & set(graph.senders.values())]
        # In a loop each stage waits for another one: the first of them begins.
        order += free or [next(iter(left))]
        left = {name: graph for name, graph in left.items() if name not in order}
    return order


def _parts(ends: Sequence[SinkBinding | EdgeBinding]) -> list[list[SinkBinding | EdgeBinding]]:
    """Return the ends in groups that share no leaf: the connected parts of the graph."""
    parts: list[tuple[set[Leaf], list[SinkBinding | EdgeBinding]]] = []
    for end in ends:
        leaves, members = set(_leaves(end)), [end]
        apart = []
        # An end that shares leaves with several parts makes one part of them.
        for known, others in parts:
            if known & leaves:
                leaves, members = known | leaves, [*others, *members]
            else:
                apart.append((known, others))
        parts = [*apart, (leaves, members)]
    return [members for _, members in parts]


def _leaves(end: SinkBinding | EdgeBinding) -> Iterator[Leaf]:
    """Yield all that an end shares with others: leaves, also above operators, and the edge that it writes."""
    if isinstance(end, EdgeBinding):
        yield end.edge
    yield from (node for node in upstream(end.node) if isinstance(node, SourceNode | EdgeNode | OperatorNode))


def _label(part: Sequence[SinkBinding | EdgeBinding], labels: Mapping[SourceNode, str]) -> str:
    found = {
        labels[leaf]: leaf.name
        for end in part
        for leaf in _leaves(end)
        if isinstance(leaf, SourceNode) and leaf in labels
    }
    if len(found) < 2:
        return next(iter(found), MAIN)  # a part without an input from another stage
    (one, edge), (other, _) = list(found.items())[:2]
    raise GraphInvalid(
        f"streams of stages '{one}' and '{other}' meet",
        edge=edge,
        hint=f"a stage is one query: pass one of the streams into the other's stage: .through('NAME', stage='{other}')",
    )
