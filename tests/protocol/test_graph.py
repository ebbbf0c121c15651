"""A graph finds its ends and its loops, and refuses processes that no source reaches."""

from __future__ import annotations

import pytest

from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.machine import ProtocolViolation

NESTED = Graph("nested", (("s", "a"), ("a", "b"), ("b", "c"), ("c", "b"), ("c", "a"), ("c", "k")))


def test_ends_and_loops_are_found() -> None:
    assert (NESTED.sources, NESTED.sinks) == (("s",), ("k",))
    assert NESTED.back_edges == {"c->b", "c->a"}
    assert NESTED.regular_inputs[ProcessId("a")] == ("s->a",)


def test_upstream_of_a_failed_process_contains_its_senders_and_whole_loops() -> None:
    diamond = Graph("diamond", (("s", "a"), ("s", "b"), ("a", "k"), ("b", "k")))

    assert diamond.upstream_of(frozenset({ProcessId("a")})) == {"a", "s"}
    assert NESTED.upstream_of(frozenset({ProcessId("b")})) == {"s", "a", "b", "c"}


@pytest.mark.parametrize(
    ("edges", "match"),
    [
        ((), "empty or repeat"),
        ((("s", "a"), ("s", "a")), "empty or repeat"),
        ((("s", "k"), ("a", "b"), ("b", "a")), r"no source reaches \['a', 'b'\]"),
    ],
)
def test_a_graph_without_a_path_from_a_source_is_refused(edges: tuple[tuple[str, str], ...], match: str) -> None:
    with pytest.raises(ProtocolViolation, match=match):
        Graph("wrong", edges)
