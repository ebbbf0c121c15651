"""The host of an outbox's protocol: carries out the effects of a call on Spark, the log and the sinks.

It runs where Spark calls the function of `foreachBatch`: in the driver's Python process, or in the Python process that a
Connect server starts for the query. For `format("outbox")` it runs in a Python process of the driver without a session.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from checkpoint_protocols.ids import Incarnation
from spark_ckpt.connector import (
    EpochOutput,
    Fences,
    Publisher,
    PublishReceipt,
    Sink,
    SinkContext,
    SinkRows,
    StagePlan,
    Tidies,
)
from spark_ckpt.endpoints.identities import explained, parts_of, reconciled
from spark_ckpt.endpoints.markers import refuse_newer_sinks, sinks_taken_back
from spark_ckpt.epochs.epoch_output import StagingPlace
from spark_ckpt.epochs.identity import Confirmed, Found, Parts, Standing
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import Manifest, SinkAck, StagedFileRecord
from spark_ckpt.epochs.restore import RestoreTarget, choose
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.epochs.ways_back import with_publish_advice
from spark_ckpt.errors import CkptError, Fenced, PublishFailed, in_short
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.outbox.background import Background
from spark_ckpt.outbox.checkpoint import Checkpoint, checkpoint_location
from spark_ckpt.outbox.events import OutboxEvents
from spark_ckpt.outbox.protocol import (
    Answer,
    AppendAcks,
    AwaitPublish,
    Begin,
    Commit,
    Effect,
    IncarnationBegun,
    NewestBatch,
    OutboxProtocol,
    PublishEpoch,
    PublishResult,
    ReadLog,
    RunPlan,
    Staged,
    StartPublish,
    TellBranch,
)
from spark_ckpt.outbox.rule import NO_CHANGES, Accepted, BatchVerdict
from spark_ckpt.store import proposals
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.location import Location
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.staging import SinkStage

_log = logging.getLogger(__name__)
_LEASE_MS = 30_000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class OutboxSettings:
    """Settings of an outbox. Picklable: a Connect client ships them to the server.

    - `checkpoint`: URI of the query's checkpoint.
    - `publish_timeout_ms`: time for all attempts of one publish or commit.
    - `retain_every`: number of batches between two retentions.
    - `ack_wait_ms`: time that an acknowledgement waits for the next commit, which carries it.
    - `overlap`: publish a batch while Spark runs the next one.
    - `metrics`: places for metrics. `lineage`: namespace of OpenLineage events, empty for none.
    - `run`: name of a run that may move to another process; else empty.
    """

    store: str
    name: str
    checkpoint: str
    sinks: Mapping[str, SinkRows]
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    keep_epochs: int = 100
    publish_timeout_ms: int = 120_000
    retain_every: int = 20
    ack_wait_ms: int = 1_000
    accepted: Accepted = NO_CHANGES
    confirmed: Confirmed = field(default_factory=Confirmed)
    overlap: bool = False
    metrics: tuple[str, ...] = ()
    lineage: str = ""
    run: str = ""

    def opened(self) -> Store:
        """Open the outbox's store. Raises as `Store.open`."""
        return Store.open(self.store, self.name, self.storage_options, kind="outbox")

    def log_state(self) -> LogState | None:
        """Return the state of the outbox's log; None if it cannot be read."""
        try:
            return self.opened().log.state()
        except CkptError:
            return None

    def checkpoint_files(self) -> Checkpoint:
        """Return the query's checkpoint."""
        return Checkpoint(checkpoint_location(self.checkpoint, dict(self.storage_options)))


class CalledBatch(Protocol):
    """One micro-batch, as its host has it."""

    @property
    def number(self) -> int:
        """Spark's number of the batch."""

    @property
    def spark(self) -> SparkSession:
        """Session for the sinks."""

    def schema(self, sink: str, rows: SinkRows) -> StructType:
        """Return the schema of a sink's rows. Raises for rows that cannot be chosen."""

    def stage(
        self, sinks: Mapping[str, SinkRows], stages: Sequence[SinkStage], incarnation: int
    ) -> tuple[Mapping[str, Sequence[StagedFileRecord]], int]:
        """Return the staged files of each sink, and an incarnation that began before they were staged."""

    def discard(self) -> None:
        """Drop the rows of a batch that the log has. Its plan runs to its end all the same."""


@dataclass(frozen=True)
class BoundSink:
    """A sink and its name in the outbox."""

    name: str
    sink: Sink


@dataclass(frozen=True)
class Prepared:
    """A sink that was checked with the schema of its rows."""

    rows: SinkRows
    schema: StructType
    plan: StagePlan
    place: StagingPlace
    location: Location

    def stage(self, name: str, incarnation: int) -> SinkStage:
        """Return what tasks need to stage its rows."""
        return SinkStage(name, self.plan, self.location, incarnation)


def prepared(store: Store, name: str, rows: SinkRows, schema: StructType, spark: SparkSession) -> Prepared:
    """Check a sink, and return where and how its rows are staged. Raises as `Sink.check`."""
    rows.sink.check(spark, schema)
    plan = rows.sink.stage(schema)
    if plan.root is None:
        location = store.staged(name).location
        return Prepared(rows, schema, plan, StagingPlace(location.uri, location.storage_options), location)
    place = StagingPlace(plan.root, plan.storage_options, in_store=False)
    return Prepared(rows, schema, plan, place, Location(plan.root, plan.storage_options))


class OutboxRun:
    """One run of a query: from the first call of its function to an error or the end. `store`: the open one, if it is."""

    def __init__(
        self, settings: OutboxSettings, events: OutboxEvents | None = None, store: Store | None = None
    ) -> None:
        self._settings = settings
        self._events = events or OutboxEvents(settings.name)
        self._staged_rows = 0
        self._store = store or settings.opened()
        self._checkpoint = settings.checkpoint_files()
        self._protocol = OutboxProtocol(settings.name, settings.accepted, settings.run, settings.overlap)
        self._sinks: dict[str, Prepared] = {}
        self._publishers: dict[str, Publisher] = {}
        self._incarnation = self._inherited = 0  # and the newest epoch of the incarnations before
        self._identities: dict[str, Parts] = {}
        self._untidied = set(settings.sinks)  # sinks whose own table may have files of dead incarnations
        self._batches = 0
        self._pool = ThreadPoolExecutor(max(1, len(settings.sinks)), thread_name_prefix="ckpt-publish")
        self._background = Background(self._store, settings.ack_wait_ms, Retention(keep_last=settings.keep_epochs))
        self._overlapping = ThreadPoolExecutor(1, thread_name_prefix="ckpt-overlap")
        self._publish_under_way: Future[None] | None = None
        self._is_awaited = Event()  # set when a call waits for the publish under way

    def continues(self, newest: int | None) -> bool:
        """Return True if its incarnation is the newest one: `newest`, or that of the log."""
        return self._incarnation == (self._store.log.state().incarnation if newest is None else newest)

    def call(self, batch: CalledBatch) -> BatchVerdict:
        """Do everything for a batch. It catches no error."""
        began_s, self._staged_rows = time.monotonic(), 0
        verdict = self._drive(self._protocol.call(self._checkpoint.batch(batch.number)), batch)
        self._events.batch_ended(batch.number, verdict, self._staged_rows, _ms_since(began_s))
        first = self._batches % self._settings.retain_every == 0
        self._batches += 1
        if first:
            # After the first batch of a run, too: a query that is restarted often would otherwise never reach a
            # retention.
            self._background.retain()
        return verdict

    def recover(self, batch: CalledBatch) -> None:
        """Publish what an ended run left unpublished, if Spark has committed its batch. `batch`: of the query; not run."""
        committed = self._checkpoint.committed()
        if committed is not None:
            self._drive(self._protocol.recover(self._store.log.state(), committed), batch)

    def finish(self) -> None:
        """Wait for the publish under way. Raises its error."""
        under_way, self._publish_under_way = self._publish_under_way, None
        if under_way is not None:
            self._is_awaited.set()
            under_way.result()

    def close(self, error: BaseException | None = None) -> None:
        """Record the last acknowledgements, close the publishers, release the lease. It begins no publish.

        `error` has ended the query.
        """
        with suppress(CkptError):  # it was logged; the next start publishes
            self.finish()
        # This comes first: the publish under way still hands acknowledgements to the background.
        self._overlapping.shutdown()
        self._background.close()
        for sink in [*self._publishers]:
            self._drop(sink)
        if self._incarnation:
            # So a rewind knows at once that no driver runs; without it the lease has to end by its time.
            with suppress(CkptError):
                self._store.log.release(self._incarnation, "stopped" if error is None else in_short(error))
        self._pool.shutdown(wait=False)
        self._events.ended(error)

    # -- the effects --------------------------------------------------------------------------------------------------

    def _drive(self, effects: Generator[Effect, Answer, _T], batch: CalledBatch) -> _T:
        answer: Answer = None
        while True:
            try:
                effect = effects.send(answer)
            except StopIteration as end:
                result: _T = end.value
                return result
            answer = self._carry_out(effect, batch)

    def _publish_behind(self, batch: CalledBatch) -> None:
        """Publish. After an error that may pass, try again until `finish` waits for the result."""
        while True:
            try:
                return self._drive(self._protocol.publish(), batch)
            except CkptError as error:
                name = self._settings.name
                _log.error("outbox=%s: a publish failed; if it still fails, the next batch ends: %s", name, error)
                if not error.retriable or self._is_awaited.wait(_LONGEST_PAUSE_S):
                    raise

    def _carry_out(self, effect: Effect, batch: CalledBatch) -> Answer:
        match effect:
            case ReadLog():
                return self._store.log.state()
            case NewestBatch():
                return self._checkpoint.newest()
            case Begin():
                return self._begin(effect, batch)
            case TellBranch():
                self._tell(effect)
            case RunPlan():
                return self._run_plan(effect, batch)
            case Commit(manifest):
                self._commit(manifest)
            case PublishEpoch():
                return self._publish(effect, batch.spark)
            case AppendAcks():
                self._record(effect)
            case StartPublish():
                self._is_awaited.clear()  # before the thread starts: the call that waits for it sets it again
                self._publish_under_way = self._overlapping.submit(self._publish_behind, batch)
            case AwaitPublish():
                self.finish()
        return None

    def _begin(self, effect: Begin, batch: CalledBatch) -> IncarnationBegun:
        spark, log = batch.spark, self._store.log
        holder = current_holder(self._settings.run or self._settings.name)
        # First: halfway through a rewind, tables and log disagree, and the comparisons below would name another cause.
        proposals.refuse_if_rewinding(log.state(), holder)
        # Once for a run: a branch begins two incarnations.
        if not self._sinks:
            self._sinks = {
                name: prepared(self._store, name, rows, batch.schema(name, rows), spark)
                for name, rows in self._settings.sinks.items()
            }
        for name, each in self._sinks.items():
            if not each.place.in_store:
                self._store.set_root(name, each.place.root)
        bound = [BoundSink(name, each.rows.sink) for name, each in self._sinks.items()]
        fresh = self._settings.confirmed.new_sinks
        # Identities first: another table has no marker, and would look like one that lost its rows.
        standing = self._standing(spark, effect.target)
        refuse_newer_sinks([each for each in bound if each.name not in fresh], self._store)
        taken_back = sinks_taken_back(bound, self._store, effect.target, self._settings.confirmed)
        point = log.begin_incarnation(
            holder,
            effect.target,
            _LEASE_MS,
            # The newest driver wins: a query that is started again must not wait for the lease of the driver before.
            takeover=effect.since is None,
            ended=effect.since,
            taken_back=taken_back,
        )
        self._incarnation, self._inherited = point.incarnation, point.last
        sinks = {name: (each.rows.sink, each.schema) for name, each in self._sinks.items()}
        self._events.began(self._store.id, point, sinks)
        self._fence(point.dropped, spark)
        places = {name: each.place for name, each in self._sinks.items()}
        # The state is read after the row: the protocol looks for a newer driver in it.
        return IncarnationBegun(point, log.state(), standing, places)

    def _fence(self, sinks: Iterable[str], spark: SparkSession) -> None:
        """Fence older publishers of these sinks, whose epochs a branch leaves: one of them, of a driver that was paused, may
        be about to publish such an epoch.
        """
        for sink in [*self._publishers]:
            self._drop(sink)  # of the incarnation before this one, within the same call
        for sink in self._sinks.keys() & set(sinks):
            try:
                publisher = self._opened(sink, spark)
                if isinstance(publisher, Fences):
                    publisher.fence()
            except Exception as error:  # noqa: BLE001 - the first publish opens the sink again, and reports it
                self._drop(sink)
                _log.warning(
                    "outbox=%s sink=%s: older publishers are not fenced yet: %s", self._settings.name, sink, error
                )

    def _standing(self, spark: SparkSession, target: RestoreTarget) -> Standing:
        """Compare the sinks with those that the epochs were published to. Raises `IdentityChanged`."""
        log, log_state = self._store.log, self._store.log.state()
        # Files are checked when the incarnation begins; an error here recommends only epochs that are whole.
        chosen = choose(log_state, target, log.manifest, lambda manifest: None, whole=log.verify)
        found = Found(sinks={name: parts_of(each.rows.sink, spark) for name, each in self._sinks.items()})
        self._identities = dict(found.sinks)
        return reconciled(log, log_state, chosen.base, chosen.unpublished, found, self._settings.confirmed)

    def _tell(self, effect: TellBranch) -> None:
        name = self._settings.name
        _log.warning("outbox=%s: the query was rewound; a new branch begins after epoch %d", name, effect.base)
        for left in effect.left:
            said = f"shown by {', '.join(left.shown) or 'no sink'}"
            if left.maybe:
                said += f", perhaps by {', '.join(left.maybe)}"
            _log.warning(
                "outbox=%s: abandoned: batch %d (epoch %d), %d rows, %s",
                name, left.batch, left.epoch, left.rows, said,
            )  # fmt: skip
        if effect.dropped:
            _log.warning(
                "outbox=%s: abandoned, too: every epoch up to %d, which retention dropped", name, effect.dropped
            )

    def _run_plan(self, effect: RunPlan, batch: CalledBatch) -> Staged:
        began_s, known = time.monotonic(), effect.stages
        files: Mapping[str, Sequence[StagedFileRecord]] = {}
        if effect.stages:
            stages = [each.stage(name, effect.stages) for name, each in self._sinks.items()]
            files, known = batch.stage(self._settings.sinks, stages, effect.stages)
        else:
            batch.discard()
        self._staged_rows = sum(file.rows for file in next(iter(files.values()), ()))
        return Staged(files, uuid.uuid4().hex, time.time_ns() // 1_000_000, _ms_since(began_s), known)

    def _commit(self, manifest: Manifest) -> None:
        hit(Failpoint.EPOCH_COMMITTING)
        began_s = time.monotonic()
        self._patiently(lambda: self._store.log.commit_epoch(manifest))
        # The manifest carries them. Only now: after a commit that failed, the end of the run records them.
        self._background.drop()
        hit(Failpoint.EPOCH_COMMITTED)
        self._events.committed(manifest, _ms_since(began_s))

    def _publish(self, effect: PublishEpoch, spark: SparkSession) -> PublishResult:
        """Publish one epoch to its sinks at the same time. A failing sink does not keep the others from it."""
        tries = {
            sink: self._pool.submit(self._publish_patiently, sink, output, spark)
            for sink, output in effect.outputs.items()
        }
        # All of them, after any error of one: a publish that still ran would overlap with the close of its publisher,
        # or with the next attempt's publisher of the same sink.
        wait(tries.values())
        done: list[str] = []
        learned: dict[str, Parts] = {}
        first: CkptError | None = None
        for sink, attempt in tries.items():
            try:
                learned |= attempt.result()
                done.append(sink)
            except CkptError as error:
                first = first or error
        return PublishResult(done, learned, first)

    def _publish_patiently(self, sink: str, output: EpochOutput, spark: SparkSession) -> dict[str, Parts]:
        began_s = time.monotonic()
        try:
            receipt = self._patiently(lambda: self._publish_to(sink, output, spark), sink, output.epoch)
        except CkptError as error:
            why = explained(error, sink, self._sinks[sink].rows.sink, self._identities[sink], spark)
            advised = self._with_advice(why, sink, output)
            if advised is error:
                raise
            raise advised from error
        self._events.published(sink, output, receipt, _ms_since(began_s))
        self._tidy(sink, output)
        if all(self._identities[sink].values()):
            return {}
        # A new table has its id now.
        try:
            self._identities[sink] = parts_of(self._sinks[sink].rows.sink, spark)
        except CkptError as error:
            # The epoch is published all the same, and the next publish asks again.
            _log.info("outbox=%s sink=%s: its identity is not known yet: %s", self._settings.name, sink, error.what)
            return {}
        return {sink: self._identities[sink]}

    def _with_advice(self, error: CkptError, sink: str, output: EpochOutput) -> CkptError:
        """Return the error of a publish with the epoch to restore, if the rows can never be published."""
        log = self._store.log
        try:
            return with_publish_advice(
                error,
                sink,
                output.epoch,
                output.diverged,
                log.state,
                log.manifest,
                self._store.verify,
                self._store.location.uri,
            )
        except CkptError as other:
            _log.info("outbox=%s sink=%s: no advice, the log cannot be read: %s", self._settings.name, sink, other.what)
            return error

    def _publish_to(self, sink: str, output: EpochOutput, spark: SparkSession) -> PublishReceipt:
        try:
            receipt = self._opened(sink, spark).publish(output)
        except Exception as error:
            # Replaced by the next attempt: it no longer knows how the sink stands.
            self._drop(sink)
            if isinstance(error, CkptError):
                raise
            raise PublishFailed(f"{type(error).__name__}: {error}", sink=sink, epoch=output.epoch) from error
        hit(Failpoint.ACKED)
        return receipt

    def _opened(self, sink: str, spark: SparkSession) -> Publisher:
        # A new publisher's init fences others in the sink, so that the log is asked first. An open one is fenced by the
        # sink itself.
        if sink not in self._publishers:
            self._still_newest()
            context = SinkContext(
                self._settings.name,
                sink,
                self._store.id,
                Incarnation(self._incarnation),
                self._settings.publish_timeout_ms / 1000,
            )
            self._publishers[sink] = self._sinks[sink].rows.sink.publisher(spark, context)
        return self._publishers[sink]

    def _still_newest(self) -> None:
        """Raise `Fenced` if another driver has begun: a zombie must not fence it in the sink."""
        newest = self._store.log.state().incarnation
        if newest != self._incarnation:
            raise Fenced(
                f"incarnation {self._incarnation} of outbox '{self._settings.name}' was replaced by {newest}",
                hint="stop this query; another driver runs it",
            )

    def _tidy(self, sink: str, output: EpochOutput) -> None:
        """Delete files that dead incarnations staged in the sink's own table, once all their epochs are published."""
        publisher = self._publishers[sink]
        # After an epoch of this incarnation, every earlier one is published: no manifest needs other staged files.
        if sink not in self._untidied or output.epoch <= self._inherited or not isinstance(publisher, Tidies):
            return
        # One attempt per run is enough: the listing of a large table's folder takes long.
        self._untidied.discard(sink)
        try:
            publisher.tidy()
        except Exception as error:  # noqa: BLE001 - the epoch is published; what stays is garbage, and the next run tries again
            _log.warning(
                "outbox=%s sink=%s: could not delete files of dead incarnations: %s", self._settings.name, sink, error
            )

    def _drop(self, sink: str) -> None:
        publisher = self._publishers.pop(sink, None)
        if publisher is None:
            return
        try:
            publisher.close()
        except Exception as error:  # noqa: BLE001 - closing is best effort: the next publisher fences this one
            _log.debug("outbox=%s sink=%s: closing the publisher failed: %s", self._settings.name, sink, error)

    def _record(self, effect: AppendAcks) -> None:
        acks: Sequence[SinkAck] = effect.acks
        if effect.at_once:
            self._patiently(lambda: self._store.log.record_acks(effect.incarnation, acks))
        else:
            self._background.record(effect.incarnation, acks)

    def _patiently(self, attempt: Callable[[], _T], sink: str = "", epoch: int = 0) -> _T:
        """Return the attempt's result. An error that may pass is tried again, until the time for a publish is over.

        `sink` and `epoch`: of a publish, for the event.
        """
        until_s = time.monotonic() + self._settings.publish_timeout_ms / 1000
        pause_s = _FIRST_PAUSE_S
        number = 1
        while True:
            number += 1  # that of the next attempt, which the event announces
            try:
                return attempt()
            except CkptError as error:
                if not error.retriable or time.monotonic() + pause_s > until_s:
                    raise
                self._events.retries(error, number, round(pause_s * 1000), sink, epoch)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _ms_since(began_s: float) -> int:
    return round((time.monotonic() - began_s) * 1000)
