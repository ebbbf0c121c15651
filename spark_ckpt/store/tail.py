"""What the epoch log says, folded row by row. Pure: rows in, `Tail` out; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple, cast

from spark_ckpt.store.records import (
    AnyRecord,
    CreatedRecord,
    EpochBrief,
    Folded,
    HandoverAsked,
    Heartbeat,
    Holder,
    IncarnationRecord,
    LossAccepted,
    Published,
    Released,
    SavepointDropped,
    SavepointRecord,
    SinkAck,
    UpkeepEnded,
    UpkeepLeased,
)


class At(NamedTuple):
    """Where a row stands in the log's order, and the wall clock of who wrote it, in ms."""

    seq: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class LifeTold:
    """What the log says of one incarnation. `ended_ms`: 0 if it did not say that it ended. Times are ms since 1970."""

    incarnation: int
    holder: str
    base: int
    restored_from: str
    began_ms: int
    ended_ms: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class UpkeepTold:
    """The newest checkpoint lease. `token`: its row's number; `since_ms` and `ended_ms`: its authors' clocks, ms since 1970.
    `ended`: None while it is out; `ended_token`: that row's number."""

    token: int
    since_ms: int
    lease: UpkeepLeased
    ended: UpkeepEnded | None = None
    ended_token: int = 0
    ended_ms: int = 0


@dataclass(frozen=True, slots=True)
class Tail:
    """Everything decided so far.

    `latest` is the newest epoch of the current lineage, 0 for none; `last` the highest id ever decided, in any lineage;
    `by_id` the kept epochs of every lineage; `acked` per sink the highest epoch it is known to have;
    `lease_token` is the number of the newest row that began, renewed or freed the lease, `renewed_ms` its author's clock;
    `handover_of` the incarnation that was last asked to hand over;
    `passed_over` the damaged epochs that "latest" left out by itself; `lost` ids of epochs that sinks may have and that
    somebody accepted as lost; `lives` the incarnations that the log still tells of, in their order; `upkeep` who has the checkpoint
    lease, or had it last.
    """

    job: str = ""
    store_id: str = ""
    incarnation: int = 0
    holder: Holder | None = None
    since_ms: int = 0
    lease_ms: int = 0
    lease_expires_ms: int = 0
    lease_token: int = 0
    renewed_ms: int = 0
    handover_of: int = 0
    base: int = 0
    last: int = 0
    latest: int = 0
    by_id: Mapping[int, EpochBrief] = field(default_factory=dict)
    savepoints: Mapping[str, int] = field(default_factory=dict)
    acked: Mapping[str, int] = field(default_factory=dict)
    passed_over: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    lives: tuple[LifeTold, ...] = ()
    upkeep: UpkeepTold | None = None

    @property
    def is_free(self) -> bool:
        """Nobody has ever had the lease, or the last holder gave it up."""
        return self.holder is None or self.lease_expires_ms == 0

    @property
    def handover_asked(self) -> bool:
        """Whether the newest incarnation was asked to end for a standby."""
        return self.handover_of == self.incarnation > 0

    @property
    def epochs(self) -> list[EpochBrief]:
        """The kept epochs, oldest first."""
        return [self.by_id[epoch] for epoch in sorted(self.by_id)]

    def lineage(self, newest: int | None = None) -> Iterator[EpochBrief]:
        """The kept epochs that `newest` (by default `latest`) stands on, itself first, newest first."""
        brief = self.by_id.get(self.latest if newest is None else newest)
        while brief is not None:
            yield brief
            brief = self.by_id.get(brief.base) if brief.base < brief.epoch else None

    def unacked(self, sink: str) -> list[int]:
        """Decided epochs of any lineage with an output for `sink` that it is not known to have, oldest first."""
        known = self.acked.get(sink, 0)
        return sorted(epoch for epoch, brief in self.by_id.items() if epoch > known and sink in brief.sinks)

    def contradiction(self) -> str:
        """What the log says of epochs or incarnations that it does not have; empty for a log that is whole."""
        for sink, epoch in self.acked.items():
            if epoch > self.last:
                return f"the control log says that sink {sink} has epoch {epoch}, but its newest epoch is {self.last}"
        newest = max((brief.incarnation for brief in self.by_id.values()), default=0)
        if newest > self.incarnation:
            return f"the control log has an epoch of incarnation {newest}, but its newest incarnation is {self.incarnation}"
        return ""

    @property
    def sinks(self) -> list[str]:
        """Every sink that a kept epoch has an output for, or rows of."""
        return sorted({sink for brief in self.by_id.values() for sink in (*brief.sinks, *brief.holds)})


def folded(tail: Tail, records: Sequence[tuple[At, AnyRecord]]) -> Tail:
    """The tail after more rows, in the log's order."""
    if not records:
        return tail
    by_id = dict(tail.by_id)  # in one piece: a copy for each of ten thousand epochs would take seconds
    for _, group in groupby(records, _alike):
        rows = list(group)
        at, newest = rows[-1]
        if isinstance(newest, EpochBrief):
            briefs = [record for _, record in rows if isinstance(record, EpochBrief)]
            by_id |= {brief.epoch: brief for brief in briefs}
            tail = _epochs(tail, briefs, at)
        else:
            tail = _APPLY[type(newest)](tail, newest, at)
    return replace(tail, by_id=by_id)


def _alike(row: tuple[At, AnyRecord]) -> object:
    """Epochs of one incarnation behind each other are taken together, any other row by itself."""
    _, record = row
    return record.incarnation if isinstance(record, EpochBrief) else object()


def _created(tail: Tail, record: CreatedRecord, at: At) -> Tail:
    return replace(tail, job=record.job, store_id=record.store_id)


def _incarnation(tail: Tail, record: IncarnationRecord, at: At) -> Tail:
    return replace(
        _acked(tail, record.acks),
        incarnation=record.incarnation,
        holder=record.holder,
        since_ms=at.time_ms,
        lease_ms=record.lease_ms,
        lease_expires_ms=record.lease_expires_ms,
        lease_token=at.seq,
        renewed_ms=at.time_ms,
        base=record.base,
        latest=record.base,
        passed_over=frozenset(record.passed_over),
        lives=(*tail.lives, _begun(record, at.time_ms)),
    )


def _begun(record: IncarnationRecord, time_ms: int) -> LifeTold:
    return LifeTold(record.incarnation, str(record.holder), record.base, record.restored_from, time_ms)


def _epochs(tail: Tail, briefs: Sequence[EpochBrief], at: At) -> Tail:
    """Epochs of one incarnation behind each other, of which the newest was decided at `at`."""
    newest = briefs[-1]
    following = replace(
        _acked(tail, [ack for brief in briefs for ack in brief.acks]),
        last=max(tail.last, *(brief.epoch for brief in briefs)),
        latest=newest.epoch,
    )
    return _renewed(following, newest.incarnation, newest.lease_expires_ms, at)


def _heartbeat(tail: Tail, record: Heartbeat, at: At) -> Tail:
    return _renewed(tail, record.incarnation, record.lease_expires_ms, at)


def _renewed(tail: Tail, incarnation: int, expires_ms: int, at: At) -> Tail:
    if incarnation != tail.incarnation:
        return tail
    return replace(tail, lease_expires_ms=expires_ms, lease_token=at.seq, renewed_ms=at.time_ms)


def _released(tail: Tail, record: Released, at: At) -> Tail:
    lives = tuple(_ended(each, record, at) if each.incarnation == record.incarnation else each for each in tail.lives)
    expires_ms = tail.lease_expires_ms if record.keeps else 0
    return _renewed(replace(tail, lives=lives), record.incarnation, expires_ms, at)


def _ended(life: LifeTold, record: Released, at: At) -> LifeTold:
    """What it ended with counts; that the run gave its lease up later does not."""
    return life if life.ended_ms else replace(life, ended_ms=at.time_ms, why=record.why)


def _handover_asked(tail: Tail, record: HandoverAsked, at: At) -> Tail:
    return replace(tail, handover_of=record.incarnation)


def _upkeep_leased(tail: Tail, record: UpkeepLeased, at: At) -> Tail:
    return replace(tail, upkeep=UpkeepTold(at.seq, at.time_ms, record))


def _upkeep_ended(tail: Tail, record: UpkeepEnded, at: At) -> Tail:
    """Behind a newer lease it says nothing."""
    if tail.upkeep is None or tail.upkeep.token != record.token:
        return tail
    ended = replace(tail.upkeep, ended=record, ended_token=at.seq, ended_ms=at.time_ms)
    return replace(tail, upkeep=ended)


def _published(tail: Tail, record: Published, at: At) -> Tail:
    return _acked(tail, record.acks)


def _acked(tail: Tail, acks: Sequence[SinkAck]) -> Tail:
    if not acks:
        return tail
    newest = dict(tail.acked)
    for ack in acks:
        newest[ack.sink] = max(newest.get(ack.sink, 0), ack.epoch)
    return replace(tail, acked=newest)


def _savepoint(tail: Tail, record: SavepointRecord, at: At) -> Tail:
    return replace(tail, savepoints={**tail.savepoints, record.name: record.epoch})


def _savepoint_dropped(tail: Tail, record: SavepointDropped, at: At) -> Tail:
    return replace(tail, savepoints={name: at for name, at in tail.savepoints.items() if name != record.name})


def _folded(tail: Tail, record: Folded, at: At) -> Tail:
    acks = [SinkAck(sink=sink, epoch=epoch) for sink, epoch in record.acked.items()]
    return replace(_acked(tail, acks), last=max(tail.last, record.last))


def _loss_accepted(tail: Tail, record: LossAccepted, at: At) -> Tail:
    return replace(
        tail,
        last=max(tail.last, record.epoch),
        incarnation=max(tail.incarnation, record.incarnation),
        lost=tail.lost | set(range(record.after + 1, record.epoch + 1)),
    )


_Apply = Callable[[Tail, AnyRecord, At], Tail]
_APPLY: Mapping[type, _Apply] = {
    kind: cast(_Apply, apply)
    for kind, apply in (
        (CreatedRecord, _created),
        (IncarnationRecord, _incarnation),
        (Heartbeat, _heartbeat),
        (Released, _released),
        (HandoverAsked, _handover_asked),
        (UpkeepLeased, _upkeep_leased),
        (UpkeepEnded, _upkeep_ended),
        (Published, _published),
        (SavepointRecord, _savepoint),
        (SavepointDropped, _savepoint_dropped),
        (Folded, _folded),
        (LossAccepted, _loss_accepted),
    )
}
