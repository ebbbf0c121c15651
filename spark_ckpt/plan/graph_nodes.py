"""A job's graph as names and arrows for an epoch's manifest; a reader of the store needs no program."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ckpt.epochs.records import GraphNode
from spark_ckpt.plan.graph import EdgeBinding, EdgeNode, Leaf, Node, OperatorNode, SinkBinding, SourceNode, leaves_of


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
