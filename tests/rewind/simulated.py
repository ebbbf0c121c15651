"""Random histories of queries around Delta tables, and an oracle with the facts of each history.

The history is kept twice: as the checkpoints and logs that Spark and Delta would write, for the planner; and as a ledger of
single facts (this batch read that version, this version holds that batch), for the oracle, which has no counts and no channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random

from checkpoint_protocols.ids import ProcessId
from spark_ckpt.spark_internals.state_files import StoreFiles
from spark_rewind.checkpoint import Batch, Pinned, QueryCheckpoint
from spark_rewind.declared import Declared
from spark_rewind.inputs import Inputs, table_process
from spark_rewind.positions import DeltaPosition, Position
from spark_rewind.state_versions import OperatorVersions, StoreVersions
from spark_rewind.tables import Table, Version
from spark_rewind.targets import RewindTarget

Line = Mapping[ProcessId, int | None]
"""Each query's batch and each table's version; None for a query as it is now, -1 before all."""


@dataclass
class Ledger:
    """Facts. `touched`: versions of tables of which a batch read any file. `unread`: the first version not wholly read by then."""

    touched: dict[tuple[str, int], set[tuple[str, int]]] = field(default_factory=dict)
    unread: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    wrote: dict[tuple[str, int], set[tuple[str, int]]] = field(default_factory=dict)


@dataclass
class SimTable:
    """A table with the writer of each version, as (query, batch); None for another writer."""

    name: str
    versions: list[tuple[str, int] | None] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)

    process: ProcessId = field(init=False)

    def __post_init__(self) -> None:
        self.process = table_process(Path("/lake") / self.name)  # once: the search by brute force asks at each line


@dataclass
class SimQuery:
    """A query with its inputs, outputs and batches, of which the last may be unfinished."""

    name: str
    reads: list[str]
    writes: list[str]
    ends: list[dict[str, DeltaPosition | None]] = field(default_factory=list)
    began: list[int] = field(default_factory=list)
    committed: list[int | None] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    purged: int = 0
    pinned: set[int] = field(default_factory=set)

    @property
    def unfinished(self) -> bool:
        return bool(self.committed) and self.committed[-1] is None


class Simulated:
    """One history, determined by `seed`. `pins`: some of the committed batches are pinned, deleted ones too."""

    def __init__(self, seed: int, steps: int = 14, *, pins: bool = False) -> None:
        self.draw = Random(seed)
        self.clock = 1_000
        self.ledger = Ledger()
        self.tables = {name: SimTable(name) for name in "AB"[: self.draw.randint(1, 2)]}
        names = "pqr"[: self.draw.randint(2, 3)]
        self.queries = {name: SimQuery(name, self._some(), self._some()) for name in names}
        for _ in range(self.draw.randint(4, steps)):
            self._step()
        self._forget()
        if pins:
            self._pin()

    def _pin(self) -> None:
        """Pin with separate draws: history and target equal those of the same seed without pins."""
        draw = Random(len(self.queries) * self.clock)
        for query in self.queries.values():
            done = [number for number, at in enumerate(query.committed) if at is not None]
            query.pinned = {number for number in done if draw.random() < 0.4}

    def _some(self) -> list[str]:
        return [name for name in self.tables if self.draw.random() < 0.6]

    def _tick(self) -> int:
        self.clock += self.draw.randint(1, 9)
        return self.clock

    def _step(self) -> None:
        what = self.draw.random()
        if what < 0.12:
            self._append(self.draw.choice(list(self.tables.values())), None)
        else:
            self._batch(self.draw.choice(list(self.queries.values())))

    def _append(self, table: SimTable, writer: tuple[str, int] | None) -> None:
        if writer is not None:
            if writer in table.versions:
                return  # the sink has it already
            self.ledger.wrote.setdefault(writer, set()).add((table.name, len(table.versions)))
        table.versions.append(writer)
        table.times.append(self._tick())

    def _batch(self, query: SimQuery) -> None:
        """Begin a batch unless one is unfinished, write some or all of its tables, and maybe commit it."""
        if not query.unfinished:
            self._begin(query)
        number = len(query.ends) - 1
        dies = self.draw.random() < 0.25
        for name in query.writes:
            if dies and self.draw.random() < 0.5:
                return
            self._append(self.tables[name], (query.name, number))
        if not dies:
            query.committed[-1] = self._tick()

    def _begin(self, query: SimQuery) -> None:
        number = len(query.ends)
        before = query.ends[-1] if query.ends else {}
        ends = {name: self._further(self.tables[name], before.get(name)) for name in query.reads}
        query.ends.append(ends)
        query.began.append(self._tick())
        query.committed.append(None)
        self.ledger.touched[query.name, number] = {
            (name, version) for name, end in ends.items() if end for version in range(_touched(end))
        }
        self.ledger.unread[query.name, number] = {name: end.version for name, end in ends.items() if end}

    def _further(self, table: SimTable, before: DeltaPosition | None) -> DeltaPosition | None:
        count = len(table.versions)
        if not count:
            return None
        if before is None:
            return self._within(table, count - 1, snapshot=True)
        if before.version >= count:
            return before
        if before.snapshot:
            return self._within(table, before.version, snapshot=True, least=before.index)
        at = self.draw.randint(before.version, count - 1)
        return self._within(table, at, snapshot=False, least=before.index if at == before.version else -1)

    def _within(self, table: SimTable, version: int, *, snapshot: bool, least: int = -1) -> DeltaPosition:
        if self.draw.random() < 0.6:
            return DeltaPosition(table.name, version + 1, -1, False)
        return DeltaPosition(table.name, version, max(least + 1, 0), snapshot)

    def _forget(self) -> None:
        """Delete old batches from the log, and states and versions, but never the newest."""
        for query in self.queries.values():
            if len(query.ends) > 2 and self.draw.random() < 0.3:
                query.purged = self.draw.randint(1, len(query.ends) - 2)
            query.gone = {number for number in range(len(query.ends)) if self.draw.random() < 0.15}
        for table in self.tables.values():
            table.gone = {number for number in range(len(table.versions) - 1) if self.draw.random() < 0.1}

    # -- as it would be read ------------------------------------------------------------------------------------------

    def inputs(self) -> Inputs:
        queries = {name: self._checkpoint(query) for name, query in self.queries.items()}
        tables = {each.process: self._table(each) for each in self.tables.values() if each.versions}
        return Inputs(queries, tables, (), Declared())

    def _checkpoint(self, query: SimQuery) -> QueryCheckpoint:
        rows = zip(query.began, query.committed, query.ends, strict=True)
        batches = tuple(
            Batch(number, began, done, dict[str, Position | None](ends), None)
            for number, (began, done, ends) in enumerate(rows)
            if number >= query.purged
        )
        loadable = set(range(len(query.ends) + 2)) - {number + 1 for number in query.gone}
        snapshots = {version: {"": f"{version}.snapshot"} for version in loadable}
        store = StoreVersions(Path("/state"), lambda: StoreFiles(snapshots), lambda version: frozenset())
        where = Path("/checkpoints") / query.name
        pinned = tuple(self._pinned(query, number) for number in sorted(query.pinned))
        return QueryCheckpoint(
            query.name,
            where,
            f"id-{query.name}",
            batches,
            (OperatorVersions(0, lambda: {0: (store,)}),),
            {},
            "",
            {},
            pinned=pinned,
        )

    def _pinned(self, query: SimQuery, number: int) -> Pinned:
        batch = Batch(number, query.began[number], query.committed[number], dict(query.ends[number]), None)
        return Pinned(batch, Path("/pins"), "a point", lambda: None)

    def _table(self, table: SimTable) -> Table:
        versions = tuple(
            Version(number, at_ms, "WRITE", ((f"id-{writer[0]}", writer[1]),) if writer else (), (), ())
            for number, (writer, at_ms) in enumerate(zip(table.versions, table.times, strict=True))
        )
        gone = dict.fromkeys(table.gone, "a file")
        return Table(Path("/lake") / table.name, frozenset({table.name}), versions, {}, 0, gone, {}, "")

    def target(self) -> RewindTarget:
        everybody = frozenset(map(ProcessId, self.queries))
        written = [each for each in self.tables.values() if each.versions]
        kind = self.draw.choice(["time", "batch", "batch", "table"])
        if kind == "table" and written:
            table = self.draw.choice(written)
            return RewindTarget("table", self.draw.randint(0, len(table.versions) - 1), table.process, everybody)
        if kind == "batch":
            query = self.draw.choice(list(self.queries.values()))
            return RewindTarget(
                "batch", self.draw.randint(0, max(len(query.ends) - 1, 0)), ProcessId(query.name), everybody
            )
        return RewindTarget("time", self.draw.randint(900, self.clock + 20), None, everybody)

    # -- the oracle ----------------------------------------------------------------------------------------------------

    def choices(self, target: RewindTarget) -> dict[ProcessId, list[int | None]]:
        """Possible points of a line, oldest first, by the facts."""
        found: dict[ProcessId, list[int | None]] = {}
        for query in self.queries.values():
            found[ProcessId(query.name)] = [each for each in self._points(query) if self._fits(query, each, target)]
        for table in self.tables.values():
            if self._concerned(table, target):
                versions = [-1, *(each for each in range(len(table.versions)) if each not in table.gone)]
                most = target.most if target.process == table.process else len(table.versions)
                found[table.process] = [each for each in versions if each <= most]
        return found

    def _concerned(self, table: SimTable, target: RewindTarget) -> bool:
        written = any(writer for writer in table.versions)
        read = any((table.name, version) in facts for facts in self.ledger.touched.values() for version in (0,))
        return bool(table.versions) and (written or read or target.process == table.process)

    def _points(self, query: SimQuery) -> Iterator[int | None]:
        over = [number for number, at in enumerate(query.committed) if at is not None]
        done = [number for number in over if number >= query.purged or number in query.pinned]
        newest = None if query.unfinished else (done[-1] if done else -1)
        if not query.purged:
            yield -1
        yield from (
            each
            for each in done
            if each == newest
            or not ((each in query.gone and each not in query.pinned) or self._in_a_lost_table(query, each))
        )
        if newest is None:
            yield None

    def _in_a_lost_table(self, query: SimQuery, number: int) -> bool:
        """The query is reading a whole table as of a version that is gone."""
        ends = query.ends[number].items()
        return any(end is not None and end.snapshot and end.version in self.tables[name].gone for name, end in ends)

    def _fits(self, query: SimQuery, point: int | None, target: RewindTarget) -> bool:
        if target.kind == "time":
            at = None if point is None or point == -1 else query.committed[point]
            return point == -1 or (at is not None and at <= target.most)
        return target.process != query.name or (point is not None and point <= target.most)

    def valid(self, line: Line) -> bool:
        """No query has read an undone version, no table holds an undone batch, and no table lacks a kept one."""
        kept = {(name, number) for name, query in self.queries.items() for number in self._included(query, line)}
        tables = {each.name: line[each.process] for each in self.tables.values() if each.process in line}
        read = {fact for batch in kept for fact in self.ledger.touched.get(batch, ())}
        if any((tables.get(name) or 0) < version for name, version in read if name in tables):
            return False
        for name, at in tables.items():
            for version, writer in enumerate(self.tables[name].versions):
                there = version <= (at if at is not None else len(self.tables[name].versions))
                if writer is not None and there != (writer in kept):
                    return False
        return True

    def _included(self, query: SimQuery, line: Line) -> range:
        point = line[ProcessId(query.name)]
        return range(len(query.ends) if point is None else point + 1)

    def in_flight(self, line: Line) -> set[tuple[str, str, int, int]]:
        """Reader, table, first and last version of kept versions that are not wholly read."""
        found = set()
        for name, query in self.queries.items():
            included = self._included(query, line)
            for table, first in (self.ledger.unread[name, included[-1]] if included else {}).items():
                last = line[self.tables[table].process]
                if last is not None and first <= last:
                    found.add((name, table, first, last))
        return found

    def greatest(self, target: RewindTarget) -> Line | None:
        """The greatest line by brute force; None without a line. Asserts that the greatest points of all are a line."""
        choices = self.choices(target)
        lines = [dict(zip(choices, each, strict=True)) for each in product(*choices.values())]
        lines = [each for each in lines if self.valid(each)]
        if not lines:
            return None
        best = {name: max((line[name] for line in lines), key=known.index) for name, known in choices.items()}
        assert best in lines
        return best


def _touched(end: DeltaPosition) -> int:
    """The first version of which no part was read."""
    return end.version if end.index == -1 else end.version + 1
