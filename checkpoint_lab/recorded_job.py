"""A user's job as a workload of the simulator: graph, sizes and rates that its store has recorded.

The simulator's run stays small: a message stands for a tenth of an epoch's rows, and its clock for the job's. Figures are
scaled back afterwards. What no store records is assumed: a hop takes as long as the next message of a source, and a
failure is noticed and mended within a quarter of an epoch, on average.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from checkpoint_lab.timed import LATENCIES, TIMED
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.machine import ProtocolViolation
from spark_ckpt.epochs.records import EpochBrief, GraphNode, Manifest, StagedFileRecord
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.schemes import store_location
from spark_ckpt.store.stage_folder import Stages, read_stages
from spark_ckpt.store.store import Store

MESSAGES = TIMED.interval_ms / LATENCIES.read_ms
"""Messages of a source in one epoch of the simulator."""

EPOCHS = 30
"""Newest epochs of a store whose means are taken."""

HOPS = replace(LATENCIES, message_ms=LATENCIES.read_ms)
"""A micro-batch takes what came, so a hop takes as long as a source needs for its next message."""

ROW_BYTES = 100
"""Size of a row of a job whose epochs have no output."""

_SOURCE = "source/"


@dataclass(frozen=True)
class RecordedJob:
    """One job, or one program with stages.

    - `interval_ms`: from one epoch to the next, mean.
    - `rows`: input rows of one epoch and source, mean. `row_bytes`: size of a staged row, mean.
    - `state_bytes`: by process of the graph that has state; its size at the newest epoch.
    """

    name: str
    graph: Graph
    interval_ms: float
    rows: float
    row_bytes: float
    state_bytes: Mapping[str, int]
    epochs: int

    @property
    def message_rows(self) -> float:
        """Rows that a message of the simulator stands for."""
        return self.rows / MESSAGES

    @property
    def ms(self) -> float:
        """Milliseconds of the job that one of the simulator stands for."""
        return self.interval_ms / TIMED.interval_ms


@dataclass(frozen=True)
class _Recorded:
    """The newest epochs of one store."""

    manifest: Manifest
    intervals_ms: Sequence[int]
    rows_in: float
    staged: tuple[int, int]
    """Rows and bytes."""

    @property
    def external(self) -> list[str]:
        """Sources, by id."""
        return [node.id for node in self.manifest.graph if not node.inputs]


def read_job(uri: str, stores: Sequence[Store], storage_options: Mapping[str, str]) -> RecordedJob:
    """Return the job that wrote `stores`: that of one store, or all stages of a program in the order of its file.

    Raises `ConfigInvalid` for an outbox, and for a job whose epochs are too few to tell their interval.
    """
    known = read_stages(store_location(uri, storage_options))
    recorded = [_recorded(store) for store in stores]
    if known is None:
        return _of_one(recorded[0])
    return _of_stages(known, recorded)


def _of_one(recorded: _Recorded) -> RecordedJob:
    manifest = recorded.manifest
    if manifest.spark_state is not None:
        # Spark's own operators are no nodes of the recorded graph: the query is one process
        return _of_stages(Stages(job=manifest.job, stages={manifest.job: ()}), [recorded])
    edges = [(_process(each), _process(node.id)) for node in manifest.graph for each in node.inputs]
    state = {
        f"operator:{name}": sum(file.size_bytes for file in each.files) for name, each in manifest.operators.items()
    }
    state |= {f"edge:{name}": sum(file.size_bytes for file in each.files) for name, each in manifest.edges.items()}
    return _job(manifest.job, edges, [recorded], state, [recorded])


def _of_stages(known: Stages, recorded: Sequence[_Recorded]) -> RecordedJob:
    by_stage = dict(zip(known.stages, recorded, strict=True))
    # An edge is a sink of its sender and a source of its reader. A source of another stage may have the same name.
    edge_sources = {
        stage: {f"{_SOURCE}{sink}" for sender in senders for sink in by_stage[sender].manifest.outputs}
        for stage, senders in known.stages.items()
    }
    edges: list[tuple[str, str]] = []
    for stage, each in by_stage.items():
        process = f"stage:{stage}"
        sent = {
            node
            for reader, senders in known.stages.items()
            if stage in senders
            for node in edge_sources[reader].intersection(by_stage[reader].external)
        }
        edges += [(_process(node), process) for node in each.external if node not in edge_sources[stage]]
        edges += [(f"stage:{sender}", process) for sender in dict.fromkeys(known.stages[stage])]
        edges += [(process, _process(node.id)) for node in each.manifest.graph if _is_output(node, sent)]
    state = {f"stage:{stage}": _all_state(each.manifest) for stage, each in by_stage.items()}
    first = [each for stage, each in by_stage.items() if set(each.external) - edge_sources[stage]]
    return _job(known.job, edges, recorded, state, first or recorded)


def _process(node: str) -> str:
    # protocols join names with "/" into keys of records
    return node.replace("/", ":", 1)


def _is_output(node: GraphNode, sent: Collection[str]) -> bool:
    """Return True for a sink that is no edge to another stage."""
    kind, _, name = node.id.partition("/")
    return kind == "sink" and f"{_SOURCE}{name}" not in sent


def _all_state(manifest: Manifest) -> int:
    own = sum(file.size_bytes for each in manifest.operators.values() for file in each.files)
    return own + (manifest.spark_state.state_bytes if manifest.spark_state is not None else 0)


def _job(
    name: str,
    edges: Sequence[tuple[str, str]],
    recorded: Sequence[_Recorded],
    state_bytes: Mapping[str, int],
    readers: Sequence[_Recorded],
) -> RecordedJob:
    try:
        graph = Graph(name, tuple(dict.fromkeys(edges)))
    except ProtocolViolation as error:
        raise ConfigInvalid(f"the graph of job '{name}': {error.what}", hint="name a graph with --graph") from error
    sources = sum(len(each.external) for each in readers)
    rows, size = (sum(each.staged[part] for each in recorded) for part in (0, 1))
    return RecordedJob(
        name,
        graph,
        statistics.fmean(ms for each in recorded for ms in each.intervals_ms),
        sum(each.rows_in for each in readers) / max(1, sources),
        size / rows if rows else ROW_BYTES,
        state_bytes,
        min(len(each.intervals_ms) for each in recorded) + 1,
    )


def _recorded(store: Store) -> _Recorded:
    log = store.log
    log_state = log.state()
    if log_state.kind == "outbox":
        raise ConfigInvalid(
            f"the store belongs to outbox '{log_state.job}', which is a query of Spark without a protocol to choose",
            hint="name the store of a job, or the folder of a program with stages",
        )
    briefs = [brief for brief, _ in zip(log_state.lineage(), range(EPOCHS), strict=False)][::-1]
    pairs = list(_consecutive(briefs))
    manifest = log.manifest(log_state.latest) if pairs else None
    if manifest is None or not manifest.graph:
        raise ConfigInvalid(
            f"job '{log_state.job}' has no two epochs in a row of one incarnation: their interval is not known",
            hint="let the job take two epochs, then compare; or name a graph with --graph",
        )
    # a clock that was set back would make an interval of 0 or less, and rates are divided by it
    intervals = [max(1, after.created_ms - before.created_ms) for before, after in pairs]
    rows_in = statistics.fmean(after.rows_in for _, after in pairs)
    return _Recorded(manifest, intervals, rows_in, _staged(log, [after.epoch for _, after in pairs[-5:]]))


def _consecutive(briefs: Sequence[EpochBrief]) -> Iterable[tuple[EpochBrief, EpochBrief]]:
    for before, after in pairwise(briefs):
        # after a restart, or where retention dropped an epoch between, the distance of two epochs is no interval
        if after.base == before.epoch and after.incarnation == before.incarnation:
            yield before, after


def _staged(log: EpochLog, epochs: Sequence[int]) -> tuple[int, int]:
    files = [file for manifest in log.manifests(epochs) for file in _files(manifest)]
    return sum(file.rows for file in files), sum(file.size_bytes for file in files)


def _files(manifest: Manifest) -> Iterable[StagedFileRecord]:
    return (file for output in manifest.outputs.values() for file in output.files)
