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
from spark_ckpt.store.tail import At, Tail, folded
from spark_ckpt.store.turns import Turns

__all__ = ["EpochLog", "RecoveryPoint", "RestoreTarget", "Tail", "wall_ms"]

Propose = Callable[[Tail], NewRow | None]
"""Given everything decided so far: the row to append, None if there is nothing to do, or an error."""

Fence = Callable[[Tail], None]
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
        self._tail = Tail()
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
        if job is not None and not log.tail().store_id:
            log.append(
                lambda tail: None if tail.store_id else row_of(CreatedRecord(job=job, store_id=str(uuid.uuid4())))
            )
        if job is not None and log.tail().job != job:
            raise StoreForeign(
                f"this store belongs to job '{log.tail().job}'", store=location.uri, hint="give another location"
            )
        return log

    @property
    def own_incarnation(self) -> int | None:
        """The incarnation that this process began through this object, if any."""
        return self._own_incarnation

    def tail(self) -> Tail:
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
        """Start a new life of the job at the epoch that `restore` names; earlier incarnations are fenced from now on.

        Refuses with `StoreInUse` while the lease's holder may be alive, unless `takeover`. "latest" passes over damaged
        epochs and reports them; an epoch or savepoint asked for that is damaged raises `EpochDamaged`.  Decided epochs
        behind the restored one that were not published are dropped, see `RecoveryPoint`. `ended`: `Tail.lease_token` of a
        lease that the caller has seen end: no clock is asked, it is refused if the lease was renewed or taken since.
        """
        begun: list[RecoveryPoint] = []

        def propose(tail: Tail) -> NewRow:
            self._refuse_if_held(tail, takeover, ended)
            begun[:] = [self._recovery_point(tail, restore)]
            return self._incarnation_row(begun[0], holder, lease_ms)

        with self._lock:
            self.append(propose)
            self._own_incarnation = begun[0].incarnation
        return begun[0]

    def commit_epoch(self, manifest: Manifest) -> Tail:
        """Decide the epoch; it also renews the lease. The tail before it. Calling it again with the same manifest is harmless.

        Raises `Fenced` if a newer incarnation exists, a `StoreOutage` (retriable) if the outcome is unknown.
        """
        return self.append(lambda tail: self._epoch_row(tail, manifest))

    def renew(self, incarnation: int, lease_ms: int) -> Tail:
        """Heartbeat of an idle holder; the tail before it. Raises `Fenced`."""

        def propose(tail: Tail) -> NewRow:
            _fence(tail, incarnation)
            return row_of(Heartbeat(incarnation=incarnation, lease_expires_ms=self._now_ms() + lease_ms), incarnation)

        return self.append(propose)

    def release(self, incarnation: int, why: str = "", keeps: bool = False) -> None:
        """The incarnation ends: `why`. The lease is free at once, unless the run `keeps` it for the next incarnation. Nothing
        happens if it is free, or if a newer incarnation exists."""
        self.append(lambda tail: _release_row(tail, Released(incarnation=incarnation, why=why, keeps=keeps)))

    def ask_handover(self, incarnation: int) -> None:
        """Ask the driver of `incarnation` to end in order, so that a standby goes on; it reads this with its next renewal or epoch.
        Raises `StoreInUse` if another incarnation runs."""
        self.append(lambda tail: _handover_row(tail, incarnation))

    def record_acks(self, incarnation: int, acks: Sequence[SinkAck]) -> None:
        """Acks that no later epoch will carry. Raises `Fenced`."""

        def propose(tail: Tail) -> NewRow | None:
            _fence(tail, incarnation)
            news = tuple(ack for ack in acks if ack.epoch > tail.acked.get(ack.sink, 0))
            return row_of(Published(incarnation=incarnation, acks=news), incarnation) if news else None

        self.append(propose)

    def accept_loss(self, epoch: int, incarnation: int) -> range:
        """Go on although sinks have epochs up to `epoch`, by incarnations up to `incarnation`, that the log has lost.

        The ids that are lost; numbers go on above. Raises `StoreInUse` while a driver may run.
        """
        lost = range(0)

        def propose(tail: Tail) -> NewRow | None:
            nonlocal lost
            self._refuse_if_held(tail, takeover=False)
            lost = range(tail.last + 1, epoch + 1)
            if not lost and incarnation <= tail.incarnation:
                return None
            return row_of(LossAccepted(after=tail.last, epoch=max(epoch, tail.last), incarnation=incarnation))

        self.append(propose)
        return lost

    def add_savepoint(self, name: str, epoch: int) -> None:
        """Name an epoch and keep it for ever. Any process may do so at any time; repeating it is harmless."""
        valid_name("savepoint", name)
        if name == LATEST or name.isdigit():
            raise ConfigInvalid(
                f"'{name}' cannot name a savepoint", hint="it would be taken for an epoch when restoring"
            )
        self.append(lambda tail: _savepoint_row(tail, name, epoch))

    def drop_savepoint(self, name: str) -> None:
        """Forget a savepoint's name; its epoch is subject to retention again. `EpochNotFound` if there is none."""
        valid_name("savepoint", name)

        def propose(tail: Tail) -> NewRow:
            if name not in tail.savepoints:
                known = ", ".join(sorted(tail.savepoints)) or "none"
                raise EpochNotFound(f"there is no savepoint '{name}'", savepoints=known)
            return row_of(SavepointDropped(name=name), epoch=tail.savepoints[name])

        self.append(propose)

    def manifest(self, epoch: int) -> Manifest:
        """One epoch, checked. Raises `EpochNotFound`, `EpochDamaged`, `FormatUnknown`."""
        with self._lock:
            self.tail()
            return self._manifest(epoch)

    def shorten(
        self, keep_epochs: Callable[[Tail], set[int]], fence: Fence = lambda tail: None
    ) -> tuple[Tail, list[Manifest]]:
        """Drop all epochs but those `keep_epochs` names; the tail they were chosen from and what was dropped.

        One commit: after it the dropped epochs cannot be restored by anybody. Raises `Fenced` if this object's own
        incarnation was replaced, and what `fence` raises.  Repeats itself when other commits come between.
        """
        with self._lock:
            while True:
                tail = self.tail()
                if self._own_incarnation is not None:
                    _fence(tail, self._own_incarnation)
                fence(tail)
                kept = keep_epochs(tail)
                dropped = [self._manifest(epoch) for epoch in sorted(tail.by_id.keys() - kept)]
                if not dropped or self._table.shorten(needed_rows(self._table.rows, kept), row_of(totals(tail))):
                    return tail, dropped

    def trim(self, before_ms: int) -> None:
        """Delete files of the log's table that are older than `before_ms` and not part of it any more."""
        with self._lock:
            self.tail()
            self._table.trim(before_ms)

    # -- the one way in -------------------------------------------------------------------------------------------

    def append(self, propose: Propose) -> Tail:
        """Propose on what is decided so far, append by compare-and-swap, start over when others were faster.

        Returns the tail the row was proposed on.
        """
        with self._lock:
            while True:
                tail = self.tail()
                row = propose(tail)
                if row is None:
                    self._table.acknowledge()
                    return tail
                try:
                    self._table.append(row)
                except CommitLost:
                    continue
                self._table.fold_if_due(row_of(totals(tail)))
                return tail

    def _recovery_point(self, tail: Tail, target: RestoreTarget) -> RecoveryPoint:
        choice = restore.choose(tail, target, self._manifest, self._verify)
        passed_over = _passed_over(tail, target, choice)
        return RecoveryPoint(
            incarnation=tail.incarnation + 1,
            manifest=choice.base,
            last=tail.last,
            restored_from=choice.restored_from,
            unpublished=choice.unpublished,
            dropped=restore.dropped(tail, choice.base.epoch, passed_over),
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

    def _refuse_if_held(self, tail: Tail, takeover: bool, ended: int | None = None) -> None:
        if takeover or tail.holder is None or tail.incarnation == self._own_incarnation:
            return
        if ended is not None:
            _refuse_if_moved(tail, ended)
        elif tail.lease_expires_ms > self._now_ms() and not provably_dead(tail.holder):
            raise _in_use(tail)

    def _epoch_row(self, tail: Tail, manifest: Manifest) -> NewRow | None:
        known = tail.by_id.get(manifest.epoch)
        if known is not None and known.attempt == manifest.attempt and known.incarnation == manifest.incarnation:
            return None
        _fence(tail, manifest.incarnation)
        if (
            manifest.job != tail.job
            or manifest.epoch <= tail.last
            or (manifest.base, manifest.previous) != (tail.latest, tail.last)
        ):
            raise _not_behind(tail, manifest)
        brief = EpochBrief.of(manifest, self._now_ms() + tail.lease_ms)
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
        tail, rows = (Tail(), self._table.rows) if news is None else (self._tail, news)
        self._tail = folded(tail, [(At(row.seq, row.time_ms), record_of(row)) for row in rows])
        contradiction = self._tail.contradiction()
        if contradiction:
            raise EpochDamaged(contradiction, hint=HINT_DAMAGED)


def _not_behind(tail: Tail, manifest: Manifest) -> RunFailed:
    return RunFailed(
        "the manifest does not extend the log",
        manifest=f"epoch {manifest.epoch}, base {manifest.base}, previous {manifest.previous}",
        log=f"latest {tail.latest}, last {tail.last}",
        job=f"{manifest.job} in the manifest, {tail.job} in the log",
        hint="start the job again; it continues from the last epoch",
    )


def _passed_over(tail: Tail, target: RestoreTarget, choice: restore.Choice) -> set[int]:
    """Epochs left out without anybody's word; naming an epoch is a word about everything behind it."""
    return {*tail.passed_over, *(epoch for epoch, _ in choice.skipped)} if target == LATEST else set()


def _savepoint_row(tail: Tail, name: str, epoch: int) -> NewRow | None:
    if epoch not in tail.by_id:
        kept = ", ".join(str(number) for number in sorted(tail.by_id)) or "none"
        raise EpochNotFound(f"epoch {epoch} is not in the log", kept=kept, hint="choose a kept epoch")
    known = tail.savepoints.get(name)
    if known is None:
        return row_of(SavepointRecord(name=name, epoch=epoch), epoch=epoch)
    if known != epoch:
        raise ConfigInvalid(
            f"savepoint '{name}' is epoch {known} already", hint="drop it first, or choose another name"
        )
    return None


def _fence(tail: Tail, incarnation: int) -> None:
    if tail.incarnation != incarnation:
        raise Fenced(
            f"incarnation {incarnation} was replaced by {tail.incarnation}",
            holder=tail.holder,
            since=_utc(tail.since_ms),
            hint="stop this driver; the other one continues the job",
        )


def _refuse_if_moved(tail: Tail, token: int) -> None:
    if tail.lease_token != token:
        raise StoreInUse(
            "the lease that was seen to end has been renewed, or taken by another driver",
            holder=tail.holder,
            since=_utc(tail.since_ms),
        )


def _in_use(tail: Tail) -> StoreInUse:
    return StoreInUse(
        "another driver runs this job",
        holder=tail.holder,
        since=_utc(tail.since_ms),
        lease_until=_utc(tail.lease_expires_ms),
        hint="stop it, or wait until its lease ends; takeover=True (--takeover) replaces it now, standby=True waits for its end",
    )


def _release_row(tail: Tail, record: Released) -> NewRow | None:
    held = tail.incarnation == record.incarnation and not tail.is_free
    return row_of(record, record.incarnation) if held else None


def _handover_row(tail: Tail, incarnation: int) -> NewRow | None:
    if tail.incarnation != incarnation:
        raise StoreInUse(f"incarnation {tail.incarnation} runs the job now", holder=tail.holder)
    return None if tail.handover_asked else row_of(HandoverAsked(incarnation=incarnation), incarnation)


def _utc(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
