"""The job's control log: incarnations, lease, epochs, savepoints and acks in one total order.

Every entry is appended by compare-and-swap after its author has seen everything before it.  That is the lease, the
fence and the decision at once: a driver that was replaced cannot append, whatever it believes about time.  Wall
clocks decide only *when* a silent holder may be replaced, never whether two holders can both commit.
"""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Callable, Sequence

from spark_ckpt.errors import (
    ConfigInvalid,
    EpochDamaged,
    EpochNotFound,
    Fenced,
    RunFailed,
    StoreForeign,
    StoreInUse,
)
from spark_ckpt.store import restore
from spark_ckpt.store.delta_log import CommitLost
from spark_ckpt.store.holder import provably_dead
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_content import HINT_DAMAGED
from spark_ckpt.store.log_rows import manifest_of, needed_rows, record_of, row_of, totals
from spark_ckpt.store.log_state import At, LogState, folded
from spark_ckpt.store.log_table import LogTable, NewRow
from spark_ckpt.store.names import valid_name
from spark_ckpt.store.records import (
    CreatedRecord,
    EpochBrief,
    HandoverAsked,
    Heartbeat,
    Holder,
    IncarnationRecord,
    LossAccepted,
    Manifest,
    Published,
    Released,
    SavepointDropped,
    SavepointRecord,
    SinkAck,
)
from spark_ckpt.store.restore import LATEST, RecoveryPoint, RestoreTarget
from spark_ckpt.store.turns import Turns

__all__ = ["EpochLog", "LogState", "RecoveryPoint", "RestoreTarget", "wall_ms"]

Propose = Callable[[LogState], NewRow | None]
"""Given everything decided so far: the row to append, None if there is nothing to do, or an error."""

Fence = Callable[[LogState], None]
"""Raises `Fenced` if the caller must not write any more, by everything decided so far."""


def wall_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


class EpochLog:
    """The control log of one job. Thread-safe. Made by `EpochLog.open`."""

    def __init__(self, table: LogTable, verify: restore.Verify, now_ms: Callable[[], int]) -> None:
        self._table = table
        self._verify = verify
        self._now_ms = now_ms
        self._lock = Turns("the job's log")
        self._tail = LogState()
        self._own_incarnation: int | None = None

    @classmethod
    def open(
        cls,
        location: Location,
        job: str | None,
        *,
        create: bool = True,
        verify: restore.Verify = restore.no_check,
        now_ms: Callable[[], int] = wall_ms,
    ) -> EpochLog | None:
        """The log at `location`; None if there is none and `create` is False. `job`: None for whosever it is, to read.

        Raises `StoreForeign` for another job's log, `FormatUnknown` for a newer one, `EpochDamaged` for a damaged one.
        """
        table = LogTable.open(location, now_ms, create=create)
        if table is None:
            return None
        log = cls(table, verify, now_ms)
        if job is not None and not log.state().store_id:
            log.append(
                lambda log_state: (
                    None if log_state.store_id else row_of(CreatedRecord(job=job, store_id=str(uuid.uuid4())))
                )
            )
        if job is not None and log.state().job != job:
            raise StoreForeign(
                f"this store belongs to job '{log.state().job}'", store=location.uri, hint="give another location"
            )
        return log

    @property
    def own_incarnation(self) -> int | None:
        """The incarnation that this process began through this object, if any."""
        return self._own_incarnation

    def state(self) -> LogState:
        """Everything decided so far, by anybody."""
        with self._lock:
            self._table.refresh()
            self._absorb()
            return self._tail

    def begin_incarnation(
        self,
        holder: Holder,
        restore: RestoreTarget = LATEST,
        lease_ms: int = 30_000,
        takeover: bool = False,
        ended: int | None = None,
    ) -> RecoveryPoint:
        """Start a new incarnation of the job at the epoch that `restore` names; earlier incarnations are fenced from now on.

        Refuses with `StoreInUse` while the lease's holder may be alive, unless `takeover`. "latest" passes over damaged
        epochs and reports them; an epoch or savepoint asked for that is damaged raises `EpochDamaged`.  Decided epochs
        behind the restored one that were not published are dropped, see `RecoveryPoint`. `ended`: `LogState.lease_token` of a
        lease that the caller has seen end: no clock is asked, it is refused if the lease was renewed or taken since.
        """
        begun: list[RecoveryPoint] = []

        def propose(log_state: LogState) -> NewRow:
            self._refuse_if_held(log_state, takeover, ended)
            begun[:] = [self._recovery_point(log_state, restore)]
            return self._incarnation_row(begun[0], holder, lease_ms)

        with self._lock:
            self.append(propose)
            self._own_incarnation = begun[0].incarnation
        return begun[0]

    def commit_epoch(self, manifest: Manifest) -> LogState:
        """Decide the epoch; it also renews the lease. The log_state before it. Calling it again with the same manifest is harmless.

        Raises `Fenced` if a newer incarnation exists, a `StoreOutage` (retriable) if the outcome is unknown.
        """
        return self.append(lambda log_state: self._epoch_row(log_state, manifest))

    def renew(self, incarnation: int, lease_ms: int) -> LogState:
        """Heartbeat of an idle holder; the log_state before it. Raises `Fenced`."""

        def propose(log_state: LogState) -> NewRow:
            _fence(log_state, incarnation)
            return row_of(Heartbeat(incarnation=incarnation, lease_expires_ms=self._now_ms() + lease_ms), incarnation)

        return self.append(propose)

    def release(self, incarnation: int, why: str = "", keeps: bool = False) -> None:
        """The incarnation ends: `why`. The lease is free at once, unless the run `keeps` it for the next incarnation. Nothing
        happens if it is free, or if a newer incarnation exists."""
        self.append(lambda log_state: _release_row(log_state, Released(incarnation=incarnation, why=why, keeps=keeps)))

    def ask_handover(self, incarnation: int) -> None:
        """Ask the driver of `incarnation` to end in order, so that a standby goes on; it reads this with its next renewal or epoch.
        Raises `StoreInUse` if another incarnation runs."""
        self.append(lambda log_state: _handover_row(log_state, incarnation))

    def record_acks(self, incarnation: int, acks: Sequence[SinkAck]) -> None:
        """Acks that no later epoch will carry. Raises `Fenced`."""

        def propose(log_state: LogState) -> NewRow | None:
            _fence(log_state, incarnation)
            news = tuple(ack for ack in acks if ack.epoch > log_state.acked.get(ack.sink, 0))
            return row_of(Published(incarnation=incarnation, acks=news), incarnation) if news else None

        self.append(propose)

    def accept_loss(self, epoch: int, incarnation: int) -> range:
        """Go on although sinks have epochs up to `epoch`, by incarnations up to `incarnation`, that the log has lost.

        The ids that are lost; numbers go on above. Raises `StoreInUse` while a driver may run.
        """
        lost = range(0)

        def propose(log_state: LogState) -> NewRow | None:
            nonlocal lost
            self._refuse_if_held(log_state, takeover=False)
            lost = range(log_state.last + 1, epoch + 1)
            if not lost and incarnation <= log_state.incarnation:
                return None
            known = 0 < incarnation <= log_state.incarnation  # a lineage goes straight on while an incarnation lasts
            newest, on = max(epoch, log_state.last), log_state.latest if known else 0
            return row_of(LossAccepted(after=log_state.last, epoch=newest, incarnation=incarnation, on=on))

        self.append(propose)
        return lost

    def add_savepoint(self, name: str, epoch: int) -> None:
        """Name an epoch and keep it for ever. Any process may do so at any time; repeating it is harmless."""
        valid_name("savepoint", name)
        if name == LATEST or name.isdigit():
            raise ConfigInvalid(
                f"'{name}' cannot name a savepoint", hint="it would be taken for an epoch when restoring"
            )
        self.append(lambda log_state: _savepoint_row(log_state, name, epoch))

    def drop_savepoint(self, name: str) -> None:
        """Forget a savepoint's name; its epoch is subject to retention again. `EpochNotFound` if there is none."""
        valid_name("savepoint", name)

        def propose(log_state: LogState) -> NewRow:
            if name not in log_state.savepoints:
                known = ", ".join(sorted(log_state.savepoints)) or "none"
                raise EpochNotFound(f"there is no savepoint '{name}'", savepoints=known)
            return row_of(SavepointDropped(name=name), epoch=log_state.savepoints[name])

        self.append(propose)

    def manifest(self, epoch: int) -> Manifest:
        """One epoch, checked. Raises `EpochNotFound`, `EpochDamaged`, `FormatUnknown`."""
        with self._lock:
            self.state()
            return self._manifest(epoch)

    def shorten(
        self, keep_epochs: Callable[[LogState], set[int]], fence: Fence = lambda log_state: None
    ) -> tuple[LogState, list[Manifest]]:
        """Drop all epochs but those `keep_epochs` names; the log_state they were chosen from and what was dropped.

        One commit: after it the dropped epochs cannot be restored by anybody. Raises `Fenced` if this object's own
        incarnation was replaced, and what `fence` raises.  Repeats itself when other commits come between.
        """
        with self._lock:
            while True:
                log_state = self.state()
                if self._own_incarnation is not None:
                    _fence(log_state, self._own_incarnation)
                fence(log_state)
                kept = keep_epochs(log_state)
                dropped = [self._manifest(epoch) for epoch in sorted(log_state.by_id.keys() - kept)]
                if not dropped or self._table.shorten(needed_rows(self._table.rows, kept), row_of(totals(log_state))):
                    return log_state, dropped

    def trim(self, before_ms: int) -> None:
        """Delete files of the log's table that are older than `before_ms` and not part of it any more."""
        with self._lock:
            self.state()
            self._table.trim(before_ms)

    # -- the one way in -------------------------------------------------------------------------------------------

    def append(self, propose: Propose) -> LogState:
        """Propose on what is decided so far, append by compare-and-swap, start over when others were faster.

        Returns the log_state the row was proposed on.
        """
        with self._lock:
            while True:
                log_state = self.state()
                row = propose(log_state)
                if row is None:
                    self._table.acknowledge()
                    return log_state
                try:
                    self._table.append(row)
                except CommitLost:
                    continue
                self._table.fold_if_due(row_of(totals(log_state)))
                return log_state

    def _recovery_point(self, log_state: LogState, target: RestoreTarget) -> RecoveryPoint:
        choice = restore.choose(log_state, target, self._manifest, self._verify)
        passed_over = _passed_over(log_state, target, choice)
        return RecoveryPoint(
            incarnation=log_state.incarnation + 1,
            manifest=choice.base,
            last=log_state.last,
            restored_from=choice.restored_from,
            unpublished=choice.unpublished,
            dropped=restore.dropped(log_state, choice.base.epoch, passed_over),
            beside=restore.beside(log_state, choice.unpublished),
            skipped=choice.skipped,
            passed_over=tuple(sorted(passed_over)),
        )

    def _incarnation_row(self, point: RecoveryPoint, holder: Holder, lease_ms: int) -> NewRow:
        record = IncarnationRecord(
            incarnation=point.incarnation,
            holder=holder,
            base=point.manifest.epoch,
            restored_from=point.restored_from,
            lease_ms=lease_ms,
            lease_expires_ms=self._now_ms() + lease_ms,
            passed_over=point.passed_over,
        )
        return row_of(record, point.incarnation, point.manifest.epoch)

    def _refuse_if_held(self, log_state: LogState, takeover: bool, ended: int | None = None) -> None:
        if takeover or log_state.holder is None or log_state.incarnation == self._own_incarnation:
            return
        if ended is not None:
            _refuse_if_moved(log_state, ended)
        elif log_state.lease_expires_ms > self._now_ms() and not provably_dead(log_state.holder):
            raise _in_use(log_state)

    def _epoch_row(self, log_state: LogState, manifest: Manifest) -> NewRow | None:
        known = log_state.by_id.get(manifest.epoch)
        if known is not None and known.attempt == manifest.attempt and known.incarnation == manifest.incarnation:
            return None
        _fence(log_state, manifest.incarnation)
        if (
            manifest.job != log_state.job
            or manifest.epoch <= log_state.last
            or (manifest.base, manifest.previous) != (log_state.latest, log_state.last)
        ):
            raise _not_behind(log_state, manifest)
        brief = EpochBrief.of(manifest, self._now_ms() + log_state.lease_ms)
        body = manifest.model_dump_json()
        return NewRow("epoch", manifest.epoch, manifest.incarnation, manifest.attempt, brief.model_dump_json(), body)

    def _manifest(self, epoch: int) -> Manifest:
        row = next((row for row in reversed(self._table.rows) if row.kind == "epoch" and row.epoch == epoch), None)
        if row is None:
            kept = ", ".join(str(number) for number in sorted(self._tail.by_id)) or "none"
            raise EpochNotFound(
                f"epoch {epoch} is not in the log", kept=kept, hint="choose a kept epoch or a savepoint"
            )
        return manifest_of(row, self._table.body(row))

    def _absorb(self) -> None:
        news = self._table.news()
        log_state, rows = (LogState(), self._table.rows) if news is None else (self._tail, news)
        self._tail = folded(log_state, [(At(row.seq, row.time_ms), record_of(row)) for row in rows])
        contradiction = self._tail.contradiction()
        if contradiction:
            raise EpochDamaged(contradiction, hint=HINT_DAMAGED)


def _not_behind(log_state: LogState, manifest: Manifest) -> RunFailed:
    return RunFailed(
        "the manifest does not extend the log",
        manifest=f"epoch {manifest.epoch}, base {manifest.base}, previous {manifest.previous}",
        log=f"latest {log_state.latest}, last {log_state.last}",
        job=f"{manifest.job} in the manifest, {log_state.job} in the log",
        hint="start the job again; it continues from the last epoch",
    )


def _passed_over(log_state: LogState, target: RestoreTarget, choice: restore.Choice) -> set[int]:
    """Epochs left out without anybody's word; naming an epoch is a word about everything behind it."""
    return {*log_state.passed_over, *(epoch for epoch, _ in choice.skipped)} if target == LATEST else set()


def _savepoint_row(log_state: LogState, name: str, epoch: int) -> NewRow | None:
    if epoch not in log_state.by_id:
        kept = ", ".join(str(number) for number in sorted(log_state.by_id)) or "none"
        raise EpochNotFound(f"epoch {epoch} is not in the log", kept=kept, hint="choose a kept epoch")
    known = log_state.savepoints.get(name)
    if known is None:
        return row_of(SavepointRecord(name=name, epoch=epoch), epoch=epoch)
    if known != epoch:
        raise ConfigInvalid(
            f"savepoint '{name}' is epoch {known} already", hint="drop it first, or choose another name"
        )
    return None


def _fence(log_state: LogState, incarnation: int) -> None:
    if log_state.incarnation != incarnation:
        raise Fenced(
            f"incarnation {incarnation} was replaced by {log_state.incarnation}",
            holder=log_state.holder,
            since=_utc(log_state.since_ms),
            hint="stop this driver; the other one continues the job",
        )


def _refuse_if_moved(log_state: LogState, token: int) -> None:
    if log_state.lease_token != token:
        raise StoreInUse(
            "the lease that was seen to end has been renewed, or taken by another driver",
            holder=log_state.holder,
            since=_utc(log_state.since_ms),
        )


def _in_use(log_state: LogState) -> StoreInUse:
    return StoreInUse(
        "another driver runs this job",
        holder=log_state.holder,
        since=_utc(log_state.since_ms),
        lease_until=_utc(log_state.lease_expires_ms),
        hint="stop it, or wait until its lease ends; takeover=True (--takeover) replaces it now, standby=True waits for its end",
    )


def _release_row(log_state: LogState, record: Released) -> NewRow | None:
    held = log_state.incarnation == record.incarnation and not log_state.is_free
    return row_of(record, record.incarnation) if held else None


def _handover_row(log_state: LogState, incarnation: int) -> NewRow | None:
    if log_state.incarnation != incarnation:
        raise StoreInUse(f"incarnation {log_state.incarnation} runs the job now", holder=log_state.holder)
    return None if log_state.handover_asked else row_of(HandoverAsked(incarnation=incarnation), incarnation)


def _utc(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
