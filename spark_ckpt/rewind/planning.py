"""`spark-ckpt rewind plan`: read, connect, look for the line, tell it. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from spark_ckpt.errors import RewindOutOfReach
from spark_ckpt.protocol.ids import ProcessId
from spark_ckpt.rewind.declared import Declared
from spark_ckpt.rewind.explaining import plan_of
from spark_ckpt.rewind.graph import graph_of
from spark_ckpt.rewind.inputs import Inputs, read_inputs
from spark_ckpt.rewind.intervals import Intervals, named
from spark_ckpt.rewind.line import Line, find_line, nearest
from spark_ckpt.rewind.plan import Plan
from spark_ckpt.rewind.targets import Target, check_target, target_of
from spark_ckpt.rewind.topics import TopicIndex


@dataclass(frozen=True, slots=True)
class Request:
    """What is planned: checkpoints, the target as the user wrote it, tables or folders with tables, what is declared."""

    folders: Sequence[str]
    to: str
    tables: Sequence[str] = ()
    declared: Declared = field(default_factory=Declared)
    broker: TopicIndex | None = None


def plan_rewind(request: Request, now_ms: int) -> Plan:
    """The greatest consistent line at or before the target.

    Raises `RewindOutOfReach` if there is none, with the nearest that there is; `ConfigInvalid`, `CheckpointForeign`,
    `CheckpointUnreadable`, `CheckpointDamaged`, `LogDamaged`, `FormatUnknown` for what cannot be planned for.
    """
    inputs = read_inputs(request.folders, request.tables, request.declared)
    target = target_of(request.to, _query_names(inputs), _table_names(inputs))
    intervals = graph_of(inputs, request.broker, target.process)
    check_target(target, intervals)
    line = find_line(intervals, target.allows)
    if not line.exists:
        raise _out_of_reach(intervals, target, line, inputs.tables)
    return plan_of(inputs, line, target, request.broker, now_ms)


def _query_names(inputs: Inputs) -> dict[str, ProcessId]:
    """What may be written for a query: its name, its id, its folder."""
    found: dict[str, ProcessId] = {}
    for name, query in inputs.queries.items():
        found |= dict.fromkeys((name, query.query, str(query.folder)), ProcessId(name))
    return found


def _table_names(inputs: Inputs) -> dict[str, ProcessId]:
    """What may be written for a table: its path, an id, and the folder's own name where it is one table's only."""
    found: dict[str, ProcessId] = {}
    own = [table.root.name for table in inputs.tables.values()]
    for name, table in inputs.tables.items():
        short = [table.root.name] if own.count(table.root.name) == 1 else []
        found |= dict.fromkeys((str(table.root), *table.ids, *short), name)
    return found


def _out_of_reach(intervals: Intervals, target: Target, line: Line, tables: Collection[ProcessId]) -> RewindOutOfReach:
    found = nearest(target.later(intervals), lambda later: find_line(intervals, later.allows).exists)
    hint = (
        f"the nearest that can be reached: --to {found}"
        if found
        else "no line of these queries can be reached any more"
    )
    process = line.found.missing
    gone = [each for each in line.passed_over(process) if target.allows(process, each)] if process else []
    why = next((f"{process} at {named(each.index, process in tables)}: {each.gone}" for each in gone), None)
    oldest = intervals.points[process][0].index if process else None
    expired = f"the oldest that its log still has is {oldest}" if why is None and oldest != -1 else None
    what = f"nothing at or before {target} can be restored: {process} keeps nothing that is old enough"
    return RewindOutOfReach(what, hint=hint, gone=why, expired=expired)
