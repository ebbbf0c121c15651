"""A driver of an operated job: one incarnation of the shipped rules, without concurrency: effects happen at once.

The job has one source, two sinks and no state: rows go from the source to both sinks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from checkpoint_lab.operated_truth import SINKS, SOURCE, OperatedStore, Read, Target
from checkpoint_lab.spark_driver import HOLDER, LIMITS, CoreOf
from checkpoint_lab.spark_store import JOB
from checkpoint_lab.violations import ensure
from checkpoint_protocols.barrier import Outcome
from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.connector import EpochOutput, Json
from spark_ckpt.coordination.job_shape import JobShape, SinkPlace
from spark_ckpt.coordination.manifests import stamped
from spark_ckpt.coordination.messages import (
    AcksRecorded,
    ArmTimer,
    BatchDone,
    End,
    ManifestStored,
    OfferMarker,
    Publish,
    PublishEnded,
    QueryStarting,
    RecordAcks,
    SourcesPinned,
    StopAsked,
    StoreManifest,
    TimerRanOut,
)
from spark_ckpt.coordination.reports import Report
from spark_ckpt.epochs.identity import Confirmed, Found, Standing, known, reconciled
from spark_ckpt.epochs.records import Manifest, SinkAck
from spark_ckpt.epochs.restore import LATEST, RestoreTarget, newest_whole, owed_rows
from spark_ckpt.epochs.ways_back import Ways, choice_unseen, ways_of, whole_manifests
from spark_ckpt.errors import CkptError, EpochDamaged
from spark_ckpt.store.epoch_log import EpochLog

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
    """One incarnation. `topic`: the source's current endpoint, with `rows` rows. Raises the errors of its start."""

    def __init__(
        self,
        store: OperatedStore,
        core_of: CoreOf,
        shape: JobShape,
        start: Start,
        topic: str,
        targets: Mapping[str, Target],
        rows: int,
    ) -> None:
        self.store, self.topic, self.targets, self.rows = store, topic, targets, rows
        self.log = store.log()
        found = Found({SOURCE: {"topic": topic}}, {sink: {"table": each.identity} for sink, each in targets.items()})
        log_state = self.log.state()
        choice = choice_unseen(log_state, start.restore, self.log.manifest, self.log.verify)
        _standing(self.log, choice.base, owed_rows(choice.base, choice.unpublished), found, start)
        point = self.log.begin_incarnation(HOLDER, start.restore, 1_000, takeover=True)
        self.point = point
        standing = _standing(self.log, point.manifest, owed_rows(point.manifest, point.unpublished), found, start)
        self.fresh = bool(standing.fresh)
        self.core = core_of(shape, point, self.log.state().acked, standing)
        self.now_ms = 0
        self.timers: list[tuple[int, Event]] = []
        self.waiting: dict[str, deque[EpochOutput]] = {sink: deque() for sink in SINKS}
        self.markers = self.seen = self.batch = 0
        self.attempts_before = store.attempts
        self.stopping = False
        self.ending: End | None = None
        self._begin()

    def _begin(self) -> None:
        pinned: dict[str, Json] = {"topic": self.topic, "n": 0}
        self.tell(SourcesPinned({} if SOURCE in self.core.cursors else {SOURCE: pinned}))
        at = self.cursor
        ensure(at.topic == self.topic, "O11", f"{self.topic} is read from {at}, a position in another topic")
        if self.ending is None:
            self.tell(QueryStarting(behind=True))

    @property
    def cursor(self) -> Read:
        """Position of the source."""
        cursor = self.core.cursors[SOURCE]
        return Read(str(cursor["topic"]), int(str(cursor["n"])))

    @property
    def news(self) -> bool:
        """True if Spark would plan a batch."""
        return self.ending is None and (self.cursor.number < self.rows or self.seen < self.markers)

    def tell(self, event: Event) -> None:
        """Hand an event to the rules and carry out their effects."""
        events = deque([event])
        while events and self.ending is None:
            for effect in self.core.handle(events.popleft(), float(self.now_ms)):
                events += self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> list[Event]:
        match effect:
            case ArmTimer(delay_ms=delay_ms, elapsed=elapsed):
                self.timers.append((self.now_ms + delay_ms, elapsed))
            case OfferMarker():
                self.markers += 1
            case StoreManifest(manifest=manifest, names=names):
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
        return [ManifestStored(decided, names)]

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

    def _judge_way(self, ways: Ways, output: EpochOutput) -> None:
        """O10: the advice restores no older epoch than the first damaged file requires."""
        damaged = next(file.path for file in output.files if file.path in self.store.gone)
        state, read, verify = self.log.state(), self.log.manifest, self.store.verify
        wanted = newest_whole(state, output.epoch, read, verify, frozenset({damaged}))
        ensure(ways.back == wanted, "O10", f"{damaged} is damaged: {ways.back} is named to go back to, not {wanted}")

    def publish(self, sink: str, how: str) -> None:
        """Perform a publisher's transaction and hand its result to the rules."""
        output = self.waiting[sink].popleft()
        try:
            replayed = self.targets[sink].publish(self.store, output, how)
        except CkptError as error:
            ways = ways_of(error, sink, output.epoch, self.log.state, self.log.manifest, self.store.verify)
            if ways is not None and isinstance(error, EpochDamaged):
                self._judge_way(ways, output)
            told = PublishEnded(sink, output.epoch, error=error)
            self.tell(told if ways is None else replace(told, back=ways.back, on=ways.on))
        else:
            self.tell(PublishEnded(sink, output.epoch, len(output.files), replayed))

    def run_out(self) -> None:
        """Expire the earliest timer."""
        due = min(range(len(self.timers)), key=lambda each: self.timers[each][0])
        due_ms, elapsed = self.timers.pop(due)
        self.now_ms = max(self.now_ms, due_ms)
        self.tell(TimerRanOut(elapsed))

    def stop(self) -> None:
        """Request the end of the job."""
        self.stopping = True
        self.tell(StopAsked())

    def leave(self) -> None:
        """Write acknowledgements and the lease release to the log."""
        self.log.record_acks(self.point.incarnation, self.core.acks)
        self.log.release(self.point.incarnation)


def _standing(
    log: EpochLog, base: Manifest, owed: Mapping[str, list[Manifest]], found: Found, start: Start
) -> Standing:
    log_state = replace(log.state(), passed_over=frozenset()) if start.chosen else log.state()
    said = known(
        log_state, base, log.manifest, lambda: whole_manifests(log_state, base.epoch, log.manifest, log.verify)
    )
    return reconciled(said, found, start.confirmed, owed, log_state.last)


def merged(start: Start, restore: RestoreTarget, new_sink: str, new_source: str) -> Start:
    """Return the start with the step that an error's advice adds."""
    confirmed = start.confirmed
    return Start(
        restore,
        replace(
            confirmed,
            new_sinks=confirmed.new_sinks | ({new_sink} if new_sink else set()),
            new_sources=confirmed.new_sources | ({new_source} if new_source else set()),
        ),
    )
