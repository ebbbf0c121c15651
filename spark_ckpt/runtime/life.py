"""One incarnation of a job: restore, run the query, coordinate epochs, publish, until it stops or fails.

The order of one epoch (design.md, section 4); each step below bears its number:
1. offer the barrier; 2. the batch that holds it ends the epoch, snapshots and staged rows are durable; 3. commit the
manifest: the decision; 4. publish to every sink; 5. settle the tables, retain.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from spark_ckpt.connector import Cursor, SinkContext
from spark_ckpt.errors import CkptError, ConfigInvalid, Fenced, PublishFailed, RunFailed
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.graph import SinkBinding
from spark_ckpt.listener import OutageEvent
from spark_ckpt.protocol import barrier
from spark_ckpt.protocol.ids import Epoch, Incarnation, SinkId, TaskId
from spark_ckpt.protocol.machine import Effect
from spark_ckpt.protocol.vocabulary import Note, SetTimer
from spark_ckpt.runtime.announcer import Announcer
from spark_ckpt.runtime.control_source import BARRIER, NO_MARKER, OPEN, Control, Marker
from spark_ckpt.runtime.coordinator import CoordinatorLoop
from spark_ckpt.runtime.epoch_builder import EpochBuilder
from spark_ckpt.runtime.group_host import GroupHost
from spark_ckpt.runtime.identities import parts_of
from spark_ckpt.runtime.incarnation_machine import coordinator_of, group_tasks, source_tasks
from spark_ckpt.runtime.inputs import InputRetention
from spark_ckpt.runtime.lease_keeper import LeaseKeeper
from spark_ckpt.runtime.manifests import Lineage, manifest_of, summary_of
from spark_ckpt.runtime.offset_log import BatchOffsets, read_batch_offsets
from spark_ckpt.runtime.progress import Progress
from spark_ckpt.runtime.publishing import PublishOutcome, SinkLane
from spark_ckpt.runtime.query_failures import JvmGone, failure_of, is_running
from spark_ckpt.runtime.reports import Report
from spark_ckpt.runtime.sink_books import SinkBooks
from spark_ckpt.runtime.stage_query import RunningQuery, StageDescription, StageQuery, stop_within
from spark_ckpt.storage_errors import told_of
from spark_ckpt.store.identity import Standing
from spark_ckpt.store.records import Manifest, SinkAck
from spark_ckpt.store.retention import Retention

if TYPE_CHECKING:
    from spark_ckpt.runtime.job_plan import JobPlan
    from spark_ckpt.store.restore import RecoveryPoint

_log = logging.getLogger(__name__)
_POLL_S = 0.1
_JOIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How an incarnation ended, and why if not by a stop. `progressed`: it committed an epoch of its own."""

    outcome: barrier.Outcome
    error: BaseException | None
    progressed: bool


class Life:
    """Runs one incarnation. `begin` returns when the query runs; `watch` blocks until the end; `post` asks for something."""

    def __init__(
        self,
        plan: JobPlan,
        point: RecoveryPoint,
        announcer: Announcer,
        progress: Progress,
        targets: Mapping[str, Cursor],
        standing: Standing | None = None,
    ) -> None:
        self._plan = plan
        self._point = point
        self._announcer = announcer
        self._progress = progress
        self._targets = dict(targets)
        self._base = point.manifest
        self._key_groups = plan.key_groups(point.manifest)
        self._books = SinkBooks(plan, point, standing, plan.store.log.tail().acked)
        self._cursors: dict[str, Cursor] = self._books.standing.goes_on(point.manifest.cursors)
        self._builder = EpochBuilder(point.manifest, plan.operator_name, plan.watermark_delay_ms, plan.bindings[0].name)
        self._decided: dict[int, Manifest] = {each.epoch: each for due in point.unpublished.values() for each in due}
        self._acks: list[SinkAck] = []
        self._previous = point.last
        self._barrier_at_s = time.monotonic()
        self._progressed = False
        self._idle_interval: barrier.IntervalElapsed | None = None
        self._publish_error: CkptError | None = None
        self._ending: Ending | None = None
        self._over = threading.Event()
        self._close_within_s = _JOIN_S
        self._query: RunningQuery | None = None
        self._folder = plan.cache / f"i{point.incarnation}"
        self._lanes = {binding.name: self._lane(binding) for binding in plan.bindings}
        self._inputs = InputRetention(plan)
        self._control = Control()
        self._marker = NO_MARKER
        self._coordinator: barrier.Coordinator | None = None
        self._loop: CoordinatorLoop | None = None
        self._keeper = LeaseKeeper(
            self._renew, plan.config.lease_ms, progress.outage_over, self._missed_renewal, self._fail
        )

    @property
    def incarnation(self) -> int:
        """This life's number."""
        return self._point.incarnation

    @property
    def last_epoch(self) -> int:
        """The newest committed epoch this life stands on."""
        return self._base.epoch

    @property
    def _thread(self) -> CoordinatorLoop:
        if self._loop is None:
            raise RunFailed("the incarnation has not begun")
        return self._loop

    # -- from the user's threads ----------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Ask for a final epoch and the end."""
        self._thread.post(barrier.StopRequested())

    def request_savepoint(self, name: str) -> None:
        """Ask for an epoch that is kept under `name`."""
        self._thread.post(barrier.EpochRequested(barrier.Reason.SAVEPOINT, name))

    def abandon(self, close_within_s: float) -> None:
        """End now, without a final epoch: what is not in an epoch is undone by the next start. What is open
        may take `close_within_s` to close, then it is left behind."""
        self._close_within_s = close_within_s
        self._finish(barrier.Outcome.STOPPED, None)

    # -- beginning --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Pin the sources, start the query, the publishers and the coordinator."""
        self._make_folder()
        if self.last_epoch:
            self._plan.store.settle(self._base)
        self._pin_sources()
        self._announcer.started(self.last_epoch, self._point.restored_from)
        self._coordinator = coordinator_of(self._plan, self._point, self._key_groups, self._previous)
        self._loop = CoordinatorLoop(self._coordinator, self._do, self._fail)
        for lane in self._lanes.values():
            lane.start()
        self._control.inject(OPEN, self.last_epoch)
        self._thread.start()
        self._thread.post(barrier.Started())
        behind = self._is_behind()
        if behind:
            self._thread.post(barrier.EpochRequested(barrier.Reason.INTERVAL))
        self._query = StageQuery(self._plan.spark, self._description(behind), self._on_batch, self._over.is_set).start()

    def _is_behind(self) -> bool:
        """A job that finds rows waiting ends its first epoch with its first batch: what a crash undid is soon done again for
        good. The barrier is offered before the query plans that batch. A job that drains ends soon anyway.
        """
        if self._targets:
            return False
        return not self._reached({node.name: node.source.end(self._plan.spark) for node in self._plan.sources})

    def _make_folder(self) -> None:
        """This life's own folder: a driver that was replaced may still run on this host and clean up after itself."""
        for left in self._plan.cache.glob("i*"):
            if left.name[1:].isdigit() and int(left.name[1:]) < self.incarnation - 1:
                shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        with told_of(str(self._folder)):
            self._folder.mkdir(parents=True)

    def _pin_sources(self) -> None:
        """A source without a cursor starts where it is configured to, once: the position is an epoch of its own."""
        fresh = [node for node in self._plan.sources if node.name not in self._cursors]
        for node in fresh:
            self._cursors[node.name] = node.source.start(self._plan.spark)
        if fresh:
            ended = self._builder.pinned(self._previous + 1, self._cursors)
            self._commit(manifest_of(self._plan, ended, self._lineage(), "initial", []))

    def _description(self, behind: bool) -> StageDescription:
        plan = self._plan
        return StageDescription(
            name=f"{plan.job}/{self.incarnation}",
            node=plan.bindings[0].node,
            cursors=self._cursors,
            stages=plan.stages(self.incarnation),
            rejected_stage=plan.rejected_stage(self.incarnation),
            host=self._host(),
            control=self._control,
            checkpoint_uri=plan.checkpoint(self.incarnation).uri,
            shuffle_partitions=plan.shuffle_partitions,
            trigger_ms=plan.config.trigger_ms,
            behind=behind,
        )

    def _host(self) -> GroupHost | None:
        operator = self._plan.operator
        if operator is None:
            return None
        return GroupHost(
            name=operator.name,
            keys=operator.keys,
            operator=operator.operator,
            key_groups=self._key_groups,
            incarnation=self.incarnation,
            base_epoch=self.last_epoch,
            base_watermark_ms=self._base.watermark_ms,
            base_late_ms=self._builder.late_ms,
            chains=self._builder.chains,
            location=self._plan.store.state(operator.name).location,
            cache=str(self._folder / operator.name),
        )

    # -- Spark's thread ---------------------------------------------------------------------------------------------------

    def _on_batch(self, batch: int, reports: Sequence[Report], duration_ms: int) -> None:
        """2. A batch is done: everything it wrote is durable. Where it ends is fixed since before it ran."""
        if self._over.is_set():
            return
        offsets = read_batch_offsets(self._plan.checkpoint(self.incarnation), batch)
        self._thread.post(lambda: self._take_in(offsets, reports, duration_ms))

    # -- the coordinator's thread -------------------------------------------------------------------------------------------

    def _take_in(self, offsets: BatchOffsets, reports: Sequence[Report], duration_ms: int) -> None:
        before = dict(self._cursors)
        for node, line in zip(self._plan.sources, offsets.sources, strict=True):
            if line is not None:
                self._cursors[node.name] = node.source.cursor(line, self._cursors[node.name])
        counts = self._builder.add(offsets, reports, moved=self._cursors != before)
        self._progress.add(offsets.batch, self.incarnation, self.last_epoch, counts, duration_ms, self._cursors)
        marker = self._control.marker(offsets.markers)
        if self._is_news(marker) and self._is_open(marker):
            ended = self._builder.end(marker.epoch, self._cursors)
            epoch, incarnation = Epoch(ended.epoch), Incarnation(self.incarnation)
            tasks = source_tasks(self._plan) + group_tasks(self._plan, ended.groups_acked)
            self._thread.tell(*(barrier.SnapshotAcked(TaskId(task), epoch, incarnation) for task in tasks))
            self._thread.tell(*(barrier.SinkPrepared(SinkId(sink), epoch, incarnation) for sink in self._lanes))
        self._wake_interval()
        self._stop_if_drained()

    def _is_news(self, marker: Marker) -> bool:
        """A marker stays the source's offset until the next one: only the batch it first appears in holds it."""
        known, self._marker = self._marker, marker
        return marker.number > known.number

    def _is_open(self, marker: Marker) -> bool:
        """Whether the marker is the barrier of the open epoch. One that comes after its epoch timed out ends nothing:
        its snapshots stay in the chains, its rows belong to the next epoch."""
        return marker.kind == BARRIER and self._coordinator is not None and self._coordinator.open_epoch == marker.epoch

    def _stop_if_drained(self) -> None:
        if self._targets and self._reached(self._targets):
            self._targets = {}
            self._thread.tell(barrier.StopRequested(barrier.Reason.DRAINED))

    def _reached(self, ends: Mapping[str, Cursor]) -> bool:
        """Whether every source that has an end in `ends` has been read up to it."""
        return all(
            node.source.reached(self._cursors[node.name], ends[node.name])
            for node in self._plan.sources
            if node.name in ends
        )

    def _do(self, effect: Effect) -> None:
        match effect:
            case SetTimer(delay_ms=delay_ms, elapsed=barrier.IntervalElapsed() as interval):
                self._thread.set_timer(delay_ms, lambda: self._interval(interval))
            case SetTimer(delay_ms=delay_ms, elapsed=elapsed):
                self._thread.set_timer(delay_ms, elapsed)
            case barrier.InjectBarrier(epoch=epoch):
                self._inject(epoch)
            case barrier.StoreEpoch():
                self._store(effect)
            case barrier.CommitSink(sink=sink, epoch=epoch):
                self._lanes[sink].submit(self._books.output(sink, self._decided[epoch], self._previous))
            case barrier.AbortEpoch(epoch=epoch, why=why):
                self._builder.aborted(epoch)
                self._announcer.aborted(epoch, why)
            case barrier.Finish(outcome=outcome, why=why):
                self._finish(outcome, self._why(outcome, why))
            case Note(what=what, detail=detail):
                _log.info("job=%s incarnation=%d %s %s", self._plan.job, self.incarnation, what, detail)
            case _:
                _log.debug("job=%s incarnation=%d dropped %s", self._plan.job, self.incarnation, effect)

    def _inject(self, epoch: int) -> None:
        """1. Offer the barrier to the stream."""
        self._barrier_at_s = time.monotonic()
        self._control.inject(BARRIER, epoch)

    def _store(self, effect: barrier.StoreEpoch) -> None:
        """3. The decision."""
        ended = self._builder.take(effect.epoch)
        manifest = manifest_of(self._plan, ended, self._lineage(), effect.reason.value, self._acks)
        try:
            self._commit(manifest)
        except Fenced as error:
            self._thread.tell(barrier.EpochStoreFailed(effect.epoch, effect.incarnation, fenced=True, why=str(error)))
            return
        for name in effect.names:
            self._name(name, effect.epoch)
        self._thread.tell(barrier.EpochStored(effect.epoch, effect.incarnation))
        self._thread.post(lambda: self._settle(manifest))

    def _name(self, savepoint: str, epoch: int) -> None:
        """A name that somebody else took meanwhile is no reason to end the job."""
        try:
            self._plan.store.log.add_savepoint(savepoint, epoch)
        except ConfigInvalid as error:
            _log.warning("job=%s epoch=%d is kept without a name: %s", self._plan.job, epoch, error)

    def _commit(self, manifest: Manifest) -> None:
        hit(Failpoint.EPOCH_COMMITTING)
        self._plan.store.log.commit_epoch(manifest)
        hit(Failpoint.EPOCH_COMMITTED)
        self._keeper.renewed()
        self._progress.outage_over()
        self._builder.decided(manifest.epoch)
        self._base, self._previous = manifest, manifest.epoch
        self._acks = [ack for ack in self._acks if ack not in manifest.acks]
        self._progressed = self._progressed or manifest.reason != barrier.Reason.INITIAL.value
        self._decided[manifest.epoch] = manifest
        self._announcer.committed(manifest.epoch, summary_of(manifest))

    def _published(self, outcome: PublishOutcome) -> None:
        sink, incarnation = SinkId(outcome.sink), Incarnation(self.incarnation)
        if isinstance(outcome.error, Fenced):
            self._finish(barrier.Outcome.FENCED, outcome.error)
        elif outcome.error is not None:
            error = self._books.told(outcome.error, outcome.sink, self._decided[outcome.epoch])
            self._publish_error = error
            self._thread.tell(barrier.SinkCommitFailed(sink, outcome.epoch, incarnation, error.retriable, error.what))
        elif outcome.receipt is not None:
            detail: dict[str, JsonValue] = {
                "sink": outcome.sink,
                "rows": outcome.receipt.rows,
                "replayed": outcome.receipt.replayed,
            }
            self._publish_error = None
            self._books.published(outcome.sink, outcome.epoch, outcome.learned)
            self._acks.append(SinkAck(sink=outcome.sink, epoch=outcome.epoch, detail=detail))
            self._announcer.published(outcome.epoch, detail)
            self._thread.tell(barrier.SinkCommitted(sink, outcome.epoch, incarnation))
            self._forget_published()

    def _lane(self, binding: SinkBinding) -> SinkLane:
        plan = self._plan
        context = SinkContext(plan.job, binding.name, plan.store.id, Incarnation(self.incarnation))
        return SinkLane(
            binding.name,
            lambda: binding.sink.publisher(plan.spark, context),
            self._still_current,
            lambda outcome: self._thread.post(lambda: self._published(outcome)),
            inherited=self._point.last,
            ask_identity=None
            if self._books.standing.is_complete(binding.name)
            else lambda: parts_of(binding.sink, plan.spark),
        )

    def _still_current(self) -> None:
        newest = self._plan.store.log.tail().incarnation
        if newest > self.incarnation:
            raise Fenced(
                f"incarnation {newest} took over",
                incarnation=self.incarnation,
                hint="this driver can be ended",
            )

    def _forget_published(self) -> None:
        machine = self._coordinator
        owed = {epoch for epochs in machine.unpublished.values() for epoch in epochs} if machine else set()
        self._decided = {epoch: manifest for epoch, manifest in self._decided.items() if epoch in owed}

    def _settle(self, manifest: Manifest) -> None:
        """5. Idempotent redo of what the manifest says, for readers of the tables; then retention."""
        store, config = self._plan.store, self._plan.config
        store.settle(manifest)
        self._inputs.follow(store.retain(Retention(keep_last=config.keep_epochs, keep_age_ms=config.keep_age_ms)))

    # -- time -----------------------------------------------------------------------------------------------------------------

    def _interval(self, elapsed: barrier.IntervalElapsed) -> None:
        """An idle stream takes no epochs: the interval waits for the first rows."""
        if self._builder.idle:
            self._idle_interval = elapsed
        else:
            self._thread.tell(elapsed)

    def _wake_interval(self) -> None:
        if self._idle_interval is not None and not self._builder.idle:
            elapsed, self._idle_interval = self._idle_interval, None
            self._thread.tell(elapsed)

    def _renew(self) -> None:
        self._plan.store.log.renew(self.incarnation, self._plan.config.lease_ms)

    def _missed_renewal(self, error: CkptError, missed_s: float) -> None:
        """Trouble that may pass ends nothing, but it is told: an idle job would meet it with its next rows only."""
        config = self._plan.config
        _log.warning("job=%s incarnation=%d the lease was not renewed: %s", self._plan.job, self.incarnation, error)
        event = OutageEvent(
            self._plan.job, self.incarnation, error.condition, error.what, round(missed_s * 1000),
            config.store_patience_ms, config.lease_ms // 3, attempt=0,
        )  # fmt: skip
        self._progress.outage_began(event)
        self._announcer.outage(event)

    def _lineage(self) -> Lineage:
        return Lineage(
            self.incarnation,
            self.last_epoch,
            self._previous,
            self._barrier_at_s,
            self._key_groups,
            self._books.standing,
        )

    # -- ending ---------------------------------------------------------------------------------------------------------------

    def watch(self) -> Ending:
        """Wait for the end; keep the lease meanwhile; then close everything in order."""
        self._keeper.start()
        while not self._over.wait(_POLL_S):
            try:
                if not is_running(self._query):
                    self._finish(barrier.Outcome.FAILED, failure_of(self._query))
            except JvmGone as error:
                self._finish(barrier.Outcome.FAILED, error)
        ending = self._ending or Ending(
            barrier.Outcome.FAILED, RunFailed("the incarnation ended without saying why"), False
        )
        self.close(ending)
        return ending

    def _finish(self, outcome: barrier.Outcome, error: BaseException | None) -> None:
        if self._ending is None:
            self._ending = Ending(outcome, error, self._progressed)
            self._over.set()

    def _fail(self, error: BaseException) -> None:
        """The coordinator's thread died of `error`."""
        outcome = barrier.Outcome.FENCED if isinstance(error, Fenced) else barrier.Outcome.FAILED
        if not isinstance(error, CkptError):
            _log.error(
                "job=%s incarnation=%d the coordinator failed",
                self._plan.job,
                self.incarnation,
                exc_info=error,
            )
        self._finish(outcome, error)

    def _why(self, outcome: barrier.Outcome, why: str) -> CkptError | None:
        if outcome is barrier.Outcome.FENCED:
            return Fenced(why, incarnation=self.incarnation, hint="another driver runs this job; this one can be ended")
        if outcome is barrier.Outcome.FAILED:
            return self._publish_error or RunFailed(why)
        if not why:
            return None
        return self._publish_error or PublishFailed(why, hint="the rows are staged; the next start publishes them")

    def close(self, ending: Ending) -> None:
        """Stop query, publishers and coordinator; a clean stop gives up the lease at once."""
        self._keeper.close()
        if self._query is not None:
            stop_within(self._query, self._close_within_s)
        self._end_threads(time.monotonic() + self._close_within_s)
        if ending.outcome is not barrier.Outcome.FENCED:
            self._leave()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._announcer.ended(self.last_epoch, ending.outcome.value if ending.error is None else str(ending.error))

    def _end_threads(self, deadline_s: float) -> None:
        for lane in self._lanes.values():
            lane.stop()
        if self._loop is not None:
            self._loop.close()
        for thread in (*self._lanes.values(), self._loop):
            if thread is not None and thread.is_alive():
                thread.join(timeout=max(0.0, deadline_s - time.monotonic()))

    def _leave(self) -> None:
        """Say what was published since the last epoch, and free the lease."""
        try:
            self._plan.store.log.record_acks(self.incarnation, self._acks)
            self._plan.store.log.release(self.incarnation)
        except CkptError as error:
            _log.warning("job=%s incarnation=%d could not free its lease: %s", self._plan.job, self.incarnation, error)
