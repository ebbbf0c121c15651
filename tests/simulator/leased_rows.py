"""The world of a driver that leases maintenance to a standby through the job's log, at the level of single reads and appends.

The shipped rules decide: `Delegation` and `StandbyLease` on both sides, `MaintenanceLog` on an `EpochLog`. The driver appends a
lease, and reads the log to learn its token. Between both, the standby may take any number of its steps.

Choices: `tick between how` (the driver's look; `between` steps of the standby after its append; `how` the store answers),
`step` (of the standby), `advance ms`; faults: `tick ... silent`, `replace` (another driver takes the job).

Oracles: a driver is fenced if, and only if, another one has the job (U1); no lease is appended twice (O8); without faults,
leases are given and used again and again (O10).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from checkpoint_lab.drivers_node import JobLog
from checkpoint_lab.spark_driver import HOLDER
from checkpoint_lab.spark_store import MemoryTable
from checkpoint_lab.violations import NoEnd, ReusedId, Violation
from checkpoint_lab.world import Choice, World
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.delegation import SETTINGS, Delegation, StandbyLease, StandbyReport
from checkpoint_protocols.lease.messages import Terms
from spark_ckpt.driver.maintenance.delegating import lease_of
from spark_ckpt.epochs.records import MaintenanceEnded, MaintenanceLeased
from spark_ckpt.errors import Fenced, StoreOutage
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.log_rows import row_of
from spark_ckpt.store.log_table import LogTable, NewRow
from spark_ckpt.store.maintenance_lease import MaintenanceLog

STANDBY = ProcessId("s")
TURN = 3
"""Steps of a turn: begin, work, end."""
OUTAGES, REPLACEMENTS, TURNS = 4, 1, 3


class FencedForNothing(Violation):
    """A driver is fenced without a successor, or works under a lease of a job that it has lost."""

    ORACLE = "U1"


class Watched(MemoryTable):
    """The driver's view of the log. After its next append, other processes take their steps."""

    def __init__(self, shared: JobLog) -> None:
        super().__init__(shared)
        self.then: Callable[[], None] = int

    def append(self, new: NewRow) -> None:
        then, self.then = self.then, int
        try:
            super().append(new)
        finally:
            then()


class LeasedRowsWorld(World):
    """`rows_of`: the log's part that a test replaces by a wrong one."""

    def __init__(self, rows_of: type[MaintenanceLog] = MaintenanceLog) -> None:
        self.shared, self.now_ms, self.is_over = JobLog(), 1, False
        self.table = Watched(self.shared)
        self.log, self.there = self._log_of(self.table), self._log_of(MemoryTable(self.shared))
        self.log.begin_incarnation(HOLDER)
        self.rows, self.ends = rows_of(self.log), MaintenanceLog(self.there)
        self.rules, self.holding = Delegation(1, SETTINGS, None, {}, 0), StandbyLease(STANDBY)
        self.turn: int | None = None
        self.steps = self.used = self.due = 0
        self.left = {"silent": OUTAGES, "replace": REPLACEMENTS}
        self.counter: Counter[str] = Counter()
        self.holding.looked(None, 0)

    def _log_of(self, table: MemoryTable) -> EpochLog:
        return EpochLog(cast(LogTable, table), self.shared.verify, lambda: self.now_ms)

    def choices(self) -> Sequence[Choice]:
        ticks: list[Choice] = [("tick", between, "ok") for between in range(TURN + 2)]
        return [] if self.is_over else [*ticks, ("step",)]

    def timers(self) -> Sequence[Choice]:
        return [("advance", ms) for ms in (500, 5_000)]

    def faults(self) -> Sequence[Choice]:
        found: list[Choice] = [("tick", between, "silent") for between in range(TURN + 2) if self.left["silent"]]
        return [] if self.is_over else [*found, *([("replace",)] if self.left["replace"] else [])]

    def drain_choices(self) -> Sequence[Choice]:
        if self.is_over or self.used >= self.due:
            return []
        return [*self.choices(), *self.timers()]

    def do(self, choice: Choice) -> None:
        self.left[str(choice[-1])] = self.left.get(str(choice[-1]), 0) - 1
        self.counter[str(choice[0])] += 1
        self.act(choice)
        leases = [row.brief for row, _ in self.shared.rows if row.kind == "upkeep"]
        if len(set(leases)) < len(leases):
            raise ReusedId(f"a lease is appended again: {leases[-1]}")

    def _do_tick(self, between: int, how: str) -> None:
        """Act as `driver.maintenance.delegating`: apply the end of a turn, read the note, lease if it is possible."""
        maintenance, out = self.log.state().maintenance, self.rules.out
        if (
            out is not None
            and maintenance is not None
            and maintenance.ended is not None
            and maintenance.token == out.token
        ):
            self.used += 1
            self.rules.ended(
                lease_of(maintenance), maintenance.ended_token, maintenance.ended.clock_ms, False, self.now_ms
            )
        self.rules.heard([StandbyReport(STANDBY, 1, self.now_ms, is_here=True)], self.now_ms)
        if (terms := self.rules.asks(self.now_ms, 0)) is not None:
            self._lease(terms, between, how)

    def _lease(self, terms: Terms, between: int, how: str) -> None:
        self.table.then, self.shared.mood = lambda: [self._do_step() for _ in range(between)] and None, how
        try:
            token = self.rows.lease(_record(terms))
        except StoreOutage:
            self.counter["outage"] += 1
        except Fenced:
            if self.shared.incarnation == 1:
                raise FencedForNothing("the driver is fenced, and no other one has the job") from None
            self.is_over = True
        else:
            maintenance = self.log.state().maintenance
            if self.shared.incarnation > 1 or maintenance is None or maintenance.token != token:
                raise FencedForNothing(f"the driver has lease {token}, and the log {maintenance}")
            self.counter["ended early"] += maintenance.ended is not None
            self.rules.chosen(token, self.now_ms)
        finally:
            self.table.then, self.shared.mood = int, "ok"

    def _do_step(self) -> None:
        """One step of the standby: begin a turn under a new lease, work, or end the turn in the log."""
        self.now_ms += 1
        if self.turn is None:
            maintenance = self.there.state().maintenance
            if self.holding.looked(None if maintenance is None else lease_of(maintenance), self.now_ms):
                self.turn, self.steps = self.holding.begins(self.now_ms), TURN - 1
            return
        self.steps -= 1
        if not self.holding.goes_on(self.now_ms):
            self.turn = None
        elif not self.steps:
            token, self.turn = self.turn, None
            if self.holding.is_done(self.now_ms):
                self.holding.answered(
                    self._is_admitted(MaintenanceEnded(token=token, incarnation=1, clock_ms=self.now_ms))
                )

    def _is_admitted(self, done: MaintenanceEnded) -> bool:
        try:
            self.ends.end(done)
        except Fenced:
            return False
        return True

    def _do_replace(self) -> None:
        self._log_of(MemoryTable(self.shared)).begin_incarnation(HOLDER, takeover=True)

    def _do_advance(self, ms: int) -> None:
        self.now_ms += ms

    def calm(self) -> None:
        self.left = {}
        self.due = self.used + TURNS

    def judge(self) -> None:
        if not self.is_over and self.used < self.due:
            raise NoEnd(f"{self.used} turns, and no further one")

    def names(self) -> Sequence[str]:
        return ("driver", STANDBY)


def _record(terms: Terms) -> MaintenanceLeased:
    return MaintenanceLeased(
        incarnation=1, holder=terms.holder, boot=terms.boot, reported_ms=terms.reported_ms, budget_ms=terms.budget_ms,
        ttl_ms=terms.ttl_ms,
    )  # fmt: skip


# -- planted bugs ------------------------------------------------------------------------------------------------------------


class _Planted(MaintenanceLog):
    def __init__(self, log: EpochLog) -> None:
        super().__init__(log)
        self.log = log

    def has_ended(self) -> bool:
        """The newest lease of the log has ended."""
        maintenance = self.log.state().maintenance
        return maintenance is not None and maintenance.ended is not None


class TakesAnEndedLeaseForAnothers(_Planted):
    """A driver that finds its lease ended believes that another driver runs the job."""

    def lease(self, record: MaintenanceLeased) -> int:
        token = super().lease(record)
        if self.has_ended():
            raise Fenced("this incarnation was replaced")
        return token


class AppendsAnEndedLeaseAgain(_Planted):
    """A lease that landed without an answer is appended again if its holder was quick."""

    def lease(self, record: MaintenanceLeased) -> int:
        if self.has_ended() and self.log.state().incarnation == record.incarnation:
            self.log.append(lambda _: row_of(record, record.incarnation))
        return super().lease(record)


class ComparesNoIncarnation(_Planted):
    """A replaced driver issues leases."""

    def lease(self, record: MaintenanceLeased) -> int:
        self.log.append(lambda _: row_of(record, record.incarnation))
        maintenance = self.log.state().maintenance
        return 0 if maintenance is None else maintenance.token


PLANTED: tuple[tuple[type[MaintenanceLog], str], ...] = (
    (TakesAnEndedLeaseForAnothers, "U1"),
    (AppendsAnEndedLeaseAgain, "O8"),
    (ComparesNoIncarnation, "U1"),
)
