"""The epoch log of a job: incarnations, lease, epochs, savepoints and acknowledgements in one total order.

Each row is appended by compare-and-swap, after its author has read every row before it. That one mechanism is the
lease, the fence and the commit: a replaced driver cannot append, even if its clock is wrong. Wall clocks only decide
*when* a silent holder may be replaced. They never decide whether two holders can both commit.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from spark_ckpt.epochs import restore
from spark_ckpt.epochs.log_state import At, LogState, folded
from spark_ckpt.epochs.log_state import taken_back as with_taken_back
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.epochs.records import (
    CreatedRecord,
    Holder,
    Kind,
    Manifest,
    ReaderMoved,
    Released,
    SinkAck,
)
from spark_ckpt.epochs.restore import LATEST, RecoveryPoint, RestoreTarget, recovery_point
from spark_ckpt.errors import (
    CkptError,
    ConfigInvalid,
    EpochDamaged,
    EpochNotFound,
    FormatUnknown,
    StoreForeign,
    StoreOutage,
)
from spark_ckpt.store import proposals
from spark_ckpt.store.delta_log import CommitLost
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_content import HINT_DAMAGED
from spark_ckpt.store.log_rows import manifest_of, needed_rows, record_of, row_of, totals
from spark_ckpt.store.log_table import LogRow, LogTable, NewRow
from spark_ckpt.store.turns import Turns

__all__ = ["EpochLog", "LogState", "RecoveryPoint", "RestoreTarget", "wall_ms"]

Propose = Callable[[LogState], NewRow | None]
"""Function from the log state to the row to append. It returns None if there is nothing to do, and may raise."""

Fence = Callable[[LogState], None]
"""Function that raises `Fenced` if, by the given log state, the caller must not write any more."""


def _own_store(log_state: LogState, kind: Kind) -> str:
    """Return the advice for an owner of this kind that opened another's store."""
    if (kind, log_state.kind) == ("outbox", "job"):
        # In a new store the query would write the rows of the job a second time.
        return (
            f"if the query was adopted, do not start it again: job '{log_state.job}' continues it; otherwise give another "
            "location"
        )
    if (kind, log_state.kind) == ("job", "outbox"):
        return (
            "to continue the outbox's query as a job, run `spark-ckpt adopt CHECKPOINT STORE --job NAME`; otherwise give "
            "another location"
        )
    return f"if it was renamed, give it the name '{log_state.job}' back: it continues there; otherwise give another location"


def check_savepoint_name(name: str) -> None:
    """Raise `ConfigInvalid` for a name that no savepoint can have."""
    if valid_name("savepoint", name) == LATEST or name.isdigit():
        raise ConfigInvalid(f"'{name}' cannot name a savepoint", hint="it would be taken for an epoch when restoring")


def wall_ms() -> int:
    """Return the wall clock's time in milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


class EpochLog:
    """The epoch log of one job. Thread-safe. `EpochLog.open` creates instances."""

    def __init__(
        self,
        table: LogTable,
        verify: restore.Verify,
        now_ms: Callable[[], int],
        refuse_foreign: Callable[[LogState], None] = lambda log_state: None,
    ) -> None:
        self._table = table
        self._refuse_foreign = refuse_foreign
        self.verify = verify
        """Function that checks the files of an epoch before a job continues from it."""
        self._now_ms = now_ms
        self._lock = Turns("the job's log")
        self._state = LogState()
        # Rows that are read and not yet in the state; None: all rows have to be folded again.
        self._unfolded: list[LogRow] | None = []
        self._own_incarnation: int | None = None
        # Attempts to begin an incarnation whose outcome is unknown.
        self._unanswered: set[str] = set()

    @classmethod
    def open(
        cls,
        location: Location,
        job: str | None,
        *,
        create: bool = True,
        verify: restore.Verify = restore.no_check,
        now_ms: Callable[[], int] = wall_ms,
        kind: Kind = "job",
    ) -> EpochLog | None:
        """Open the log at `location`. Return None if there is none and `create` is False.

        - `job`: name of the job, or None to read the log of any job.
        - `verify`: function that checks the files of an epoch.
        - `now_ms`: the wall clock, milliseconds since 1970 UTC.
        - `kind`: kind of the owner that `job` names.

        Raises `StoreForeign` for another owner's log, `FormatUnknown` for another format, `EpochDamaged` for a damaged
        log.
        """
        table = LogTable.open(location, now_ms, create=create)
        if table is None:
            return None

        def refuse_foreign(log_state: LogState) -> None:
            if job is not None and (log_state.job, log_state.kind) != (job, kind):
                raise StoreForeign(
                    f"this store belongs to {log_state.kind} '{log_state.job}', not to {kind} '{job}'",
                    store=location.uri,
                    hint=_own_store(log_state, kind),
                )

        log = cls(table, verify, now_ms, refuse_foreign)
        if job is not None and not log.state().store_id:
            # Two processes may create the log at once. The proposal looks again, so that only one store id is
            # appended.
            log.append(
                lambda log_state: (
                    None
                    if log_state.store_id
                    else row_of(CreatedRecord(job=job, store_id=str(uuid.uuid4()), kind=kind))
                )
            )
        if job is not None:
            refuse_foreign(log.state())
        return log

    @property
    def own_incarnation(self) -> int | None:
        """Incarnation that this process began through this object; None if it began none."""
        # An append may raise after its row has landed, e.g. if the disk is full for the acknowledgement. A run that took
        # this row for another driver's would be fenced by itself when it tries again.
        if self._unanswered:
            landed = [row.incarnation for row in self._table.rows if row.attempt in self._unanswered]
            self._own_incarnation = max(landed, default=self._own_incarnation)
        return self._own_incarnation

    def state(self) -> LogState:
        """Read the log and return its folded state, with the rows of all processes."""
        with self._lock:
            self._table.refresh()
            return self.known()

    def known(self) -> LogState:
        """Return the state by the rows that this process has read or appended: other processes may have added some."""
        with self._lock:
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
        verify: restore.Verify | None = None,
    ) -> RecoveryPoint:
        """Append a new incarnation that continues from the epoch that `restore` names.

        This fences all earlier incarnations.

        - `holder`: the process that gets the lease.
        - `restore`: "latest", an epoch number or a savepoint's name.
        - `lease_ms`: term of the lease in milliseconds.
        - `takeover`: replace a holder that may be alive.
        - `ended`: `LogState.lease_token` of a lease that the caller has seen end. No clock is read then; a lease that
          was renewed or acquired since is refused.
        - `taken_back`: sinks that have less than the log says, each with its newest epoch. Later epochs become
          unpublished there.
        - `verify`: function that checks the files of an epoch; default: that of `open`.

        Returns the `RecoveryPoint`. Committed, unpublished epochs that the restored one does not descend from are
        dropped, see there.

        Raises `StoreInUse` while the lease's holder may be alive, `RewindUnderWay` while a rewind has the store,
        `StoreForeign` if the store has another owner by now, and `EpochDamaged` for a damaged epoch, with the one to go
        back to.
        """
        begun: list[RecoveryPoint] = []

        def propose(log_state: LogState) -> NewRow:
            self._refuse_others(log_state, holder)
            if not takeover:
                proposals.refuse_if_held(log_state, self.own_incarnation, self._now_ms(), ended)
            known = with_taken_back(log_state, taken_back)
            # Computed inside the proposal: if another process appends first, the restore decision is made again on
            # the new state.
            begun[:] = [recovery_point(known, restore, self._manifest, verify or self.verify)]
            row = proposals.incarnation(begun[0], holder, self._now_ms(), lease_ms, taken_back)
            self._unanswered.add(row.attempt)
            return row

        with self._lock:
            self.append(propose)
            self._own_incarnation = begun[0].incarnation
            self._unanswered.clear()
        return begun[0]

    def _refuse_others(self, log_state: LogState, holder: Holder) -> None:
        """Raise for a log that another owner, a rewind, a restore or an adoption has. The term of a lease ends none of them."""
        # A query that waited for its first rows while it was adopted would fence the job.
        self._refuse_foreign(log_state)
        proposals.refuse_if_rewinding(log_state, holder)
        proposals.refuse_if_restoring(log_state, holder, self._now_ms())
        proposals.refuse_if_adopting(log_state, holder)

    def commit_epoch(self, manifest: Manifest, index: int = 0, *, fold: bool = True) -> LogState:
        """Commit an epoch: append its manifest, which also renews the lease. Return the log state before the commit.

        A repeated call with the same manifest changes nothing. `index`: the index that the epoch serves at least, with
        `protocol="index"`. `fold`: also what `fold_if_due` does.

        Raises `Fenced` if a newer incarnation exists, and a retriable `StoreOutage` if the outcome is unknown.
        """
        return self.append(lambda state: proposals.epoch(state, manifest, self._now_ms(), index), fold=fold)

    def renew(self, incarnation: int, lease_ms: int) -> LogState:
        """Renew the lease of an idle holder for `lease_ms` milliseconds.

        Return the log state before the renewal. Raises `Fenced`.
        """
        return self.append(lambda state: proposals.heartbeat(state, incarnation, self._now_ms() + lease_ms))

    def release(self, incarnation: int, why: str = "", keeps: bool = False) -> None:
        """Record that the incarnation ended, for the reason `why`.

        The lease is free at once, unless the run `keeps` it for its next incarnation.

        Nothing is appended if the lease is free already, or if a newer incarnation exists.
        """
        released = Released(incarnation=incarnation, why=why, keeps=keeps)
        self.append(lambda state: proposals.release(state, released))

    def ask_handover(self, incarnation: int) -> None:
        """Request that the driver of `incarnation` commits a final epoch and hands over to a standby.

        The driver reads the request with its next renewal or commit. Raises `StoreInUse` if another incarnation runs.
        """
        self.append(lambda state: proposals.handover(state, incarnation))

    def record_acks(self, incarnation: int, acks: Sequence[SinkAck]) -> LogState:
        """Append acknowledgements that no epoch has carried, which also renews the lease.

        Return the log state before the append. Raises `Fenced`.
        """
        return self.append(lambda state: proposals.acks(state, incarnation, acks))

    def accept_loss(self, epoch: int, incarnation: int) -> range:
        """Accept that the log has lost epochs up to `epoch`, of incarnations up to `incarnation`, that sinks may have.

        Returns the ids of the lost epochs; later epochs get higher ids. Raises `StoreInUse` while a driver may run.
        """
        lost = range(0)

        def propose(log_state: LogState) -> NewRow | None:
            nonlocal lost
            proposals.refuse_if_held(log_state, self.own_incarnation, self._now_ms())
            # A lost race proposes again on a newer state, and the last proposal counts.
            lost = range(log_state.last + 1, epoch + 1)
            return proposals.loss(log_state, epoch, incarnation)

        self.append(propose)
        return lost

    def change_owner(self, incarnation: int, job: str, kind: Kind) -> None:
        """Make another job or outbox the owner of the store, e.g. the job that an outbox's query becomes.

        The store keeps its id, so markers in sinks stay valid. Raises `Fenced` if a newer incarnation exists.
        """

        def propose(state: LogState) -> NewRow | None:
            if (state.job, state.kind) == (job, kind):
                return None
            # The driver of the owner may have begun: it could commit nothing to a store that is another's.
            proposals.fence(state, incarnation)
            return row_of(CreatedRecord(job=job, store_id=state.store_id, kind=kind))

        self.append(propose)

    def add_savepoint(self, name: str, epoch: int) -> None:
        """Name an epoch, so that retention keeps it.

        Any process may call it at any time; a repeated call changes nothing.

        Raises `ConfigInvalid` for a name that is invalid or in use, `EpochNotFound` for an epoch that the log does not
        have.
        """
        check_savepoint_name(name)
        self.append(lambda state: proposals.savepoint(state, name, epoch))

    def drop_savepoint(self, name: str) -> None:
        """Drop a savepoint's name.

        Its epoch is subject to retention again. Raises `EpochNotFound` if there is no such savepoint.
        """
        valid_name("savepoint", name)
        found = False

        def propose(log_state: LogState) -> NewRow | None:
            nonlocal found
            # The row of a lost answer may have landed, and may be gone again: retention keeps no row of a dropped name.
            if found and name not in log_state.savepoints:
                return None
            row = proposals.savepoint_dropped(log_state, name)
            found = True
            return row

        self.append(propose)

    def move_reader(self, moved: ReaderMoved) -> None:
        """Register a reader of an edge, or move it. The reader's process calls it on the log of the sender."""
        self.append(lambda state: proposals.reader(state, moved))

    def say_index(self, incarnation: int, epoch: int, index: int) -> LogState:
        """Record that the newest epoch serves `index`, too; nothing happens if a newer epoch exists. Raises `Fenced`."""
        return self.append(lambda state: proposals.index_said(state, incarnation, epoch, index))

    def now_ms(self) -> int:
        """Return the log's wall clock, ms since 1970 UTC."""
        return self._now_ms()

    def manifest(self, epoch: int) -> Manifest:
        """Return the manifest of `epoch`, checked against its digest.

        Raises `EpochNotFound`, `EpochDamaged`, `FormatUnknown`.
        """
        with self._lock:
            self.state()
            return self._manifest(epoch)

    def manifests(
        self, epochs: Iterable[int] | None = None, known: dict[str, Manifest] | None = None
    ) -> list[Manifest]:
        """Return the manifests of `epochs`, each checked against its digest. Default: all kept epochs, oldest first.

        The log is read once for all of them. `known`: manifests by attempt that need no parsing; the others are added.
        Raises as `manifest`.
        """
        parsed = {} if known is None else known
        with self._lock:
            kept = [brief.epoch for brief in self.state().epochs]
            rows = {row.epoch: row for row in self._table.rows if row.kind == "epoch"}
            return [
                self._known_or_parsed(epoch, rows.get(epoch), parsed) for epoch in (kept if epochs is None else epochs)
            ]

    def readable(self, epochs: Iterable[int]) -> dict[int, Manifest | CkptError]:
        """Return the manifest of each of `epochs`, or the error of reading it. The log is read once for all of them."""
        with self._lock:
            self.state()
            rows = {row.epoch: row for row in self._table.rows if row.kind == "epoch"}
            return {epoch: self._manifest_or_error(epoch, rows.get(epoch)) for epoch in epochs}

    def damages(self) -> list[EpochDamaged]:
        """Read every row with its body. Return an error for each row or file that is damaged; see `LogTable.damages`."""
        with self._lock:
            return self._table.damages()

    def shorten(
        self, keep_epochs: Callable[[LogState], set[int]], fence: Fence = lambda log_state: None
    ) -> tuple[LogState, list[Manifest]]:
        """Drop all epochs except those that `keep_epochs` names, in one commit. A dropped epoch can no longer be
        restored.

        It starts over when another commit comes first.

        - `keep_epochs`: function from the log state to the ids of the epochs to keep.
        - `fence`: called with the log state that epochs are dropped from; it may raise.

        Returns the log state that the choice was made on, and the dropped manifests, without damaged ones. Raises
        `Fenced` if a newer incarnation replaced this object's own, and the errors of `fence`.
        """
        with self._lock:
            while True:
                log_state = self.state()
                # Files are deleted after this commit: a replaced driver must not delete those that its successor builds
                # on.
                if self.own_incarnation is not None:
                    proposals.fence(log_state, self.own_incarnation)
                fence(log_state)
                kept = keep_epochs(log_state)
                # Read before the commit: their files can only be found while the manifests are still in the log.
                gone = sorted(log_state.by_id.keys() - kept)
                dropped = self._undamaged(gone)
                if self.known() is not log_state:
                    # A read in between has brought newer rows. `kept` lacks their epochs, so this commit would drop them.
                    continue
                if not gone or self._table.shorten(
                    needed_rows(self._table.rows, kept), row_of(totals(log_state, kept))
                ):
                    return log_state, dropped

    def trim(self, now_ms: int) -> None:
        """Delete files of the log's table that are no part of it any more. `now_ms`: milliseconds since 1970 UTC."""
        with self._lock:
            self.state()
            self._table.trim(now_ms)

    def append(self, propose: Propose, *, fold: bool = True) -> LogState:
        """Propose a row on the current log state and append it by compare-and-swap.

        Start over if another commit came first.

        This is the only way into the log. Returns the state that the row was proposed on. Raises the errors of
        `propose`, and a `StoreOutage`. `fold`: also what `fold_if_due` does.
        """
        # Step 7 of docs/design/epoch-in-nine-steps.md.
        with self._lock:
            while True:
                log_state, row = self._proposal(propose)
                if self.known() is not log_state:
                    # `propose` itself has read newer rows, e.g. while it verified files. They may hold another driver's
                    # incarnation, and the append would follow them with a check made before them.
                    continue
                if row is None:
                    # An earlier attempt may have landed without its acknowledgement, e.g. after an outage: complete
                    # that first.
                    self._table.acknowledge()
                    return log_state
                try:
                    self._table.append(row)
                except CommitLost:
                    # Another writer has this version. Only a proposal on the new state is valid, so the old row is
                    # discarded.
                    continue
                if fold:
                    # The row is in the log, and its author must not take it for refused. The next append folds.
                    with contextlib.suppress(StoreOutage):
                        self.fold_if_due()
                return log_state

    def fold_if_due(self) -> None:
        """Fold the log's small files into one if there are many, which takes some ten times as long as a commit.

        Raises a `StoreOutage`.
        """
        with self._lock:
            self._table.fold_if_due(lambda: row_of(totals(self.known())))

    def _proposal(self, propose: Propose) -> tuple[LogState, NewRow | None]:
        """Propose on the known state. If another process has appended since, the append fails, and the log is read."""
        if self._table.is_fresh:
            log_state = self.known()
            with contextlib.suppress(CkptError):
                row = propose(log_state)
                if row is not None:
                    return log_state, row
            # Only an append proves that a state is the newest one. A refusal does not, so it counts after a read.
        log_state = self.state()
        return log_state, propose(log_state)

    def _manifest(self, epoch: int) -> Manifest:
        row = next((row for row in reversed(self._table.rows) if row.kind == "epoch" and row.epoch == epoch), None)
        return self._manifest_of(epoch, row)

    def _undamaged(self, epochs: Iterable[int]) -> list[Manifest]:
        rows = {row.epoch: row for row in self._table.rows if row.kind == "epoch"}
        found = []
        for epoch in epochs:
            # A manifest that cannot be read must not end the job at every retention. A later incarnation finds the files
            # that it names by their own names.
            with contextlib.suppress(EpochDamaged):
                found.append(self._manifest_of(epoch, rows.get(epoch)))
        return found

    def _manifest_or_error(self, epoch: int, row: LogRow | None) -> Manifest | CkptError:
        try:
            return self._manifest_of(epoch, row)
        except (EpochDamaged, EpochNotFound, FormatUnknown) as error:
            return error

    def _known_or_parsed(self, epoch: int, row: LogRow | None, known: dict[str, Manifest]) -> Manifest:
        # An attempt's id is random, and its row never changes.
        if row is not None and row.attempt in known:
            return known[row.attempt]
        manifest = self._manifest_of(epoch, row)
        known[manifest.attempt] = manifest
        return manifest

    def _manifest_of(self, epoch: int, row: LogRow | None) -> Manifest:
        if row is None:
            kept = ", ".join(str(number) for number in sorted(self._state.by_id)) or "none"
            raise EpochNotFound(
                f"epoch {epoch} is not in the log", kept=kept, hint="choose a kept epoch or a savepoint"
            )
        return manifest_of(row, self._table.body(row))

    def _absorb(self) -> None:
        news = self._table.news()
        # Kept until they are folded: a row that raises must raise at every call. A later call that skipped it would
        # return a state without it, and a driver could commit after a fence that it cannot read.
        self._unfolded = None if news is None or self._unfolded is None else [*self._unfolded, *news]
        # None means that rows were dropped from the log: a fold cannot be undone, so fold all rows again.
        log_state, rows = (LogState(), self._table.rows) if self._unfolded is None else (self._state, self._unfolded)
        self._state = folded(log_state, [(At(row.seq, row.time_ms), record_of(row)) for row in rows])
        self._unfolded = []
        # A log from an older backup may be consistent row by row and still refer to epochs that it does not have.
        contradiction = self._state.contradiction()
        if contradiction:
            raise EpochDamaged(contradiction, hint=HINT_DAMAGED)
