"""Carries out the effects of the rules: log, control stream, publishers, tables, listeners."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from checkpoint_protocols.machine import Effect
from checkpoint_protocols.vocabulary import Note
from spark_ckpt.connector import Json
from spark_ckpt.coordination.manifests import identified, measured, stamped, summary_of, with_spark_state
from spark_ckpt.coordination.messages import (
    AcksRecorded,
    ArmTimer,
    CommitEpoch,
    CommitFenced,
    CommitOverdue,
    CountBatch,
    DropEarlySend,
    End,
    EpochCommitted,
    MaterializeTables,
    NameEpoch,
    OfferMarker,
    Outcome,
    Publish,
    RecordAcks,
    SayAborted,
    SayCommitted,
    SayPublished,
    SendEarly,
)
from spark_ckpt.coordination.stage_process import EpochEnding, EpochServes, StampEpoch
from spark_ckpt.driver.answering import NoAnswer, answer_within
from spark_ckpt.driver.coordinator import CoordinatorLoop, Rules
from spark_ckpt.driver.epoch_clock import EpochClock
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.lanes import Lanes
from spark_ckpt.driver.maintenance.materializing import Materializing
from spark_ckpt.driver.progress import Progress
from spark_ckpt.driver.query.batch_phases import Phases
from spark_ckpt.driver.query.control_source import Control
from spark_ckpt.driver.source_watch import SourceWatch
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import Manifest, SinkAck, SparkState, Timings
from spark_ckpt.errors import CkptError, ConfigInvalid, Fenced, StoreOutage, StoreUnreachable
from spark_ckpt.events.announcer import Announcer
from spark_ckpt.failpoints import Failpoint, hit

_log = logging.getLogger(__name__)


class Effects:
    """Effects of one incarnation; runs on the coordinator's thread.

    `loop`: receives the answers. `stage`: the rules between programs. `served`: called with the log's previous state after
    each commit. `finish`: ends the incarnation. `spark_state`: captures the state of Spark's own operators after a batch;
    None for a job without them.
    """

    def __init__(
        self,
        plan: JobPlan,
        announcer: Announcer,
        progress: Progress,
        control: Control,
        lanes: Lanes,
        materializing: Materializing,
        loop: CoordinatorLoop,
        watch: SourceWatch,
        stage: Rules,
        served: Callable[[LogState], None],
        finish: Callable[[Outcome, BaseException | None], None],
        spark_state: Callable[[int], SparkState] | None = None,
    ) -> None:
        self._spark_state = spark_state
        self._plan = plan
        self._announcer = announcer
        self._progress = progress
        self._control = control
        self._lanes = lanes
        self._materializing = materializing
        self._loop = loop
        self._watch = watch
        self._stage = stage
        self._served = served
        self._finish = finish
        self._graph = plan.graph
        self._clock = EpochClock()
        self._decision_ms = 0
        # Filled before the rules count the batch, and emptied by that.
        self._actions_ms: dict[int, Mapping[str, int]] = {}
        self._publishes_ms: dict[tuple[str, int], Mapping[str, int]] = {}
        self._taken_in = threading.Event()
        """Lets Spark's thread go on after the batch that the rules handle now, or have handled last."""

    def carry_out(self, effect: Effect) -> None:
        """Carry out one effect now; effects come in order."""
        match effect:
            case ArmTimer(delay_ms=delay_ms, elapsed=elapsed):
                self._loop.set_timer(delay_ms, elapsed)
            case OfferMarker(marker=marker):
                # Before the barrier enters the stream: Spark may begin its batch at once.
                self._clock.offered(marker.epoch, time.monotonic())
                self._control.inject(marker)
            case CommitEpoch():
                # Spark plans the next batch while the log is written.
                self.let_plan()
                self._store(effect)
            case NameEpoch(name=name, epoch=epoch):
                self._name(name, epoch)
            case Publish(sink=sink, output=output):
                self._clock.publishing(sink, output.epoch, time.monotonic())
                self._lanes.submit(sink, output)
            case SendEarly(sink=sink, staged=staged):
                self._lanes.submit(sink, staged)
            case DropEarlySend(sink=sink):
                self._lanes.drop_early_send(sink)
            case RecordAcks(acks=acks):
                # The append is made here. Its answer waits in the loop until the remaining effects are carried out.
                self._loop.handle(AcksRecorded(acks, self._not_recorded(acks)))
            case MaterializeTables():
                self._materializing.ask(effect)
            case CountBatch():
                self._count(effect)
            case SayCommitted(manifest=manifest):
                self._announcer.committed(manifest.epoch, summary_of(manifest) | self._parts(manifest), manifest)
            case SayAborted(epoch=epoch, why=why):
                self._announcer.aborted(epoch, why)
            case SayPublished(epoch=epoch, detail=detail):
                self._announcer.published(epoch, {**detail, **self._publish_took(str(detail.get("sink")), epoch)})
                # Posted, since a fold takes 80 to 200 ms: the effects of this publish, such as the next barrier, come first.
                self._loop.post(self._fold_log)
            case End(outcome=outcome, error=error):
                self._finish(outcome, error)
            case Note(what=what, detail=detail):
                _log.info("job=%s incarnation=%d %s %s", self._plan.job, self._announcer.incarnation, what, detail)
            case _:
                _log.debug("job=%s incarnation=%d dropped %s", self._plan.job, self._announcer.incarnation, effect)

    def batch_comes(self, batch: int, parts_ms: Mapping[str, int], taken_in: threading.Event) -> None:
        """Prepare for a batch that the rules handle next.

        `parts_ms`: durations of its action, kept until the rules have counted the batch. `taken_in`: see `let_plan`.
        """
        self._actions_ms[batch] = parts_ms
        self._taken_in = taken_in

    def publish_took(self, sink: str, epoch: int, parts_ms: Mapping[str, int]) -> None:
        """Keep the durations of a publish, which the sink reported; the rules handle the publish next."""
        self._publishes_ms[sink, epoch] = parts_ms

    def _publish_took(self, sink: str, epoch: int) -> dict[str, Json]:
        took_ms = self._clock.published(sink, epoch, time.monotonic())
        # Reported by the publisher's thread in an event before this one, so it is here already.
        parts_ms = self._publishes_ms.pop((sink, epoch), None)
        return {"duration_ms": took_ms} | ({"parts_ms": dict(parts_ms)} if parts_ms else {})

    def tell_phases(self, phases: Phases) -> None:
        """Announce the phases of a batch that Spark has finished."""
        record = self._progress.spark_took(self._announcer.incarnation, phases)
        if record is not None:
            self._announcer.spark_is_through(record)

    def let_plan(self) -> None:
        """Release Spark's thread: the rules have handled its batch, and a prefetched barrier is in the stream."""
        self._taken_in.set()

    def _store(self, effect: CommitEpoch) -> None:
        """Commit the epoch.

        A source with a changed endpoint, or without an answer, ends the incarnation before the commit. After any
        error but a fence, or without an answer, the outcome is unknown and the incarnation ends.
        """
        # Step 7 of docs/design/epoch-in-nine-steps.md.
        timings = self._clock.timings(effect.manifest.epoch, time.monotonic(), self._progress.lag)
        manifest = measured(effect.manifest, timings, self._graph)
        # A commit may land although its answer is lost. The random id tells this attempt from another driver's with the same
        # number.
        manifest = stamped(manifest, uuid.uuid4().hex, time.time_ns() // 1_000_000)
        # Sources are asked inside the measured time: their answer is a part of what a commit costs.
        began_s = time.monotonic()
        try:
            # Read after the epoch's last batch: an unchanged endpoint confirms all rows of the epoch.
            manifest = identified(manifest, self._watch.identities())
            # The capture waits for Spark's commit of the batch. It cannot block: `let_plan` released Spark's thread before.
            if self._spark_state is not None and effect.batch is not None:
                manifest = with_spark_state(manifest, self._spark_state(effect.batch))
        # Nothing was appended yet, so this end is certain: the epoch is not committed.
        except CkptError as error:
            self._finish(Outcome.FAILED, error)
            return
        hit(Failpoint.EPOCH_COMMITTING)
        index = self._index_of_epoch()
        try:
            # With sinks the log is folded behind a publish: this one would wait for it.
            commit = partial(self._plan.store.log.commit_epoch, manifest, index, fold=not self._plan.bindings)
            log_state = answer_within(self._plan.config.timeout_ms / 1000, commit)
        except NoAnswer:
            # The append continues on its own thread, so the epoch may still be committed.
            self._loop.handle(CommitOverdue(manifest.epoch))
            return
        # The log has a newer incarnation, so this epoch can never be in it.
        except Fenced as error:
            self._loop.handle(CommitFenced(manifest.epoch, str(error)))
            return
        self._stage.handle(EpochServes(manifest.epoch, index), self._plan.store.log.now_ms())
        # A driver killed here leaves a committed epoch that no sink has; the next incarnation publishes it first.
        hit(Failpoint.EPOCH_COMMITTED)
        self._decision_ms = self._clock.stored(manifest.epoch, began_s, time.monotonic())
        self._progress.epoch_took(self._parts_ms(manifest))
        self._served(log_state)
        self._loop.handle(EpochCommitted(manifest, effect.names))

    def _fold_log(self) -> None:
        try:
            answer_within(self._plan.config.timeout_ms / 1000, self._plan.store.log.fold_if_due)
        except (NoAnswer, StoreOutage) as error:
            _log.info("job=%s the log is folded after another epoch: %s", self._plan.job, str(error) or "no answer")

    def _index_of_epoch(self) -> int:
        # Of the log's clock, like the lines of other programs: the index is a time.
        answers = self._stage.handle(EpochEnding(), self._plan.store.log.now_ms())
        return next(effect.index for effect in answers if isinstance(effect, StampEpoch))

    def _not_recorded(self, acks: Sequence[SinkAck]) -> CkptError | None:
        """Append acknowledgements to the log; return the error if it refused them. A transient error does not end the
        incarnation.
        """
        record = partial(self._plan.store.log.record_acks, self._announcer.incarnation, acks)
        try:
            before = answer_within(self._plan.config.timeout_ms / 1000, record)
        except NoAnswer:
            # The rules ask again later: until the log has them, the worst is that the next incarnation asks the sinks again.
            return StoreUnreachable("the log did not answer when acknowledgements were recorded")
        except CkptError as error:
            _log.info("job=%s acknowledgements are not in the log yet: %s", self._plan.job, error)
            return error
        # The row renews the lease: the next renewal is a term's third away. Without news there is none, as after an answer
        # that came too late.
        if any(ack.epoch > before.acked.get(ack.sink, 0) for ack in acks):
            self._served(before)
        return None

    def _name(self, savepoint: str, epoch: int) -> None:
        try:
            # After the commit: a name without its epoch would be worse than an epoch without a name, which the caller requests
            # again.
            name = partial(self._plan.store.log.add_savepoint, savepoint, epoch)
            answer_within(self._plan.config.timeout_ms / 1000, name)
        # As after any other outage here: the incarnation ends, and the run tries the next one.
        except NoAnswer:
            raise StoreUnreachable(f"the log did not answer when epoch {epoch} was named '{savepoint}'") from None
        # Another epoch took the name meanwhile; this one stays committed, and the job continues.
        except ConfigInvalid as error:
            _log.warning("job=%s epoch=%d is kept without a name: %s", self._plan.job, epoch, error)

    def _count(self, effect: CountBatch) -> None:
        incarnation = self._announcer.incarnation
        self._clock.batch_ended(effect.duration_ms)
        record = (effect.batch, incarnation, effect.epoch, effect.counts, effect.duration_ms, effect.cursors)
        parts_ms = self._actions_ms.pop(effect.batch, {})
        added = self._progress.add(*record, effect.in_flight, effect.late, parts_ms)
        self._announcer.progressed(effect.epoch, added)

    def _parts(self, manifest: Manifest) -> dict[str, Json]:
        return {"parts_ms": dict(self._parts_ms(manifest))}

    def _parts_ms(self, manifest: Manifest) -> dict[str, int]:
        """Return the durations of an epoch's parts, as far as they are known at its commit."""
        told = manifest.timings or Timings()
        parts = {"barrier": told.barrier_ms, "snapshot": told.snapshot_ms, "decision": self._decision_ms}
        return {name: took_ms for name, took_ms in parts.items() if took_ms is not None}
