"""A driver of a plain query with an outbox: Spark's loop of batches, and the shipped protocol, one effect per step.

It can die between any two steps. A replaced one continues as a zombie.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping

from checkpoint_lab.outbox_store import SINKS, OutboxSink, OutboxStore, PlannedOffsets, SparkCheckpoint, gets
from checkpoint_lab.spark_driver import HOLDER, QueryDied, Sweeper, swept
from checkpoint_lab.spark_store import JOB, Row
from checkpoint_lab.violations import ensure
from checkpoint_lab.world import Choice
from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import EpochOutput, PublishedEpoch
from spark_ckpt.epochs.epoch_output import StagingPlace
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import StagedFileRecord
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.epochs.retention import staged_files
from spark_ckpt.epochs.sinks_ahead import refusal
from spark_ckpt.epochs.ways_back import with_publish_advice
from spark_ckpt.errors import BatchUnexpected, CkptError, Fenced, PublishFailed, QueryForeign, StoreOutage
from spark_ckpt.outbox.advice import of_outbox
from spark_ckpt.outbox.protocol import (
    Answer,
    AppendAcks,
    AwaitPublish,
    Begin,
    Call,
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
from spark_ckpt.outbox.rule import Accepted

ProtocolOf = Callable[[str, Accepted, str], OutboxProtocol]
Effects = Generator[Effect, Answer, None]

SIZES = (1, 2, 3)
"""Rows of input in a batch."""
WRITES = (Begin, Commit, AppendAcks)
"""Effects that append to the log: it can refuse, or do it and not answer."""
PLACES = {sink: StagingPlace("mem") for sink in SINKS}
TABLES = tuple((sink, f"ckpt-{sink}", staged_files) for sink in SINKS)


class OutboxDriver:
    """One run of the query. `role`: "program", or a driver that should not run.

    - `at`: the batch that Spark calls the function for, or will.
    - `call`, `effect`: the call under way, and the effect that it waits for.
    - `behind`, `behind_effect`: the publish under way next to the calls, and the effect that it waits for. `broken`: its
      error, for the call that waits for it.
    - `recovering`: the generator is not a call for a batch, but what a start does before.
    - `returned`: the call has ended well, and Spark has not committed the batch. `calls`: number of such ends.
    - `acks`: acknowledgements that wait for the next commit, or for a while.
    """

    def __init__(
        self,
        store: OutboxStore,
        sinks: Mapping[str, OutboxSink],
        checkpoint: SparkCheckpoint,
        protocol_of: ProtocolOf,
        accepted: Accepted,
        role: str = "program",
    ) -> None:
        self.store, self.sinks, self.checkpoint, self.role = store, dict(sinks), checkpoint, role
        self.run = self.run_name(store)
        self.protocol_of: Callable[[], OutboxProtocol] = lambda: protocol_of(JOB, accepted, self.run)
        self.protocol = self.protocol_of()
        self.log = store.log()
        self.at = checkpoint.next_batch
        self.reruns = self.at in checkpoint.offsets
        self.call: Call | Effects | None = None
        self.effect: Effect | None = None
        self.behind: Effects | None = None
        self.behind_effect: Effect | None = None
        self.broken: CkptError | None = None
        self.recovering = False
        self.returned = False
        self.point: RecoveryPoint | None = None
        self.begins: RecoveryPoint | None = None
        """The incarnation whose log has not been read yet."""
        self.sessions: dict[str, int] = {}
        self.undone: deque[str] = deque()
        self.done: list[str] = []
        self.failed: CkptError | None = None
        self.acks: AppendAcks | None = None
        self.sweeper = Sweeper(store, self.log, every=TABLES)
        self.actions = self.calls = 0
        self.seen = store.age
        self.acknowledged: frozenset[tuple[str, int]] = frozenset()
        """Acknowledgements in the log at the latest look."""
        self.has_begun = self.raced = False
        self.reported: frozenset[str] = frozenset()
        self.error: CkptError | None = None
        self.ended = False

    def run_name(self, store: OutboxStore) -> str:
        """Return the name of a run that may move to another process; empty for this host."""
        return ""

    @property
    def begun(self) -> bool:
        """True if an incarnation of it is in the log."""
        return self.point is not None

    @property
    def idle(self) -> bool:
        """True between two batches, with nothing under way."""
        return self.effect is None and not self.returned and self.behind is None

    @property
    def publishing(self) -> PublishEpoch | None:
        """The publish that a call, or the work next to it, waits for."""
        return next((each for each in (self.effect, self.behind_effect) if isinstance(each, PublishEpoch)), None)

    # -- next steps ---------------------------------------------------------------------------------------------------

    def work(self, number: int, rows: int) -> list[Choice]:
        """Return the next steps. `number`: the driver's; `rows`: rows of the input."""
        found: list[Choice] = []
        if self.acks is not None:
            found.append(("acks", number))
        if self.sweeper.busy:
            found.append(("sweep", number))
        if self.publishing is not None:
            found += [("publish" if sink in self.sessions else "open", number, sink, "ok") for sink in self.undone]
        # a failed publish begins again between two calls; a call that waits for it gets the error instead
        again = self.broken is not None and self.broken.retriable and self.effect is None
        if isinstance(self.behind_effect, AppendAcks) or again:
            found.append(("behind", number, "ok"))
        if self.returned:
            found.append(("commit", number))
        elif self.effect is None:
            found += self._plans(number, rows)
        elif not isinstance(self.effect, PublishEpoch) and not (isinstance(self.effect, AwaitPublish) and self.behind):
            found.append(("step", number, "ok"))
        return found

    def faults(self, number: int) -> list[Choice]:
        """Return refusals and lost answers of the next step."""
        found: list[Choice] = []
        if self.publishing is not None:
            # not done; done and not answered; the same and tried again; not done yet
            ways = ("fail", "silent", "again", "late")
            found += [("publish", number, sink, how) for sink in self.undone if sink in self.sessions for how in ways]
        if isinstance(self.effect, RunPlan):
            found.append(("step", number, "fail"))
        for kind, effect in (("step", self.effect), ("behind", self.behind_effect)):
            if isinstance(effect, WRITES) and (kind == "behind" or self.begins is None):
                found += [(kind, number, how) for how in ("fail", "silent", "again")]
        return found

    def _plans(self, number: int, rows: int) -> list[Choice]:
        if self.reruns:
            # the offsets of a batch that runs again are written already
            return [("plan", number, 0, False)]
        start = self.checkpoint.start_of(self.at)
        most = [size for size in SIZES if start + size <= rows]
        # without a stamp, a batch that is planned again has the digest that it had before
        return [("plan", number, size, stamped) for size in most for stamped in (True, False)]

    # -- Spark --------------------------------------------------------------------------------------------------------

    def plan(self, size: int, stamp: int) -> None:
        """Write the offsets of the next batch, unless it runs again, and call the function."""
        if self.reruns:
            self.reruns = False
        else:
            offsets = PlannedOffsets(self.checkpoint.start_of(self.at) + size, stamp)
            try:
                self.checkpoint.plan(self.at, offsets)
            except QueryDied as error:
                self.end(error)
                return
        for each in self.checkpoint.offsets.values():
            # a manifest names offsets by their digest only, and the oracle needs the rows that they stand for
            self.store.ends[each.digest] = each.end
        self.actions, self.has_begun, self.raced, self.reported = 0, False, False, frozenset()
        self.start_batch()

    def start_batch(self) -> None:
        """Call the function for the batch that Spark has planned."""
        self.call = self.protocol.call(self.checkpoint.batch(self.at))
        self._answer(None)

    def recover(self) -> None:
        """Publish what an ended run left, as a start of the query does, with a protocol for this only."""
        newest = self.checkpoint.newest
        if newest in self.checkpoint.commits:
            self.recovering = True
            self.call = self.protocol_of().recover(self.log.state(), self.checkpoint.batch(newest))
            self._answer(None)

    def commit(self) -> None:
        """Let Spark commit the batch. O2: the outbox has decided it."""
        batch = self.checkpoint.batch(self.at)
        known = any(each.spark_batch == batch for each in self.store.manifests())
        ensure(known, "O2", f"Spark commits batch {self.at}, and the outbox never committed it")
        self.returned = False
        try:
            self.checkpoint.commit(self.at)
        except QueryDied as error:
            self.end(error)
            return
        self.at += 1

    def end(self, error: CkptError) -> None:
        """End the query with an error. P4: a refused call has begun no incarnation and run no plan."""
        refused = isinstance(error, QueryForeign | BatchUnexpected)
        quiet = not self.has_begun or self.raced
        ensure(not refused or (quiet and not self.actions), "P4", f"a refused call has changed something: {error}")
        self.error, self.ended = error, True

    def leave(self) -> None:
        """Record the last acknowledgements, as the end of a program does."""
        if self.acks is not None:
            self.record()

    def record(self) -> None:
        """Record the acknowledgements that waited for a commit. An error only delays them."""
        acks, self.acks = self.acks, None
        try:
            if acks is not None:
                self.log.record_acks(acks.incarnation, acks.acks)
        except (StoreOutage, Fenced):
            return

    def sweep(self) -> int:
        """Perform the next step of retention. Return the number of dropped epochs or deleted files."""
        count, _ = swept(self.sweeper)
        return count

    # -- effects ------------------------------------------------------------------------------------------------------

    def step(self, how: str) -> None:
        """Carry out the effect that the call waits for."""
        effect, self.store.reported = self.effect, self.reported
        try:
            answer = self._carry_out(effect, how)
        except CkptError as error:
            self._fail(error)
            return
        # an incarnation that has begun is answered one step later, when the log was read after it
        if self.begins is None:
            self._answer(answer)

    def _carry_out(self, effect: Effect | None, how: str) -> Answer:
        match effect:
            case ReadLog():
                self._look()
                return self.log.state()
            case NewestBatch():
                return self.checkpoint.at_its_path().newest
            case Begin():
                return self._begin(effect, how)
            case TellBranch():
                # an older look than the log's end: the log will refuse this branch
                if self.seen[0] == self.store.moves:
                    self._judge_branch()
                    self.reported = self.store.judge_report(effect, self.sinks, self.acknowledged)
            case RunPlan():
                return self._run_plan(effect, how)
            case Commit(manifest):
                self.acks = None  # the manifest carries them
                self._write(how, lambda: self.log.commit_epoch(manifest))
                self.sweeper.due = True
            case AppendAcks(incarnation, acks, at_once):
                self.acks = None if at_once else effect
                if at_once:
                    self._write(how, lambda: self.log.record_acks(incarnation, acks))
            case StartPublish():
                ensure(self.behind is None, "O8", "a run publishes twice at the same time")
                self.behind, self.broken = self.protocol.publish(), None
                self._answer_behind(None)
            case AwaitPublish() if self.broken is not None:
                raise self.broken
        return None

    def _look(self) -> None:
        self.seen, self.acknowledged = self.store.age, self.store.acknowledged()

    def _judge_branch(self) -> None:
        """O5: a branch begins because an operator rewound the query, and with a batch that is not the newest decided."""
        newest = self.at if self.checkpoint.replaced else self.checkpoint.newest
        ensure(
            newest == self.at, "O5", f"a driver at batch {self.at} begins a branch, another one is at batch {newest}"
        )
        tip = self.store.by_number.get(self.store.tip)
        again = tip is not None and tip.spark_batch == self.checkpoint.batch(self.at)
        ensure(not again, "O5", f"batch {self.at} is the newest committed one, and a branch shows it again")

    def _write(self, how: str, append: Callable[[], object]) -> None:
        # "again": the first attempt is done and not answered, and the second one has to find it
        self.store.mood = "silent" if how == "again" else how
        try:
            append()
        except StoreOutage:
            if how != "again":
                raise
            append()
        finally:
            self.store.mood = "ok"

    def _begin(self, effect: Begin, how: str) -> Answer:
        # one step after the begin: another driver may have come in between
        if self.begins is not None:
            self.point, self.begins = self.begins, None
            self._look()
            self.sessions.clear()
            if self.log.state().incarnation == self.point.incarnation:
                self.fence(self.point)
                for each in self.sinks.values():
                    each.left = self.store.diverged_attempts(self.point.manifest.epoch)
            return IncarnationBegun(self.point, self.log.state(), Standing(), PLACES)
        # another driver has changed the log since the look that the rule decided on
        self.raced = self.raced or self.seen != self.store.age
        self._refuse_newer_sinks()
        self.store.mood = "silent" if how == "again" else how
        try:
            self.begins = self.log.begin_incarnation(
                HOLDER.model_copy(update={"name": self.run or JOB}),
                effect.target,
                1_000,
                takeover=effect.since is None,
                ended=effect.since,
            )
        finally:
            self.store.mood = "ok"
        self.has_begun = True
        return None

    def fence(self, point: RecoveryPoint) -> None:
        """End the publishers of paused drivers at the sinks of epochs that this branch leaves: none may show them any more."""
        for name in self.sinks.keys() & set(point.dropped):
            self.sessions[name] = self.sinks[name].open(point.incarnation)

    def _refuse_newer_sinks(self) -> None:
        markers = {
            name: PublishedEpoch(Epoch(sink.marker.epoch), Incarnation(sink.marker.incarnation), sink.marker.is_of)
            for name, sink in self.sinks.items()
            if sink.marker is not None
        }
        if (error := refusal(markers, self.log.state(), "STORE")) is not None:
            raise error

    def _run_plan(self, effect: RunPlan, how: str) -> Staged:
        """Run the plan once. "fail": a task fails after some files were staged; they are orphans."""
        if how == "fail":
            self._staged(effect, [])
            raise QueryDied("a task failed")
        self.actions += 1
        rows = self.checkpoint.run(effect.number)
        self.store.attempts += 1
        files = self._staged(effect, rows) if effect.stages else {}
        return Staged(files, f"attempt {self.store.attempts}", 1, 1, effect.stages)

    def _staged(self, effect: RunPlan, rows: list[Row]) -> dict[str, list[StagedFileRecord]]:
        """Stage one file per sink; no file for a sink without rows."""
        files: dict[str, list[StagedFileRecord]] = {}
        for sink in SINKS:
            mine = tuple(row for row in rows if gets(sink, row))
            self.store.attempts += 1
            path = f"ckpt-{sink}-i{effect.stages}-b{effect.number}-{self.store.attempts}"
            self.store.staged[path] = mine
            if mine:
                files[sink] = [
                    StagedFileRecord(
                        path=path, size_bytes=1, rows=len(mine), lane=0, batch=effect.number, task=0, part=0
                    )
                ]
        return files

    # -- publishing ---------------------------------------------------------------------------------------------------

    def open(self, sink: str) -> None:
        """Open a sink's publisher, if this incarnation is still the newest."""
        assert self.point is not None  # noqa: S101 - nothing is published before
        try:
            newest = self.log.state().incarnation
            if newest != self.point.incarnation:
                raise Fenced(f"incarnation {self.point.incarnation} was replaced by {newest}")
            self.sessions[sink] = self.sinks[sink].open(self.point.incarnation)
        except CkptError as error:
            self.end_of_publish(sink, error)

    def publish(self, sink: str, how: str) -> None:
        """Perform a publisher's transaction. `how`: as in `SparkSink.publish`, or "again" after a lost answer."""
        effect, target = self.publishing, self.sinks[sink]
        assert effect is not None  # noqa: S101 - else the choice does not exist
        output = effect.outputs[sink]
        error: CkptError | None = None
        try:
            if how == "again":
                try:
                    target.publish(self.store, output, "silent", self.sessions[sink])
                except PublishFailed:
                    target.publish(self.store, output, "ok", self.sessions[sink])
            else:
                target.publish(self.store, output, how, self.sessions[sink])
        except CkptError as refused:
            error = self._advised(refused, sink, output)
        self.end_of_publish(sink, error)

    def _advised(self, error: CkptError, sink: str, output: EpochOutput) -> CkptError:
        """Return the error with the epoch to restore, if the sink's marker is of another branch."""
        log = self.log
        try:
            advised = with_publish_advice(
                error, sink, output.epoch, output.diverged, log.state, log.manifest, self.store.verify, "store"
            )
        except CkptError:  # the log was replaced by an older one
            return error
        if advised is not error:
            advised.hint = of_outbox(advised.hint, log.state())
        return advised

    def end_of_publish(self, sink: str, error: CkptError | None) -> None:
        """Note how the publish to one sink has ended; the last one answers the call."""
        self.undone.remove(sink)
        if error is None:
            self.done.append(sink)
        else:
            self.sessions.pop(sink, None)  # a failed publisher is replaced
            self.failed = self.failed or error
        if not self.undone:
            answer = PublishResult(tuple(self.done), {}, self.failed)
            if isinstance(self.effect, PublishEpoch):
                self._answer(answer)
            else:
                self._answer_behind(answer)

    # -- the generator ------------------------------------------------------------------------------------------------

    def _answer(self, answer: Answer) -> None:
        assert self.call is not None  # noqa: S101 - a call is under way
        try:
            self.effect = self.call.send(answer)
            self._expect(self.effect)
        except StopIteration:
            self._return()
        except CkptError as error:
            self.end(error)

    def step_behind(self, how: str) -> None:
        """Carry out the effect that the publish next to the calls waits for. A failed publish begins again."""
        if self.behind is None:
            self.behind, self.broken = self.protocol.publish(), None
            self._answer_behind(None)
            return
        try:
            self._carry_out(self.behind_effect, how)
        except CkptError as error:
            self.behind.close()
            self.behind, self.behind_effect, self.broken = None, None, error
        else:
            self._answer_behind(None)

    def _answer_behind(self, answer: Answer) -> None:
        assert self.behind is not None  # noqa: S101 - a publish is under way
        try:
            self.behind_effect = self.behind.send(answer)
            self._expect(self.behind_effect)
        except StopIteration:
            self.behind = self.behind_effect = None
        except CkptError as error:
            self.behind, self.behind_effect, self.broken = None, None, error

    def _expect(self, effect: Effect) -> None:
        if isinstance(effect, PublishEpoch):
            self.undone, self.done, self.failed = deque(sorted(effect.outputs)), [], None

    def _fail(self, error: CkptError) -> None:
        assert self.call is not None  # noqa: S101 - a call is under way
        try:
            # O6: a function that caught it would let Spark commit a batch that the outbox has not decided
            self.call.throw(error)
        except CkptError as raised:
            self.end(raised)
        except StopIteration:
            ensure(False, "O6", f"the function returns in spite of {error}")
        else:
            ensure(False, "O6", f"the function continues in spite of {error}")

    def _return(self) -> None:
        """End a call. O3: it has run the whole plan, once. O2: after a recovery, nothing that Spark committed is missing."""
        if self.recovering:
            self.call, self.effect, self.recovering = None, None, False
            self._judge_recovery()
            return
        ensure(self.actions == 1, "O3", f"the call for batch {self.at} has run its plan {self.actions} times")
        self.call, self.effect, self.returned = None, None, True
        self.calls += 1

    def _judge_recovery(self) -> None:
        newest = self.checkpoint.newest
        tip = self.store.by_number.get(self.store.tip)
        if tip is None or newest not in self.checkpoint.commits or tip.spark_batch != self.checkpoint.batch(newest):
            return
        for sink in SINKS:
            there = self.sinks[sink].has(tip.attempt) or not self.store.rows_of(tip, sink) or self.sinks[sink].forgotten
            ensure(bool(there), "O2", f"{sink} lacks epoch {tip.epoch}, and Spark calls for its batch no more")
