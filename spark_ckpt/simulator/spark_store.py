"""What is durable in the world of a Spark job: the log's rows, state files, staged files. The log is the shipped one.

`MemoryTable` takes the place of the log's Delta table, so that `EpochLog` with its fences, its restore choice and its
compare-and-swap runs as it ships.  An append can be refused, or done without an answer.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from spark_ckpt.errors import EpochDamaged, StoreUnreachable
from spark_ckpt.simulator.barrier_storage import ensure
from spark_ckpt.store.delta_log import CommitLost
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.log_table import LogRow, LogTable, NewRow
from spark_ckpt.store.records import Manifest, StateFile

JOB = "job"
OPERATORS = ("counts", "totals")
"""Chained: the second one's input is the first one's output. Each counts its rows per key and puts out every count."""
SOURCES, SINKS = ("a", "b"), ("out", "tap")
GETS = {"tap": "counts", "out": "totals"}
"""Whose rows each sink gets: one is on the way from the first operator to the second, the other at the end."""
KEYS, GROUPS = 3, 2

Row = tuple[int, int]
"""A row that an operator puts out: the key, and how many rows of input it has had."""


def key_of(source: str, number: int) -> int:
    """The first operator's key for a source's row."""
    return (number + SOURCES.index(source)) % KEYS


def key_behind(row: Row) -> int:
    """The next operator's key for a row that one puts out."""
    return sum(row) % KEYS


def counted(cursors: Mapping[str, int]) -> dict[str, Counter[int]]:
    """Every operator's rows per key, up to the cursors."""
    first = Counter(key_of(source, number) for source, end in cursors.items() for number in range(end))
    rows = [(key, number) for key, count in first.items() for number in range(1, count + 1)]
    return dict(zip(OPERATORS, (first, Counter(map(key_behind, rows))), strict=True))


def outputs_of(counts: Mapping[int, int]) -> dict[int, list[int]]:
    """Per key what a sink shows, in order: 1, 2, ... up to its count."""
    return {key: list(range(1, count + 1)) for key, count in counts.items() if count}


def by_key(rows: list[Row]) -> dict[int, list[int]]:
    """The rows of a sink per key, in order."""
    found: dict[int, list[int]] = {}
    for key, count in rows:
        found.setdefault(key, []).append(count)
    return found


@dataclass
class Shared:
    """Everything that outlives processes. `staged` and `state` are immutable files by path."""

    rows: list[tuple[LogRow, str]] = field(default_factory=list)
    staged: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    state: dict[str, Mapping[int, int]] = field(default_factory=dict)
    attempts: int = 0
    mood: str = "ok"
    """How the next append goes: "ok", "fail" (not done) or "silent" (done, but the answer does not come)."""

    def append(self, new: NewRow, seen: int) -> LogRow:
        """Compare and swap. Raises `CommitLost`, `StoreUnreachable`."""
        mood, self.mood = self.mood, "ok"
        if seen != len(self.rows):
            raise CommitLost("somebody was faster")
        if mood == "fail":
            raise StoreUnreachable("no answer; not done")
        digest = hashlib.sha256(new.body.encode()).hexdigest()
        row = LogRow(2, seen, new.kind, new.epoch, new.incarnation, new.attempt, 0, new.brief, digest, "")
        if new.kind == "epoch":
            self._judge(Manifest.model_validate_json(new.body))
        self.rows.append((row, new.body))
        if mood == "silent":
            raise StoreUnreachable("no answer; done")
        return row

    def log(self) -> EpochLog:
        """The shipped log, as one process opens it."""
        table = cast(LogTable, MemoryTable(self))  # it has what the log asks of its table
        log = EpochLog(table, self.verify, lambda: 0)
        if not self.rows:
            created = '{"history":"","job":"' + JOB + '","store_id":"store"}'
            table.append(NewRow("created", 0, 0, "created", created, created))
        return log

    def verify(self, manifest: Manifest) -> None:
        """Every file that the manifest names is there."""
        paths = [file.path for output in manifest.outputs.values() for file in output.files]
        files = [file.path for snapshot in manifest.operators.values() for file in snapshot.files]
        missing = [path for path in paths if path not in self.staged] + [
            path for path in files if path not in self.state
        ]
        if missing:
            raise EpochDamaged(f"{missing[0]} is missing", epoch=manifest.epoch)

    def folded(self, files: tuple[StateFile, ...]) -> Counter[int]:
        """The state that chains of files stand for, whatever their key groups."""
        groups: dict[int, dict[int, int]] = {}
        for file in files:
            before = {} if file.kind == "full" else groups.get(file.key_group, {})
            groups[file.key_group] = {**before, **self.state[file.path]}
        return Counter({key: count for state in groups.values() for key, count in state.items()})

    @property
    def decided(self) -> Mapping[str, int]:
        """Every decided epoch, by the id of its attempt."""
        return {row.attempt: row.epoch for row, _ in self.rows if row.kind == "epoch"}

    def manifests(self) -> list[Manifest]:
        """Every decided epoch, oldest first."""
        return [Manifest.model_validate_json(body) for row, body in self.rows if row.kind == "epoch"]

    # -- the oracles of a decision ----------------------------------------------------------------------------------

    def _judge(self, manifest: Manifest) -> None:
        """O1 and O2: state and output of a cut are those of the rows before it. O8: numbers and stamps are new."""
        known = self.manifests()
        name = f"epoch {manifest.epoch} of incarnation {manifest.incarnation}"
        ensure(bool(manifest.attempt) and all(manifest.attempt != each.attempt for each in known), "O8", name)
        ensure(set(manifest.cursors) == set(SOURCES), "O7", f"{name} has cursors of {sorted(manifest.cursors)} only")
        wanted = counted({source: int(str(cursor["n"])) for source, cursor in manifest.cursors.items()})
        if manifest.reason != "initial":
            ensure(set(manifest.outputs) == set(SINKS), "O7", f"{name} has outputs {sorted(manifest.outputs)} only")
        for operator in OPERATORS:
            snapshot = manifest.operators.get(operator)
            state = self.folded(snapshot.files if snapshot else ())
            _compare(state, wanted[operator], f"the state of {operator} at {name}")
        lineage = {each.epoch: each for each in known} | {manifest.epoch: manifest}
        for sink in SINKS:
            _compare_rows(self._rows_of(lineage, manifest.epoch, sink), wanted[GETS[sink]], f"{sink} at {name}")

    def _rows_of(self, lineage: Mapping[int, Manifest], newest: int, sink: str) -> list[Row]:
        rows: list[Row] = []
        while newest:
            manifest = lineage[newest]
            files = manifest.outputs[sink].files if sink in manifest.outputs else ()
            rows[:0] = [row for file in files for row in self.staged[file.path]]
            newest = manifest.base
        return rows


def _compare(found: Counter[int], wanted: Counter[int], what: str) -> None:
    ensure(not found - wanted, "O1", f"{what} holds {dict(found)}, the cursors {dict(wanted)}")
    ensure(not wanted - found, "O2", f"{what} holds {dict(found)}, the cursors {dict(wanted)}")


def _compare_rows(rows: list[Row], wanted: Counter[int], what: str) -> None:
    found = by_key(rows)
    ensure(found == outputs_of(wanted), "O2", f"{what}: {found} is staged, the cursors give {outputs_of(wanted)}")


class MemoryTable:
    """One process's view of the log's rows; what `EpochLog` asks of `LogTable`."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._seen = 0
        self._news: list[LogRow] | None = []

    @property
    def rows(self) -> list[LogRow]:
        """Everything up to the last refresh."""
        return [row for row, _ in self._shared.rows[: self._seen]]

    def refresh(self) -> None:
        """See what others have appended."""
        if self._news is not None:
            self._news += [row for row, _ in self._shared.rows[self._seen :]]
        self._seen = len(self._shared.rows)

    def news(self) -> list[LogRow] | None:
        """Rows since the last call."""
        news, self._news = self._news, []
        return news

    def append(self, new: NewRow) -> None:
        """One row right behind those that have been seen."""
        row = self._shared.append(new, self._seen)
        self._seen += 1
        if self._news is not None:
            self._news.append(row)

    def acknowledge(self) -> None:
        """A row in memory needs no trace of its author's being told."""

    def body(self, row: LogRow) -> str:
        """The row's body."""
        return next(body for each, body in self._shared.rows if each.seq == row.seq)

    def fold_if_due(self, extra: NewRow) -> None:
        """The rows are few."""
