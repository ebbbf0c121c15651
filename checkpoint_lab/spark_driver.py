"""A driver process: the rules of one incarnation, with its threads split into steps. It can die between any two steps.

- The coordinator thread carries out effects in order, then takes answers, then posted events.
- One thread per sink publishes.
- Spark runs batches.

Each message between them waits in a queue until its turn.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from checkpoint_lab.spark_batches import SimulatedQuery, restored
from checkpoint_lab.spark_sink import SparkSink
from checkpoint_lab.spark_store import DELAY_MS, EDGES, GROUPS, JOB, OPERATORS, SINKS, SOURCES, Shared
from checkpoint_lab.violations import ensure
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.vocabulary import Note
from spark_ckpt.connector import Cursor, EpochOutput, StagedEarly
from spark_ckpt.coordination.job_shape import EdgeShape, JobShape, Limits, OperatorShape, SinkPlace
from spark_ckpt.coordination.manifests import stamped
from spark_ckpt.coordination.messages import (
    AcksRecorded,
    ArmTimer,
    BatchDone,
    CommitEpoch,
    CommitFenced,
    CommitOverdue,
    DropEarlySend,
    EarlySendEnded,
    End,
    EpochCommitted,
    MaterializeTables,
    NameEpoch,
    OfferMarker,
    Outcome,
    Publish,
    PublishEnded,
    QueryStarting,
    RecordAcks,
    SayCommitted,
    SayPublished,
    SendEarly,
    SourcesPinned,
)
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.endpoints.identities import reconciled
from spark_ckpt.epochs.identity import Confirmed, Found, Standing
from spark_ckpt.epochs.records import Holder, Manifest, SinkAck
from spark_ckpt.epochs.restore import LATEST, RecoveryPoint, RestoreTarget
from spark_ckpt.epochs.retention import Retention, garbage, kept_epochs, segments, staged_files, state_files
from spark_ckpt.epochs.ways_back import choice_unseen, way_back
from spark_ckpt.errors import CkptError, Fenced, RunFailed
from spark_ckpt.store.epoch_log import EpochLog

# -- Endpoints of the job's names, and a start with a wrong endpoint, which the rules have to refuse.


FOUND = Found(
    {source: {"topic": f"{source}-1"} for source in SOURCES}, {sink: {"table": f"{sink}-1"} for sink in SINKS}
)
"""Endpoint of every source and sink, as connectors report it."""


def astray(number: int) -> Found:
    """Return endpoints of which one, chosen by `number`, is wrong: a typo, or a re-created table."""
    names = [*SOURCES, *SINKS]
    name = names[number % len(names)]
    if name in SOURCES:
        return replace(FOUND, sources={**FOUND.sources, name: {"topic": "another"}})
    return replace(FOUND, sinks={**FOUND.sinks, name: {"table": "another"}})


def standing(log: EpochLog, target: RestoreTarget, found: Found) -> Standing:
    """Return the endpoints that a start continues with, computed before the driver changes anything.

    Raises `IdentityChanged`.
    """
    log_state = log.state()
    choice = choice_unseen(log_state, target, log.manifest, log.verify)
    return reconciled(log, log_state, choice.base, choice.unpublished, found, Confirmed())


# -- Commits of one driver on their way to the log, which may answer late or after the driver's end.


@dataclass(frozen=True, eq=False)
class PendingCommit:
    """A manifest on its way to the log; it outlives the driver that sent it."""

    log: EpochLog
    manifest: Manifest
    names: tuple[str, ...]

    def land(self) -> CkptError | None:
        """Commit the manifest. Return the log's error, if any."""
        try:
            self.log.commit_epoch(self.manifest)
        except CkptError as error:
            return error
        return None


class Deciding:
    """Commits of one driver. `asking`: the commit whose answer its coordinator waits for."""

    def __init__(self, shared: Shared, log: EpochLog, answers: deque[Event], end: Callable[[End], None]) -> None:
        self._shared = shared
        self._log = log
        self._answers = answers
        self._end = end
        self.asking: PendingCommit | None = None
        self.unrecorded = False
        """True if the log did not take the latest acknowledgements."""
        self.ended: dict[int, dict[str, Cursor]] = {}
        """Positions of the sources at the end of each batch: the state of Spark's own operators belongs to them."""
        self.late: list[Counter[str]] = []
        """Late rows of each batch, by operator."""
        self.counted = 0
        """Number of batches that epochs have counted."""

    def store(self, effect: CommitEpoch) -> None:
        """Commit at once and take the answer."""
        decision = self._decision(effect)
        self._take(decision, decision.land())

    def ask(self, effect: CommitEpoch) -> PendingCommit:
        """Send a commit that reaches the log at a later step."""
        self.asking = self._decision(effect)
        return self.asking

    def answered(self, decision: PendingCommit, error: CkptError | None) -> None:
        """Take the log's answer, if the coordinator still waits for it."""
        # an answer after the timeout changes nothing: the rules have moved on
        if self.asking is decision:
            self.asking = None
            self._take(decision, error)

    def record(self, incarnation: int, acks: Sequence[SinkAck]) -> CkptError | None:
        """Record acknowledgements without an epoch. Return the error if the log did not take them."""
        try:
            self._log.record_acks(incarnation, acks)
        except CkptError as error:
            self.unrecorded = True
            return error
        self.unrecorded = False
        return None

    def wait_no_longer(self) -> None:
        """Stop waiting: the log has not answered in time."""
        assert self.asking is not None  # noqa: S101 - else the choice does not exist
        self._answers.append(CommitOverdue(self.asking.manifest.epoch))
        self.asking = None

    def _decision(self, effect: CommitEpoch) -> PendingCommit:
        self.judge(effect)
        self._shared.attempts += 1
        return PendingCommit(self._log, stamped(effect.manifest, f"attempt {self._shared.attempts}", 1), effect.names)

    def judge(self, effect: CommitEpoch) -> None:
        """Condemn an epoch that takes the state of Spark's own operators after another batch than its sources' ends.

        O3: it counts the late rows of its batches.
        """
        manifest, batch = effect.manifest, effect.batch
        if batch is None:
            ensure(manifest.reason == "initial", "O1", f"epoch {manifest.epoch} takes no state of Spark's operators")
            return
        told = f"epoch {manifest.epoch} takes Spark's state after batch {batch}, whose sources ended elsewhere"
        ensure(self.ended.get(batch) == manifest.cursors, "O1", told)
        late = sum(self.late[self.counted : batch + 1], Counter())
        self.counted = batch + 1
        found = Counter({name: each.late_rows for name, each in manifest.operators.items()})
        ensure(found == late, "O3", f"epoch {manifest.epoch} counts late rows {dict(+found)}, they are {dict(+late)}")

    def _take(self, decision: PendingCommit, error: CkptError | None) -> None:
        if isinstance(error, Fenced):
            self._answers.append(CommitFenced(decision.manifest.epoch, str(error)))
        elif error is not None:
            self._end(End(Outcome.FAILED, error))
        else:
            self._answers.append(EpochCommitted(decision.manifest, decision.names))


# -- Retention of a driver after an epoch, in steps between which anything may happen: the shipped rules on shared files.
#
# First the log drops epochs. Then each table in turn is compared with the files that the kept epochs need, and the rest
# is deleted later.


POLICY = Retention(keep_last=2, slack=0)
NOW_MS = 2
"""Time later than every epoch, in ms: none is young."""

Named = Callable[[Iterable[Manifest], str], set[str]]
"""A function from manifests to the files of a table that they need."""
TABLES: Sequence[tuple[str, str, Named]] = (
    *((sink, f"ckpt-{sink}", staged_files) for sink in SINKS),
    *((operator, operator, state_files) for operator in OPERATORS),
    *((edge, f"ckpt-{edge}", segments) for edge in EDGES),
)
"""Name of each table, prefix of the incarnation in its file names, and the files that manifests need of it."""


@dataclass
class Sweeper:
    """Retention of one driver.

    - `due`: an epoch was settled.
    - `doomed`: files judged as garbage and not deleted yet.
    - `every`: the tables to sweep; None for those of the job on Spark.
    """

    shared: Shared
    log: EpochLog
    due: bool = False
    tables: deque[tuple[str, str, Named]] = field(default_factory=deque)
    dropped: list[Manifest] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)
    every: Sequence[tuple[str, str, Named]] | None = None

    @property
    def busy(self) -> bool:
        """True if there is a next step."""
        return self.due or bool(self.tables or self.doomed)

    def step(self) -> int:
        """Perform the next step. Return the number of dropped epochs or deleted files. Raises `Fenced`."""
        if self.doomed:
            doomed, self.doomed = self.doomed, []
            self.shared.remove(doomed)
            return len(doomed)
        if self.tables:
            self._judge(*self.tables.popleft())
            return 0
        return self._forget()

    def _forget(self) -> int:
        self.due = False
        _, dropped = self.log.shorten(lambda log_state: kept_epochs(log_state, POLICY, NOW_MS))
        if dropped:
            self.dropped, self.tables = dropped, deque(TABLES if self.every is None else self.every)
        return len(dropped)

    def _judge(self, name: str, prefix: str, named: Named) -> None:
        kept = [self.log.manifest(brief.epoch) for brief in self.log.state().epochs]
        own = self.log.own_incarnation or 0
        # judged now and deleted in a later step: new epochs may come in between
        self.doomed = garbage(self.shared.files(), prefix, named(kept, name), named(self.dropped, name), own)


def swept(sweeper: Sweeper) -> tuple[int, CkptError | None]:
    """Perform one step. Return its count, and the error that ends the driver, if any."""
    try:
        return sweeper.step(), None
    except Fenced as error:
        return 0, error


LIMITS = Limits(
    interval_ms=20, epoch_timeout_ms=400, publish_timeout_ms=100_000, retry_ms=5, max_failed_epochs=1_000,
    max_unpublished=2, max_publish_attempts=1_000, full_after_files=2,
)  # fmt: skip
SHAPE = JobShape(
    JOB, SOURCES, {sink: SinkPlace("") for sink in SINKS},
    (
        OperatorShape(OPERATORS[0], "k int", "n int", GROUPS, dict.fromkeys(SOURCES, DELAY_MS)),
        *(OperatorShape(operator, "k int", "n int", GROUPS) for operator in OPERATORS[1:]),
    ), LIMITS,
    edges=tuple(EdgeShape(edge, "k int, n int") for edge in EDGES), ack_wait_ms=50,
)  # fmt: skip
PUBLISH_EVERY_MS = 1000
"""Interval of a sink with `publish_every`, in ms; several epochs fit into it."""
STANDBY_INTERVAL_MS = 5
"""Interval while a standby waits, in ms; shorter than that of `LIMITS`."""


def shape_of(every_batch: bool, patient: Collection[str], ahead: bool = False, watched: bool = False) -> JobShape:
    """Return the job's shape.

    - `every_batch`: each batch ends an epoch
    - `patient`: sinks with `publish_every`, which get the rows of several epochs at once
    - `ahead`: sinks use early sends
    - `watched`: intervals are shorter while a standby waits
    """
    every_ms = {sink: PUBLISH_EVERY_MS if sink in patient else 0 for sink in SINKS}
    sinks = {sink: SinkPlace("", publish_every_ms=every_ms[sink], sends_early=ahead) for sink in SINKS}
    limits = replace(LIMITS, standby_interval_ms=STANDBY_INTERVAL_MS) if watched else LIMITS
    return replace(SHAPE, every_batch=every_batch, sinks=sinks, limits=limits)


HOLDER = Holder(host="h", boot_id="b", pid=1, pid_start=1, name=JOB)

CoreOf = Callable[[JobShape, RecoveryPoint, Mapping[str, int], Standing], EpochProtocol]


def shipped(shape: JobShape, point: RecoveryPoint, acked: Mapping[str, int], standing: Standing) -> EpochProtocol:
    """Return the shipped rules."""
    return EpochProtocol(shape, point, standing, acked)


class QueryDied(RunFailed):
    """The query ended with an error. It counts as a failure that the job itself may have caused."""

    condition = "CKPT_SIMULATED_QUERY_DIED"
    retriable = True


@dataclass
class Lane:
    """One publisher thread: its queue, and the publish that it performs now. `session`: the session of its publisher.

    It moves an output from the queue to `now` after it has checked that its incarnation is still the newest.
    """

    sink: str
    waiting: deque[EpochOutput | StagedEarly | None] = field(default_factory=deque)
    """Queued work. None: abort the rows of early sends."""
    now: EpochOutput | None = None
    session: int | None = None

    def opened(self, sink: SparkSink, incarnation: int) -> int:
        """Return the session of its publisher; open one if there is none."""
        self.session = sink.open(incarnation) if self.session is None else self.session
        return self.session


class SparkDriver:
    """One incarnation, from the moment in which the log contains it. Raises the errors of its start.

    `trash`: files that it still has to delete.
    """

    def __init__(
        self,
        shared: Shared,
        core_of: CoreOf,
        restore: RestoreTarget = LATEST,
        shape: JobShape = SHAPE,
        found: Found = FOUND,
    ) -> None:
        self.shared = shared
        self.log = shared.log()
        standing(self.log, restore, found)
        # endpoints are checked before the incarnation begins, so that a refusal changes nothing
        point = self.log.begin_incarnation(HOLDER, restore, 1_000, takeover=True)
        self.incarnation = point.incarnation
        self.sends_early = any(place.sends_early for place in shape.sinks.values())
        self.core = core_of(shape, point, self.log.state().acked, standing(self.log, point.manifest.epoch, found))
        self.base = point.manifest
        self.released = 0
        """Newest epoch that sinks may publish, in a job whose stages decide lines together."""
        self.now_ms = 0
        self.timers: list[tuple[int, Event]] = []
        self.effects: deque[Effect] = deque()
        self.answers: deque[Event] = deque()
        self.inbox: deque[Event] = deque()
        self.lanes = {sink: Lane(sink) for sink in SINKS}
        self.query: SimulatedQuery | None = None
        self.trash: deque[Sequence[str]] = deque()
        self.sweeper = Sweeper(shared, self.log)
        self.deciding = Deciding(shared, self.log, self.answers, self.end)
        self.ending: End | None = None
        starts = {source: {"n": 0} for source in SOURCES if source not in self.core.cut.cursors}
        self.answers.append(SourcesPinned(starts))
        self.stopping = False
        self.committed = False
        """True if it knows of a committed epoch of its own."""
        self.announced: deque[tuple[str, int]] = deque()
        """Sinks and epochs that it announced as published since the last look."""
        self.refused = False
        """True if it refused a request for an epoch after the final one."""

    # -- what can happen next ------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True if the coordinator has something to do."""
        work = bool(self.effects or self.answers or (self.query and self.inbox) or self.query is None)
        return work and self.deciding.asking is None

    @property
    def storing(self) -> bool:
        """True if the next effect is a commit."""
        return self.deciding.asking is None and bool(self.effects) and isinstance(self.effects[0], CommitEpoch)

    def step(self, behind: bool) -> None:
        """Perform one effect, or handle one event."""
        if self.effects:
            self._carry_out(self.effects.popleft())
        elif self.answers:
            self._handle(self.answers.popleft())
        elif self.query is None:
            self._begin_query(behind)
        else:
            self._handle(self.inbox.popleft())

    def _handle(self, event: Event) -> None:
        if isinstance(event, BatchDone):
            self.deciding.ended[event.batch] = dict(event.cursors)
            assert self.query is not None  # noqa: S101 - it ran the batch
            self.deciding.late = self.query.late
        self.committed = self.committed or (isinstance(event, EpochCommitted) and event.manifest.reason != "initial")
        self.effects += self.core.handle(event, float(self.now_ms))

    def _begin_query(self, behind: bool) -> None:
        groups = restored(self.shared, self.core.cut.chains)
        cursors = {source: int(str(cursor["n"])) for source, cursor in self.core.cut.cursors.items()}
        clocks = {source: ms for (_, source), ms in self.core.cut.event_times_ms.items()}
        self.query = SimulatedQuery(self.shared, self.incarnation, cursors, groups, self.core.cut.in_flight, clocks)
        # before Spark plans a batch, so that the rules can offer the first marker in time
        self._handle(QueryStarting(behind))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case ArmTimer(delay_ms=delay_ms, elapsed=elapsed):
                self.timers.append((self.now_ms + delay_ms, elapsed))
            case OfferMarker(marker=marker) if self.query is not None:
                self.query.markers.append(marker)
            case CommitEpoch():
                self.deciding.store(effect)
            case Publish(sink=sink, output=output):
                self.lanes[sink].waiting.append(output)
            case SendEarly(sink=sink, staged=staged):
                self.lanes[sink].waiting.append(staged)
            case DropEarlySend(sink=sink):
                self.lanes[sink].waiting.append(None)
            case RecordAcks(acks=acks):
                self.answers.append(AcksRecorded(acks, self.deciding.record(self.incarnation, acks)))
            case NameEpoch(name=name, epoch=epoch):
                ensure(epoch == self.log.state().latest, "O6", f"savepoint {name} names epoch {epoch}, which is not it")
                self.log.add_savepoint(name, epoch)
            case MaterializeTables(manifest=manifest, consumed_segments=segments):
                self._settle(manifest, [path for paths in segments.values() for path in paths])
            case SayCommitted(manifest=manifest):
                ensure(
                    manifest.attempt in self.shared.decided,
                    "O6",
                    f"epoch {manifest.epoch} is announced and not committed",
                )
            case SayPublished(epoch=epoch, detail=detail):
                self.announced.append((str(detail["sink"]), epoch))
            case Note(what="request refused"):
                self.refused = True
            case End():
                self.end(effect)

    def _settle(self, manifest: Manifest, spent: Sequence[str]) -> None:
        """Queue unneeded files for a later deletion. O17: each consumed segment is in an epoch or was released."""
        self.shared.give_up(spent)
        self.sweeper.due = True
        if spent:
            self.trash.append(spent)
        for edge, cut in manifest.edges.items():
            consumed = self._consumed_before(edge, cut.consumed)
            left = [path for path in consumed if path not in self.shared.named | self.shared.spent]
            ensure(not left, "O17", f"epoch {manifest.epoch}: {left} on {edge} are not needed and were not released")

    def _consumed_before(self, edge: str, consumed_rows: int) -> list[str]:
        """Return the segments before a position, from where this incarnation began."""
        assert self.query is not None  # noqa: S101 - there is nothing to settle before it
        begun = self.base.edges.get(edge)
        at, found = begun.consumed if begun else 0, []
        for segment in self.query.added[edge]:
            at += segment.rows
            if at <= consumed_rows:
                found.append(segment.path)
        return found

    def delete(self) -> None:
        """Delete the oldest released files."""
        for path in self.trash.popleft():
            self.shared.delete(path)

    def sweep(self) -> int:
        """Perform one step of retention. Return the number of epochs or files that it removed."""
        gone, error = swept(self.sweeper)
        if error is not None:
            self.end(End(Outcome.FENCED, error))
        return gone

    def end(self, ending: End) -> None:
        """End the driver; the first reason counts."""
        self.ending = self.ending or ending

    def leave(self) -> None:
        """Write acknowledgements and the lease release to the log, unless the driver was fenced."""
        # a fenced driver no longer owns the lease and may write nothing
        if self.ending is not None and self.ending.outcome is not Outcome.FENCED:
            self.log.record_acks(self.incarnation, self.core.publication.acks)
            self.log.release(self.incarnation)

    # -- the other threads ---------------------------------------------------------------------------------------------

    def ask(self, sink: str) -> None:
        """Let a publisher check that its incarnation is still the newest, before it opens anything."""
        lane = self.lanes[sink]
        output = lane.waiting.popleft()
        assert isinstance(output, EpochOutput)  # noqa: S101 - else the choice does not exist
        if self.log.state().incarnation > self.incarnation:
            self.inbox.append(PublishEnded(sink, output.epoch, error=Fenced("a newer incarnation took over")))
        else:
            lane.now = output

    def publish(self, sink: SparkSink, how: str) -> None:
        """Perform a publisher's transaction."""
        lane = self.lanes[sink.name]
        output, lane.now = lane.now, None
        assert output is not None  # noqa: S101 - else the choice does not exist
        try:
            had = sink.had(self.shared, output) if lane.session is None else None  # a look opens no session
            if had is None:
                rows, replayed = sink.publish(self.shared, output, how, lane.opened(sink, self.incarnation))
            else:
                rows, replayed = had, True
        except CkptError as error:
            # the next try opens a session, which refuses a commit of this one that is still under way
            lane.session = None
            back = way_back(error, sink.name, output.epoch, self.log.state, self.log.manifest, self.shared.verify)
            self.inbox.append(PublishEnded(sink.name, output.epoch, error=error, back=back))
        else:
            # a replay may be another incarnation's publish, so the newest incarnation is read again
            newest = self.log.state().incarnation if replayed else 0
            self.inbox.append(PublishEnded(sink.name, output.epoch, rows, replayed, newest))

    def send(self, sink: SparkSink, how: str) -> None:
        """Perform an early send.

        Before the publisher opens a session it checks that its incarnation is still the newest.
        """
        lane = self.lanes[sink.name]
        staged = lane.waiting.popleft()
        assert isinstance(staged, StagedEarly)  # noqa: S101 - else the choice does not exist
        try:
            # an open session needs no check: a newer publisher would have fenced it
            if lane.session is None and self.log.state().incarnation > self.incarnation:
                raise Fenced("a newer incarnation took over")
            rows = sink.send_early(self.shared, staged, how, lane.opened(sink, self.incarnation))
        except CkptError as error:
            lane.session = None
            self.inbox.append(EarlySendEnded(sink.name, staged.epoch, error=error))
        else:
            self.inbox.append(EarlySendEnded(sink.name, staged.epoch, rows))

    def drop_early_send(self, sink: SparkSink) -> None:
        """Abort the rows of early sends, if the publisher's session is still the sink's."""
        lane = self.lanes[sink.name]
        lane.waiting.popleft()
        # a newer session has already aborted the transaction
        if lane.session == sink.session:
            sink.abort()

    def run_batch(self, how: str, target: int | None) -> None:
        """Run the planned batch and post its end. `target`: the end of every source, for a draining job.

        Retention may delete files of a replaced incarnation: its batch fails if it needs a deleted file.
        """
        assert self.query is not None  # noqa: S101 - else the choice does not exist
        if self.incarnation < self.shared.incarnation and not self.query.whole:
            self.lose_query()
            return
        done = self.query.run(how)
        self.inbox.append(replace(done, drained=all(cursor["n"] == target for cursor in done.cursors.values())))

    def lose_query(self) -> None:
        """End the driver with the error of a query that lost its executor too often."""
        self.end(End(Outcome.FAILED, QueryDied("the query died with its executor")))

    def run_out(self, number: int) -> None:
        """Expire a timer."""
        due_ms, elapsed = self.timers.pop(number)
        self.now_ms = max(self.now_ms, due_ms)
        self.inbox.append(elapsed)
