"""Reports about pinned points: their content, and the parts that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from spark_ckpt.errors import CkptError
from spark_rewind.outboxes import opened
from spark_rewind.pins import FileId, KeptPoint, PinnedOutbox, PinnedTable, damage, kept_points
from spark_rewind.table_holding import held_in
from spark_rewind.tables import Table, read_table


class PointReport(BaseModel):
    """Report about one point.

    - `queries`: batches by name. `tables`: versions by path.
    - `gone`: sentences about parts that no longer exist.
    - `held_bytes`: size of its files, each counted once. Files that other points share count here, too.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: str
    name: str | None
    taken_at_ms: int | None
    queries: dict[str, int]
    tables: dict[str, int]
    held_bytes: int
    gone: list[str]

    @property
    def label(self) -> str:
        """Name of the point, its id without one."""
        return self.name or self.id


@dataclass(frozen=True, slots=True)
class PointReports:
    """Reports of all points, oldest first. `held_bytes`: size of all files together, each counted once."""

    points: list[PointReport]
    held_bytes: int


def report_points(pins: Path) -> PointReports:
    """Report about all points.

    Raises `PinsForeign`, `CheckpointUnreadable`; the report of a damaged point names the damage.
    """
    points = kept_points(pins)
    # Each table once: many points name the same ones.
    table = cache(partial(_table, points))
    together: dict[FileId, int] = {}
    found = []
    for kept in points:
        files = kept.files()
        together |= files
        point = kept.point
        found.append(
            PointReport(
                id=kept.folder.name,
                name=point.name if point else None,
                taken_at_ms=point.taken_at_ms if point else None,
                queries={each.name: each.batch for each in point.queries} if point else {},
                tables={each.path: each.version for each in point.tables} if point else {},
                held_bytes=sum(files.values()),
                gone=list(_gone(kept, table)),
            )
        )
    return PointReports(found, sum(together.values()))


def _gone(kept: KeptPoint, table: Callable[[str], Table | str]) -> Iterator[str]:
    if kept.point is None:
        yield kept.broken or "it cannot be read"
        return
    for query in kept.point.queries:
        if (why := damage(kept, query)) is not None:
            yield f"{query.name} batch {query.batch}: {why}"
    for pinned in kept.point.tables:
        if (why := _version_gone(pinned, table(pinned.path))) is not None:
            yield f"{pinned.path} version {pinned.version}: {why}"
    for outbox in kept.point.outboxes:
        if (why := _epoch_gone(outbox)) is not None:
            yield f"outbox {outbox.name} epoch {outbox.epoch}: {why}"


def _epoch_gone(outbox: PinnedOutbox) -> str | None:
    try:
        log_state = opened(outbox.store).log.state()
    except CkptError as error:
        return error.what
    if log_state.savepoints.get(outbox.savepoint) == outbox.epoch:
        return None
    return f"savepoint {outbox.savepoint} is not in the log of {outbox.store}"


def _table(points: Sequence[KeptPoint], path: str) -> Table | str:
    try:
        return read_table(Path(path), held_in(points, Path(path)))
    except CkptError as error:
        return error.what


def _version_gone(pinned: PinnedTable, table: Table | str) -> str | None:
    if isinstance(table, str):
        return table
    if not table.ids.intersection(pinned.ids):
        return "another table is there now"
    if pinned.version > table.newest:
        return f"the table's newest version is {table.newest}"
    return None if pinned.version < 0 else table.restore_gone(pinned.version)
