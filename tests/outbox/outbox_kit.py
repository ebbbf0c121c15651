"""A scripted host of the outbox's protocol over the shipped log, in memory: effects are answered by a script or correctly."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_ckpt.epochs.epoch_output import StagingPlace
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Holder, SparkBatch, StagedFileRecord
from spark_ckpt.errors import CkptError
from spark_ckpt.outbox.protocol import (
    AppendAcks,
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
    TellBranch,
)
from spark_ckpt.outbox.rule import NO_CHANGES, Accepted, BatchVerdict
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.location import Location

NAME, SINKS = "orders", ("gold", "alerts")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def batch(number: int, query: str = "q", offsets: str = "", before: str = "") -> SparkBatch:
    """The batch of a query; offsets are named after their number by default."""
    return SparkBatch(
        query=query,
        number=number,
        offsets=digest(offsets or f"{query}/{number}"),
        before=digest(before or f"{query}/{number - 1}") if number else "",
    )


@dataclass
class Sinks:
    """Published staged files of each sink, in the order of their publish. Each epoch counts once."""

    shown: dict[str, list[str]] = field(default_factory=lambda: {sink: [] for sink in SINKS})
    marker: dict[str, int] = field(default_factory=dict)


class Host:
    """One run of the query's driver.

    `fails`: called with every effect before it is carried out; may raise. `newest`: newest batch of the checkpoint; None
    for the called one. `known`: incarnation before the rows were staged; None for the staging one.
    """

    def __init__(
        self,
        log: EpochLog,
        sinks: Sinks,
        accepted: Accepted = NO_CHANGES,
        fails: Callable[[Effect], None] = lambda effect: None,
        run: str = "",
    ) -> None:
        self.log, self.sinks, self.fails, self.run = log, sinks, fails, run
        self.protocol = OutboxProtocol(NAME, accepted, run)
        self.known: int | None = None
        self.effects: list[Effect] = []
        self.actions = 0
        self.newest: int | None = None
        self.number = 0

    def call(self, number: int, **identity: str) -> BatchVerdict:
        """Call the function for a batch and carry out every effect."""
        call = self.protocol.call(batch(number, **identity))
        self.number = number
        answer = None
        try:
            while True:
                effect = call.send(answer)
                self.effects.append(effect)
                try:
                    self.fails(effect)
                    answer = self.do(effect)
                except CkptError as error:
                    call.throw(error)
                    raise AssertionError("the protocol caught an error") from error
        except StopIteration as end:
            verdict: BatchVerdict = end.value
            return verdict

    def do(self, effect: Effect):
        match effect:
            case ReadLog():
                return self.log.state()
            case NewestBatch():
                return self.number if self.newest is None else self.newest
            case Begin(target, since):
                point = self.log.begin_incarnation(
                    Holder(host="here", name=self.run), target, takeover=since is None, ended=since
                )
                return IncarnationBegun(
                    point, self.log.state(), Standing(), {sink: StagingPlace("mem") for sink in SINKS}
                )
            case RunPlan(number, stages):
                self.actions += 1
                files = {sink: [staged(sink, number, stages, self.actions)] for sink in SINKS} if stages else {}
                return Staged(files, f"{id(self)}-{self.actions}", 0, 0, stages if self.known is None else self.known)
            case Commit(manifest):
                self.log.commit_epoch(manifest)
            case PublishEpoch(epoch, outputs):
                for sink, output in outputs.items():
                    if self.sinks.marker.get(sink, 0) < epoch:
                        self.sinks.marker[sink] = epoch
                        self.sinks.shown[sink] += [file.path for file in output.files]
                return PublishResult(tuple(outputs))
            case AppendAcks(incarnation, acks, _):
                self.log.record_acks(incarnation, acks)
            case TellBranch():
                pass
        return None


def staged(sink: str, number: int, incarnation: int, action: int) -> StagedFileRecord:
    path = f"ckpt-{sink}-i{incarnation}-b{number}-{action}.parquet"
    return StagedFileRecord(path=path, size_bytes=1, rows=1, lane=0, batch=number, task=0, part=0)


def opened(folder: str) -> EpochLog:
    log = EpochLog.open(Location(folder), NAME, kind="outbox")
    assert log is not None
    return log
