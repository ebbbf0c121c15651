"""The protocol of an outbox: one call of the function of `foreachBatch`, effects out, answers in. Pure.

`OutboxProtocol.call` is a generator. It yields one effect at a time and gets the effect's answer, or its error. It never
catches an error: Spark must not commit a batch that the outbox did not finish. The host that ships is
`outbox/running.py`; the simulator hosts the same generator.

A data source is called after the plan of the batch has run. Its host answers `RunPlan` with the files that the tasks
have reported, and `Staged.known` says how old they may be.

The order of effects in a call:

1. First call of a run: read the log, refuse a foreign batch, begin an incarnation. That fences every older driver. A
   branch is reported before it begins: a crash between the two repeats the report, and loses none.
2. Publish what earlier calls left unpublished.
3. Run the plan, once: stage its rows, or discard them if the log has the batch.
4. New batch: commit its epoch. This decides.
5. Publish, and record the acknowledgements. With `overlap` the host does this while Spark runs the next batch, and the
   next commit waits for it: at most one decided epoch is unpublished.

Source: two-phase commit with idempotent redo, seed 001; the fence is the compare-and-swap of the log.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spark_ckpt.connector import EpochOutput
from spark_ckpt.epochs.epoch_output import StagingPlace, epoch_output
from spark_ckpt.epochs.identity import Parts, Standing
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief, Manifest, SinkAck, SparkBatch, StagedFileRecord, StagedOutput
from spark_ckpt.epochs.restore import LATEST, RecoveryPoint, RestoreTarget
from spark_ckpt.errors import BatchUnexpected, CkptError, ConfigInvalid, Fenced
from spark_ckpt.outbox.rule import (
    NO_CHANGES,
    Accepted,
    BatchVerdict,
    LeftBehind,
    Ruling,
    dropped_with,
    judge,
    left_behind,
    still_accepted,
)


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Effect: read the log. Answer: `LogState`."""


@dataclass(frozen=True, slots=True)
class NewestBatch:
    """Effect: list the offsets in the query's checkpoint. Answer: the number of the newest batch, `int`."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Effect: begin an incarnation from `target`, and compare the sinks with the log. Answer: `IncarnationBegun`.

    `since`: None replaces every incarnation. Else it is a `LogState.lease_token`: the log raises `StoreInUse` if another
    driver began or committed after that row. `EpochLog.begin_incarnation` takes it as `ended`, with `takeover=False`.
    """

    target: RestoreTarget
    since: int | None = None


@dataclass(frozen=True, slots=True)
class TellBranch:
    """Effect: report the epochs that a new branch leaves behind. Answer: None.

    `dropped`: an epoch that retention dropped; the branch leaves it, and all before it, too. 0 if there is none.
    """

    base: int
    left: tuple[LeftBehind, ...]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Effect: run the whole plan of batch `number`, as one action.

    `stages`: the incarnation that stages the rows; 0 to discard them. Answer: `Staged`.
    """

    number: int
    stages: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Effect: commit the epoch to the log. Answer: None."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class PublishEpoch:
    """Effect: publish one epoch to these sinks. Answer: `PublishResult`."""

    epoch: int
    outputs: Mapping[str, EpochOutput]


@dataclass(frozen=True, slots=True)
class AppendAcks:
    """Effect: append acknowledgements to the log. Answer: None.

    `at_once`: before the call ends. Others may wait for the next commit, which carries them, but not for ever: a marker
    in a sink may expire.
    """

    incarnation: int
    acks: tuple[SinkAck, ...]
    at_once: bool


@dataclass(frozen=True, slots=True)
class StartPublish:
    """Effect: run `OutboxProtocol.publish` in the background. Answer: None."""


@dataclass(frozen=True, slots=True)
class AwaitPublish:
    """Effect: wait for the end of the publish in the background, if there is one. Answer: None. Raises its error."""


Effect = (
    ReadLog
    | NewestBatch
    | Begin
    | TellBranch
    | RunPlan
    | Commit
    | PublishEpoch
    | AppendAcks
    | StartPublish
    | AwaitPublish
)


@dataclass(frozen=True, slots=True)
class IncarnationBegun:
    """Start of an incarnation.

    - `log_state`: the log after it.
    - `places`: per sink, the place of its staged files.
    """

    point: RecoveryPoint
    log_state: LogState
    standing: Standing
    places: Mapping[str, StagingPlace]


@dataclass(frozen=True, slots=True)
class Staged:
    """Result of the plan's action.

    - `files`: staged files per sink, in publishing order; empty after a discard.
    - `attempt`: a random id. `ended_ms`: ms since 1970 UTC. `duration_ms` of the action.
    - `known`: an incarnation that was in the log before the first file was staged, at best the newest one.
    """

    files: Mapping[str, Sequence[StagedFileRecord]]
    attempt: str
    ended_ms: int
    duration_ms: int
    known: int


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Result of a publish: the sinks that have the epoch now, identities that became known, and the first error."""

    sinks: Sequence[str]
    learned: Mapping[str, Parts] = field(default_factory=dict)
    error: CkptError | None = None


Answer = LogState | int | IncarnationBegun | Staged | PublishResult | None
Call = Generator[Effect, Answer, BatchVerdict]
_A = TypeVar("_A", LogState, int, IncarnationBegun, Staged, PublishResult)


class OutboxProtocol:
    """State of one run of a query: from its first call to its end. A failed call ends it: make a new object.

    - `name` of the outbox. `accepted`: changes that the operator confirmed.
    - `run`: name of the run as a holder, if other processes may continue it, each with an object of its own; else empty.
    - `overlap`: publish a batch while the next one's plan runs.
    """

    def __init__(self, name: str, accepted: Accepted = NO_CHANGES, run: str = "", overlap: bool = False) -> None:
        self._name = name
        self._accepted = accepted
        self._holder = run
        self._overlap = overlap
        self._began = 0
        """First incarnation of this object."""
        self._run: _Run | None = None

    def call(self, batch: SparkBatch) -> Call:
        """Yield the effects of the call for `batch`, and return the verdict.

        Raises `QueryForeign`, `BatchUnexpected`, and every error of an effect.
        """
        verdict = yield from self._placed(batch)
        run = self._begun()
        if verdict is BatchVerdict.AGAIN:
            # The plan must run to its end all the same: its state belongs to the batch, and Spark commits it.
            _of(Staged, (yield RunPlan(batch.number, 0)))
        else:
            staged = _of(Staged, (yield RunPlan(batch.number, run.point.incarnation)))
            # This comes before the commit: afterwards the epoch would name files that the other driver has deleted as
            # garbage.
            self._refuse_swept(batch, staged)
            if self._overlap:
                # A publish that fails for good must stop the query before another epoch is committed that can never
                # be published.
                yield AwaitPublish()
            manifest = run.manifest(self._name, batch, staged)
            # Without an answer the call ends here: the next start reads from the log if the epoch was committed.
            yield Commit(manifest)
            run.decided(manifest)
        if self._overlap:
            yield StartPublish()
        else:
            yield from self.publish()
        return verdict

    def recover(self, known: LogState, committed: SparkBatch) -> Generator[Effect, Answer, None]:
        """Publish what an ended run left unpublished, at a start of the query. `known`: the log as it is.

        `committed`: the newest batch that Spark committed. Spark calls for it no more, and for the next one only when
        there is input. An uncommitted batch and a rewound query wait for their call. This begins an incarnation of its
        own.
        """
        newest = known.by_id.get(known.latest)
        if newest is not None and newest.spark_batch == committed and any(map(known.unsettled, newest.sinks)):
            self._run = _Run((yield from self._begin(Begin(LATEST))))
            yield from self.publish()

    def _begun(self) -> _Run:
        if self._run is None:
            raise BatchUnexpected(f"outbox '{self._name}' has not begun")
        return self._run

    def _refuse_swept(self, batch: SparkBatch, staged: Staged) -> None:
        """Raise `Fenced` if another driver began after the rows were staged: it takes them for those of a dead one."""
        # An incarnation deletes files of earlier ones. The one that begins this run has the number `known` + 1 if no
        # other driver began in between.
        if staged.known < self._began - 1:
            raise Fenced(
                f"another driver began while the rows of batch {batch.number} were staged, and may have deleted them",
                query=batch.query,
                hint="start the query again if no other driver runs it: the batch runs again",
            )

    def _placed(self, batch: SparkBatch) -> Call:
        """Return the verdict on the batch. The first call of a run also begins the incarnation."""
        if self._run is None:
            return (yield from self._first(batch))
        judged = judge(self._run.log_state(), batch)
        # Spark itself takes a running query back to no batch: its checkpoint was changed under it.
        if judged.verdict is BatchVerdict.REWOUND:
            raise BatchUnexpected(
                f"the query of outbox '{self._name}' was rewound to batch {batch.number} while it ran",
                query=batch.query,
                hint="stop every driver of the query, then start one",
            )
        return judged.verdict

    def _first(self, batch: SparkBatch) -> Call:
        # Judged before the incarnation begins, so that a refused call fences no driver.
        known = _of(LogState, (yield ReadLog()))
        self._accepted = still_accepted(known, self._holder, self._accepted)
        judged = yield from self._judged(known, batch)
        begun: IncarnationBegun | None = None
        # A named epoch is judged on the log as it was read, and begun under its token: a branch must not leave epochs
        # that were not reported.
        if self._accepted.restore is None:
            begun = yield from self._begin(Begin(LATEST))
            # Judged again: another driver may have decided a batch between the two. From here on it is fenced.
            known = begun.log_state
            judged = yield from self._judged(known, batch)
        branches = judged.base != known.latest
        if branches:
            left = tuple(left_behind(known, judged.base))
            yield TellBranch(judged.base, left, dropped_with(known, judged.base))
        if begun is None or branches:
            # Exactly the reported epochs are left: the log refuses if another driver went on since it was read.
            begun = yield from self._begin(Begin(judged.base, known.lease_token))
        self._run = _Run(begun)
        yield from self.publish()
        return judged.verdict

    def _judged(self, known: LogState, batch: SparkBatch) -> Generator[Effect, Answer, Ruling]:
        try:
            judged = judge(known, batch, self._accepted)
        except BatchUnexpected:
            # Retention may have dropped every epoch that the batch of a slow driver follows.
            yield from self._refuse_overtaken(batch)
            raise
        # The batch leaves epochs. Only a rewind may do so, and not a driver that stood still.
        if judged.base != known.latest:
            yield from self._refuse_overtaken(batch)
        return judged

    def _refuse_overtaken(self, batch: SparkBatch) -> Generator[Effect, Answer, None]:
        # Spark writes the offsets of a batch before the call for it. So a newer one is of another driver, which went on
        # while this one stood still: no operator has rewound the query.
        newest = _of(int, (yield NewestBatch()))
        if newest != batch.number:
            raise Fenced(
                f"this driver runs batch {batch.number}, the newest batch of the checkpoint is {newest}",
                query=batch.query,
                hint="stop this driver; another driver runs the query",
            )

    def _begin(self, effect: Begin) -> Generator[Effect, Answer, IncarnationBegun]:
        begun = _of(IncarnationBegun, (yield effect))
        self._began = self._began or begun.point.incarnation
        # The state is read after the row: another driver may have begun between the two, and has fenced this one.
        if begun.log_state.incarnation != begun.point.incarnation:
            raise Fenced(
                f"incarnation {begun.point.incarnation} was replaced by {begun.log_state.incarnation}",
                holder=begun.log_state.holder,
                hint="stop this driver; the other one continues the query",
            )
        return begun

    def publish(self) -> Generator[Effect, Answer, None]:
        """Publish every committed epoch that a sink lacks, oldest first. Raises the first sink's error.

        It may run while `call` waits for a plan, and not next to another effect of it.
        """
        run = self._begun()
        # A record that failed is repeated before anything else is published: until then the log takes the sink for a
        # new one.
        if run.awaits_record:
            yield run.record(at_once=True)
            run.awaits_record = False
        while (due := run.due()) is not None:
            published = _of(PublishResult, (yield due))
            run.published(due.epoch, published)
            # The others may fail: what a sink has published is recorded all the same, so that the next start does not
            # ask for it again.
            if published.sinks:
                yield run.record(at_once=run.awaits_record)
                run.awaits_record = False
            if published.error is not None:
                raise published.error


class _Run:
    """Knowledge of an incarnation: its newest epoch, unpublished epochs, acknowledgements."""

    def __init__(self, begun: IncarnationBegun) -> None:
        self.point = begun.point
        self._begun_at = begun.log_state
        self._standing = begun.standing
        self._places = begun.places
        self._newest = begun.point.manifest
        self._last = begun.point.last
        self._acked = dict(begun.log_state.acked)
        self._acks: dict[str, SinkAck] = {}  # those that no row of the log has, by sink
        self._due: dict[int, tuple[Manifest, set[str]]] = {}  # by epoch: the sinks that lack it
        self.awaits_record = False
        """True if the log lacks a sink's first acknowledgement."""
        for sink, manifests in begun.point.unpublished.items():
            self._check_known(sink, manifests)
            for manifest in manifests:
                self._due.setdefault(manifest.epoch, (manifest, set()))[1].add(sink)

    def _check_known(self, sink: str, manifests: Sequence[Manifest]) -> None:
        # Also without rows: retention would keep an epoch that nothing acknowledges, and all after it, for ever.
        if sink not in self._places:
            raise ConfigInvalid(
                f"the outbox has unpublished epochs for sink '{sink}', and the program has no such sink",
                epoch=manifests[0].epoch,
                hint="start the query once with this sink, so that they are published; then take it out",
            )

    def log_state(self) -> LogState:
        """Return as much of the log's state as the rule needs for the next call of this run."""
        brief = self._brief()
        return LogState(job=self._begun_at.job, latest=brief.epoch, last=self._last, by_id={brief.epoch: brief})

    def manifest(self, name: str, batch: SparkBatch, staged: Staged) -> Manifest:
        """Return the manifest of the batch's epoch. A batch without rows gets one, too: the next one continues it."""
        outputs = {
            sink: StagedOutput(
                sink=sink,
                root=place.recorded_root,
                files=tuple(staged.files.get(sink, ())),
                rows=sum(file.rows for file in staged.files.get(sink, ())),
            )
            for sink, place in self._places.items()
        }
        return Manifest(
            job=name,
            # Numbers go on from the log's highest one, also if that epoch diverged: a sink's marker must never fit
            # two epochs.
            epoch=self._last + 1,
            incarnation=self.point.incarnation,
            attempt=staged.attempt,
            base=self._newest.epoch,
            previous=self._last,
            created_ms=staged.ended_ms,
            duration_ms=staged.duration_ms,
            reason="batch",
            outputs=outputs,
            rows_out=sum(output.rows for output in outputs.values()),
            acks=tuple(self._acks.values()),
            sink_identities=dict(self._standing.sinks),
            rows_before=self._newest.rows_so_far,
            spark_batch=batch,
        )

    def decided(self, manifest: Manifest) -> None:
        """Note a committed epoch: all its sinks get it, and the log has the acknowledgements that it carries."""
        self._newest, self._last = manifest, manifest.epoch
        self._acks.clear()
        self._due[manifest.epoch] = (manifest, set(manifest.outputs))

    def due(self) -> PublishEpoch | None:
        """Return the publish of the oldest epoch that a sink lacks; None if there is none."""
        for epoch, (manifest, sinks) in sorted(self._due.items()):
            outputs = {
                sink: epoch_output(
                    manifest,
                    sink,
                    self._places[sink],
                    self.point,
                    self._standing,
                    self._acked.get(sink, 0),
                    self._last,
                )
                for sink in sorted(sinks)
                # A replaced sink gets no epoch from before its replacement.
                if not self._standing.is_before(sink, epoch)
            }
            if outputs:
                return PublishEpoch(epoch, outputs)
            del self._due[epoch]
        return None

    def published(self, epoch: int, published: PublishResult) -> None:
        """Note the sinks that have the epoch."""
        # A sink's first acknowledgement goes to the log at once. Without it a lost marker could not be distinguished
        # from a new sink.
        first = any(not self._standing.published(sink, self._acked.get(sink, 0))[0] for sink in published.sinks)
        self.awaits_record = self.awaits_record or first
        for sink in published.sinks:
            self._due[epoch][1].discard(sink)
            self._acked[sink] = epoch
            self._acks[sink] = SinkAck(sink=sink, epoch=epoch)
        if not self._due[epoch][1]:
            del self._due[epoch]
        for sink, parts in published.learned.items():
            self._standing = self._standing.learned(sink, parts)

    def record(self, at_once: bool) -> AppendAcks:
        """Return the effect that records the acknowledgements which no row of the log has yet."""
        return AppendAcks(self.point.incarnation, tuple(self._acks.values()), at_once)

    def _brief(self) -> EpochBrief:
        known = self._begun_at.by_id.get(self._newest.epoch)
        return known if known is not None else EpochBrief.of(self._newest, 0)  # the rule reads no lease


def _of(kind: type[_A], answer: Answer) -> _A:
    if not isinstance(answer, kind):
        raise TypeError(f"the host answered with {type(answer).__name__}, not with {kind.__name__}")
    return answer
