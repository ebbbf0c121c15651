"""`spark-ckpt rewind plan`: read the inputs, connect them, search the line, report it. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint_protocols.ids import ProcessId
from spark_ckpt.errors import RewindOutOfReach
from spark_rewind.connections import delta_positions
from spark_rewind.declared import Declared
from spark_rewind.explaining import plan_of
from spark_rewind.graph import graph_of
from spark_rewind.inputs import Inputs, read_inputs
from spark_rewind.intervals import Intervals, named
from spark_rewind.line import Line, find_line, nearest
from spark_rewind.pins import KeptPoint, kept_points, named_point
from spark_rewind.plan import RewindPlan
from spark_rewind.positions import DeltaPosition
from spark_rewind.tables import Table
from spark_rewind.targets import RewindTarget, check_target, target_of
from spark_rewind.topics import TopicIndex


@dataclass(frozen=True, slots=True)
class RewindRequest:
    """Arguments of a plan.

    - `folders`: checkpoints. `to`: the target as the user wrote it.
    - `tables`: tables, or folders with tables. `declared`: the user's declarations.
    - `broker`: index of a Kafka cluster. `pins`: a folder of pinned points that take part.
    - `outboxes`: stores of the queries' outboxes.
    """

    folders: Sequence[str]
    to: str
    tables: Sequence[str] = ()
    declared: Declared = field(default_factory=Declared)
    broker: TopicIndex | None = None
    pins: Path | None = None
    outboxes: Sequence[str] = ()


def plan_rewind(request: RewindRequest, now_ms: int) -> RewindPlan:
    """Plan a rewind to the greatest consistent line at or before the target. `now_ms`: milliseconds since 1970.

    Raises `RewindOutOfReach` if there is no line, with the nearest target that has one. Raises `ConfigInvalid`,
    `CheckpointForeign`, `CheckpointUnreadable`, `CheckpointDamaged`, `LogDamaged`, `FormatUnknown` for inputs that no
    plan can use.
    """
    # Before the checkpoints: a point that is pinned meanwhile would name batches that they do not have yet.
    # The plan names folders in the points, and is applied from other working folders, too.
    points = kept_points(request.pins.absolute()) if request.pins is not None else []
    inputs = read_inputs(request.folders, request.tables, request.declared, points, request.outboxes)
    pinned = named_point(points, request.to)
    target = _target_at(pinned, inputs) if pinned is not None else _target_of(request.to, inputs)
    intervals = graph_of(inputs, request.broker, target.process)
    check_target(target, intervals)
    line = find_line(intervals, target.allows)
    if not line.exists:
        raise _out_of_reach(intervals, target, line, inputs.tables)
    _require_readable(inputs, line)
    return plan_of(inputs, line, target, request.broker, now_ms)


def _require_readable(inputs: Inputs, line: Line) -> None:
    """Check that readers of tables that roll back can read on up to the line, also readers that stay.

    A plan does not judge the present, but `apply` writes the versions once more that such a reader has not read. Raises
    `RewindOutOfReach`.
    """
    for process, table in inputs.tables.items():
        chosen = line.found.chosen.get(process)
        if chosen is None or chosen.index is None or chosen.index == table.newest:
            continue
        for name, query in inputs.queries.items():
            at = line.found.chosen[ProcessId(name)].index
            # An unfinished batch is repeated from the end of the one before.
            for index in {at, query.committed if at is None else at}:
                for each in delta_positions(query, index):
                    if each.table in table.ids and (why := _unreadable(table, each, chosen.index)) is not None:
                        raise RewindOutOfReach(
                            f"table {table.root} cannot roll back with its reader {name}, which reads on at version "
                            f"{each.version}: {why}",
                            hint=f"leave {name} out of the plan: it cannot read on without a rewind either, and begins again "
                            "with a new checkpoint; or bring the file back from a backup",
                        )


def _unreadable(table: Table, position: DeltaPosition, line: int) -> str | None:
    oldest = table.versions[0]
    # The numbers of versions before a rollback do not compare, but their commits may be there: `apply` judges them.
    if position.version > line or (oldest.restored and position.version < oldest.number):
        return None
    if not position.snapshot:
        return table.feed_gone(position.version, line)
    return table.restore_gone(position.version) or table.feed_gone(position.version + 1, line)


def _target_of(written: str, inputs: Inputs) -> RewindTarget:
    return target_of(written, _query_names(inputs), _table_names(inputs))


def _target_at(kept: KeptPoint, inputs: Inputs) -> RewindTarget:
    """Return a pinned point as a target.

    Raises `RewindOutOfReach` for a batch that these queries' history does not contain.
    """
    if kept.point is None:
        raise RewindOutOfReach(f"pinned point {kept.folder.name}: {kept.broken}", hint="choose another target")
    limits: dict[ProcessId, int] = {}
    names = {query.query: name for name, query in inputs.queries.items()}
    for each in kept.point.queries:
        if (name := names.get(each.query)) is None:
            # a pinned query that is not part of this plan limits nothing
            continue
        if (why := inputs.refused.get((name, kept.point.label))) is not None:
            what = f"pinned point {kept.point.label} is not of the past of {name}: {why}"
            raise RewindOutOfReach(what, hint="choose another target")
        limits[ProcessId(name)] = each.batch
    everybody = frozenset(map(ProcessId, inputs.queries))
    return RewindTarget("point", kept.point.taken_at_ms, None, everybody, kept.point.label, limits)


def _query_names(inputs: Inputs) -> dict[str, ProcessId]:
    """Return the names that a target may use for each query: its name, its id, its folder."""
    found: dict[str, ProcessId] = {}
    for name, query in inputs.queries.items():
        found |= dict.fromkeys((name, query.query, str(query.folder)), ProcessId(name))
    return found


def _table_names(inputs: Inputs) -> dict[str, ProcessId]:
    """Return the names that a target may use for each table: its path, an id, and its folder's name if it is unique."""
    found: dict[str, ProcessId] = {}
    own = [table.root.name for table in inputs.tables.values()]
    for name, table in inputs.tables.items():
        short = [table.root.name] if own.count(table.root.name) == 1 else []
        found |= dict.fromkeys((str(table.root), *table.ids, *short), name)
    return found


def _out_of_reach(
    intervals: Intervals, target: RewindTarget, line: Line, tables: Collection[ProcessId]
) -> RewindOutOfReach:
    # a target may be gone through retention: offer the nearest reachable one
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
