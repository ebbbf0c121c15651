"""Durable state in the world of a Spark job: rows of the log, state files, staged files, segments.

The log is the shipped one.

`MemoryTable` replaces the log's Delta table, so that `EpochLog` runs as shipped: its fences, its restore choice, its
compare-and-swap. An append can fail, or succeed without an answer.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, cast

from checkpoint_lab.violations import ensure
from spark_ckpt.epochs.records import FORMAT, EdgeCut, Manifest, StateFile, chain_of
from spark_ckpt.errors import EpochDamaged, StoreUnreachable
from spark_ckpt.store.delta_log import CommitLost
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.log_table import LogRow, LogTable, NewRow

# -- Rows of the simulated job on Spark, and the expected content of an epoch, computed without a run.
#
# Two operators each count their rows per key and emit every count. Rows of the first one go around a loop until their
# rounds are used up. After an odd number of rounds they only pass, or are dropped; after an even number they are input
# again. Rows of some keys reach the second operator over an edge, the others in the same batch. Every row carries the
# name of its input row. So the expected content of an epoch follows from its cursors and its rows in flight, for every
# order of arrival.


OPERATORS = ("counts", "totals")
SOURCES, SINKS = ("a", "b"), ("out", "tap")
GETS = {"tap": "counts", "out": "totals"}
"""The operator whose rows each sink gets. `tap` is between the two operators, `out` at the end."""
LOOP, LATER = "loop", "later"
EDGES = (LOOP, LATER)
KEYS, GROUPS = 3, 2
DELAY_MS = 25
"""Distance of the watermark from the newest event, in ms."""
GOES_LATER = frozenset({1})
"""Keys of the first operator whose rows reach the second one over the edge."""
ROUNDS = (0, 1, 2, 3)
"""Numbers of rounds that a source's rows take, in turn."""


class Name(NamedTuple):
    """A source's row after some rounds."""

    source: str
    number: int
    rounds: int = 0

    @property
    def goes_round(self) -> bool:
        """True if the row is fed back."""
        return self.rounds < ROUNDS[self.number % len(ROUNDS)]

    @property
    def is_input(self) -> bool:
        """True if the row is input of the first operator; False if it only passes."""
        return self.rounds % 2 == 0

    @property
    def next(self) -> Name:
        """The row one round later."""
        return self._replace(rounds=self.rounds + 1)

    @property
    def lane(self) -> tuple[int, int, bool]:
        """The row's lane. Rows of one lane keep their order on every path."""
        return SOURCES.index(self.source), self.rounds, key_of(self) in GOES_LATER


class Row(NamedTuple):
    """An output row of an operator: its key, the key's count so far, and the name of the last input row."""

    key: int
    nth: int
    name: Name


Lanes = dict[tuple[int, int, bool], list[int]]
"""Numbers of the rows of each lane, in order."""


def event_ms(source: str, number: int) -> int:
    """Return the event time of a source's row, in ms. One source is always ahead of the other."""
    return 1_000 + 10 * number - 40 * SOURCES.index(source)


def watermark_ms(cursors: Mapping[str, int]) -> int:
    """Return the watermark of the rows before the cursors, in ms: the minimum over the sources."""
    return min(event_ms(source, cursors[source] - 1) - DELAY_MS if cursors.get(source) else 0 for source in SOURCES)


@cache
def key_of(name: Name) -> int:
    """Return the first operator's key."""
    return (name.number + SOURCES.index(name.source) + name.rounds) % KEYS


def key_behind(key: int, nth: int) -> int:
    """Return the next operator's key for an output row."""
    return (key + nth) % KEYS


@dataclass(frozen=True)
class Expected:
    """The expected content of an epoch.

    `counts`: rows per key of each operator. `shown`: rows of each sink. `produced`: number of all rows of each edge.
    """

    counts: Mapping[str, Counter[int]]
    shown: Mapping[str, Lanes]
    produced: Mapping[str, int]


def expected(cursors: Mapping[str, int], in_flight: Mapping[str, Sequence[Row]]) -> Expected:
    """Return the expected content of an epoch at these cursors and rows in flight.

    Raises a `Violation` if these rows cannot be in flight.
    """
    arrived = _arrived(cursors, in_flight.get(LOOP, ()))
    inputs = [name for name in arrived if name.is_input]
    first = Counter(map(key_of, inputs))
    # the first operator numbers its outputs per key, so a key and a number name each of them
    rows = {(key, count) for key, total in first.items() for count in range(1, total + 1)}
    later = in_flight.get(LATER, ())
    waiting = {(row.key, row.nth) for row in later}
    names = {row.name for row in later}
    fits = waiting <= rows and names <= set(inputs)
    fits = fits and all(row.key == key_of(row.name) and row.key in GOES_LATER for row in later)
    # each row in flight is an output of the first operator, and none is there twice
    ensure(fits and len(waiting) == len(names) == len(later), "O1", f"{later} on {LATER}, {rows} emitted")
    # every output that is not in flight has reached the second operator
    second = Counter(key_behind(*row) for row in rows - waiting)
    shown = {"tap": lanes(inputs), "out": lanes(name for name in inputs if name not in names)}
    produced = {LOOP: sum(name.goes_round for name in arrived), LATER: sum(first[key] for key in GOES_LATER)}
    return Expected(dict(zip(OPERATORS, (first, second), strict=True)), shown, produced)


@cache
def in_the_end(rows: int) -> Expected:
    """Return the expected content after every source is read and no row is in flight."""
    return expected(dict.fromkeys(SOURCES, rows), {})


def _arrived(cursors: Mapping[str, int], going_round: Sequence[Row]) -> set[Name]:
    """Return every row of every round that has arrived, except those that will follow from the rows in the loop."""
    whole = {each for source, end in cursors.items() for number in range(end) for each in _rounds(Name(source, number))}
    # a row on the loop's edge arrives with its next round
    still = [each for row in going_round for each in _rounds(row.name.next)]
    fits = whole.issuperset(still) and len(set(still)) == len(still) and all(row.name.goes_round for row in going_round)
    ensure(fits, "O1", f"{going_round} on {LOOP}, the sources stand at {dict(cursors)}")
    return whole.difference(still)


@cache
def _rounds(name: Name) -> tuple[Name, ...]:
    """Return the row in this round and in all later ones."""
    return (name, *_rounds(name.next)) if name.goes_round else (name,)


def lanes(names: Iterable[Name]) -> Lanes:
    """Return the names by lane, in their expected order."""
    return in_order(sorted(names))


def in_order(names: Iterable[Name]) -> Lanes:
    """Return the names by lane, in their order of arrival."""
    found: Lanes = {}
    for name in names:
        found.setdefault(name.lane, []).append(name.number)
    return found


def by_key(rows: Iterable[Row]) -> dict[int, list[int]]:
    """Return the rows of a sink per key, in order."""
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row.nth)
    return found


def outputs_of(counts: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the expected rows of a sink per key: 1, 2, ... up to the count."""
    return {key: list(range(1, count + 1)) for key, count in counts.items() if count}


JOB = "job"
_CREATED = f'{{"history":"","job":"{JOB}","store_id":"store"}}'
CREATED = NewRow("created", 0, 0, "created", _CREATED, _CREATED)
"""The first row of the job's log."""


@dataclass(frozen=True)
class Backup:
    """A copy of the log's folder."""

    rows: tuple[tuple[LogRow, str], ...]
    forgotten: frozenset[int]


@dataclass
class Shared:
    """Storage that outlives processes.

    `staged`, `state` and `segments` are immutable files by path; only segments are deleted.

    - `gone`: deleted staged rows and state; only oracles still read them
    - `forgotten`: `seq` of rows that the log has dropped
    - `named`: segments that a committed epoch names
    - `spent`: segments that a driver has released, deleted or not
    """

    rows: list[tuple[LogRow, str]] = field(default_factory=list)
    staged: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    state: dict[str, Mapping[int, int]] = field(default_factory=dict)
    segments: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    spent: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    forgotten: set[int] = field(default_factory=set)
    shortened: int = 0
    """Number of times that the log dropped rows."""
    _manifests: list[Manifest] = field(default_factory=list)
    attempts: int = 0
    begins: dict[tuple[int, str], list[Mapping[str, int]]] = field(default_factory=dict)
    """Cursors at which the batches of an incarnation began, by incarnation and end; see `batch_ran`."""
    incarnation: int = 0
    """The newest incarnation in the log."""
    mood: str = "ok"
    """Outcome of the next append: "ok", "fail" (not done) or "silent" (done, but unanswered)."""
    segment_rows: int = 1
    """Maximal number of a task's rows in one segment of an edge."""
    now_ms: int = 0
    """Wall clock of every process, in ms."""
    _look: EpochLog | None = None

    def copy(self) -> Shared:
        """Return an independent copy of the storage."""
        return Shared(
            list(self.rows), dict(self.staged), dict(self.state), dict(self.segments), set(self.named), set(self.spent),
            set(self.gone), set(self.forgotten), self.shortened,
            list(self._manifests), self.attempts, dict(self.begins), self.incarnation, segment_rows=self.segment_rows,
        )  # fmt: skip

    def batch_ran(self, incarnation: int, begins: Mapping[str, int], ends: Mapping[str, int]) -> None:
        """Record a batch for the oracles: the next batch's rows are late by the watermark before this one."""
        self.begins.setdefault((incarnation, str(ends)), []).append(dict(begins))

    def append(self, new: NewRow, seen: int) -> LogRow:
        """Append one row by compare-and-swap. Raises `CommitLost`, `StoreUnreachable`."""
        # One append only: the appends of other processes in the same step must succeed.
        mood, self.mood = self.mood, "ok"
        # the caller must have seen every row, as with a Delta commit of a given version
        if seen != len(self.rows):
            raise CommitLost("another commit was faster")
        if mood == "fail":
            raise StoreUnreachable("no answer; not done")
        digest = hashlib.sha256(new.body.encode()).hexdigest()
        row = LogRow(FORMAT, seen, new.kind, new.epoch, new.incarnation, new.attempt, 0, new.brief, digest, "")
        # Judged before the row is there: a wrong epoch then fails the append that made it, with that step's trace.
        if new.kind == "epoch":
            self._keep(Manifest.model_validate_json(new.body))
        self.rows.append((row, new.body))
        self.incarnation = max(self.incarnation, row.incarnation)
        # the row is in the log although the writer sees an error
        if mood == "silent":
            raise StoreUnreachable("no answer; done")
        return row

    def log(self) -> EpochLog:
        """Return the shipped log, as one process opens it. The first one creates it."""
        if not self.rows:
            MemoryTable(self).append(self.first_row())
        return self.opened()

    def first_row(self) -> NewRow:
        """Return the row that says whose log it is."""
        return CREATED

    def opened(self) -> EpochLog:
        """Return the shipped log. It must have rows."""
        table = cast(LogTable, MemoryTable(self))  # it has the methods that the log uses
        return EpochLog(table, self.verify, lambda: self.now_ms)

    def look(self) -> EpochLog:
        """Return the log of a reader that has read all earlier rows. It must have rows."""
        if self._look is None:
            self._look = self.opened()
        return self._look

    def later(self) -> None:
        """Advance the clock past the end of every lease."""
        self.now_ms += 1_000_000

    def back_up(self) -> Backup:
        """Copy the log's folder."""
        return Backup(tuple(self.rows), frozenset(self.forgotten))

    def restored(self, backup: Backup) -> None:
        """Replace the log by a backup of it."""
        self.rows, self.forgotten = list(backup.rows), set(backup.forgotten)
        # a reader's `news` is None then, so it reads the whole log again
        self.shortened += 1
        self.incarnation = max((row.incarnation for row, _ in self.rows), default=0)

    def verify(self, manifest: Manifest) -> None:
        """Check that every file of the manifest exists. Raises `EpochDamaged`."""
        staged = (*manifest.outputs.values(), *manifest.held.values())
        paths = [file.path for output in staged for file in output.files]
        files = [file.path for snapshot in manifest.operators.values() for file in snapshot.files]
        missing = [path for path in paths if path not in self.staged or path in self.gone]
        missing += [path for path in files if path not in self.state or path in self.gone]
        missing += [path for path in _in_flight(manifest) if path not in self.segments]
        if missing:
            raise EpochDamaged(f"{missing[0]} is missing", epoch=manifest.epoch)

    def folded(self, files: tuple[StateFile, ...]) -> Counter[int]:
        """Return the state that files hold, over all key groups. O12: every one of them is durable."""
        groups: dict[int, dict[int, int]] = {}
        for file in files:
            ensure(file.path in self.state, "O12", f"{file.path} is named, and not durable")
            for group in file.key_groups:
                # a full file replaces the key group's state; changes extend it
                before = {} if file.kind == "full" else groups.get(group, {})
                own = {key: count for key, count in self.state[file.path].items() if key % GROUPS == group}
                groups[group] = {**before, **own}
        return Counter({key: count for state in groups.values() for key, count in state.items()})

    @property
    def decided(self) -> Mapping[str, int]:
        """Every committed epoch, by the id of its attempt."""
        return {row.attempt: row.epoch for row, _ in self.rows if row.kind == "epoch"}

    def manifests(self) -> list[Manifest]:
        """Return every committed epoch, oldest first."""
        return list(self._manifests)

    def _keep(self, manifest: Manifest) -> None:
        # by the log's own rows: an operator may have replaced the log by a backup, whose next number is an older one
        newest = max((row.epoch for row, _ in self.rows if row.kind == "epoch"), default=0)
        ensure(manifest.epoch > newest, "O8", f"epoch {manifest.epoch} is committed after epoch {newest}")
        self.judge(manifest)
        self._manifests.append(manifest)
        self.named.update(_in_flight(manifest))

    # -- segments -----------------------------------------------------------------------------------------------------

    def segment(self, path: str) -> tuple[Row, ...]:
        """Return the rows of a segment. O12: a segment that is read or named still exists."""
        ensure(path in self.segments, "O12", f"segment {path} is missing")
        return self.segments[path]

    def give_up(self, paths: Iterable[str]) -> None:
        """Release segments. O8: no segment is released twice. A deletion may follow later."""
        for path in paths:
            ensure(path not in self.spent, "O8", f"segment {path} is released twice")
            self.spent.add(path)

    def files(self) -> list[str]:
        """Return all existing files."""
        return [path for path in (*self.staged, *self.state, *self.segments) if path not in self.gone]

    def remove(self, paths: Iterable[str]) -> None:
        """Delete files that retention takes for garbage."""
        for path in paths:
            self.delete(path) if path in self.segments else self.gone.add(path)

    def write_state(self, path: str, content: Mapping[int, int]) -> None:
        """Write a state file, which is durable then."""
        self.state[path] = content

    def delete(self, path: str) -> None:
        """Delete a segment."""
        self.segments.pop(path, None)

    # -- the oracles of a commit ------------------------------------------------------------------------------------

    def judge(self, manifest: Manifest) -> None:
        """O1 and O2: state and output of an epoch are those of the rows before it."""
        known = self.manifests()
        name = f"epoch {manifest.epoch} of incarnation {manifest.incarnation}"
        ensure(set(manifest.cursors) == set(SOURCES), "O7", f"{name} has cursors of {sorted(manifest.cursors)} only")
        # the initial epoch has read nothing
        if manifest.reason != "initial":
            sinks = sorted([*manifest.outputs, *manifest.held])
            ensure(sinks == sorted(SINKS), "O7", f"{name} has outputs of {sinks} only, or twice")
        ensure(set(manifest.edges) == set(EDGES), "O7", f"{name} has edges {sorted(manifest.edges)} only")
        stood_on = [file.path for each in manifest.operators.values() for file in each.files if file.path in self.gone]
        ensure(not stood_on, "O12", f"{name} names {stood_on}, which are gone")
        in_flight = {edge: self._rows_on(cut) for edge, cut in manifest.edges.items()}
        cursors = numbers(manifest.cursors)
        wanted = expected(cursors, in_flight)
        for operator in OPERATORS:
            snapshot = manifest.operators.get(operator)
            files = snapshot.files if snapshot else ()
            over = [
                f"{file.path}/{group}"
                for file in files
                for group in file.key_groups
                if file not in chain_of(files, group)
            ]
            ensure(not over, "O17", f"{name} names ranges that no chain has: their deleted keys return: {over}")
            state = self.folded(files)
            _compare(state, wanted.counts[operator], f"the state of {operator} at {name}")
        for edge, cut in manifest.edges.items():
            _compare_positions(cut, len(in_flight[edge]), wanted.produced[edge], f"{edge} at {name}")
        lineage = {each.epoch: each for each in known} | {manifest.epoch: manifest}
        for sink in SINKS:
            _compare_rows(self._rows_of(lineage, manifest.epoch, sink), wanted, sink, name)
        self._judge_figures(manifest, lineage, cursors, name)
        if manifest.reason == "drained":
            ensure(not any(in_flight.values()), "O10", f"{name} is the last one with rows in flight: {in_flight}")

    def _judge_figures(
        self, manifest: Manifest, lineage: Mapping[int, Manifest], cursors: Mapping[str, int], name: str
    ) -> None:
        """O3: counts and watermarks are those of a run without failures. Rows out are counted at the first sink."""
        base = numbers(lineage[manifest.base].cursors) if manifest.base else {}
        rows_in = sum(end - base.get(source, 0) for source, end in cursors.items())
        before, now = (len(self._rows_of(lineage, epoch, SINKS[0])) for epoch in (manifest.base, manifest.epoch))
        found = (manifest.rows_in, manifest.rows_out)
        ensure(
            found == (rows_in, now - before), "O3", f"{name} counts {found} rows, they are {rows_in}, {now - before}"
        )
        ensure(manifest.watermark_ms == watermark_ms(cursors), "O3", f"{name} has watermark {manifest.watermark_ms}")
        if manifest.reason != "initial":
            # batches without rows end where they began, so several may end at these cursors
            begins = self.begins.get((manifest.incarnation, str(cursors)), [])
            late = manifest.late_watermark_ms
            ensure(late in [watermark_ms(each) for each in begins], "O3", f"{name}: the next rows are late by {late}")

    def _rows_on(self, cut: EdgeCut) -> list[Row]:
        return [row for file in cut.files for row in self.segment(file.path)]

    def _rows_of(self, lineage: Mapping[int, Manifest], newest: int, sink: str) -> list[Row]:
        """Return the rows that a sink gets from the lineage of an epoch: its outputs and its deferred rows."""
        # the newest epoch names all rows that no output of its lineage has yet
        held = lineage[newest].held if newest else {}
        rows = [row for file in (held[sink].files if sink in held else ()) for row in self.staged[file.path]]
        while newest:
            manifest = lineage[newest]
            files = manifest.outputs[sink].files if sink in manifest.outputs else ()
            rows[:0] = [row for file in files for row in self.staged[file.path]]
            newest = manifest.base
        return rows


def numbers(cursors: Mapping[str, Mapping[str, object]]) -> dict[str, int]:
    """Return cursors of this world as numbers of rows."""
    return {source: int(str(cursors[source]["n"])) for source in SOURCES if source in cursors}


def _compare(found: Counter[int], wanted: Counter[int], what: str) -> None:
    ensure(not found - wanted, "O1", f"{what} holds {dict(found)}, the cursors {dict(wanted)}")
    ensure(not wanted - found, "O2", f"{what} holds {dict(found)}, the cursors {dict(wanted)}")


def _compare_positions(cut: EdgeCut, in_flight: int, produced: int, what: str) -> None:
    """O2: every row put on an edge since its beginning is consumed or in flight."""
    found = (cut.consumed, in_flight, cut.produced)
    ensure(found == (produced - in_flight, in_flight, produced), "O2", f"{what}: {found}, {produced} were put on")


def _compare_rows(rows: list[Row], wanted: Expected, sink: str, name: str) -> None:
    found, counts = by_key(rows), outputs_of(wanted.counts[GETS[sink]])
    ensure(found == counts, "O2", f"{sink} at {name}: {found} is staged, expected is {counts}")
    shown = in_order(row.name for row in rows)
    ensure(shown == wanted.shown[sink], "O2", f"{sink} at {name}: {shown} is staged, expected is {wanted.shown[sink]}")


def _in_flight(manifest: Manifest) -> list[str]:
    return [file.path for cut in manifest.edges.values() for file in cut.files]


class MemoryTable:
    """One process's view of the log's rows: the part of `LogTable` that `EpochLog` uses."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._seen = self._shortened = 0
        self._fresh = False
        self._news: list[LogRow] | None = []

    @property
    def rows(self) -> list[LogRow]:
        """Rows up to the last refresh."""
        return [row for row, _ in self._shared.rows[: self._seen] if row.seq not in self._shared.forgotten]

    @property
    def is_fresh(self) -> bool:
        """True after a read, until an append has lost: the next proposal is made on the rows that are known.

        Other processes may have appended any number of rows since.
        """
        return self._fresh

    def refresh(self) -> None:
        """Read the rows that others have appended."""
        self._fresh = True
        if self._shortened != self._shared.shortened:
            self._news, self._shortened = None, self._shared.shortened
        if self._news is not None:
            self._news += [row for row, _ in self._shared.rows[self._seen :]]
        self._seen = len(self._shared.rows)

    def news(self) -> list[LogRow] | None:
        """Return the rows since the last call; None if the log was shortened."""
        news, self._news = self._news, []
        return news

    def append(self, new: NewRow) -> None:
        """Append one row after those that this process has seen."""
        try:
            row = self._shared.append(new, self._seen)
        except CommitLost:
            self._fresh = False
            raise
        self._seen += 1
        if self._news is not None:
            self._news.append(row)

    def shorten(self, keep: Collection[int], extra: NewRow) -> bool:
        """Drop all rows except those with these numbers. Return False if another process appended first."""
        # before the append: the extra row is in no `keep`, and has to stay
        seqs = {row.seq for row in self.rows}
        try:
            self._shared.append(extra, self._seen)
        except CommitLost:
            return False
        self._shared.forgotten |= seqs - set(keep)
        self._shared.shortened += 1
        return True

    def acknowledge(self) -> None:
        """Do nothing: a row in memory has no writer that must learn of its success."""

    def body(self, row: LogRow) -> str:
        """Return the row's body."""
        return next(body for each, body in self._shared.rows if each.seq == row.seq)

    def fold_if_due(self, extra: Callable[[], NewRow]) -> None:
        """Do nothing: the log has few rows."""
