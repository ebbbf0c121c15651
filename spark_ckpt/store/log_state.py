"""What the epoch log says, folded row by row. Pure: rows in, `LogState` out; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple, cast

from spark_ckpt.store.debts import Debts, lineage
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
class IncarnationEntry:
    """What the log says of one incarnation. `ended_ms`: 0 if it did not say that it ended. Times are ms since 1970."""

    incarnation: int
    holder: str
    base: int
    restored_from: str
    began_ms: int
    ended_ms: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class UpkeepEntry:
    """The newest checkpoint lease. `token`: its row's number; `since_ms` and `ended_ms`: its authors' clocks, ms since 1970.
    `ended`: None while it is out; `ended_token`: that row's number."""

    token: int
    since_ms: int
    lease: UpkeepLeased
    ended: UpkeepEnded | None = None
    ended_token: int = 0
    ended_ms: int = 0


@dataclass(frozen=True, slots=True)
class LogState:
    """Everything decided so far.

    `latest` is the newest epoch of the current lineage, 0 for none; `last` the highest id ever decided, in any lineage;
    `by_id` the kept epochs of every lineage; `acked` per sink the highest epoch it is known to have, of any lineage: where its
    marker is at least; `owed` per sink the kept epochs that it is not known to have;
    `lease_token` is the number of the newest row that began, renewed or freed the lease, `renewed_ms` its author's clock;
    `handover_of` the incarnation that was last asked to hand over;
    `passed_over` the damaged epochs that "latest" left out by itself; `lost` ids of epochs that sinks may have and that
    somebody accepted as lost, with the epoch that they stand on, 0 if it is not known; `incarnations` those that the log
    still tells of, in their order; `upkeep` who has the checkpoint lease, or had it last.
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
    owed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    passed_over: frozenset[int] = frozenset()
    lost: Mapping[int, int] = field(default_factory=dict)
    incarnations: tuple[IncarnationEntry, ...] = ()
    upkeep: UpkeepEntry | None = None

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
        return lineage(self.by_id, self.latest if newest is None else newest)

    def beside(self, epoch: int) -> list[int]:
        """Higher ids, decided or lost, that do not stand on `epoch`, as far as is known, in their order."""
        above, others = {epoch}, set[int]()
        for brief in self.epochs:
            if brief.epoch > epoch:
                (above if brief.base in above else others).add(brief.epoch)
        return sorted(others | {each for each, on in self.lost.items() if each > epoch and on not in above})

    def may_stand_on(self, epoch: int) -> set[int]:
        """Higher ids, decided or lost, that stand on `epoch` as far as is known, or of which it is not known."""
        beside = {each for each in self.beside(epoch) if self.lost.get(each, -1) != 0}
        return {each for each in (*self.by_id, *self.lost) if each > epoch} - beside

    def unacked(self, sink: str) -> list[int]:
        """Decided epochs of any lineage with an output for `sink` that it is not known to have, oldest first."""
        return sorted(self.owed.get(sink, ()))

    def awaited(self, sink: str) -> list[int]:
        """Those of them that it may yet get, or may have: of the current lineage, or above all that it is known to have."""
        current, known = {brief.epoch for brief in self.lineage()}, self.acked.get(sink, 0)
        return [epoch for epoch in self.unacked(sink) if epoch > known or epoch in current]

    @property
    def shown(self) -> int:
        """The newest epoch of the current lineage up to which every sink is known to have everything."""
        owed = {epoch for epochs in self.owed.values() for epoch in epochs}
        oldest = min((brief.epoch for brief in self.lineage() if brief.epoch in owed), default=None)
        return self.latest if oldest is None else self.by_id[oldest].base

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


def folded(log_state: LogState, records: Sequence[tuple[At, AnyRecord]]) -> LogState:
    """The state after more rows, in the log's order."""
    if not records:
        return log_state
    by_id = dict(log_state.by_id)  # in one piece: a copy for each of ten thousand epochs would take seconds
    debts = Debts(by_id, log_state.owed, log_state.latest)
    for _, group in groupby(records, _alike):
        rows = list(group)
        at, newest = rows[-1]
        for _, record in rows:
            debts.take_in(record)
        if isinstance(newest, EpochBrief):
            log_state = _epochs(log_state, [record for _, record in rows if isinstance(record, EpochBrief)], at)
        else:
            log_state = _APPLY[type(newest)](log_state, newest, at)
    return replace(log_state, by_id=by_id, owed=debts.owed())


def _alike(row: tuple[At, AnyRecord]) -> object:
    """Epochs of one incarnation behind each other are taken together, any other row by itself."""
    _, record = row
    return record.incarnation if isinstance(record, EpochBrief) else object()


def taken_back(log_state: LogState, sinks: Mapping[str, int]) -> LogState:
    """The state if each of these sinks has nothing after the epoch that stands with it."""
    if not sinks:
        return log_state
    debts = Debts(dict(log_state.by_id), log_state.owed, log_state.latest)
    debts.take_back(sinks)
    return replace(log_state, acked={**log_state.acked, **sinks}, owed=debts.owed())


def _created(log_state: LogState, record: CreatedRecord, at: At) -> LogState:
    return replace(log_state, job=record.job, store_id=record.store_id)


def _incarnation(log_state: LogState, record: IncarnationRecord, at: At) -> LogState:
    acked = {**_acked(log_state, record.acks).acked, **record.taken_back}
    return replace(
        log_state,
        acked=acked,
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
        incarnations=(*log_state.incarnations, _begun(record, at.time_ms)),
    )


def _begun(record: IncarnationRecord, time_ms: int) -> IncarnationEntry:
    return IncarnationEntry(record.incarnation, str(record.holder), record.base, record.restored_from, time_ms)


def _epochs(log_state: LogState, briefs: Sequence[EpochBrief], at: At) -> LogState:
    """Epochs of one incarnation behind each other, of which the newest was decided at `at`."""
    newest = briefs[-1]
    following = replace(
        _acked(log_state, [ack for brief in briefs for ack in brief.acks]),
        last=max(log_state.last, *(brief.epoch for brief in briefs)),
        latest=newest.epoch,
    )
    return _renewed(following, newest.incarnation, newest.lease_expires_ms, at)


def _heartbeat(log_state: LogState, record: Heartbeat, at: At) -> LogState:
    return _renewed(log_state, record.incarnation, record.lease_expires_ms, at)


def _renewed(log_state: LogState, incarnation: int, expires_ms: int, at: At) -> LogState:
    if incarnation != log_state.incarnation:
        return log_state
    return replace(log_state, lease_expires_ms=expires_ms, lease_token=at.seq, renewed_ms=at.time_ms)


def _released(log_state: LogState, record: Released, at: At) -> LogState:
    incarnations = tuple(
        _ended(each, record, at) if each.incarnation == record.incarnation else each for each in log_state.incarnations
    )
    expires_ms = log_state.lease_expires_ms if record.keeps else 0
    return _renewed(replace(log_state, incarnations=incarnations), record.incarnation, expires_ms, at)


def _ended(incarnation: IncarnationEntry, record: Released, at: At) -> IncarnationEntry:
    """What it ended with counts; that the run gave its lease up later does not."""
    return incarnation if incarnation.ended_ms else replace(incarnation, ended_ms=at.time_ms, why=record.why)


def _handover_asked(log_state: LogState, record: HandoverAsked, at: At) -> LogState:
    return replace(log_state, handover_of=record.incarnation)


def _upkeep_leased(log_state: LogState, record: UpkeepLeased, at: At) -> LogState:
    return replace(log_state, upkeep=UpkeepEntry(at.seq, at.time_ms, record))


def _upkeep_ended(log_state: LogState, record: UpkeepEnded, at: At) -> LogState:
    """Behind a newer lease it says nothing."""
    if log_state.upkeep is None or log_state.upkeep.token != record.token:
        return log_state
    ended = replace(log_state.upkeep, ended=record, ended_token=at.seq, ended_ms=at.time_ms)
    return replace(log_state, upkeep=ended)


def _published(log_state: LogState, record: Published, at: At) -> LogState:
    return _acked(log_state, record.acks)


def _acked(log_state: LogState, acks: Sequence[SinkAck]) -> LogState:
    if not acks:
        return log_state
    newest = dict(log_state.acked)
    for ack in acks:
        newest[ack.sink] = max(newest.get(ack.sink, 0), ack.epoch)
    return replace(log_state, acked=newest)


def _savepoint(log_state: LogState, record: SavepointRecord, at: At) -> LogState:
    return replace(log_state, savepoints={**log_state.savepoints, record.name: record.epoch})


def _savepoint_dropped(log_state: LogState, record: SavepointDropped, at: At) -> LogState:
    return replace(log_state, savepoints={name: at for name, at in log_state.savepoints.items() if name != record.name})


def _folded(log_state: LogState, record: Folded, at: At) -> LogState:
    acks = [SinkAck(sink=sink, epoch=epoch) for sink, epoch in record.acked.items()]
    return replace(_acked(log_state, acks), last=max(log_state.last, record.last))


def _loss_accepted(log_state: LogState, record: LossAccepted, at: At) -> LogState:
    return replace(
        log_state,
        last=max(log_state.last, record.epoch),
        incarnation=max(log_state.incarnation, record.incarnation),
        lost={**log_state.lost, **dict.fromkeys(range(record.after + 1, record.epoch + 1), record.on)},
    )


_Apply = Callable[[LogState, AnyRecord, At], LogState]
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
