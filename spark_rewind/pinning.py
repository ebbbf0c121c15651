"""`spark-ckpt rewind pin`: keep the greatest consistent line as of now, with the files that its batches need.

Queries may run meanwhile. The line consists of committed batches. It is consistent even if queries are read at
different times: the search for the line moves a reader back that has seen more than its writer shows. If a query
deletes files while they are linked, the pin tries again on a newer line. A point is prepared under a hidden name and
appears atomically.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from checkpoint_protocols.checkpoints.recovery_line import Candidate
from checkpoint_protocols.ids import ProcessId
from spark_ckpt.errors import (
    CheckpointDamaged,
    ConfigInvalid,
    EpochNotFound,
    LogDamaged,
    PinsOverBudget,
    RewindOutOfReach,
)
from spark_ckpt.spark_internals.query_logs import COMMITS, ID_FILE, OFFSETS, SOURCES
from spark_rewind.checkpoint import QueryCheckpoint
from spark_rewind.checkpoint_copy import CheckpointCut, copy_checkpoint
from spark_rewind.durable import replace as replace_file
from spark_rewind.durable import sync_folder, sync_tree, written
from spark_rewind.graph import graph_of
from spark_rewind.inputs import Inputs, read_inputs
from spark_rewind.intervals import Point as LinePoint
from spark_rewind.line import find_line
from spark_rewind.outboxes import RewoundOutbox, opened
from spark_rewind.pins import (
    MANIFEST,
    POINTS,
    QUERIES,
    TABLES,
    FileId,
    KeptPoint,
    PinnedOutbox,
    PinnedPoint,
    PinnedQuery,
    PinnedTable,
    digests_of,
    held,
    hide,
    kept_points,
    listed,
    named_point,
    remove_for_now,
    remove_point,
)
from spark_rewind.planning import RewindRequest
from spark_rewind.positions import DeltaPosition
from spark_rewind.table_holding import hold
from spark_rewind.tables import Table

TRIES = 5
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_AN_ID = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class PinRequest:
    """Arguments of a pin.

    - `plan`: queries and tables, as for a plan.
    - `into`: the folder of points.
    - `budget_bytes`: limit of all points together.
    - `table_files`: hold data files of tables, too.
    """

    plan: RewindRequest
    into: Path
    name: str | None = None
    budget_bytes: int | None = None
    table_files: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """A new point. `dropped`: points without a name that were removed for it."""

    kept: KeptPoint
    dropped: tuple[KeptPoint, ...]


def take_pin(request: PinRequest, now_ms: int) -> Taken:
    """Pin a point. `now_ms`: milliseconds since 1970. The point is complete when this returns, or absent after an error.

    Raises `ConfigInvalid`, `PinsInUse`, `PinsOverBudget`, `RewindOutOfReach` (no line), and the errors of reading.
    Raises `RewindNotPermitted` if the file system refuses.
    """
    _check_name(request.name)
    with held(request.into):
        points = kept_points(request.into)
        if request.name is not None and named_point(points, request.name) is not None:
            hint = "choose another name, or take that point away: spark-ckpt rewind unpin"
            raise ConfigInvalid(f"{request.into} holds a point {request.name!r} already", hint=hint)
        # The time sorts points by age, the random part separates those of one millisecond.
        identity = (
            f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}{now_ms % 1000:03d}Z-{secrets.token_hex(4)}"
        )
        # Hidden until it is complete: the next pin removes what a process that died has left.
        prepared = request.into / POINTS / f".new-{identity}"
        try:
            point = prepare(
                request,
                prepared,
                PinnedPoint(id=identity, name=request.name, taken_at_ms=now_ms, queries=[], tables=[]),
                points,
            )
            dropped = _over_budget(request, KeptPoint(prepared, point), points)
        except BaseException:
            remove_point(prepared)
            raise
        final = prepared.with_name(identity)
        with written(final):
            prepared.rename(final)
            sync_folder(final.parent)
        # old points are removed after the new one is in place: an error keeps them all
        for each in dropped:
            remove_for_now(hide(each))
        return Taken(KeptPoint(final, point), tuple(dropped))


def _check_name(name: str | None) -> None:
    if name is not None and (not _NAME.fullmatch(name) or _AN_ID.fullmatch(name)):
        hint = "use letters, digits, '.', '_' and '-', a hundred at most"
        raise ConfigInvalid(f"{name!r} is no name for a point", hint=hint)


def prepare(request: PinRequest, folder: Path, point: PinnedPoint, points: Sequence[KeptPoint]) -> PinnedPoint:
    """Prepare the point in a hidden folder. Try again if a file disappeared meanwhile."""
    for attempt in range(1, TRIES + 1):
        # What the attempt before has left, with its savepoints.
        remove_point(folder)
        try:
            # Read again each time: a newer line needs newer files, and a query that deletes some has committed more.
            return _attempt(request, folder, point, digests_of(points))
        except FileNotFoundError as error:
            if attempt == TRIES:
                hint = (
                    "it deletes its files faster than they can be linked: raise spark.sql.streaming.minBatchesToRetain"
                )
                raise CheckpointDamaged(f"{error.filename} went away while it was pinned", hint=hint) from error
        # A query that deletes its files while they are read looks damaged, until it is read again.
        except (CheckpointDamaged, LogDamaged, EpochNotFound):
            if attempt == TRIES:
                raise
    raise AssertionError


def _attempt(request: PinRequest, folder: Path, point: PinnedPoint, known: Mapping[FileId, str]) -> PinnedPoint:
    plan = request.plan
    inputs = read_inputs(plan.folders, plan.tables, plan.declared, outboxes=plan.outboxes)
    chosen = _line_of(inputs, request.plan)
    folder.mkdir()
    (folder / QUERIES).mkdir()
    queries = [
        _keep(query, chosen[ProcessId(name)].index, folder, f"{QUERIES}/{number}", known)
        for number, (name, query) in enumerate(inputs.queries.items())
    ]
    lines = [
        batch.ends.values()
        for name, query in inputs.queries.items()
        if (batch := query.batch(_number(chosen[ProcessId(name)].index))) is not None
    ]
    positions = [end for ends in lines for end in ends if isinstance(end, DeltaPosition)]
    tables = [
        _keep_table(table, _number(chosen[name].index), folder, f"{TABLES}/{number}", positions)
        if request.table_files
        else PinnedTable(path=str(table.root), ids=sorted(table.ids), version=_number(chosen[name].index))
        for number, (name, table) in enumerate(inputs.tables.items())
        if name in chosen
    ]
    outboxes = [_pinned_outbox(each, chosen[ProcessId(each.query.name)].index, point.id) for each in inputs.outboxes]
    kept = [each for each in outboxes if each is not None]
    whole = point.model_copy(update={"queries": queries, "tables": tables, "outboxes": kept})
    # No hard link, which the place of the points need not have: the folder is this pin's own.
    replace_file(folder / MANIFEST, whole.model_dump_json(indent=1).encode())
    sync_tree(folder)
    # after the list of them: a pin that dies then leaves a list of savepoints to drop
    for each in kept:
        opened(each.store).log.add_savepoint(each.savepoint, each.epoch)
    return whole


def _pinned_outbox(outbox: RewoundOutbox, index: int | None, point: str) -> PinnedOutbox | None:
    """Return the epoch that the outbox must keep for a batch; None if its log does not have it."""
    number = _number(index)
    epoch = outbox.pinnable(outbox.query.batch(number) if number >= 0 else None)
    if epoch is None:
        return None
    return PinnedOutbox(
        store=outbox.uri, name=outbox.name, query=outbox.query.query, epoch=epoch, savepoint=f"rewind-{point}"
    )


def _line_of(inputs: Inputs, request: RewindRequest) -> Mapping[ProcessId, Candidate]:
    """Return the greatest line of committed batches. The newest batches are checked like all others."""
    queries = frozenset(map(ProcessId, inputs.queries))

    # the current state of a query may include an unfinished batch, which is never pinned
    def is_over(process: ProcessId, each: LinePoint) -> bool:
        return process not in queries or each.index is not None

    line = find_line(graph_of(inputs, request.broker), is_over, judge_now=True)
    if not line.exists:
        missing = line.found.missing
        hint = "plan with `spark-ckpt rewind plan` to see why, or leave this query out"
        raise RewindOutOfReach(f"there is no consistent line as of now: {missing} keeps nothing that fits", hint=hint)
    return line.found.chosen


def _number(index: int | None) -> int:
    return -1 if index is None else index


def _keep(
    query: QueryCheckpoint, index: int | None, folder: Path, kept_in: str, known: Mapping[FileId, str]
) -> PinnedQuery:
    batch = query.batch(_number(index))
    target = folder / kept_in
    # Before the copy: the point must not get the inode of a folder that a rewind puts there meanwhile.
    inode = query.folder.stat().st_ino
    if batch is not None:
        copy_checkpoint(query, CheckpointCut(batch.number, alone=True), target)
        _copy_logs(target)
    return PinnedQuery(
        name=query.name,
        folder=str(query.folder),
        query=query.query,
        batch=_number(index),
        committed_ms=batch.committed_ms if batch else None,
        inode=inode,
        kept_in=kept_in,
        files=listed(target, known) if batch else [],
    )


def _keep_table(
    table: Table, version: int, folder: Path, kept_in: str, positions: Sequence[DeltaPosition]
) -> PinnedTable:
    """Return a table with links to its data files. A version before the first has none."""
    pinned = PinnedTable(path=str(table.root), ids=sorted(table.ids), version=version)
    if version < 0:
        return pinned
    readers = [each for each in positions if each.table in table.ids]
    return pinned.model_copy(update={"kept_in": kept_in, "files": hold(table, version, readers, folder / kept_in)})


def _copy_logs(folder: Path) -> None:
    logs = [path for name in (OFFSETS, COMMITS, SOURCES) for path in (folder / name).rglob("*") if path.is_file()]
    for path in [folder / ID_FILE, *logs]:
        found = path.stat()
        # A change of the checkpoint's file would reach a link. The times stay: they tell when a batch was committed.
        if found.st_nlink > 1:
            replace_file(path, path.read_bytes(), times_ns=(found.st_atime_ns, found.st_mtime_ns))


# -- the budget ------------------------------------------------------------------------------------------------------------


def _over_budget(request: PinRequest, new: KeptPoint, points: Sequence[KeptPoint]) -> list[KeptPoint]:
    """Return points without a name that the new point displaces, oldest first. Raises `PinsOverBudget`."""
    if request.budget_bytes is None:
        return []
    files = {each.folder: each.files() for each in [*points, new]}
    staying, dropped = list(points), list[KeptPoint]()
    # By file and not by point: the removal of a point frees only files that no other point shares.
    while (needed := _bytes([files[each.folder] for each in [*staying, new]])) > request.budget_bytes:
        # An unreadable point stays: it may have a name, and a later version may have written it.
        victim = next((each for each in staying if each.point is not None and each.point.name is None), None)
        if victim is None:
            held_bytes = _bytes([files[each.folder] for each in staying])
            broken = [each.folder.name for each in staying if each.point is None]
            also = f" and the unreadable {', '.join(broken)}" if broken else ""
            what = f"the new point and the named ones{also} hold {needed:,} bytes, {request.budget_bytes:,} are allowed"
            hint = f"raise --budget, or take points away (they hold {held_bytes:,} bytes): spark-ckpt rewind unpin"
            raise PinsOverBudget(what, hint=hint)
        staying.remove(victim)
        dropped.append(victim)
    return dropped


def _bytes(held: Sequence[Mapping[FileId, int]]) -> int:
    """Return the size of all files in bytes. Each counts once, even with several names."""
    together: dict[FileId, int] = {}
    for each in held:
        together |= each
    return sum(together.values())
