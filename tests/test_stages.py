"""The cut of a program's graph into stages."""

from types import SimpleNamespace

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_ckpt.api.stages import confirmed_in, refuse_moved
from spark_ckpt.driver.query.state_check import check_spark_state
from spark_ckpt.epochs.identity import Confirmed, Found, Known, reconciled
from spark_ckpt.errors import ConfigInvalid, GraphInvalid
from spark_ckpt.plan.graph import (
    EdgeBinding,
    EdgeNode,
    OperatorNode,
    SinkBinding,
    SourceNode,
    SparkNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    check_edges,
    marks_of,
    operators_of,
    sources_of,
    spark_nodes_of,
)
from spark_ckpt.plan.stages import StageInput, chosen_stages, cut, loop_of, loops_over_stages, parses
from spark_ckpt.tasks.rows import REJECT
from tests.store.store_world import OPERATOR, World


def source(name, columns=("a",)):
    return SourceNode(name, SimpleNamespace(), StructType([StructField(each, StringType()) for each in columns]))


def sunk(node, name):
    return SinkBinding(name, SimpleNamespace(), node, None)


def step(parent, verb="filter"):
    return TransformNode(parent, verb, None)


def both(*nodes):
    return UnionNode(nodes, None)


def through(node, name, stage):
    """Add an edge: its sink in the sending stage, its source in the reading one."""
    read = source(name)
    return sunk(node, name), StageInput(stage, read), read


def shown(graphs):
    return {name: ([each.name for each in graph.bindings], dict(graph.senders)) for name, graph in graphs.items()}


def chain():
    rows = source("in")
    edge, into, read = through(step(rows), "to-model", "model")
    last, out, end = through(step(read), "scored", "report")
    return [edge, sunk(rows, "raw"), last, sunk(step(end), "out")], [into, out]


def test_each_side_of_an_edge_is_a_stage_and_senders_come_first():
    bindings, inputs = chain()
    assert shown(cut(bindings[::-1], [], inputs)) == {
        "main": (["raw", "to-model"], {}),
        "model": (["scored"], {"to-model": "main"}),
        "report": (["out"], {"scored": "model"}),
    }


def starts(stage, graphs, **names):
    """Settle the endpoints of one stage with the confirmations of the whole program, as its start does."""
    given = Confirmed(**{kind: frozenset([name]) for kind, name in names.items()})
    confirmed = confirmed_in(stage, graphs, graphs, given)
    graph = graphs[stage]
    sources = {each.name: {} for each in sources_of(*(each.node for each in graph.bindings))}
    return reconciled(Known(), Found(sources, {each.name: {} for each in graph.bindings}), confirmed, {}, 0).unneeded


@pytest.mark.parametrize(
    ("kind", "name", "stage"),
    [
        ("new_sources", "in", "main"),
        ("new_sources", "to-model", "model"),
        ("new_sinks", "out", "report"),
        ("moved", "raw", "main"),
    ],
)
def test_a_confirmation_for_one_stage_does_not_stop_the_start_of_the_others(kind, name, stage):
    bindings, inputs = chain()
    graphs = cut(bindings, [], inputs)
    assert [each for each in graphs if starts(each, graphs, **{kind: name})] == [stage]


def test_a_confirmation_of_a_name_that_no_stage_has_is_refused_by_each():
    bindings, inputs = chain()
    graphs = cut(bindings, [], inputs)
    for stage in graphs:
        with pytest.raises(ConfigInvalid, match="accept_new_source names 'misspelt'"):
            starts(stage, graphs, new_sources="misspelt")


@pytest.mark.parametrize("kind", ["dropped_operators", "dropped_sources"])
def test_a_moved_operator_or_source_is_confirmed_for_the_stages_that_lack_it(kind):
    rows = source("sums")
    counted = OperatorNode(rows, "sums", ("k",), None) if kind == "dropped_operators" else rows
    into = through(counted, "to-model", "model")
    bindings, inputs = [into[0], sunk(into[2], "out")], [into[1]]
    graphs, given = cut(bindings, [], inputs), Confirmed(**{kind: frozenset(["sums"])})
    kept = {each: getattr(confirmed_in(each, graphs, graphs, given), kind) for each in graphs}
    assert kept == {"main": frozenset(), "model": {"sums"}}
    # Alone, no other stage of the start has dropped it.
    assert getattr(confirmed_in("main", graphs, ["main"], given), kind) == {"sums"}


@pytest.fixture
def moving(tmp_path):
    """Return a program whose operator `OPERATOR` moved into `main`, and the stores of its stages, with it in `model`."""
    into = through(OperatorNode(source("in"), OPERATOR, ("k",), None), "to-model", "model")
    graphs = cut([into[0], sunk(into[2], "out")], [], [into[1]])
    worlds = {name: World(tmp_path / name) for name in graphs}
    worlds["model"].begin()
    worlds["model"].epoch({"a": 1})
    return graphs, worlds, {name: world.store for name, world in worlds.items()}


def test_no_stage_starts_alone_with_an_operator_of_a_stage_of_another_process(moving):
    graphs, worlds, stores = moving
    with pytest.raises(GraphInvalid, match=OPERATOR) as refused:
        refuse_moved(graphs, ["main"], stores)
    assert f"job.start_stages('model', accept_dropped_operator='{OPERATOR}')" in refused.value.hint
    refuse_moved(graphs, ["model"], stores)
    refuse_moved(graphs, graphs, stores)  # the start of `model` refuses in time
    worlds["main"].begin()
    worlds["main"].epoch({"a": 1})
    refuse_moved(graphs, ["main"], stores)  # it has state of its own


def checked(bindings, edges=()):
    """Check one query of Spark's operators and of the job's, of these sinks and edges, as its start does."""
    ends = [each.node for each in (*bindings, *edges)]
    spark = spark_nodes_of(*ends)
    operators = operators_of(*ends)
    plan = SimpleNamespace(
        ends=ends, operators=operators, marks=marks_of(*operators), spark_mode=(spark and "append") or None
    )
    plan.checkpoint = lambda _: SimpleNamespace(local="/tmp/runs")
    plan.config = SimpleNamespace(shuffle_partitions=None)
    check_spark_state(plan, SimpleNamespace(spark_state=None))


def test_event_time_of_several_operators_and_sparks_own_operators_need_stages_and_no_edge():
    timed = OperatorNode(WatermarkNode(source("in"), "at", 0), "windows", ("k",), None)
    second = OperatorNode(timed, "sums", ("k",), None)
    inner = EdgeNode("rows", None, feedback=False)
    with pytest.raises(GraphInvalid) as refused:
        checked([sunk(SparkNode((inner,), "transform", None, "append"), "out")], [EdgeBinding(inner, second)])

    assert ".through('NAME', stage='NAME')" in refused.value.hint
    edge, into, read = through(second, "rows", "NAME")
    graphs = cut([edge, sunk(SparkNode((read,), "transform", None, "append"), "out")], [], [into])
    for graph in graphs.values():
        checked(graph.bindings, graph.edges)


def test_streams_that_share_an_operator_are_one_stage():
    rows = OperatorNode(source("in"), "sums", ("k",), None)
    edge, into, read = through(rows, "to-model", "model")
    other = source("alone")
    graphs = cut([edge, sunk(step(rows), "sums"), sunk(other, "copy"), sunk(read, "out")], [], [into])
    assert shown(graphs)["main"] == (["to-model", "sums", "copy"], {})


def test_a_source_that_meets_a_stage_is_read_in_it():
    edge, into, read = through(source("in"), "to-model", "model")
    graphs = cut([edge, sunk(both(read, source("prices")), "out")], [], [into])
    assert shown(graphs)["model"] == (["out"], {"to-model": "main"})


def test_an_edge_inside_of_a_stage_ties_both_of_its_ends():
    edge, into, read = through(source("in"), "to-model", "model")
    inner = EdgeNode("inner", None, feedback=False)
    graphs = cut([edge, sunk(inner, "out")], [EdgeBinding(inner, step(read))], [into])
    assert [each.edge.name for each in graphs["model"].edges] == ["inner"]
    assert shown(graphs)["model"] == (["out"], {"to-model": "main"})


def test_a_loop_over_stages_passes_a_feedback_of_one_of_them():
    back = EdgeNode("back", None, feedback=True)
    edge, into, read = through(both(source("in"), back), "to-model", "model")
    again, home, returned = through(read, "again", "main")
    graphs = cut([edge, again, sunk(read, "out")], [EdgeBinding(back, returned)], [into, home])
    assert shown(graphs) == {
        "main": (["to-model"], {"again": "model"}),
        "model": (["again", "out"], {"to-model": "main"}),
    }
    assert loop_of(graphs) == ("main", "model")


def test_a_feedback_is_a_loop_also_through_another_stage():
    back, straight = EdgeNode("back", None, feedback=True), EdgeNode("straight", None, feedback=True)
    edge, into, read = through(both(source("in"), back), "to-model", "model")
    again, home, returned = through(read, "again", "main")
    edges = [EdgeBinding(back, returned), EdgeBinding(straight, returned)]
    bindings = [edge, again, sunk(read, "out"), sunk(straight, "copy")]
    loops = loops_over_stages(bindings, edges, [into, home])
    assert loops == {"back", "to-model", "again"}
    with pytest.raises(GraphInvalid, match="feedback 'straight' is closed by a stream that does not come from it"):
        check_edges([*bindings, sunk(back, "rows")], edges, loops)


def test_a_chain_has_no_loop():
    bindings, inputs = chain()
    assert loop_of(cut(bindings, [], inputs)) == ()


def test_streams_of_two_stages_that_meet_are_refused():
    rows = source("in")
    left, one, first = through(rows, "left", "a")
    right, two, second = through(rows, "right", "b")
    with pytest.raises(GraphInvalid, match="streams of stages 'a' and 'b' meet"):
        cut([left, right, sunk(both(first, second), "out")], [], [one, two])


def test_a_stage_that_would_read_its_own_edge_is_refused():
    rows = source("in")
    edge, into, read = through(rows, "to-model", "model")
    with pytest.raises(GraphInvalid, match="reads its own edge 'to-model'") as refused:
        cut([edge, sunk(both(read, rows), "out")], [], [into])
    assert ".through('NAME', stage='model')" in str(refused.value)


def test_a_stage_without_a_sink_is_refused():
    edge, into, _ = through(source("in"), "to-model", "model")
    with pytest.raises(GraphInvalid, match="no stream of stage 'model' ends in a sink"):
        cut([edge], [], [into])


def test_a_start_takes_the_named_stages_in_the_order_of_rows():
    bindings, inputs = chain()
    graphs = cut(bindings, [], inputs)
    assert list(chosen_stages(graphs, ["report", "main"])) == ["main", "report"]
    assert list(chosen_stages(graphs, ())) == ["main", "model", "report"]
    with pytest.raises(GraphInvalid, match="its stages: main, model, report"):
        chosen_stages(graphs, ["modle"])


def test_a_stage_parses_if_it_or_its_source_may_reject_records():
    edge, into, read = through(source("in", ["value", REJECT]), "to-model", "model")
    graphs = cut([edge, sunk(step(read, "parse"), "out")], [], [into])
    assert [name for name, graph in graphs.items() if parses(graph)] == ["main", "model"]


def test_a_stage_that_only_filters_parses_nothing():
    bindings, inputs = chain()
    assert not any(map(parses, cut(bindings, [], inputs).values()))
