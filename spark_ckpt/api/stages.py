"""Stages of a program at its start: checks, their stores, and the edges that join them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product

from spark_ckpt.coordination.stage_process import Between
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.partial_recovery import of_stage
from spark_ckpt.errors import UNREADABLE, ConfigInvalid, GraphInvalid
from spark_ckpt.plan.graph import Node, SourceNode, operators_of, sources_of
from spark_ckpt.plan.stages import StageGraph, loop_of
from spark_ckpt.program_edges.sink import EdgeSink
from spark_ckpt.program_edges.source import EdgeSource
from spark_ckpt.store.schemes import store_location
from spark_ckpt.store.stage_folder import Stages, record_stages, stage_job
from spark_ckpt.store.store import Store


def check_stages(
    chosen: Collection[str],
    graphs: Mapping[str, StageGraph],
    between: Between,
    one_epoch: bool,
    available_now: bool,
) -> None:
    """Raise `GraphInvalid` or `ConfigInvalid` for a start that several stages cannot have.

    `one_epoch`: the start names an epoch to restore.
    """
    _check_protocol(between, loop_of(graphs), available_now)  # of all stages, also those of other processes
    if one_epoch and len(chosen) > 1:
        raise ConfigInvalid(
            "an epoch to restore is one of a single stage",
            hint="spark-ckpt restore STORE --to LINE restores all stages to one line; then start without restore=",
        )
    loop = loop_of(graphs)
    if available_now and len(chosen) > 1 and loop:
        raise GraphInvalid(
            f"stages {', '.join(loop)} form a loop: it has no last stage that could be drained",
            hint="start without availableNow, and call run.stop() when it is enough",
        )


def _check_protocol(between: Between, loop: Sequence[str], available_now: bool) -> None:
    if between is Between.ALIGNED and loop:
        raise GraphInvalid(
            f"stages {', '.join(loop)} form a loop: aligned, each would wait for rows of the others",
            hint='protocol="unaligned" has lines in loops, too',
        )
    if between.decides_lines and available_now:
        raise GraphInvalid(
            f'protocol="{between}" cannot drain: sinks publish when every stage has reached a line, and a drain ends before',
            hint="start without availableNow, and call run.stop() when the sinks have enough",
        )


def confirmed_in(
    stage: str, graphs: Mapping[str, StageGraph], chosen: Collection[str], confirmed: Confirmed
) -> Confirmed:
    """Return the confirmations that concern a stage, without those of other stages' sources and sinks.

    - `graphs`: all stages of the program. `chosen`: the stages of this start.

    A name that no stage has stays: each start refuses it.
    """
    sinks = {name: {each.name for each in graph.bindings} for name, graph in graphs.items()}
    sources = {name: {each.name for each in _sources_of(graph)} for name, graph in graphs.items()}
    # An edge between two stages is a sink of one and a source of the other.
    other_sinks = set[str]().union(*sinks.values()) - sinks[stage]
    other_sources = set[str]().union(*sources.values()) - sources[stage]
    # An operator or source that moved is dropped by the stage that had it. A stage that is started alone refuses the name.
    moved = len(chosen) > 1
    own_operators = {each.name for each in operators_of(*_nodes_of(graphs[stage]))} if moved else set[str]()
    own_sources = sources[stage] if moved else set[str]()
    return replace(
        confirmed,
        new_sinks=confirmed.new_sinks - other_sinks,
        new_sources=confirmed.new_sources - other_sources,
        lost_rows=confirmed.lost_rows - other_sources,
        dropped_operators=confirmed.dropped_operators - own_operators,
        dropped_sources=confirmed.dropped_sources - own_sources,
        moved=confirmed.moved - ((other_sinks | other_sources) - sinks[stage] - sources[stage]),
    )


def refuse_moved(graphs: Mapping[str, StageGraph], chosen: Collection[str], stores: Mapping[str, Store]) -> None:
    """Raise `GraphInvalid` if a chosen stage would begin an operator or source again that the newest epoch of a stage has
    which this start leaves out.

    The start of that stage refuses as well, but comes too late: this stage has published by then.
    """
    had = {name: _names_in_newest(store) for name, store in stores.items()} if len(chosen) < len(graphs) else {}
    for stage, other in product(chosen, had.keys() - set(chosen)):
        operators = {each.name for each in operators_of(*_nodes_of(graphs[stage]))} - had[stage].dropped_operators
        sources = {each.name for each in _sources_of(graphs[stage])} - had[stage].dropped_sources
        moved = Confirmed(
            dropped_operators=had[other].dropped_operators & operators,
            dropped_sources=had[other].dropped_sources & sources,
        )
        if moved != Confirmed():
            names = ", ".join(sorted(moved.dropped_operators | moved.dropped_sources))
            raise GraphInvalid(
                f"stage '{stage}' would begin again with {names}, which moved here: the newest epoch of stage '{other}' has it",
                hint=f"move it back; or continue without its state: stop stage '{other}', and run it until its next epoch with "
                f"{of_stage(moved.call(), other)}; then start stage '{stage}' again",
                stage=stage,
            )


def _names_in_newest(store: Store) -> Confirmed:
    """Return the operators and sources of the newest epoch, as the confirmation that drops all of them."""
    latest = store.log.state().latest
    # The start of its own stage reports a damaged one.
    with suppress(*UNREADABLE):
        if latest:
            newest = store.log.manifest(latest)
            return Confirmed(dropped_operators=frozenset(newest.operators), dropped_sources=frozenset(newest.cursors))
    return Confirmed()


def _sources_of(graph: StageGraph) -> Sequence[SourceNode]:
    return sources_of(*_nodes_of(graph))


def _nodes_of(graph: StageGraph) -> tuple[Node, ...]:
    return (*(binding.node for binding in graph.bindings), *(edge.node for edge in graph.edges))


def opened_stages(
    job: str, uri: str, storage_options: Mapping[str, str], graphs: Mapping[str, StageGraph], chosen: Collection[str]
) -> dict[str, Store]:
    """Open the store of every stage, or create it, with the columns of its edges; so stages start in any order.

    `chosen`: the stages of this start. None of them may have got an operator from another one (`refuse_moved`).

    Raises `StoreForeign`, `ConfigInvalid`, `GraphInvalid`, a `StoreOutage`.
    """
    root = store_location(uri, storage_options)
    senders = {name: tuple(sorted(set(graph.senders.values()))) for name, graph in graphs.items()}
    # Before the stores: commands find the stages of a program by this file.
    record_stages(root, Stages(job=job, stages=senders))
    stores = {name: Store.open(root.child(name).uri, stage_job(job, name), storage_options) for name in graphs}
    for name, graph in graphs.items():
        declared = stores[name].published_edges()
        for binding in graph.bindings:
            # A sender that runs has declared its own columns, which an older reader of this file may not have.
            if isinstance(binding.sink, EdgeSink) and binding.name not in declared:
                stores[name].staged(binding.name).declare(binding.schema.json())
    refuse_moved(graphs, chosen, stores)
    return stores


def join_stages(graph: StageGraph, stores: Mapping[str, Store], indexed: bool) -> None:
    """Set the senders of a stage's inputs. `indexed`: the stages run with `protocol="index"`."""
    own = stores[graph.name].location
    for node in _sources_of(graph):
        if node.name not in graph.senders or not isinstance(node.source, EdgeSource):
            continue
        sender = stores[graph.senders[node.name]]
        options = sender.location.storage_options
        node.source.join_stages(sender.location.uri, sender.job, options, node.schema)
        if indexed:
            node.source.wait_for_index_of(own.uri, options)
