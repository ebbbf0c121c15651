"""The truth about an operated job, independent of its log: content of commits, shown rows, accepted repetitions.

A commit is known by its attempt: a log that has lost its end uses epoch numbers again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from checkpoint_lab.spark_store import JOB, MemoryTable, Shared
from checkpoint_lab.violations import ensure
from spark_ckpt.connector import EpochOutput, SinkContext
from spark_ckpt.connector_parts.sink_rules import SinkMarker, is_published, marker_of
from spark_ckpt.content import damaged
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.errors import PublishFailed
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.log_table import LogRow, LogTable

SOURCE = "a"
SINKS = ("out", "tap")


class Read(NamedTuple):
    """A row of a source: its topic and number."""

    topic: str
    number: int


@dataclass(frozen=True, eq=False)
class Decided:
    """One committed epoch.

    `base`: the epoch that it continues from. `reads`: rows between both. `shown`: output rows of each sink. `held`:
    deferred rows.
    """

    epoch: int
    attempt: str
    base: Decided | None
    cursor: Read
    reads: tuple[Read, ...]
    shown: dict[str, tuple[Read, ...]]
    held: dict[str, tuple[Read, ...]]

    def lineage(self) -> Iterator[Decided]:
        """Yield this epoch and all its ancestors, newest first."""
        at: Decided | None = self
        while at is not None:
            yield at
            at = at.base


@dataclass
class Target:
    """A table or topic that gets published rows. `shown`: its rows, each with the commit that published it."""

    sink: str
    identity: str
    shown: list[tuple[Read, str]] = field(default_factory=list)
    marker: SinkMarker | None = None

    def publish(self, store: OperatedStore, output: EpochOutput, how: str) -> bool:
        """Publish in one transaction. Return True if the rows were there before. `how`: as in `SparkSink.publish`.

        Raises the errors of a publisher.
        """
        before = output.begun_after is not None and output.epoch <= output.begun_after
        ensure(not before, "O11", f"{self.identity} is given epoch {output.epoch}, it began after {output.begun_after}")
        context = SinkContext(JOB, self.sink, "store", output.incarnation)
        if is_published(self.marker, output, context):
            return True
        if how == "fail":
            raise PublishFailed(f"{self.sink} is away")
        for file in output.files:
            if file.path in store.gone:
                raise damaged(file.path, "is missing", epoch=output.epoch, sink=self.sink, expected="1 byte")
        self.shown += [(row, output.decision) for file in output.files for row in store.reads[file.path]]
        self.marker = marker_of(output, context)
        if how == "silent":
            raise PublishFailed(f"{self.sink} does not answer")
        return False


@dataclass
class OperatedStore(Shared):
    """Rows of the log and staged files. `gone`: staged files that are damaged or deleted. `now_ms`: a wall clock."""

    reads: dict[str, tuple[Read, ...]] = field(default_factory=dict)
    decisions: dict[str, Decided] = field(default_factory=dict)
    by_number: dict[int, Decided] = field(default_factory=dict)
    now_ms: int = 0
    _look: EpochLog | None = None
    _due: tuple[tuple[int, int], frozenset[str]] | None = None
    """Length of the log and its unpublished files at that length."""

    def later(self) -> None:
        """Advance the clock past the end of every lease."""
        self.now_ms += 1_000_000

    def log(self) -> EpochLog:
        """Return the shipped log, as one process opens it, with this store's clock."""
        super().log()
        return self._opened()

    def look(self) -> EpochLog:
        """Return the log of a reader that has read all earlier rows. The log must have rows."""
        if self._look is None:
            self._look = self._opened()
        return self._look

    def due_files(self) -> frozenset[str]:
        """Return the staged files of unpublished epochs, and the deferred files of the newest epoch."""
        age = (self.shortened, len(self.rows))
        if self._due is None or self._due[0] != age:
            self._due = age, self._read_due()
        return self._due[1]

    def _read_due(self) -> frozenset[str]:
        log = self.look()
        log_state = log.state()
        due = [log.manifest(epoch).outputs[sink] for sink in log_state.sinks for epoch in log_state.unacked(sink)]
        if log_state.latest:
            due += log.manifest(log_state.latest).held.values()
        return frozenset(file.path for each in due for file in each.files)

    def _opened(self) -> EpochLog:
        return EpochLog(cast(LogTable, MemoryTable(self)), self.verify, lambda: self.now_ms)

    def restored(self, rows: list[tuple[LogRow, str]], forgotten: set[int]) -> None:
        """Replace the log by a backup of it."""
        self.rows, self.forgotten, self.shortened = rows, forgotten, self.shortened + 1
        self.incarnation = max((row.incarnation for row, _ in rows), default=0)
        in_log = self.decided
        self.by_number = {each.epoch: each for each in self.decisions.values() if each.attempt in in_log}

    def _judge(self, manifest: Manifest) -> None:
        """O1, O2: for every sink, the lineage's outputs and deferred rows are the rows read up to the cursor."""
        base = self.by_number.get(manifest.base)
        # a topic that replaced another one is read from its start
        cursor = _cursor(manifest)
        begun = base.cursor.number if base and base.cursor.topic == cursor.topic else 0
        ensure(cursor.number >= begun, "O1", f"epoch {manifest.epoch} reads {cursor} again, it stood at {begun}")
        reads = tuple(Read(cursor.topic, number) for number in range(begun, cursor.number))
        shown = {sink: self._rows(manifest, sink) for sink in SINKS}
        held = {
            sink: tuple(row for file in each.files for row in self.reads[file.path])
            for sink, each in manifest.held.items()
        }
        decided = Decided(manifest.epoch, manifest.attempt, base, cursor, reads, shown, held)
        self.decisions[manifest.attempt] = self.by_number[manifest.epoch] = decided
        for sink in SINKS:
            rows = Counter(row for each in decided.lineage() for row in each.shown[sink]) + Counter(held.get(sink, ()))
            wanted = Counter(row for each in decided.lineage() for row in each.reads)
            ensure(
                not rows - wanted, "O1", f"epoch {manifest.epoch} has {rows - wanted} for {sink} that it did not read"
            )
            ensure(
                not wanted - rows, "O2", f"epoch {manifest.epoch} has read {wanted - rows} and has it not for {sink}"
            )

    def _rows(self, manifest: Manifest, sink: str) -> tuple[Read, ...]:
        files = manifest.outputs[sink].files if sink in manifest.outputs else ()
        return tuple(row for file in files for row in self.reads[file.path])


@dataclass
class Truth:
    """`targets`: every endpoint that a sink's name has had. `accepted`: number of accepted repetitions of each row."""

    store: OperatedStore
    targets: dict[str, list[Target]]
    accepted: dict[str, Counter[Read]] = field(default_factory=lambda: {sink: Counter() for sink in SINKS})

    def shown(self, sink: str) -> Counter[Read]:
        """Return the rows that all endpoints of the sink's name show."""
        return Counter(row for target in self.targets[sink] for row, _ in target.shown)

    def gone_back(self, epoch: int) -> None:
        """Accept repetitions: an operator restored this epoch, so rows of other epochs may be published again."""
        kept = self.attempts_of(epoch)
        for sink in SINKS:
            # rows of the restored lineage are published once; all others may come again
            again = {row for target in self.targets[sink] for row, attempt in target.shown if attempt not in kept}
            self.accepted[sink].update(again)

    def begun_again(self, topic: str, epoch: int) -> None:
        """Accept repetitions: an operator confirmed that this topic is read from its start.

        Its rows that sinks show, or will get from the lineage of `epoch`, are published again.
        """
        read = {row for each in self.store.by_number[epoch].lineage() for row in each.reads} if epoch else set[Read]()
        for sink in SINKS:
            self.accepted[sink].update(row for row in {*self.shown(sink), *read} if row.topic == topic)

    def attempts_of(self, epoch: int) -> set[str]:
        """Return the attempts of an epoch and all its ancestors."""
        return {each.attempt for each in self.store.by_number[epoch].lineage()} if epoch else set()

    def shows_behind(self, sink: str, newest: int, back: int) -> bool:
        """Return True if the sink shows rows that the lineage of `newest` published after `back`."""
        behind = self.attempts_of(newest) - self.attempts_of(back)
        return any(attempt in behind for target in self.targets[sink] for _, attempt in target.shown)

    def judge(self) -> None:
        """O1: no row is shown more often than an operator accepted."""
        for sink in SINKS:
            often = {row: count for row, count in self.shown(sink).items() if count > 1 + self.accepted[sink][row]}
            ensure(not often, "O1", f"{sink} shows {often}, nobody was told")

    def judge_end(self, epoch: int) -> None:
        """O2: every sink shows every row that the job has read."""
        read = {row for each in self.store.by_number[epoch].lineage() for row in each.reads} if epoch else set[Read]()
        for sink in SINKS:
            lost = sorted(read - set(self.shown(sink)))
            ensure(not lost, "O2", f"{sink} never shows {lost}, nobody accepted that")


def _cursor(manifest: Manifest) -> Read:
    cursor = manifest.cursors[SOURCE]
    return Read(str(cursor["topic"]), int(str(cursor["n"])))
