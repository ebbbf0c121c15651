"""The text of a graph for the user."""

from types import SimpleNamespace

import pytest

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.plan.graph import (
    EdgeBinding,
    EdgeNode,
    OperatorNode,
    SinkBinding,
    SourceNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
)
from spark_ckpt.plan.graph_text import graph_text


def source(name):
    return SourceNode(name, SimpleNamespace(describe=lambda: {"kind": "kafka", "topic": name}), None)


def step(parent, verb):
    return TransformNode(parent, verb, None)


def operator(parent, name, *keys):
    return OperatorNode(parent, name, keys, None)


def sunk(node, name):
    return SinkBinding(name, SimpleNamespace(describe=lambda: {"kind": "delta"}), node, None)


def lines(*bindings, edges=()):
    return [line.rstrip() for line in graph_text("sales", bindings, edges).splitlines()]


def test_operations_between_two_operators_are_on_one_line_in_the_order_of_rows():
    rows = step(step(source("orders"), "filter"), "select")
    assert lines(sunk(step(operator(rows, "spent", "customer", "day"), "select"), "out")) == [
        "job sales",
        "└── sink 'out' (delta)",
        "    └── select",
        "        └── operator 'spent' by customer, day",
        "            └── filter, select",
        "                └── source 'orders' (kafka)",
    ]


def test_a_sink_in_the_middle_is_drawn_where_it_gets_its_rows():
    rows = step(source("orders"), "filter")
    assert lines(sunk(rows, "large"), sunk(step(rows, "select"), "out"))[2:5] == [
        "    └── select",
        "        └── sink 'large' (delta)",
        "            └── filter",
    ]


def test_a_loop_is_drawn_by_its_output_and_its_input():
    loop = EdgeNode("again", None, feedback=True)
    tried = operator(UnionNode((source("orders"), loop), None), "tried", "id")
    assert lines(sunk(tried, "out"), edges=[EdgeBinding(loop, step(tried, "filter"))]) == [
        "job sales",
        "└── edge 'again'",
        "    └── filter",
        "        └── sink 'out' (delta)",
        "            └── operator 'tried' by id",
        "                └── union",
        "                    ├── source 'orders' (kafka)",
        "                    └── feedback 'again'",
    ]


def test_a_stream_that_two_branches_read_is_drawn_once():
    rows = step(WatermarkNode(source("orders"), "at", 1000), "filter")
    left, right = operator(rows, "a", "k"), step(rows, "select")
    assert lines(
        sunk(UnionNode((left, operator(right, "b", "k")), None), "out"), sunk(step(rows, "drop"), "aside")
    ) == [
        "job sales",
        "├── sink 'out' (delta)",
        "│   └── union",
        "│       ├── operator 'a' by k",
        "│       │   └── filter [1]",
        "│       │       └── withWatermark at, 1000 ms late",
        "│       │           └── source 'orders' (kafka)",
        "│       └── operator 'b' by k",
        "│           └── select",
        "│               └── filter (again [1])",
        "└── sink 'aside' (delta)",
        "    └── drop",
        "        └── filter (again [1])",
    ]


def test_streams_that_split_after_an_operator_come_first():
    rows = step(source("orders"), "filter")
    counted = operator(rows, "counts", "k")
    drawn = lines(
        sunk(step(rows, "drop"), "aside"), sunk(step(counted, "select"), "a"), sunk(step(counted, "where"), "b")
    )
    assert [line for line in drawn if "operator" in line or "sink" in line] == [
        "├── sink 'a' (delta)",
        "│       └── operator 'counts' by k [1]",
        "├── sink 'b' (delta)",
        "│       └── operator 'counts' by k (again [1])",
        "└── sink 'aside' (delta)",
    ]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (lambda a, b: [step(a, "x"), operator(step(a, "y"), "c", "k")], "operator 'c' reads one of them"),
        (lambda a, b: [step(a, "x"), UnionNode((a, source("more")), None)], "one of them meets another input"),
        (lambda a, b: [step(each, verb) for each in (a, b) for verb in "xy"], "operator 'a' and after operator 'b'"),
    ],
)
def test_a_graph_that_cannot_run_is_not_drawn(ends, said):
    a, b = (operator(source(name), name, "k") for name in "ab")
    with pytest.raises(GraphInvalid, match=f"streams part after operator 'a',? and.*{said}|streams part after {said}"):
        graph_text("sales", [sunk(node, f"s{number}") for number, node in enumerate(ends(a, b))])
