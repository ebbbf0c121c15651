"""A job's graph as text: the rows of every sink, down to the sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.tree import Tree

from spark_ckpt.plan.graph import (
    EdgeBinding,
    EdgeNode,
    EventTimeNode,
    InputNode,
    Node,
    OperatorNode,
    SinkBinding,
    SourceNode,
    SparkNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    ends_of,
)

_WIDTH = 160


def graph_text(job: str, bindings: Sequence[SinkBinding], edges: Sequence[EdgeBinding] = ()) -> str:
    """Return a tree with one branch per stream that ends in a sink or on an edge.

    A node that several branches read is drawn once; later branches refer to it by number. Raises `GraphInvalid` for a
    graph that cannot run.
    """
    drawing = _Drawing(bindings, edges)
    tree = Tree(f"job {job}")
    for end in ends_of([*bindings, *edges]):
        drawing.add(tree, end)
    # the same text for any terminal: without colours, and not wrapped at its width
    console = Console(width=_WIDTH, color_system=None, highlight=False, markup=False)
    with console.capture() as text:
        console.print(tree)
    return text.get()


class _Drawing:
    def __init__(self, bindings: Sequence[SinkBinding], edges: Sequence[EdgeBinding]) -> None:
        self._sinks: dict[Node, list[str]] = {}
        for each in bindings:
            self._sinks.setdefault(each.node, []).append(f"sink '{each.name}' ({each.sink.describe().get('kind', '')})")
        for edge in edges:
            self._sinks.setdefault(edge.node, []).append(f"edge '{edge.edge.name}'")
        self._numbers: dict[Node, int] = {}
        self._shared = _shared(ends_of([*bindings, *edges]))

    def add(self, tree: Tree, node: Node) -> None:
        """Add the node's sinks, its operations, and the nodes above."""
        for sink in self._sinks.get(node, []):
            tree = tree.add(sink)
        known = node in self._numbers  # drawn before: the branch ends with a reference to it
        above = node if known else self._steps(node)
        label = self._label(node, above)
        tree = tree.add(label)
        for parent in () if known else _parents(above):
            self.add(tree, parent)

    def _steps(self, node: Node) -> Node:
        """Return the first of the stateless operations that lead to `node` without a branch or a sink in between."""
        while isinstance(node, TransformNode) and self._is_plain(node.parent):
            node = node.parent
        return node

    def _is_plain(self, node: Node) -> bool:
        return isinstance(node, TransformNode) and node not in self._sinks and node not in self._shared

    def _label(self, node: Node, first: Node) -> str:
        text = ", ".join(reversed([*_names(node, first)]))
        if node not in self._shared:
            return text
        again = node in self._numbers
        number = self._numbers.setdefault(node, len(self._numbers) + 1)
        return f"{text} (again [{number}])" if again else f"{text} [{number}]"


def _names(node: Node, first: Node) -> Iterator[str]:
    yield _name(node)
    while node is not first and isinstance(node, TransformNode):
        node = node.parent
        yield _name(node)


def _name(node: Node) -> str:
    match node:
        case SourceNode():
            return f"source '{node.name}' ({node.source.describe().get('kind', '')})"
        case EdgeNode():
            return f"{'feedback' if node.feedback else 'edge'} '{node.name}'"
        case OperatorNode():
            return f"operator '{node.name}' by {', '.join(node.keys)}"
        case UnionNode():
            return "union"
        case WatermarkNode():
            return f"withWatermark {node.column}, {node.delay_ms} ms late"
        case InputNode():
            return f"input '{node.name}' by {', '.join(node.keys)}"
        case EventTimeNode():
            return f"withEventTime {node.column}"
        case SparkNode():
            return f"{node.verb} with Spark's state ({node.output_mode})"
        case TransformNode():
            return node.verb


def _parents(node: Node) -> tuple[Node, ...]:
    match node:
        case SourceNode() | EdgeNode():
            return ()
        case UnionNode() | SparkNode():
            return node.parents
        # the union of a co-group's inputs is the plan's and not the user's
        case OperatorNode(parent=UnionNode(parents=(InputNode(), *_)) as inputs):
            return inputs.parents
        case _:
            return (node.parent,)


def _shared(ends: Sequence[Node]) -> set[Node]:
    """Return the nodes that more than one place reads."""
    met: set[Node] = set()
    shared: set[Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node in met:
            shared.add(node)
            continue
        met.add(node)
        waiting += _parents(node)
    return shared
