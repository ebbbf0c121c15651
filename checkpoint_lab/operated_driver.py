"""A driver of an operated job: one incarnation of the shipped rules, without concurrency: effects happen at once.

The job has one source, two sinks and no state: rows go from the source to both sinks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from checkpoint_lab.spark_driver import HOLDER, LIMITS, shipped
from checkpoint_lab.spark_store import JOB, Backup, Shared
from checkpoint_lab.violations import ensure
from checkpoint_protocols.ids import Epoch, Incarnation
from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.connector import Cursor, EpochOutput, Json, PublishedEpoch, SinkContext
from spark_ckpt.connector_parts.sink_rules import SinkMarker, is_published, marker_of
from spark_ckpt.content import damaged
from spark_ckpt.coordination.job_shape import JobShape, SinkPlace
from spark_ckpt.coordination.manifests import stamped
from spark_ckpt.coordination.messages import (
    AcksRecorded,
    ArmTimer,
    BatchDone,
    CommitEpoch,
    End,
    EpochCommitted,
    OfferMarker,
    Outcome,
    Publish,
    PublishEnded,
    QueryStarting,
    RecordAcks,
    SourcesPinned,
    StopRequested,
)
from spark_ckpt.coordination.reports import Report
from spark_ckpt.endpoints.identities import reconciled
from spark_ckpt.epochs.identity import Confirmed, Found, past_losses, with_confirmation
from spark_ckpt.epochs.records import Manifest, SinkAck
from spark_ckpt.epochs.restore import LATEST, RestoreTarget, newest_whole
from spark_ckpt.epochs.ways_back import choice_unseen, way_back
from spark_ckpt.errors import CkptError, EpochDamaged, PublishFailed, RowsLost

# -- The truth about an operated job, independent of its log: content of commits, shown rows, accepted repetitions.
#
# A commit is known by its attempt: a log that has lost its end uses epoch numbers again.


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
class SinkTarget:
    """A table or topic that gets published rows. `shown`: its rows, each with the commit that published it."""

    sink: str
    identity: str
    shown: list[tuple[Read, str]] = field(default_factory=list)
    marker: SinkMarker | None = None
    versions: list[tuple[int, SinkMarker | None]] = field(default_factory=lambda: [(0, None)])
    """Number of its rows, and its marker, after each transaction."""
    backup: tuple[list[tuple[Read, str]], SinkMarker | None] | None = None
    """Rows and marker from before an older version of it was restored."""

    def publish(self, store: OperatedStore, output: EpochOutput, how: str) -> bool:
        """Publish in one transaction. Return True if the rows were there before. `how`: as in `SparkSink.publish`.

        Raises the errors of a publisher.
        """
        # A replaced sink gets no epoch from before its replacement: those rows belong to the endpoint that it replaced.
        before = output.begun_after is not None and output.epoch <= output.begun_after
        ensure(not before, "O11", f"{self.identity} is given epoch {output.epoch}, it began after {output.begun_after}")
        context = SinkContext(JOB, self.sink, "store", output.incarnation)
        if is_published(self.marker, output, context):
            return True
        if how == "fail":
            raise PublishFailed(f"{self.sink} is away")
        # every file is looked at before a row is shown, since a transaction is whole
        for file in output.files:
            if file.path in store.gone:
                raise damaged(file.path, "is missing", epoch=output.epoch, sink=self.sink, expected="1 byte")
        self.shown += [(row, output.decision) for file in output.files for row in store.reads[file.path]]
        self.marker = marker_of(output, context)
        self.versions.append((len(self.shown), self.marker))
        if how == "silent":
            raise PublishFailed(f"{self.sink} does not answer")
        return False

    def newest_published(self, _context: SinkContext) -> PublishedEpoch | None:
        """Return the content of its marker."""
        at = self.marker
        return None if at is None else PublishedEpoch(Epoch(at.epoch), Incarnation(at.incarnation), at.is_of)

    def declaring(self, _context: SinkContext, epoch: Epoch) -> str:
        """Return the command that sets the marker."""
        return f"declare {self.sink} {epoch}"

    def take_back(self, number: int) -> None:
        """Restore an older version of the table; all newer ones are lost."""
        # what was there before the first restore: a second one must not replace it by less
        self.backup = self.backup or (self.shown, self.marker)
        rows, self.marker = self.versions[number]
        self.shown, self.versions = self.shown[:rows], self.versions[: number + 1]

    def bring_back(self) -> None:
        """Restore what an older version has replaced."""
        if self.backup is not None:
            (self.shown, self.marker), self.backup = self.backup, None
            self.versions.append((len(self.shown), self.marker))


@dataclass
class OperatedStore(Shared):
    """Rows of the log and staged files. `gone`: staged files that are damaged or deleted."""

    reads: dict[str, tuple[Read, ...]] = field(default_factory=dict)
    decisions: dict[str, Decided] = field(default_factory=dict)
    by_number: dict[int, Decided] = field(default_factory=dict)
    oldest: Counter[str] = field(default_factory=Counter)
    """Number of the oldest row that each topic still has."""
    accepted_losses: dict[int, int] = field(default_factory=dict)
    """Per incarnation the number of the oldest row that its source had when an operator accepted the loss of older ones."""
    _due: tuple[tuple[int, int], frozenset[str]] | None = None
    """Length of the log and its unpublished files at that length."""

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

    def restored(self, backup: Backup) -> None:
        """Replace the log by a backup of it."""
        super().restored(backup)
        in_log = self.decided
        # the lost end's numbers are used again, so the attempts that are in the log decide
        self.by_number = {each.epoch: each for each in self.decisions.values() if each.attempt in in_log}

    def judge(self, manifest: Manifest) -> None:
        """O1, O2: for every sink, the lineage's outputs and deferred rows are the rows read up to the cursor."""
        base = self.by_number.get(manifest.base)
        # a topic that replaced another one is read from its start
        cursor = _cursor(manifest)
        begun = base.cursor.number if base and base.cursor.topic == cursor.topic else 0
        ensure(cursor.number >= begun, "O1", f"epoch {manifest.epoch} reads {cursor} again, it stood at {begun}")
        oldest = self.accepted_losses.get(manifest.incarnation, 0)
        reads = tuple(Read(cursor.topic, number) for number in range(max(begun, oldest), cursor.number))
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
class OperatedTruth:
    """`targets`: every endpoint that a sink's name has had. `accepted`: number of accepted repetitions of each row."""

    store: OperatedStore
    targets: dict[str, list[SinkTarget]]
    accepted: dict[str, Counter[Read]] = field(default_factory=lambda: {sink: Counter() for sink in SINKS})
    given_up: dict[str, set[Read]] = field(default_factory=lambda: {sink: set() for sink in SINKS})
    """Rows that an operator has declared to be in a sink that lost them."""

    def shown(self, sink: str) -> Counter[Read]:
        """Return the rows that all endpoints of the sink's name show."""
        return Counter(row for target in self.targets[sink] for row, _ in target.shown)

    def gone_back(self, epoch: int) -> None:
        """Accept repetitions: an operator restored this epoch, so rows of other epochs may be published again."""
        kept = self.attempts_of(epoch)
        for sink in SINKS:
            # rows of the restored lineage are published once; all others may come again
            # a set: however often a row is shown, one restore repeats it once
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

    def declared(self, sink: str, epoch: int) -> None:
        """Accept that the sink lacks rows of committed epochs up to this one, of every branch."""
        declared = (each for each in self.store.by_number.values() if each.epoch <= epoch)
        self.given_up[sink] |= {row for each in declared for row in each.shown[sink]}

    def judge(self) -> None:
        """O1: no row is shown more often than an operator accepted."""
        for sink in SINKS:
            often = {row: count for row, count in self.shown(sink).items() if count > 1 + self.accepted[sink][row]}
            ensure(not often, "O1", f"{sink} shows {often}, and no error said so")

    def judge_end(self, epoch: int) -> None:
        """O2: every sink shows every row that the job has read."""
        read = {row for each in self.store.by_number[epoch].lineage() for row in each.reads} if epoch else set[Read]()
        for sink in SINKS:
            lost = sorted(read - set(self.shown(sink)) - self.given_up[sink])
            ensure(not lost, "O2", f"{sink} never shows {lost}, and no operator accepted that")


def _cursor(manifest: Manifest) -> Read:
    cursor = manifest.cursors[SOURCE]
    return Read(str(cursor["topic"]), int(str(cursor["n"])))


PUBLISH_EVERY_MS = 120


def operated_shape(patient: Collection[str]) -> JobShape:
    """Return the job's shape. `patient`: sinks with `publish_every`, which get the rows of several epochs at once."""
    sinks = {sink: SinkPlace("", publish_every_ms=PUBLISH_EVERY_MS if sink in patient else 0) for sink in SINKS}
    return JobShape(JOB, (SOURCE,), sinks, (), LIMITS, store="STORE", ack_wait_ms=50)


@dataclass(frozen=True)
class Start:
    """Arguments of the operator's start of the job."""

    restore: RestoreTarget = LATEST
    confirmed: Confirmed = field(default_factory=Confirmed)

    @property
    def chosen(self) -> bool:
        """True if the operator named an epoch."""
        return self.restore != LATEST


class OperatedDriver:
    """One incarnation. `topic`: the source's current endpoint, with `rows` rows. Raises the errors of its start.

    `taken_back`: newest epoch of each sink that has lost rows.
    """

    def __init__(
        self,
        store: OperatedStore,
        shape: JobShape,
        start: Start,
        topic: str,
        targets: Mapping[str, SinkTarget],
        rows: int,
        taken_back: Mapping[str, int],
    ) -> None:
        self.store, self.topic, self.targets, self.rows = store, topic, targets, rows
        self.log = store.log()
        found = Found({SOURCE: {"topic": topic}}, {sink: {"table": each.identity} for sink, each in targets.items()})
        log_state = self.log.state()
        choice = choice_unseen(log_state, start.restore, self.log.manifest, self.log.verify)
        # once before the incarnation begins, so that a refusal changes nothing, and again with the epoch that it has
        # got
        reconciled(self.log, log_state, choice.base, choice.unpublished, found, start.confirmed)
        point = self.log.begin_incarnation(HOLDER, start.restore, 1_000, takeover=True, taken_back=taken_back)
        self.point, self.start = point, start
        standing = reconciled(self.log, self.log.state(), point.manifest, point.unpublished, found, start.confirmed)
        self.fresh = bool(standing.fresh)
        standing = past_losses(standing, start.confirmed, point.manifest.cursors, {SOURCE: self._past_lost})
        if SOURCE in start.confirmed.lost_rows:
            store.accepted_losses[point.incarnation] = store.oldest[topic]
        self.core = shipped(shape, point, self.log.state().acked, standing)
        self.now_ms = 0
        self.timers: list[tuple[int, Event]] = []
        self.waiting: dict[str, deque[EpochOutput]] = {sink: deque() for sink in SINKS}
        self.markers = self.seen = self.batch = 0
        self.attempts_before = store.attempts
        self.stopping = False
        self.ending: End | None = None
        self._begin()

    def _begin(self) -> None:
        oldest = self.store.oldest[self.topic]
        pinned: dict[str, Json] = {"topic": self.topic, "n": oldest}
        if SOURCE not in self.core.cut.cursors:
            self.store.accepted_losses[self.point.incarnation] = (
                oldest  # no epoch has a position that rows are lost after
            )
        self.tell(SourcesPinned({} if SOURCE in self.core.cut.cursors else {SOURCE: pinned}))
        at = self.cursor
        ensure(at.topic == self.topic, "O11", f"{self.topic} is read from {at}, a position in another topic")
        if self.ending is None and at.number < oldest:
            lost = RowsLost(
                f"{self.topic} begins at {oldest}, the job has read it up to {at.number}", hint="keep rows longer"
            )
            self.ending = End(
                Outcome.FAILED, with_confirmation(lost, [SOURCE], self.start.restore, self.start.confirmed)
            )
        # the commit of the initial epoch may have failed
        if self.ending is None:
            self.tell(QueryStarting(behind=True))

    def _past_lost(self, cursor: Cursor) -> Cursor:
        """Return the source's cursor behind the rows that its topic has lost."""
        return {**cursor, "n": max(int(str(cursor["n"])), self.store.oldest[self.topic])}

    @property
    def cursor(self) -> Read:
        """Position of the source."""
        cursor = self.core.cut.cursors[SOURCE]
        return Read(str(cursor["topic"]), int(str(cursor["n"])))

    @property
    def news(self) -> bool:
        """True if Spark would plan a batch."""
        return self.ending is None and (self.cursor.number < self.rows or self.seen < self.markers)

    def tell(self, event: Event) -> None:
        """Hand an event to the rules and carry out their effects."""
        events = deque([event])
        # an answer is handled when all effects of the event before it are carried out, as in the queues of a driver
        while events and self.ending is None:
            for effect in self.core.handle(events.popleft(), float(self.now_ms)):
                events += self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> list[Event]:
        match effect:
            case ArmTimer(delay_ms=delay_ms, elapsed=elapsed):
                self.timers.append((self.now_ms + delay_ms, elapsed))
            case OfferMarker():
                # only their number matters, because this job has no state to take a snapshot of
                self.markers += 1
            case CommitEpoch(manifest=manifest, names=names):
                return self._decide(manifest, names)
            case Publish(sink=sink, output=output):
                self.waiting[sink].append(output)
            case RecordAcks(acks=acks):
                return [AcksRecorded(acks, self._record(acks))]
            case End():
                self.ending = self.ending or effect
        return []

    def _record(self, acks: Sequence[SinkAck]) -> CkptError | None:
        """Record acknowledgements without an epoch. Return the error if the log did not take them."""
        try:
            self.log.record_acks(self.point.incarnation, acks)
        except CkptError as error:
            return error
        return None

    def _decide(self, manifest: Manifest, names: tuple[str, ...]) -> list[Event]:
        self.store.attempts += 1
        decided = stamped(manifest, f"attempt {self.store.attempts}", 1)
        try:
            self.log.commit_epoch(decided)
        except CkptError as error:
            self.ending = End(Outcome.FAILED, error)
            return []
        return [EpochCommitted(decided, names)]

    def run_batch(self, most: int) -> None:
        """Run a batch of at most `most` rows, with all markers."""
        at, self.seen = self.cursor, self.markers
        end = min(self.rows, at.number + most)
        rows = tuple(Read(at.topic, number) for number in range(at.number, end))
        reports = [Report("input", 0, 0, "sources", {"rows_in": len(rows)})]
        if rows:
            reports += [Report("tap", 0, 0, sink, self._staged(sink, rows)) for sink in SINKS]
        cursor: dict[str, Json] = {"topic": at.topic, "n": end}
        self.batch += 1
        self.tell(BatchDone(self.batch, {SOURCE: cursor}, 0, self.seen, tuple(reports)))

    def _staged(self, sink: str, rows: tuple[Read, ...]) -> dict[str, Json]:
        # Among one driver's names, each is a prefix of the next one.
        path = f"ckpt-{sink}-i{self.point.incarnation}-{self.attempts_before}-{'b' * self.batch}"
        self.store.reads[path], self.store.staged[path] = rows, ()
        return {"path": path, "size_bytes": 1, "rows": len(rows), "lane": 0, "batch": self.batch, "task": 0, "part": 0}

    def _judge_way(self, back: int, output: EpochOutput) -> None:
        """O10: the advice restores no older epoch than the first damaged file requires."""
        damaged = next(file.path for file in output.files if file.path in self.store.gone)
        state, read, verify = self.log.state(), self.log.manifest, self.store.verify
        wanted = newest_whole(state, output.epoch, read, verify, frozenset({damaged}))
        ensure(back == wanted, "O10", f"{damaged} is damaged: {back} is named to go back to, not {wanted}")

    def publish(self, sink: str, how: str) -> None:
        """Perform a publisher's transaction and hand its result to the rules."""
        output = self.waiting[sink].popleft()
        try:
            replayed = self.targets[sink].publish(self.store, output, how)
        except CkptError as error:
            back = way_back(error, sink, output.epoch, self.log.state, self.log.manifest, self.store.verify)
            if back is not None and isinstance(error, EpochDamaged):
                self._judge_way(back, output)
            self.tell(PublishEnded(sink, output.epoch, error=error, back=back))
        else:
            self.tell(PublishEnded(sink, output.epoch, len(output.files), replayed))

    def run_out(self) -> None:
        """Expire the earliest timer."""
        due = min(range(len(self.timers)), key=lambda each: self.timers[each][0])
        due_ms, elapsed = self.timers.pop(due)
        self.now_ms = max(self.now_ms, due_ms)
        self.tell(elapsed)

    def stop(self) -> None:
        """Request the end of the job."""
        self.stopping = True
        self.tell(StopRequested())

    def leave(self) -> None:
        """Write acknowledgements and the lease release to the log."""
        self.log.record_acks(self.point.incarnation, self.core.publication.acks)
        self.log.release(self.point.incarnation)


def merged(start: Start, restore: RestoreTarget, named: Mapping[str, AbstractSet[str]]) -> Start:
    """Return the start with the step that an error's advice adds. `named`: names by kind of confirmation."""
    confirmed = start.confirmed
    return Start(
        restore,
        replace(
            confirmed,
            new_sinks=confirmed.new_sinks | named.get("new_sink", frozenset()),
            new_sources=confirmed.new_sources | named.get("new_source", frozenset()),
            lost_rows=confirmed.lost_rows | named.get("lost_rows", frozenset()),
        ),
    )
