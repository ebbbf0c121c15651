"""Durable state of a plain query with an outbox: Spark's checkpoint, the outbox's log and staged files, two sinks.

The truth is kept apart from the log. A row of output is a function of the offsets of its batch and of the query's state,
so the expected rows of an epoch follow from the digests of its batch alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from checkpoint_lab.spark_driver import QueryDied
from checkpoint_lab.spark_sink import LateTransaction, SparkSink
from checkpoint_lab.spark_store import CREATED, JOB, Backup, Name, Row, Shared
from checkpoint_lab.violations import ensure
from spark_ckpt.connector_parts.sink_rules import SinkMarker
from spark_ckpt.epochs.records import CreatedRecord, IncarnationRecord, Manifest, SparkBatch
from spark_ckpt.outbox.protocol import TellBranch
from spark_ckpt.store.log_table import LogRow, NewRow

SINKS = ("gold", "alerts")
KEYS = 3

State = tuple[int, ...]
"""Rows so far of each key: the state of a streaming aggregation."""
NO_STATE: State = (0,) * KEYS


class PlannedOffsets(NamedTuple):
    """Content of `offsets/N`: the end of the batch in its input, and the time at which Spark planned it."""

    end: int
    stamp: int

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(f"{self.end} {self.stamp}".encode()).hexdigest()


def output(query: str, start: int, end: int, before: State) -> tuple[list[Row], State]:
    """Return the output of a plan over the input from `start` to `end`, and the state after it."""
    counts, rows = list(before), []
    for number in range(start, end):
        counts[number % KEYS] += 1
        rows.append(Row(number % KEYS, counts[number % KEYS], Name(query, number)))
    return rows, tuple(counts)


def state_at(end: int) -> State:
    """Return the state of a query that has read its input up to `end`, each row once."""
    return output("", 0, end, NO_STATE)[1]


def gets(sink: str, row: Row) -> bool:
    """Return True if the sink's filter passes the row."""
    return sink == SINKS[0] or row.name.number % 2 == 0


@dataclass(eq=False)
class SparkCheckpoint:
    """Checkpoint of a plain query. `query`: id in `metadata`. `replaced`: the folder that an operator put in its place."""

    query: str
    offsets: dict[int, PlannedOffsets] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    states: dict[int, State] = field(default_factory=dict)
    replaced: SparkCheckpoint | None = None

    def at_its_path(self) -> SparkCheckpoint:
        """Return the checkpoint that has this one's path now."""
        return self if self.replaced is None else self.replaced.at_its_path()

    @property
    def newest(self) -> int:
        """Newest planned batch; -1 for none."""
        return max(self.offsets, default=-1)

    @property
    def next_batch(self) -> int:
        """The batch that a start of the query runs: the newest one again, unless Spark has committed it."""
        again = self.newest >= 0 and self.newest not in self.commits
        return self.newest if again else self.newest + 1

    def start_of(self, number: int) -> int:
        """Return the position in the input at which a batch begins."""
        return self.offsets[number - 1].end if number else 0

    def up_to(self, number: int) -> SparkCheckpoint:
        """Return a copy that was rewound to a batch, -1 for the beginning, with the state of that batch."""
        return SparkCheckpoint(
            self.query,
            {each: offsets for each, offsets in self.offsets.items() if each <= number},
            {each for each in self.commits if each <= number},
            {each: state for each, state in self.states.items() if each <= number},
        )

    def edited(self, number: int, offsets: PlannedOffsets) -> SparkCheckpoint:
        """Return a copy with other offsets of one batch."""
        copy = self.up_to(self.newest)
        copy.offsets[number] = offsets
        return copy

    def batch(self, number: int) -> SparkBatch:
        """Return the identity of a batch, as the outbox reads it."""
        before = self.offsets[number - 1].digest if number else ""
        return SparkBatch(query=self.query, number=number, offsets=self.offsets[number].digest, before=before)

    def plan(self, number: int, offsets: PlannedOffsets) -> None:
        """Write the offsets of a batch. Spark refuses if another driver has."""
        if number in self.offsets:
            raise QueryDied(f"batch {number} is planned already: another driver runs on this checkpoint")
        self.offsets[number] = offsets

    def commit(self, number: int) -> None:
        """Mark a batch as done. Spark refuses if another driver has."""
        if number in self.commits:
            raise QueryDied(f"batch {number} is committed already: another driver runs on this checkpoint")
        self.commits.add(number)

    def run(self, number: int) -> list[Row]:
        """Run the plan of a batch to its end and return its output. O2: the state of every batch before is there.

        A batch that Spark committed without its plan has left no state. Older versions of Spark go on with an older one.
        """
        there = number == 0 or number - 1 in self.states
        ensure(there, "O2", f"batch {number} needs the state of batch {number - 1}, whose plan never ran")
        before = self.states[number - 1] if number else NO_STATE
        rows, self.states[number] = output(self.query, self.start_of(number), self.offsets[number].end, before)
        return rows


@dataclass
class OutboxSink(SparkSink):
    """A sink of the outbox.

    `shown`: commits that published to it, in order, each with its rows. `markers`: the marker after each of them. `left`: commits
    that the newest incarnation has left.
    """

    shown: list[tuple[str, tuple[Row, ...]]] = field(default_factory=list)
    markers: dict[str, SinkMarker] = field(default_factory=dict)
    left: frozenset[str] = frozenset()

    def has(self, attempt: str) -> bool:
        """Return True if the sink shows this commit's rows."""
        return any(each == attempt for each, _ in self.shown)

    def take_back(self, attempts: Iterable[str]) -> None:
        """Remove the rows of all other commits, and go back to the marker of the newest one that stays."""
        kept = set(attempts)
        self.shown = [(attempt, rows) for attempt, rows in self.shown if attempt in kept]
        markers = [self.markers[attempt] for attempt, _ in self.shown]
        self.marker = max(markers, key=lambda marker: marker.epoch, default=None)

    def show(self, commit: LateTransaction) -> None:
        """As there; the rows are known by their decision. O9: no row of an epoch that was left before."""
        late = bool(commit.rows) and commit.output.decision in self.left
        ensure(not late, "O9", f"{self.name} shows epoch {commit.output.epoch}, which a newer incarnation has left")
        super().show(commit)
        self.shown.append((commit.output.decision, commit.rows))
        assert self.marker is not None  # noqa: S101 - it was written with the rows
        self.markers[commit.output.decision] = self.marker


@dataclass
class OutboxStore(Shared):
    """The outbox's log and staged files, and the truth about them.

    - `by_number`: epochs of the present log, with those that retention dropped.
    - `tip`: newest epoch of the current branch. `moves`: number of times that it or the incarnation changed.
    - `reported`: commits that the acting driver has reported as left by its branch.
    - `accepted`: queries that the operator confirmed.
    - `may_repeat`: per sink the commits whose rows an operator expects again.
    """

    ends: dict[str, int] = field(default_factory=dict)
    by_number: dict[int, Manifest] = field(default_factory=dict)
    tip: int = 0
    moves: int = 0
    reported: frozenset[str] = frozenset()
    accepted: set[str] = field(default_factory=set)
    may_repeat: dict[str, set[str]] = field(default_factory=lambda: {sink: set() for sink in SINKS})

    @property
    def age(self) -> tuple[int, int]:
        """Value that changes with the current branch, the incarnation, and the epochs that the log keeps."""
        return self.moves, self.shortened

    def first_row(self) -> NewRow:
        """Return the row of a log that belongs to an outbox."""
        text = CreatedRecord(job=JOB, store_id="store", kind="outbox").model_dump_json()
        return replace(CREATED, brief=text, body=text)

    def append(self, new: NewRow, seen: int) -> LogRow:
        """Append one row. O5: an incarnation leaves no epoch with rows that its driver has not reported."""
        # only an append that succeeds leaves epochs
        if new.kind == "incarnation" and seen == len(self.rows) and self.mood != "fail":
            self._judge_branch(IncarnationRecord.model_validate_json(new.brief).base)
        return super().append(new, seen)

    def restored(self, backup: Backup) -> None:
        """Replace the log by a backup of it."""
        super().restored(backup)
        there = self.decided
        self.by_number = {each.epoch: each for each in self.manifests() if each.attempt in there}
        log_state = self.opened().state()
        # a backup of the store has the staged files of its epochs
        for epoch in log_state.by_id:
            self.gone -= {file.path for each in self.by_number[epoch].outputs.values() for file in each.files}
        self.tip, self.moves = log_state.latest, self.moves + 1

    def lineage(self, epoch: int) -> Iterator[Manifest]:
        """Yield an epoch and all its ancestors, newest first, those that retention dropped too."""
        while epoch:
            yield self.by_number[epoch]
            epoch = self.by_number[epoch].base

    def diverged_attempts(self, base: int) -> frozenset[str]:
        """Return the commits that are not of the branch up to `base`."""
        kept = {each.epoch for each in self.lineage(base)}
        return frozenset(each.attempt for each in self.by_number.values() if each.epoch not in kept)

    def left_by(self, base: int) -> list[Manifest]:
        """Return the epochs with rows that a branch after `base` leaves, oldest first."""
        kept = {each.epoch for each in self.lineage(base)}
        return [each for each in self.lineage(self.tip) if each.epoch not in kept and each.rows_out][::-1]

    def rows_of(self, manifest: Manifest, sink: str) -> list[Row]:
        """Return the staged rows of an epoch for a sink."""
        files = manifest.outputs[sink].files if sink in manifest.outputs else ()
        return [row for file in files for row in self.staged[file.path]]

    def acknowledged(self) -> frozenset[tuple[str, int]]:
        """Return the sinks and epochs that the log's rows acknowledge, one by one."""
        found: set[tuple[str, int]] = set()
        for row, _ in self.rows:
            brief = json.loads(row.brief)
            found |= {(ack["sink"], ack["epoch"]) for ack in brief.get("acks", ())}
            back = brief.get("taken_back", {})
            found = {(sink, epoch) for sink, epoch in found if epoch <= back.get(sink, epoch)}
        return frozenset(found)

    def judge_report(
        self, report: TellBranch, sinks: dict[str, OutboxSink], known: Collection[tuple[str, int]]
    ) -> frozenset[str]:
        """O6: a report lists exactly the left epochs, and per epoch exactly the sinks that show it, or may.

        `known`: what the log acknowledged when the driver read it. Such a sink has the epoch, without a "may".
        Return the commits that it covers.
        """
        left = self.left_by(report.base)
        listed = {each.epoch: each for each in report.left}
        wanted = {each.epoch for each in left if each.epoch > report.dropped}
        ensure(
            listed.keys() == wanted, "O6", f"epochs {sorted(listed)} are reported, the branch leaves {sorted(wanted)}"
        )
        for manifest in (each for each in left if each.epoch in listed):
            for sink, target in sinks.items():
                said, shows = listed[manifest.epoch], target.has(manifest.attempt)
                fits = not shows or sink in (*said.shown, *said.maybe)
                # an epoch without rows for the sink is shown by it in any case
                fits = fits and (shows or sink not in said.shown or not self.rows_of(manifest, sink))
                fits = fits and not (shows and sink in said.maybe and (sink, manifest.epoch) in known)
                ensure(fits, "O6", f"{sink} shows epoch {manifest.epoch}: {shows}; reported is {said}")
        for manifest in left:
            for sink in SINKS:
                said_of = listed.get(manifest.epoch)
                if said_of is None or sink in (*said_of.shown, *said_of.maybe):
                    self.may_repeat[sink].add(manifest.attempt)
        return frozenset(each.attempt for each in left)

    def judge_shown(self, sink: OutboxSink) -> None:
        """O14: no row is shown twice, except those of commits that an operator knows to be repeated."""
        final = [(attempt, rows) for attempt, rows in sink.shown if attempt not in self.may_repeat[sink.name]]
        often = [row for row, count in Counter(row.name for _, rows in final for row in rows).items() if count > 1]
        ensure(not often, "O14", f"{sink.name} shows {often} twice, and no operator knows")
        attempts = [attempt for attempt, _ in sink.shown]
        ensure(len(set(attempts)) == len(attempts), "O14", f"{sink.name} was given one commit twice: {attempts}")

    def judge_end(self, query: str, rows: int, sinks: dict[str, OutboxSink]) -> None:
        """O2: every sink shows all rows of the query's input, and every epoch of the branch."""
        for sink in sinks.values():
            # an earlier query of the outbox had an input of its own
            shown = {row.name.number for _, each in sink.shown for row in each if row.name.source == query}
            lost = [row.name for row in output(query, 0, rows, NO_STATE)[0] if gets(sink.name, row)]
            lost = [name for name in lost if name.number not in shown]
            ensure(not lost, "O2", f"{sink.name} never shows {lost}")
            for manifest in self.lineage(self.tip):
                there = sink.has(manifest.attempt) or not self.rows_of(manifest, sink.name)
                ensure(there, "O2", f"{sink.name} never shows epoch {manifest.epoch}")

    def _judge_branch(self, base: int) -> None:
        silent = [each.epoch for each in self.left_by(base) if each.attempt not in self.reported]
        ensure(not silent, "O5", f"a branch after epoch {base} leaves epochs {silent}, and no report says so")
        # the incarnation moves the branch, before its first commit
        self.tip, self.moves = base, self.moves + 1

    def judge(self, manifest: Manifest) -> None:
        """Judge a commit.

        - O16: its query has the outbox.
        - O2: it continues the branch without a gap.
        - O3: its rows are those of a run without failures.
        """
        name, batch = f"epoch {manifest.epoch}", manifest.spark_batch
        ensure(batch is not None, "O7", f"{name} has no batch")
        assert batch is not None  # noqa: S101 - as above
        base = self.by_number[manifest.base].spark_batch if manifest.base else None
        last = self.by_number[max(self.by_number)].spark_batch if self.by_number else None
        owners = {each.query for each in (base, last) if each is not None} | self.accepted
        ensure(not owners or batch.query in owners, "O16", f"{name} is of query {batch.query}, the outbox of {owners}")
        # another query, which an operator has confirmed, begins with a batch of its own
        if base is not None and base.query == batch.query:
            follows = (batch.number, batch.before) == (base.number + 1, base.offsets)
            ensure(follows, "O2", f"{name} has batch {batch.number} right after batch {base.number}")
        start, end = self.ends[batch.before] if batch.before else 0, self.ends[batch.offsets]
        rows = output(batch.query, start, end, state_at(start))[0]
        for sink in SINKS:
            wanted = [row for row in rows if gets(sink, row)]
            found = self.rows_of(manifest, sink)
            ensure(found == wanted, "O3", f"{name} has {found} for {sink}, a run without failures {wanted}")
        self.by_number[manifest.epoch] = manifest
        self.tip, self.moves = manifest.epoch, self.moves + 1
