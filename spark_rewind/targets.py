"""The target of a rewind (`--to`): a time, a batch of a query, a version of a table, or a pinned point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from checkpoint_protocols.ids import ProcessId
from spark_ckpt.errors import ConfigInvalid
from spark_rewind.intervals import Intervals, Point
from spark_rewind.reading import local_folder

TargetKind = Literal["time", "batch", "table", "point"]
_HINT = "write 2026-01-31T14:00:00Z, QUERY@BATCH, TABLE@VERSION, or with --pins the name of a point"


@dataclass(frozen=True, slots=True)
class RewindTarget:
    """Upper bound of a rewind.

    - `most`: newest time (milliseconds since 1970), batch or version that is allowed.
    - `process`: query or table that `most` limits; None limits all queries.
    - `limits`: of a pinned point, the newest batch of each of its queries. `most` is then the time of the pin.
    - `label`: name of a pinned point, or of a table, as `--to` takes it.
    """

    kind: TargetKind
    most: int
    process: ProcessId | None = None
    queries: frozenset[ProcessId] = frozenset()
    label: str = ""
    limits: Mapping[ProcessId, int] = field(default_factory=dict)

    def allows(self, process: ProcessId, point: Point) -> bool:
        """Return true for a point at or before the target.

        A target excludes every unfinished batch of a process that it limits.
        """
        if self.kind == "point":
            return process not in self.limits or (point.index is not None and point.index <= self.limits[process])
        if self.kind != "time":
            return process != self.process or (point.index is not None and point.index <= self.most)
        # a time limits queries only, and the beginning precedes every time
        if process not in self.queries or point.index == -1:
            return True
        return point.at_ms is not None and point.at_ms <= self.most

    def __str__(self) -> str:
        if self.kind == "point":
            return self.label
        if self.kind != "time":
            return f"{self.label or self.process}@{self.most}"
        moment = datetime.fromtimestamp(self.most / 1000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def later(self, intervals: Intervals) -> list[RewindTarget]:
        """Return later targets, nearest first. The search for a reachable target tries them."""
        if self.kind in ("point", "time"):  # after a point, too, come times: what follows it has no name
            every = {each.at_ms for name in self.queries for each in intervals.points[name] if each.at_ms is not None}
            later = RewindTarget("time", self.most, None, self.queries)
            return [replace(later, most=moment) for moment in sorted(every) if moment > self.most]
        points = intervals.points[self.process] if self.process is not None else ()
        numbers = sorted(each.index for each in points if each.index is not None)
        return [replace(self, most=number) for number in numbers if number > self.most]


def target_of(written: str, queries: Mapping[str, ProcessId], tables: Mapping[str, ProcessId]) -> RewindTarget:
    """Parse the text that the user wrote as `--to`.

    Both mappings lead from a name that the user may write to its process. A bare number is a batch if there is one
    query. Raises `ConfigInvalid`.
    """
    everybody = frozenset(queries.values())
    # The last `@`: a folder may have one in its name.
    name, at, number = written.rpartition("@")
    if not at and written.isdecimal():
        if len(everybody) != 1:
            raise ConfigInvalid(f"--to {written}: of which query?", hint=_HINT)
        return RewindTarget("batch", int(written), next(iter(everybody)), everybody)
    if not at:
        return RewindTarget("time", _moment(written), None, everybody)
    # `isdecimal` accepts digits of every script.
    if not (number.isdecimal() and number.isascii()):
        raise ConfigInvalid(f"--to {written}: {number!r} is no number", hint=_HINT)
    query, table = (known.get(name) or known.get(_place(name)) for known in (queries, tables))
    if query is not None and table is not None:
        raise ConfigInvalid(f"--to {written} names a query and a table", hint="name it by its full path")
    if query is None and table is None:
        raise _unknown(written, name, queries, tables)
    if query is not None:
        return RewindTarget("batch", int(number), query, everybody)
    return RewindTarget("table", int(number), table, everybody, name)


def _place(name: str) -> str:
    """Return the folder that a path names, as a plan spells it; a name without a slash unchanged."""
    return str(local_folder(name)) if "/" in name else name


def _unknown(
    written: str, name: str, queries: Mapping[str, ProcessId], tables: Mapping[str, ProcessId]
) -> ConfigInvalid:
    several = [each for each in _known(queries, tables) if each.endswith(f"/{name}")]
    if len(several) > 1:
        hint = f"name one of them: {', '.join(several)}"
        return ConfigInvalid(f"--to {written}: {name!r} may be any of {len(several)}", hint=hint)
    hint = f"there are: {', '.join(_known(queries, tables)) or 'none'}"
    return ConfigInvalid(f"--to {written}: there is no query and no table {name!r}", hint=hint)


def check_target(target: RewindTarget, intervals: Intervals) -> None:
    """Check that a target's batch or version exists. Raises `ConfigInvalid` for a number above the newest."""
    if target.process is None:
        return
    numbers = [each.index for each in intervals.points[target.process] if each.index is not None]
    newest = max(numbers, default=-1)
    if target.most > newest:
        kind = "batch" if target.kind == "batch" else "version"
        over = "committed batch" if target.kind == "batch" else "version"
        known = f"its newest {over} is {newest}" if newest >= 0 else f"it has no {over} yet"
        raise ConfigInvalid(f"--to {target}: there is no {kind} {target.most}, {known}", hint=_HINT)


def _moment(written: str) -> int:
    try:
        moment = datetime.fromisoformat(written)
        if moment.tzinfo is None:
            hint = "write it with Z, or with an offset as +02:00"
            raise ConfigInvalid(f"--to {written}: in which time zone?", hint=hint)
        return int(moment.astimezone(UTC).timestamp() * 1000)
    # The second: in UTC it is before the year 1, or after 9999.
    except (ValueError, OverflowError) as error:
        raise ConfigInvalid(f"--to {written} is neither a time nor NAME@NUMBER", hint=_HINT) from error


def _known(queries: Mapping[str, ProcessId], tables: Mapping[str, ProcessId]) -> list[str]:
    """Return one name of each query and table that `--to` takes: the first of its names."""
    found: dict[ProcessId, str] = {}
    for name, process in (*queries.items(), *tables.items()):
        found.setdefault(process, name)
    return sorted(found.values())
