"""What must be so of a graph's edges before it runs: each is read, loops are loops, and what is in flight has a place to go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spark_ckpt.errors import GraphInvalid, StateSchemaChanged
from spark_ckpt.plan.graph import EdgeBinding, SinkBinding, edges_of, loops_of
from spark_ckpt.wording import counted

if TYPE_CHECKING:
    from spark_ckpt.store.records import Manifest


def check_edges(bindings: Sequence[SinkBinding], edges: Sequence[EdgeBinding]) -> None:
    """Raise `GraphInvalid` for an edge that nobody reads, and for a feedback that feeds nothing back."""
    nodes = [*(binding.node for binding in bindings), *(edge.node for edge in edges)]
    read = {each.name for each in edges_of(*nodes)}
    loops = loops_of(edges)
    for each in edges:
        name = each.edge.name
        if name not in read:
            raise GraphInvalid(
                f"nobody reads edge '{name}': its rows would stay in flight for ever",
                hint="end a stream that begins at it with to(sink), or drop it",
            )
        if each.edge.feedback and name not in loops:
            raise GraphInvalid(
                f"feedback '{name}' is closed by a stream that does not come from it: there is no loop",
                hint=f"for rows that only go on, use stream.through('{name}')",
            )


def check_in_flight(declared: Mapping[str, str], base: Manifest) -> None:
    """Raise if rows that are in flight at `base` would be lost or would not fit. `declared`: every edge's schema as DDL."""
    for name, cut in base.edges.items():
        rows = counted(cut.produced - cut.consumed, "row")
        if not cut.files or declared.get(name) == cut.row_schema:
            continue
        if name not in declared:
            raise GraphInvalid(
                f"epoch {base.epoch} has {rows} in flight on edge '{name}', which the job no longer has",
                hint="run the job once more with the edge until nothing is in flight (availableNow=True), then drop it",
            )
        raise StateSchemaChanged(
            f"epoch {base.epoch} has {rows} in flight on edge '{name}' with {cut.row_schema}",
            declared=declared[name],
            epoch=base.epoch,
            hint="run the job as it was until nothing is in flight (availableNow=True), or give the edge a new name",
        )
