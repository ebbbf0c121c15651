"""One incarnation on Spark: its rules (`coordination/protocol.py`), its threads, its query, its end.

Order of one epoch (design.md, section 4):

1. The barrier enters the control stream.
2. The batch with the barrier ends the epoch; snapshots and staged rows are durable.
3. The manifest is appended to the log: the commit.
4. Every sink publishes.
5. Tables are updated, and retention is applied.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from checkpoint_protocols.machine import Effect
from spark_ckpt.connector import Cursor
from spark_ckpt.coordination.messages import (
    CountBatch,
    EpochRequested,
    Outcome,
    QueryStarting,
    Reason,
    SayCommitted,
    SourcesPinned,
    StandbyWaits,
    StopRequested,
)
from spark_ckpt.coordination.reports import Report, action_parts_ms
from spark_ckpt.coordination.standby import again_ms
from spark_ckpt.driver.coordinator import CoordinatorLoop
from spark_ckpt.driver.effects import Effects
from spark_ckpt.driver.index_keeper import IndexKeeper, stage_process
from spark_ckpt.driver.input_clock import input_clock
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.lanes import Lanes
from spark_ckpt.driver.lease_keeper import LeaseKeeper
from spark_ckpt.driver.maintenance.materializing import Materializing
from spark_ckpt.driver.progress import Progress
from spark_ckpt.driver.query.batch_phases import Phases, PhaseWatch
from spark_ckpt.driver.query.control_source import Control
from spark_ckpt.driver.query.failures import failure_of, is_running
from spark_ckpt.driver.query.offset_log import BatchOffsets
from spark_ckpt.driver.query.spark_state import CheckpointState, checkpoint_state
from spark_ckpt.driver.query.stage import Stage
from spark_ckpt.driver.query.stage_query import RunningQuery, stop_within
from spark_ckpt.driver.source_watch import SourceWatch
from spark_ckpt.epochs.identity import Parts, Standing
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import SparkState
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import CkptError, Fenced, RunFailed, in_short
from spark_ckpt.events.announcer import Announcer
from spark_ckpt.events.listener import OutageEvent
from spark_ckpt.tasks.state.local_folder import LocalFolder
from spark_ckpt.trace.recorder import recorded

_log = logging.getLogger(__name__)
POLL_S = 0.1
JOIN_S = 30.0
_GIVE_UP_S = 5.0
"""Seconds for a publisher to abort its attempt."""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of an incarnation. `error`: the reason, None after a stop. `progressed`: it committed an epoch of its own."""

    outcome: Outcome
    error: BaseException | None
    progressed: bool


class SparkIncarnation:
    """Runs one incarnation.

    `begin` returns when the query runs; `watch` blocks until the end. `targets`: per source, the cursor at which a
    draining run ends. `standing`: endpoints. `levels`: a standby's folder of local levels.
    """

    def __init__(
        self,
        plan: JobPlan,
        point: RecoveryPoint,
        announcer: Announcer,
        progress: Progress,
        targets: Mapping[str, Cursor],
        standing: Standing | None = None,
        levels: Path | None = None,
    ) -> None:
        self._plan, self._point = plan, point
        self._announcer, self._progress = announcer, progress
        self._ending: Ending | None = None
        self._over = threading.Event()
        self._close_within_s = JOIN_S
        self._query: RunningQuery | None = None
        self._folder, self._levels = LocalFolder(plan.cache, point.incarnation), levels
        self.hands_over = self._abandoned = False  # the first: a standby is to take over
        # Of the epoch, not of the settings: its state files are divided by this number.
        key_groups = plan.key_groups(point.manifest)
        shape, acked = plan.shape(key_groups), plan.store.log.state().acked
        trace_dir = plan.config.trace_dir
        protocol, self._rules, stage = recorded(trace_dir, shape, point, standing, acked, stage_process(plan))
        self._protocol = protocol
        self._control = Control()
        self._inputs = input_clock(plan)
        spark_state = checkpoint_state(plan, point)
        self._stage = Stage(
            plan, point.incarnation, protocol, self._control, targets, self._folder.path, key_groups, self._inputs,
            spark_state,
        )  # fmt: skip
        self._keeper = LeaseKeeper(
            self._renew, plan.config.lease_ms, progress.outage_over, self._missed_renewal, self._fail
        )
        self._loop = CoordinatorLoop(self._rules, self._carry_out, self._fail)
        self._phases = PhaseWatch(self._phases_of, self._loop.set_timer, self._tell_phases)
        standing_now, post = protocol.publication.standing, self._loop.post
        self._lanes = Lanes(plan, point, standing_now, post, self._publish_took)
        self._materializing = Materializing(plan, point.incarnation, announcer.kept_up, self._fail, self._watched)
        self._watch = SourceWatch(plan, self._known_sources, self._fail)
        self._effects = Effects(
            plan, announcer, progress, self._control, self._lanes, self._materializing, self._loop, self._watch,
            stage, self._served, self._finish,
            partial(self._spark_state_after, spark_state) if spark_state else None,
        )  # fmt: skip
        self._index = (
            IndexKeeper(plan, point.incarnation, stage, protocol, self._loop, announcer.lines, self._fail)
            if plan.between.indexed
            else None
        )

    # -- between the parts: methods, since the loop and the effects need each other

    def _carry_out(self, effect: Effect) -> None:
        self._effects.carry_out(effect)
        if self._index is not None and isinstance(effect, (CountBatch, SayCommitted)):
            self._index.positions_moved()
        # The epoch's barrier has reached every key group, so each has its levels by now.
        if isinstance(effect, SayCommitted) and self._protocol.progressed:
            self._folder.remove_earlier()

    def _phases_of(self, batch: int) -> Phases | None:
        return self._query.phases(batch) if self._query else None

    def _spark_state_after(self, state: CheckpointState, batch: int) -> SparkState:
        # Spark commits the batch meanwhile, so the capture waits for that, at most as long as an epoch may take.
        return state.after(batch, self._plan.config.timeout_ms, self._over.is_set)

    def _tell_phases(self, phases: Phases) -> None:
        self._effects.tell_phases(phases)

    def _known_sources(self) -> Mapping[str, Parts]:
        return self._protocol.publication.standing.sources

    def _publish_took(self, sink: str, epoch: int, parts_ms: Mapping[str, int]) -> None:
        # On a publisher's thread: the durations belong to the coordinator's.
        self._loop.post(partial(self._effects.publish_took, sink, epoch, parts_ms))

    @property
    def incarnation(self) -> int:
        """Number of this incarnation."""
        return self._point.incarnation

    @property
    def last_epoch(self) -> int:
        """Newest committed epoch."""
        return self._protocol.cut.base.epoch

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """Positions of the sources after the newest micro-batch."""
        return self._protocol.cut.cursors

    @property
    def has_drained(self) -> bool:
        """True if a draining run has read every source up to its target."""
        return self._protocol.has_drained

    # -- from the user's threads ----------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Request a final epoch and the end."""
        self._loop.post(StopRequested())

    def request_savepoint(self, name: str) -> None:
        """Request an epoch that is kept under `name`."""
        self._loop.post(EpochRequested(Reason.SAVEPOINT, name))

    def request_epoch(self) -> None:
        """Request an epoch, also if no row has come."""
        self._loop.post(EpochRequested(Reason.INTERVAL))

    def abandon(self, close_within_s: float) -> None:
        """End now, without a final epoch: the next start repeats the work after the last epoch.

        Open resources get `close_within_s` to close, then they are left open.
        """
        # Set before the end is reported: `close` runs on another thread and reads both.
        self._close_within_s, self._abandoned = close_within_s, True
        self._finish(Outcome.STOPPED, None)

    # -- beginning --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Pin the sources, then start the publishers, the query and the coordinator. Raises an error that ends the
        incarnation.
        """
        # The steps below copy and compare state and ask other systems, which may take longer than a lease.
        self._keeper.start()
        # Before any task: a standby's levels become this incarnation's by one rename.
        self._folder.make(self._levels)
        self._plan.declare_edges()
        # The tables return to this epoch: readers should not see epochs that a restore left.
        if self.last_epoch:
            self._materializing.begin(self._protocol.cut.base)
        self._loop.handle(SourcesPinned(self._stage.starts()))
        # The commit of the start positions may have failed.
        if self._ending is not None and self._ending.error is not None:
            # The error of the effect, not one about the start: it says if the store is away or another driver took over.
            raise self._ending.error
        lacks = {str(sink): list(epochs) for sink, epochs in self._protocol.publication.unpublished.items()}
        self._announcer.started(self.last_epoch, self._point.restored_from, lacks)
        # Publishers start before the query: epochs that the last incarnation left unpublished are visible seconds before the
        # first batch ends.
        self._lanes.start()
        if self._inputs is not None:
            self._inputs.begin()
        # If rows wait, the first batch ends an epoch at any interval. So its barrier has to be in the stream before the query
        # starts.
        behind = self._stage.is_behind()
        self._loop.handle(QueryStarting(behind))
        self._loop.start()
        self._materializing.start()
        self._watch.start()
        if self._index is not None:
            self._index.start()
        # Last: a batch may end at once, and with an epoch per batch it waits for the coordinator.
        self._query = self._stage.start(behind, self._on_batch, self._over.is_set)

    def _on_batch(self, offsets: BatchOffsets, reports: Sequence[Report], duration_ms: int) -> None:
        """Handle a batch, on Spark's thread.

        If every batch ends an epoch, Spark plans the next batch only after its barrier is in the stream.
        """
        # One event for each batch: the coordinator may still commit the epoch of the batch before, and its release must
        # not be taken for this one's.
        taken_in = threading.Event()
        self._loop.post(partial(self._take_in, taken_in, offsets, reports, duration_ms))
        if self._plan.config.every_batch:
            while not taken_in.wait(POLL_S) and not self._over.is_set():
                pass

    def _take_in(
        self, taken_in: threading.Event, offsets: BatchOffsets, reports: Sequence[Report], duration_ms: int
    ) -> None:
        self._effects.batch_comes(offsets.batch, action_parts_ms(reports), taken_in)
        self._loop.handle(self._stage.batch_done(offsets, reports, duration_ms))
        # Also for a batch that ended no epoch: Spark's thread waits after each one.
        self._effects.let_plan()
        self._phases.batch_ended(offsets.batch)

    # -- the lease --------------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        self._follow_requests(self._plan.store.log.renew(self.incarnation, self._plan.config.lease_ms))

    def _served(self, log_state: LogState) -> None:
        """Note a commit, which renews the lease."""
        self._keeper.renewed()
        self._progress.outage_over()
        self._follow_requests(log_state)

    def _follow_requests(self, log_state: LogState) -> None:
        """Check the log state, which was just read, for a request to hand over."""
        if log_state.handover_asked and not self.hands_over:
            # Once: each later commit reads the same request, and another stop would ask for another final epoch.
            self.hands_over = True
            self._announcer.hands_over(self.last_epoch)
            self.request_stop()

    def _watched(self, waits: bool) -> None:
        # Read by the query's thread after each batch; one assignment, so it needs no lock.
        self._stage.admission.standby_waits = waits
        self._loop.post(StandbyWaits(waits))

    def _missed_renewal(self, error: CkptError, missed_s: float) -> None:
        # It ends nothing. But an idle job would otherwise notice the outage only with its next rows.
        config = self._plan.config
        _log.warning("job=%s incarnation=%d the lease was not renewed: %s", self._plan.job, self.incarnation, error)
        event = OutageEvent(
            self._plan.job, self.incarnation, error.condition, error.what, round(missed_s * 1000),
            config.store_patience_ms, again_ms(config.lease_ms), attempt=0,
        )  # fmt: skip
        # Announced first: an epoch that is committed in between would end it before listeners hear that it began.
        self._announcer.outage(event)
        self._progress.outage_began(event)

    # -- ending ---------------------------------------------------------------------------------------------------------------

    def watch(self) -> Ending:
        """Wait for the end while keeping the lease; then close everything in order and return the end."""
        while not self._over.wait(POLL_S):
            try:
                # A query can die without a batch, for example while it plans, so its end is looked for.
                if not is_running(self._query):
                    self._finish(Outcome.FAILED, failure_of(self._query))
            except Exception as error:  # noqa: BLE001 - after any error, query, publishers and lease have to be closed
                self._finish(Outcome.FAILED, error)
        ending = self._ending or Ending(Outcome.FAILED, RunFailed("the incarnation ended without saying why"), False)
        self.close(ending)
        return ending

    def _finish(self, outcome: Outcome, error: BaseException | None) -> None:
        # The first reason counts; later errors are mostly its consequences.
        if self._ending is None:
            self._ending = Ending(outcome, error, self._protocol.progressed)
            self._over.set()  # last: `watch` reads the ending once this is set

    def _fail(self, error: BaseException) -> None:
        """End the incarnation after a thread died of `error`."""
        outcome = Outcome.FENCED if isinstance(error, Fenced) else Outcome.FAILED
        if not isinstance(error, CkptError):
            _log.error(
                "job=%s incarnation=%d the coordinator failed",
                self._plan.job,
                self.incarnation,
                exc_info=error,
            )
        self._finish(outcome, error)

    def close(self, ending: Ending) -> None:
        """Stop query, publishers and coordinator.

        A complete stop frees the lease first: this incarnation can commit nothing more, and a standby waits for the
        lease. After a failure the lease is kept, since the run may continue.
        """
        self._keeper.close()
        self._watch.close()
        for companion in (self._inputs, self._index):
            if companion is not None:
                companion.close()
        # A drain or a stop commits nothing more. If a publish is still under way after its time, the sink's fence guards it.
        stopped = ending.outcome is Outcome.STOPPED
        if stopped and not self._abandoned:
            self._leave(ending)
        if self._query is not None:
            stop_within(self._query, self._close_within_s)
        self._end_threads(time.monotonic() + self._close_within_s)
        # The trace is closed after the last thread that could add an event.
        self._rules.close()
        # Only after the threads: until they have ended, a publish may still be acknowledged. A fenced incarnation writes
        # nothing.
        if self._abandoned or ending.outcome is Outcome.FAILED:
            self._leave(ending)
        # After a failure the next incarnation links the levels; they are derived, and a start checks them.
        if self._abandoned or ending.outcome is not Outcome.FAILED:
            self._folder.remove()
        self._announcer.ended(self.last_epoch, ending.outcome.value if ending.error is None else str(ending.error))

    def _end_threads(self, deadline_s: float) -> None:
        self._lanes.stop()
        self._loop.close()
        _join((*self._lanes.threads(), self._loop), deadline_s)
        _join(self._lanes.give_up(), time.monotonic() + _GIVE_UP_S)
        # The loop is over, so no update is queued after this.
        self._materializing.close()
        background = [each for each in (self._inputs, self._index) if each is not None]
        _join([self._materializing, self._watch, *background], deadline_s)
        self._watch.disconnect()  # after its thread: a check connects again

    def _leave(self, ending: Ending) -> None:
        """Record the last acknowledgements and the reason of the end; free the lease if the run ends as well."""
        # A failed incarnation keeps the lease for the next one. With a free lease a standby would take over in the pause
        # between them.
        goes_on = ending.outcome is Outcome.FAILED
        try:
            self._plan.store.log.record_acks(self.incarnation, self._protocol.publication.acks)
            why = ending.outcome.value if ending.error is None else in_short(ending.error)
            self._plan.store.log.release(self.incarnation, why, keeps=goes_on)
        except CkptError as error:
            _log.warning("job=%s incarnation=%d could not free its lease: %s", self._plan.job, self.incarnation, error)


def _join(threads: Iterable[threading.Thread], deadline_s: float) -> None:
    for thread in threads:
        if thread.is_alive():
            thread.join(timeout=max(0.0, deadline_s - time.monotonic()))
