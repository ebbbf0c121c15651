"""Checks of a graph's edges before it runs: every edge is read, and every feedback is a loop."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.plan.graph import EdgeBinding, SinkBinding, edges_of, loops_of


def check_edges(bindings: Sequence[SinkBinding], edges: Sequence[EdgeBinding]) -> None:
    """Raise `GraphInvalid` for an edge that no stream reads, and for a feedback that does not feed itself."""
    nodes = [*(binding.node for binding in bindings), *(edge.node for edge in edges)]
    read = {each.name for each in edges_of(*nodes)}
    loops = loops_of(edges)
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
