"""The job's control log: incarnations, lease, epochs, savepoints and acks in one total order.

Every entry is appended by compare-and-swap after its author has seen everything before it.  That is the lease, the
fence and the decision at once: a driver that was replaced cannot append, whatever it believes about time.  Wall
clocks decide only *when* a silent holder may be replaced, never whether two holders can both commit.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from spark_ckpt.errors import (
    ConfigInvalid,
    EpochDamaged,
    EpochNotFound,
    StoreForeign,
)
from spark_ckpt.store import proposals, restore
from spark_ckpt.store.delta_log import CommitLost
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_content import HINT_DAMAGED
from spark_ckpt.store.log_rows import manifest_of, needed_rows, record_of, row_of, totals
from spark_ckpt.store.log_state import At, LogState, folded
from spark_ckpt.store.log_state import taken_back as with_taken_back
from spark_ckpt.store.log_table import LogTable, NewRow
from spark_ckpt.store.names import valid_name
from spark_ckpt.store.records import (
    CreatedRecord,
    Holder,
    Manifest,
    Released,
    SinkAck,
)
from spark_ckpt.store.restore import LATEST, RecoveryPoint, RestoreTarget, recovery_point
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
        self.verify = verify
        """How the files of an epoch are checked before somebody goes on from it."""
        self._now_ms = now_ms
        self._lock = Turns("the job's log")
        self._state = LogState()
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
            return self._state

    def begin_incarnation(
        self,
        holder: Holder,
        restore: RestoreTarget = LATEST,
        lease_ms: int = 30_000,
        takeover: bool = False,
        ended: int | None = None,
        taken_back: Mapping[str, int] = MappingProxyType({}),
    ) -> RecoveryPoint:
        """Start a new incarnation of the job at the epoch that `restore` names; earlier incarnations are fenced from now on.

        Refuses with `StoreInUse` while the lease's holder may be alive, unless `takeover`. "latest" passes over damaged
        epochs and reports them; an epoch or savepoint asked for that is damaged raises `EpochDamaged`.  Decided epochs
        behind the restored one that were not published are dropped, see `RecoveryPoint`. `ended`: `LogState.lease_token` of a
        lease that the caller has seen end: no clock is asked, it is refused if the lease was renewed or taken since.
        `taken_back`: sinks that have less than the log says, with the newest epoch that each has: what it lacks is unpublished.
        """
        begun: list[RecoveryPoint] = []

        def propose(log_state: LogState) -> NewRow:
            if not takeover:
                proposals.refuse_if_held(log_state, self._own_incarnation, self._now_ms(), ended)
            known = with_taken_back(log_state, taken_back)
            begun[:] = [recovery_point(known, restore, self._manifest, self.verify)]
            return proposals.incarnation(begun[0], holder, self._now_ms(), lease_ms, taken_back)

        with self._lock:
            self.append(propose)
            self._own_incarnation = begun[0].incarnation
        return begun[0]

    def commit_epoch(self, manifest: Manifest) -> LogState:
        """Decide the epoch; it also renews the lease. The state before it. Calling it again with the same manifest is harmless.

        Raises `Fenced` if a newer incarnation exists, a `StoreOutage` (retriable) if the outcome is unknown.
        """
        return self.append(lambda state: proposals.epoch(state, manifest, self._now_ms()))

    def renew(self, incarnation: int, lease_ms: int) -> LogState:
        """Heartbeat of an idle holder; the state before it. Raises `Fenced`."""
        return self.append(lambda state: proposals.heartbeat(state, incarnation, self._now_ms() + lease_ms))

    def release(self, incarnation: int, why: str = "", keeps: bool = False) -> None:
        """The incarnation ends: `why`. The lease is free at once, unless the run `keeps` it for the next incarnation. Nothing
        happens if it is free, or if a newer incarnation exists."""
        released = Released(incarnation=incarnation, why=why, keeps=keeps)
        self.append(lambda state: proposals.release(state, released))

    def ask_handover(self, incarnation: int) -> None:
        """Ask the driver of `incarnation` to end in order, so that a standby goes on; it reads this with its next renewal or epoch.
        Raises `StoreInUse` if another incarnation runs."""
        self.append(lambda state: proposals.handover(state, incarnation))

    def record_acks(self, incarnation: int, acks: Sequence[SinkAck]) -> None:
        """Acks that no later epoch will carry. Raises `Fenced`."""
        self.append(lambda state: proposals.acks(state, incarnation, acks))

    def accept_loss(self, epoch: int, incarnation: int) -> range:
        """Go on although sinks have epochs up to `epoch`, by incarnations up to `incarnation`, that the log has lost.

        The ids that are lost; numbers go on above. Raises `StoreInUse` while a driver may run.
        """
        lost = range(0)

        def propose(log_state: LogState) -> NewRow | None:
            nonlocal lost
            proposals.refuse_if_held(log_state, self._own_incarnation, self._now_ms())
            lost = range(log_state.last + 1, epoch + 1)
            return proposals.loss(log_state, epoch, incarnation)

        self.append(propose)
        return lost

    def add_savepoint(self, name: str, epoch: int) -> None:
        """Name an epoch and keep it for ever. Any process may do so at any time; repeating it is harmless."""
        valid_name("savepoint", name)
        if name == LATEST or name.isdigit():
            raise ConfigInvalid(
                f"'{name}' cannot name a savepoint", hint="it would be taken for an epoch when restoring"
            )
        self.append(lambda state: proposals.savepoint(state, name, epoch))

    def drop_savepoint(self, name: str) -> None:
        """Forget a savepoint's name; its epoch is subject to retention again. `EpochNotFound` if there is none."""
        valid_name("savepoint", name)
        self.append(lambda state: proposals.savepoint_dropped(state, name))

    def manifest(self, epoch: int) -> Manifest:
        """One epoch, checked. Raises `EpochNotFound`, `EpochDamaged`, `FormatUnknown`."""
        with self._lock:
            self.state()
            return self._manifest(epoch)

    def manifests(self, epochs: Iterable[int] | None = None) -> list[Manifest]:
        """These epochs, by default all that are kept, oldest first; checked. The log is looked at once, not for each.
        Raises as `manifest`."""
        with self._lock:
            kept = [brief.epoch for brief in self.state().epochs]
            return [self._manifest(epoch) for epoch in (kept if epochs is None else epochs)]

    def shorten(
        self, keep_epochs: Callable[[LogState], set[int]], fence: Fence = lambda log_state: None
    ) -> tuple[LogState, list[Manifest]]:
        """Drop all epochs but those `keep_epochs` names; the state they were chosen from and what was dropped.

        One commit: after it the dropped epochs cannot be restored by anybody. Raises `Fenced` if this object's own
        incarnation was replaced, and what `fence` raises.  Repeats itself when other commits come between.
        """
        with self._lock:
            while True:
                log_state = self.state()
                if self._own_incarnation is not None:
                    proposals.fence(log_state, self._own_incarnation)
                fence(log_state)
                kept = keep_epochs(log_state)
                dropped = [self._manifest(epoch) for epoch in sorted(log_state.by_id.keys() - kept)]
                if not dropped or self._table.shorten(needed_rows(self._table.rows, kept), row_of(totals(log_state))):
                    return log_state, dropped

    def trim(self, now_ms: int) -> None:
        """Delete old files of the log's table that are not part of it any more. `now_ms`: since 1970 UTC."""
        with self._lock:
            self.state()
            self._table.trim(now_ms)

    # -- the one way in -------------------------------------------------------------------------------------------

    def append(self, propose: Propose) -> LogState:
        """Propose on what is decided so far, append by compare-and-swap, start over when others were faster.

        Returns the state the row was proposed on.
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

    def _manifest(self, epoch: int) -> Manifest:
        row = next((row for row in reversed(self._table.rows) if row.kind == "epoch" and row.epoch == epoch), None)
        if row is None:
            kept = ", ".join(str(number) for number in sorted(self._state.by_id)) or "none"
            raise EpochNotFound(
                f"epoch {epoch} is not in the log", kept=kept, hint="choose a kept epoch or a savepoint"
            )
        return manifest_of(row, self._table.body(row))

    def _absorb(self) -> None:
        news = self._table.news()
        log_state, rows = (LogState(), self._table.rows) if news is None else (self._state, news)
        self._state = folded(log_state, [(At(row.seq, row.time_ms), record_of(row)) for row in rows])
        contradiction = self._state.contradiction()
        if contradiction:
            raise EpochDamaged(contradiction, hint=HINT_DAMAGED)
