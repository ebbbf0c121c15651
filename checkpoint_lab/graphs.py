"""The graphs that protocols run on, by name."""

from __future__ import annotations

from checkpoint_protocols.graph import Graph

PIPELINE = Graph("pipeline", (("s", "a"), ("a", "k")))
PAIR = Graph("pair", (("s", "k"),))
DIAMOND = Graph("diamond", (("s", "a"), ("s", "b"), ("a", "k"), ("b", "k")))
JOIN = Graph("join", (("s", "j"), ("t", "j"), ("j", "k")))
FAN_OUT = Graph("fan_out", (("s", "a"), ("a", "k"), ("a", "l")))
CYCLE = Graph("cycle", (("s", "a"), ("a", "b"), ("b", "a"), ("b", "k")))
TWO_BACK_EDGES = Graph(
    "two_back_edges", (("s", "a"), ("a", "b"), ("a", "c"), ("b", "a"), ("c", "a"), ("b", "k"), ("c", "k"))
)
NESTED_CYCLE = Graph("nested_cycle", (("s", "a"), ("a", "b"), ("b", "c"), ("c", "b"), ("c", "a"), ("c", "k")))

GRAPHS: dict[str, Graph] = {
    graph.name: graph for graph in (PIPELINE, PAIR, DIAMOND, JOIN, FAN_OUT, CYCLE, TWO_BACK_EDGES, NESTED_CYCLE)
}
ACYCLIC: dict[str, Graph] = {name: graph for name, graph in GRAPHS.items() if not graph.back_edges}
