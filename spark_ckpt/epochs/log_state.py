"""The state that the epoch log describes, folded row by row. Pure: rows in, `LogState` out; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple, TypeVar, cast

from spark_ckpt.epochs.records import (
    AnyRecord,
    CreatedRecord,
    EpochBrief,
    Folded,
    HandoverAsked,
    Heartbeat,
    Holder,
    IncarnationRecord,
    IndexSaid,
    Kind,
    LossAccepted,
    MaintenanceEnded,
    MaintenanceLeased,
    Published,
    ReaderMoved,
    Released,
    SavepointDropped,
    SavepointRecord,
    SinkAck,
)
from spark_ckpt.epochs.unpublished import Ancestors, UnpublishedEpochs, lineage, parent
from spark_ckpt.errors import UNREADABLE

T = TypeVar("T")


class At(NamedTuple):
    """Position of a row in the log's order, and its author's wall clock in milliseconds."""

    seq: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class IncarnationEntry:
    """One incarnation in the log. `ended_ms`: 0 if its end was not recorded. Times are ms since 1970 UTC."""

    incarnation: int
    holder: str
    base: int
    restored_from: str
    began_ms: int
    ended_ms: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class MaintenanceEntry:
    """The newest checkpoint lease.

    - `token`: number of its row.
    - `since_ms`, `ended_ms`: the authors' wall clocks, ms since 1970 UTC.
    - `ended`: None while the lease runs.
    - `ended_token`: number of the row that ended it.
    """

    token: int
    since_ms: int
    lease: MaintenanceLeased
    ended: MaintenanceEnded | None = None
    ended_token: int = 0
    ended_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReaderEntry:
    """The newest row of a reader of an edge. `moved_ms`: its author's wall clock, ms since 1970 UTC."""

    moved_ms: int
    row: ReaderMoved


@dataclass(frozen=True, slots=True)
class LogState:
    """Everything that the log has decided so far. Immutable."""

    job: str = ""
    store_id: str = ""
    kind: Kind = "job"
    incarnation: int = 0
    holder: Holder | None = None
    since_ms: int = 0
    lease_ms: int = 0
    lease_expires_ms: int = 0
    lease_token: int = 0
    """Number of the newest row that began, renewed or freed the lease."""
    renewed_ms: int = 0
    """Wall clock of that row's author, ms since 1970 UTC."""
    handover_of: int = 0
    """Incarnation that the last handover request is for."""
    base: int = 0
    """Epoch that the newest incarnation started from."""
    last: int = 0
    """Highest id ever committed, in any branch."""
    latest: int = 0
    """Newest epoch of the current branch; 0 for none."""
    by_id: Mapping[int, EpochBrief] = field(default_factory=dict)
    """Kept epochs of every branch."""
    ancestors: Ancestors = field(default_factory=dict)
    """Newest kept ancestor of each kept epoch whose base was dropped; 0 if none is kept."""
    savepoints: Mapping[str, int] = field(default_factory=dict)
    acked: Mapping[str, int] = field(default_factory=dict)
    """Highest epoch that each sink has acknowledged, of any branch. The sink's marker is at least that."""
    unpublished: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Kept epochs that each sink has not acknowledged: the unpublished ones."""
    lost: Mapping[int, int] = field(default_factory=dict)
    """Ids that sinks may have and that an operator accepted as lost, with the epoch they descend from; 0 if unknown."""
    incarnations: tuple[IncarnationEntry, ...] = ()
    """Incarnations whose rows the log still has, in order."""
    maintenance: MaintenanceEntry | None = None
    """The checkpoint lease that is out, or the last one."""
    readers: Mapping[str, ReaderEntry] = field(default_factory=dict)
    """Sources of other jobs that read an edge of this one, by their ids."""
    epochs_of: int = field(default=0, compare=False)
    """Newest incarnation that committed an epoch. Kept, so that no commit looks at all epochs."""

    @property
    def is_free(self) -> bool:
        """True if the lease was never acquired, or if the last holder released it."""
        # Only a release writes 0: a late renewal can extend a lease that has expired, but none that is free.
        return self.holder is None or self.lease_expires_ms == 0

    @property
    def index(self) -> int:
        """The newest index that the newest epoch serves; 0 without `protocol="index"`."""
        newest = self.by_id.get(self.latest)
        return newest.index if newest is not None else 0

    @property
    def stamp(self) -> int:
        """The newest index that any epoch of the current branch has served, which stamps the rows of the next one.

        It outlives a time without `protocol="index"`: rows of that time come after every line before it.
        """
        newest = self.by_id.get(self.latest)
        return max(newest.index, newest.after) if newest is not None else 0

    @property
    def handover_asked(self) -> bool:
        """True if the newest incarnation was requested to hand over to a standby."""
        return self.handover_of == self.incarnation > 0  # both are 0 before the first incarnation

    @property
    def epochs(self) -> list[EpochBrief]:
        """The kept epochs, oldest first."""
        return [self.by_id[epoch] for epoch in sorted(self.by_id)]

    def lineage(self, newest: int | None = None) -> Iterator[EpochBrief]:
        """Return the kept epochs of the branch that ends with `newest` (default: `latest`), newest first, up to the first
        gap: every epoch between two of them is among them.
        """
        return lineage(self.by_id, self.latest if newest is None else newest)

    def ancestry(self, newest: int | None = None) -> Iterator[EpochBrief]:
        """Return the epochs of `lineage`, and those before gaps that retention has left."""
        return lineage(self.by_id, self.latest if newest is None else newest, self.ancestors)

    def newest_readable(self, read: Callable[[int], T]) -> T | None:
        """Return the answer of `read` for the newest epoch of the current branch whose manifest can be read."""
        for brief in self.ancestry():
            with suppress(*UNREADABLE):
                return read(brief.epoch)
        return None

    def parent(self, brief: EpochBrief) -> int:
        """Return the newest kept ancestor of an epoch; its base if the log does not say more."""
        return parent(self.by_id, brief, self.ancestors)

    def ancestors_among(self, kept: AbstractSet[int]) -> dict[int, int]:
        """Return `ancestors` as they are once only the epochs `kept` are left."""
        newest: dict[int, int] = {}
        found: dict[int, int] = {}
        # Oldest first, so that the answer of a dropped epoch is known before its descendants ask for it.
        for brief in self.epochs:
            above = self.parent(brief)
            above = newest.get(above, above)
            newest[brief.epoch] = brief.epoch if brief.epoch in kept else above
            # An unknown base, and a base that stays, speak for themselves.
            if brief.epoch in kept and above != brief.base:
                found[brief.epoch] = above if above in kept else 0
        return found

    def diverged(self, epoch: int) -> list[int]:
        """Return the diverged ids above `epoch`, committed or lost, in order: those not known to descend from it."""
        above, others = {epoch}, set[int]()
        for brief in self.epochs:
            if brief.epoch > epoch:
                # In order of ids: a base is classified before the epochs that extend it.
                (above if self.parent(brief) in above else others).add(brief.epoch)
        # A lost id on this branch descends from `epoch`; one of unknown origin (0) counts as diverged.
        return sorted(others | {each for each, on in self.lost.items() if each > epoch and on not in above})

    def unacked(self, sink: str) -> list[int]:
        """Return the committed epochs, of any branch, with output for `sink` that it has not acknowledged, oldest
        first.
        """
        return sorted(self.unpublished.get(sink, ()))

    def unsettled(self, sink: str) -> list[int]:
        """Return those of `unacked` that the sink may still get, or may have without an acknowledgement.

        These are the epochs of the current branch, and those above all that the sink has acknowledged.
        """
        current, known = {brief.epoch for brief in self.lineage()}, self.acked.get(sink, 0)
        # An older epoch of another branch can no longer be published: the sink's marker has passed it.
        return [epoch for epoch in self.unacked(sink) if epoch > known or epoch in current]

    @property
    def shown(self) -> int:
        """Newest epoch of the current branch up to which every sink has acknowledged everything."""
        unpublished = {epoch for epochs in self.unpublished.values() for epoch in epochs}
        # A sink gets epochs in order, so everything before the oldest unpublished one is published.
        oldest = min((brief.epoch for brief in self.lineage() if brief.epoch in unpublished), default=None)
        return self.latest if oldest is None else self.by_id[oldest].base

    def contradiction(self) -> str:
        """Return a sentence about epochs or incarnations that the log refers to but does not have; empty for a whole
        log.
        """
        # A sink acknowledges committed epochs only, so a higher number means that the log has lost rows.
        for sink, epoch in self.acked.items():
            if epoch > self.last:
                return f"the epoch log says that sink {sink} has epoch {epoch}, but its newest epoch is {self.last}"
        if self.epochs_of > self.incarnation:
            has = f"the epoch log has an epoch of incarnation {self.epochs_of}"
            return f"{has}, but its newest incarnation is {self.incarnation}"
        return ""

    @property
    def sinks(self) -> list[str]:
        """Every sink for which a kept epoch has output or deferred rows."""
        return sorted({sink for brief in self.by_id.values() for sink in (*brief.sinks, *brief.holds)})


def folded(log_state: LogState, records: Sequence[tuple[At, AnyRecord]]) -> LogState:
    """Return the state after more rows, in the log's order."""
    # A job at rest appends such a row every few seconds. It must not cost a copy of ten thousand epochs.
    if all(type(record) in _ASIDE for _, record in records):
        for at, record in records:
            log_state = FOLDS[type(record)](log_state, record, at)
        return log_state
    by_id = dict(log_state.by_id)  # one copy for all rows: a copy for each of ten thousand epochs would take seconds
    # Shares `by_id`: to apply a row of an epoch adds the epoch there.
    unpublished = UnpublishedEpochs(by_id, log_state.unpublished, log_state.latest, log_state.ancestors)
    epochs_of = log_state.epochs_of
    # A start folds every row of the log: one `replace` for the epochs of an incarnation, not one for each.
    for _, group in groupby(records, _alike):
        rows = list(group)
        at, newest = rows[-1]
        for _, record in rows:
            # Unpublished epochs depend on every row, the rest of the state only on the newest of a group.
            unpublished.apply(record)
        if isinstance(newest, EpochBrief):
            log_state = with_epochs(log_state, [record for _, record in rows if isinstance(record, EpochBrief)], at)
            epochs_of = max(epochs_of, newest.incarnation)
        else:
            log_state = FOLDS[type(newest)](log_state, newest, at)
        # Here, since FOLDS get no access to the one copy of the epochs that may change.
        if isinstance(newest, IndexSaid):
            _say_index(by_id, newest)
    return replace(log_state, by_id=by_id, unpublished=unpublished.by_sink(), epochs_of=epochs_of)


def _alike(row: tuple[At, AnyRecord]) -> object:
    """Group key: consecutive epochs of one incarnation are folded together, any other row alone."""
    _, record = row
    return record.incarnation if isinstance(record, EpochBrief) else object()


def taken_back(log_state: LogState, sinks: Mapping[str, int]) -> LogState:
    """Return the state as if each of these sinks had nothing after the epoch given for it."""
    if not sinks:
        return log_state
    unpublished = UnpublishedEpochs(dict(log_state.by_id), log_state.unpublished, log_state.latest, log_state.ancestors)
    unpublished.withdraw(sinks)
    return replace(log_state, acked={**log_state.acked, **sinks}, unpublished=unpublished.by_sink())


def _created(log_state: LogState, record: CreatedRecord, at: At) -> LogState:
    # The newest row counts: the store of an outbox may become a job's. The id stays, because the markers in sinks
    # contain it.
    return replace(log_state, job=record.job, store_id=record.store_id, kind=record.kind)


def _incarnation(log_state: LogState, record: IncarnationRecord, at: At) -> LogState:
    # An operator said that these sinks have less than they acknowledged, so their acknowledgements go down.
    acked = {**_acked(log_state, record.acks).acked, **record.taken_back}
    return replace(
        log_state,
        acked=acked,
        incarnation=record.incarnation,
        holder=record.holder,
        since_ms=at.time_ms,
        lease_ms=record.lease_ms,
        lease_expires_ms=record.lease_expires_ms,
        # The position in the total order: two holders never have the same token, regardless of their clocks.
        lease_token=at.seq,
        renewed_ms=at.time_ms,
        base=record.base,
        latest=record.base,  # the branch continues from here
        incarnations=(*log_state.incarnations, _begun(record, at.time_ms)),
    )


def _begun(record: IncarnationRecord, time_ms: int) -> IncarnationEntry:
    return IncarnationEntry(record.incarnation, str(record.holder), record.base, record.restored_from, time_ms)


def with_epochs(log_state: LogState, briefs: Sequence[EpochBrief], at: At) -> LogState:
    """Fold consecutive epochs of one incarnation. `at` is the position of the newest."""
    newest = briefs[-1]
    following = replace(
        _acked(log_state, [ack for brief in briefs for ack in brief.acks]),
        # A restore moves `latest` back, `last` never: ids are not assigned twice.
        last=max(log_state.last, *(brief.epoch for brief in briefs)),
        latest=newest.epoch,
    )
    return _renewed(following, newest.incarnation, newest.lease_expires_ms, at)


def _heartbeat(log_state: LogState, record: Heartbeat, at: At) -> LogState:
    return _renewed(log_state, record.incarnation, record.lease_expires_ms, at)


def _renewed(log_state: LogState, incarnation: int, expires_ms: int, at: At) -> LogState:
    # Only the newest incarnation has a lease to renew; a late row of a replaced one changes nothing.
    if incarnation != log_state.incarnation:
        return log_state
    return replace(log_state, lease_expires_ms=expires_ms, lease_token=at.seq, renewed_ms=at.time_ms)


def _released(log_state: LogState, record: Released, at: At) -> LogState:
    incarnations = tuple(
        _ended(each, record, at) if each.incarnation == record.incarnation else each for each in log_state.incarnations
    )
    # A run that keeps its lease for its next incarnation must not be overtaken in between.
    expires_ms = log_state.lease_expires_ms if record.keeps else 0
    return _renewed(replace(log_state, incarnations=incarnations), record.incarnation, expires_ms, at)


def _ended(incarnation: IncarnationEntry, record: Released, at: At) -> IncarnationEntry:
    # The first end counts. A later release of the lease by the run is not the end of the incarnation.
    return incarnation if incarnation.ended_ms else replace(incarnation, ended_ms=at.time_ms, why=record.why)


def _handover_asked(log_state: LogState, record: HandoverAsked, at: At) -> LogState:
    # The request names its incarnation, so that one to a driver that was replaced does not stop the successor.
    return replace(log_state, handover_of=record.incarnation)


def _maintenance_leased(log_state: LogState, record: MaintenanceLeased, at: At) -> LogState:
    return replace(log_state, maintenance=MaintenanceEntry(at.seq, at.time_ms, record))  # the row's number is the token


def _maintenance_ended(log_state: LogState, record: MaintenanceEnded, at: At) -> LogState:
    # After a newer lease the row says nothing.
    if log_state.maintenance is None or log_state.maintenance.token != record.token:
        return log_state
    ended = replace(log_state.maintenance, ended=record, ended_token=at.seq, ended_ms=at.time_ms)
    return replace(log_state, maintenance=ended)


def _published(log_state: LogState, record: Published, at: At) -> LogState:
    acked = _acked(log_state, record.acks)
    # The row shows that its author runs, so it renews the lease; a late one does not acquire a free lease again.
    return acked if acked.is_free else _renewed(acked, record.incarnation, at.time_ms + acked.lease_ms, at)


def _acked(log_state: LogState, acks: Sequence[SinkAck]) -> LogState:
    if not acks:
        return log_state
    # Numbers grow over all branches, and so do markers: the highest one counts, whichever branch it is of.
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
    # The rows with the highest id and with the newest acknowledgements may be among the dropped ones.
    following = replace(_acked(log_state, acks), last=max(log_state.last, record.last))
    return following if record.ancestors is None else replace(following, ancestors=record.ancestors)


def _loss_accepted(log_state: LogState, record: LossAccepted, at: At) -> LogState:
    return replace(
        log_state,
        # Sinks may have the lost ids, so they are not assigned again either.
        last=max(log_state.last, record.epoch),
        incarnation=max(log_state.incarnation, record.incarnation),  # a number given again would pass the sinks' fences
        lost={**log_state.lost, **dict.fromkeys(range(record.after + 1, record.epoch + 1), record.on)},
    )


def _reader_moved(log_state: LogState, record: ReaderMoved, at: At) -> LogState:
    return replace(log_state, readers={**log_state.readers, record.reader: ReaderEntry(at.time_ms, record)})


def _index_said(log_state: LogState, record: IndexSaid, at: At) -> LogState:
    return log_state  # `_say_index` changes the epoch


def _say_index(by_id: dict[int, EpochBrief], record: IndexSaid) -> None:
    brief = by_id.get(record.epoch)
    if brief is not None and record.index > brief.index:
        # An epoch without an index may have read rows of older lines: it serves the one that is said only.
        after = brief.after if brief.index else max(brief.after, record.index - 1)
        by_id[record.epoch] = brief.model_copy(update={"index": record.index, "after": after})


_ASIDE = frozenset(
    (
        Heartbeat,
        Released,
        HandoverAsked,
        MaintenanceLeased,
        MaintenanceEnded,
        SavepointRecord,
        SavepointDropped,
        ReaderMoved,
    )
)
"""Rows that change no epoch, and not what is unpublished. A job at rest appends only these."""
_Apply = Callable[[LogState, AnyRecord, At], LogState]
FOLDS: Mapping[type, _Apply] = {
    kind: cast(_Apply, apply)
    for kind, apply in (
        (CreatedRecord, _created),
        (IncarnationRecord, _incarnation),
        (Heartbeat, _heartbeat),
        (Released, _released),
        (HandoverAsked, _handover_asked),
        (MaintenanceLeased, _maintenance_leased),
        (MaintenanceEnded, _maintenance_ended),
        (Published, _published),
        (SavepointRecord, _savepoint),
        (SavepointDropped, _savepoint_dropped),
        (Folded, _folded),
        (LossAccepted, _loss_accepted),
        (ReaderMoved, _reader_moved),
        (IndexSaid, _index_said),
    )
}
"""Per kind of row, the change of the state."""
