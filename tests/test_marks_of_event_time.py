"""Inputs of an operator with event time, and their names in epochs."""

from spark_ckpt.plan.graph import (
    EdgeNode,
    EventTimeNode,
    InputNode,
    OperatorNode,
    SourceNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    marks_of,
)

ORDERS, PAYMENTS, LOOP = (
    SourceNode("orders", None, None),
    SourceNode("payments", None, None),
    EdgeNode("loop", None, True),
)


def timed(node, delay_ms=1000):
    return WatermarkNode(node, "at", delay_ms)


def step(node):
    return TransformNode(node, "select", None)


def operator(node, name="op"):
    return OperatorNode(node, name, ("k",), None, "at")


def names(*operators):
    return [(mark.operator, mark.input, mark.node.delay_ms) for mark in marks_of(*operators)]


def test_an_input_is_named_after_the_origin_of_its_rows():
    union = UnionNode((step(timed(ORDERS)), step(PAYMENTS), timed(step(LOOP), 7)), None)
    assert names(operator(union)) == [("op", "orders", 1000), ("op", "loop", 7)]
    assert names(operator(timed(UnionNode((ORDERS, PAYMENTS), None)))) == [("op", "orders+payments", 1000)]


def test_a_co_groups_inputs_have_their_own_names():
    inputs = (
        InputNode(step(timed(ORDERS)), "bought", ("k",), None),
        InputNode(timed(PAYMENTS, 5), "paid", ("k",), None),
    )
    assert names(operator(UnionNode(inputs, None))) == [("op", "bought", 1000), ("op", "paid", 5)]


def test_one_source_read_twice_is_two_inputs():
    rows = timed(ORDERS)
    assert names(operator(UnionNode((rows, step(rows)), None))) == [("op", "orders", 1000), ("op", "orders#2", 1000)]


def test_the_nearest_one_counts_and_none_reaches_past_an_operator():
    first = operator(timed(timed(ORDERS, 5), 9), "first")
    assert names(first) == [("first", "orders", 9)]
    assert names(first, operator(EventTimeNode(step(first), "at"), "second")) == [("first", "orders", 9)]
