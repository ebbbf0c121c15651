"""A process of the world of drivers: its beliefs, its view of the job's log, and its commit under way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

from checkpoint_lab.spark_store import CREATED, JOB, MemoryTable, Shared
from checkpoint_lab.violations import Violation
from spark_ckpt.coordination.standby import Standby, again_ms, renewal_ms
from spark_ckpt.epochs.records import Holder, Manifest
from spark_ckpt.epochs.restore import LATEST
from spark_ckpt.errors import StoreUnreachable
from spark_ckpt.store.delta_log import CommitLost
from spark_ckpt.store.epoch_log import EpochLog, LogState
from spark_ckpt.store.log_table import LogRow, LogTable, NewRow


@dataclass(frozen=True, slots=True)
class Times:
    """Times in milliseconds, in the proportions of the shipped ones. `gap_ms`: see `Standby`."""

    lease_ms: int = 48
    margin_ms: int = 3
    read_ms: int = 4
    gap_ms: int = 12
    epoch_ms: int = 9

    @property
    def renewal_ms(self) -> int:
        """Time from one renewal to the next."""
        return renewal_ms(self.lease_ms)

    @property
    def again_ms(self) -> int:
        """Time from a missed renewal to the next attempt."""
        return again_ms(self.lease_ms)


class JobLog(Shared):
    """Rows of the job's log. Other worlds judge the content of epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.append(CREATED, 0)

    def judge(self, manifest: Manifest) -> None:
        """Accept every manifest."""

    def verify(self, manifest: Manifest) -> None:
        """Accept every manifest."""


class View(MemoryTable):
    """One process's reading of the log.

    While `pinned`, its proposal ignores newer rows; it proposes a lost commit again.
    """

    pinned = False
    reaches = True
    """True if the store answers this process."""
    acts = True
    """True if the process can retry a lost commit."""

    def refresh(self) -> None:
        """Read the log, unless the last reading is pinned."""
        self._require_answer()
        if not self.pinned:
            super().refresh()

    def append(self, new: NewRow) -> None:
        """Append one row. A process that no longer acts loses a lost commit for good."""
        self._require_answer()
        # after a lost commit the next proposal reads the log again
        self.pinned = False
        try:
            super().append(new)
        except CommitLost:
            if not self.acts:
                raise StoreUnreachable("no process waits for this commit") from None
            raise

    def _require_answer(self) -> None:
        if not self.reaches:
            raise StoreUnreachable("the store does not answer")


@dataclass(frozen=True, slots=True)
class DriverCommit:
    """A row that a process wants to append.

    `token`: of the ended lease that it has seen, None if it relies on its wall clock. `usurps`: it does not check the
    lease at all.
    """

    what: str
    incarnation: int = 0
    token: int | None = None
    usurps: bool = False


@dataclass
class DriverNode:
    """One host, with one process after the other.

    `rate`: of its clock, in percent of time; `wall_ms`: error of its wall clock.
    """

    name: str
    host: str
    rate: int
    wall_ms: int
    times: Times
    set_ms: int = 0
    """By how much its wall clock was set since its process began."""
    life: int = 0
    up: bool = False
    paused: bool = False
    cut: bool = False
    """True if the store does not answer this host."""
    born: int = 0
    standby: Standby | None = None
    """None for a driver that does not wait."""
    log: EpochLog = field(init=False)
    view: View = field(init=False)
    incarnation: int = 0
    """The incarnation that it leads, as far as it knows."""
    look_ms: int = 0
    renew_ms: int | None = None
    """Time of the keeper's next renewal, by its own clock; None without a keeper."""
    last_renewal: bool = True
    """True if the newest renewal succeeded."""
    todo: list[DriverCommit] = field(default_factory=list)
    under_way: DriverCommit | None = None
    """The commit that it has read and proposed and not appended yet."""
    ends: bool = False
    """True if its incarnation has ended or is about to end."""
    able_since: int = 0
    """Time at which it last became able to look or renew."""
    awake_since: int = 0
    """Time at which it last woke, or reached the store again after a cut of its own."""
    decides_ms: int = 0
    """Time from which it may commit the next epoch, by its own clock."""

    @property
    def awake(self) -> bool:
        """True if it can take a step."""
        return self.up and not self.paused

    @property
    def able(self) -> bool:
        """True if it can take a step and reach the store."""
        return self.awake and self.view.reaches

    @property
    def holder(self) -> Holder:
        """The holder as the log names it, with a number for each process.

        Without a boot id no driver looks for it in /proc.
        """
        return Holder(host=self.host, pid=self.life, name=self.name)

    def local(self, now: int) -> int:
        """Return the reading of its clock, in ms."""
        return (now - self.born) * self.rate // 100

    def when(self, local_ms: int) -> int:
        """Return the first time at which its clock reads `local_ms`."""
        # negated twice, to round up
        return self.born - (-local_ms * 100 // self.rate)

    def begin(self, job_log: JobLog, life: int, now: int, wall: Callable[[], int], standby: Standby | None) -> None:
        """Start a new process."""
        self.life, self.born, self.able_since, self.set_ms = life, now, now, 0
        self.up, self.paused, self.standby = True, False, standby
        self.view = View(job_log)
        self.log = EpochLog(cast(LogTable, self.view), job_log.verify, lambda: wall() + self.wall_ms)
        self.incarnation, self.look_ms, self.renew_ms, self.last_renewal, self.decides_ms = 0, 0, None, True, 0
        self.todo, self.under_way, self.ends = [], None, False

    def leads(self, incarnation: int, now: int) -> None:
        """Begin to lead an incarnation; its keeper renews from now on."""
        self.incarnation, self.last_renewal, self.ends = incarnation, True, False
        self.renewed(now)

    def renewed(self, now: int) -> None:
        """Schedule the next renewal, a third of the lease later."""
        self.renew_ms = self.local(now) + self.times.renewal_ms

    def missed(self, now: int) -> None:
        """Schedule the next attempt sooner after a missed renewal."""
        self.last_renewal = False
        self.renew_ms = self.local(now) + self.times.again_ms

    def may_decide(self, now: int) -> bool:
        """Return True if it has collected rows for long enough."""
        return self.local(now) >= self.decides_ms

    def has_decided(self, now: int) -> None:
        """Schedule the earliest time of the next epoch."""
        self.decides_ms = self.local(now) + self.times.epoch_ms

    def die(self) -> None:
        """End the process; its commit under way may still arrive."""
        self.up = self.paused = False
        self.standby, self.incarnation, self.renew_ms = None, 0, None
        self.todo, self.under_way = [], None

    @property
    def waits(self) -> bool:
        """True if it is a standby without other work than looking."""
        return self.standby is not None and not self.incarnation and not self.todo and self.under_way is None

    def wants_to_renew(self, now: int) -> bool:
        """Return True if its keeper's renewal is due."""
        return self.renew_ms is not None and self.local(now) >= self.renew_ms

    def due(self, now: int) -> int | None:
        """Return the time of its next work by its clock, or None."""
        if self.waits:
            return self.when(self.look_ms)
        return None if self.renew_ms is None or self.under_way else self.when(self.renew_ms)


def carry_out(commit: DriverCommit, log: EpochLog, holder: Holder, lease_ms: int) -> LogState | int:
    """Perform a commit through the shipped log.

    Return the new incarnation's number, or the log state before the commit.
    """
    if commit.what == "renew":
        return log.renew(commit.incarnation, lease_ms)
    if commit.what == "decide":
        return log.commit_epoch(_manifest(log.state(), commit.incarnation))
    if commit.what in ("leave", "keep"):
        log.release(commit.incarnation, commit.what, keeps=commit.what == "keep")
        return log.state()
    return log.begin_incarnation(holder, LATEST, lease_ms, takeover=commit.usurps, ended=commit.token).incarnation


def _manifest(log_state: LogState, incarnation: int) -> Manifest:
    """Return the manifest of the epoch that follows the last one read."""
    epoch = log_state.last + 1
    return Manifest(
        job=JOB, epoch=epoch, incarnation=incarnation, attempt=f"{incarnation}-{epoch}", base=log_state.latest,
        previous=log_state.last, created_ms=0,
    )  # fmt: skip


# -- Oracles for several drivers that compete for one job.
#
# They judge from outside: the world knows which processes live, which are paused, which ones the store answers, and the
# exact time. Incarnations and the order of rows are the log's.


LEADERS = ("incarnation", "epoch", "heartbeat", "released")
"""Kinds of rows of the leading driver."""


class Replaced(Violation):
    """A row of a replaced incarnation counts, or a number is used again."""

    ORACLE = "D1"


class TakeoverTooEarly(Violation):
    """A driver was replaced that had neither returned its lease nor been silent for its term."""

    ORACLE = "D2"


class Returned(Violation):
    """A row counts of an incarnation that has returned its lease."""

    ORACLE = "D3"


class TooLate(Violation):
    """A lease is silent for longer than the bound while a standby watches."""

    ORACLE = "D4"


class NotAtOnce(Violation):
    """A standby does not at once take a lease that was returned, or whose holder died on its host."""

    ORACLE = "D5"


@dataclass
class LeaseLedger:
    """State of the lease after the rows so far: the newest incarnation, and the newest returned one."""

    newest: int = 0
    returned: int = 0

    @property
    def is_free(self) -> bool:
        """True if no driver has the lease."""
        return self.newest == self.returned

    def take_in(self, row: LogRow) -> None:
        """Judge and apply one more row. D1, D3."""
        if row.kind not in LEADERS:
            return
        if self.returned and row.incarnation == self.returned:
            raise Returned(f"{row.kind} of incarnation {row.incarnation}, which has returned its lease")
        # only an incarnation row may raise the number, by one
        wanted = self.newest + (row.kind == "incarnation")
        if row.incarnation != wanted:
            raise Replaced(f"{row.kind} of incarnation {row.incarnation} where {wanted} was to come")
        self.newest = row.incarnation
        if row.kind == "released" and not json.loads(row.brief)["keeps"]:
            self.returned = self.newest


@dataclass(frozen=True, slots=True)
class Since:
    """Times of the newest row of the lease, of the store's last recovery, and of the last death of a process."""

    row: int = 0
    back: int = 0
    death: int = 0


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """The true state of the lease.

    `holder`: None if its process is dead; `host`: the holder's host, also after its death.
    """

    incarnation: int
    free: bool
    host: str
    holder: DriverNode | None
    since: Since


def judge_takeover(commit: DriverCommit, by: DriverNode, before: ObservedLease, now: int) -> None:
    """D2: judge a new incarnation. A start by a wall clock, or without any check, is exempt."""
    # free; the next incarnation of the same process; or a start that asks no lease, or only a wall clock
    if before.free or before.incarnation == commit.incarnation or (commit.token is None and not commit.incarnation):
        return
    holder, silent = before.holder, now - before.since.row
    # the standby saw the process die on its own host
    if holder is None and before.host == by.host:
        return
    # the standby measures the term by its own clock; 1 ms for its rounding
    if silent * by.rate < (by.times.lease_ms - 1) * 100:
        raise TakeoverTooEarly(
            f"{by.name} replaces incarnation {before.incarnation} after {silent} ms of silence", (by.name,)
        )
    if holder is not None and _renews_in_time(holder, before.since, now):
        raise TakeoverTooEarly(f"{by.name} replaces {holder.name}, which renews in time", (by.name, holder.name))


def _renews_in_time(holder: DriverNode, since: Since, now: int) -> bool:
    """Return True if the holder renews in time.

    It could act all the time, and has renewed, or has had no time to renew since the store is back. A holder that was
    paused or cut off was silent by itself: its next steps come after that.
    """
    if not holder.able or holder.awake_since > since.row or holder.wants_to_renew(now):
        return False
    # after a missed renewal it tries again within this time, by its own clock
    return holder.last_renewal or (now - since.back) * holder.rate < holder.times.again_ms * 100


def judge_silence(nodes: Iterable[DriverNode], lease: ObservedLease, now: int) -> None:
    """D4, D5: judge the time that has passed."""
    for node in nodes:
        if not (node.able and node.waits):
            continue
        waited = now - max(lease.since.row, node.able_since)
        gone = lease.holder is None and lease.host == node.host
        # A returned lease is free from its row on. That of a dead process is free from its death, for a watcher on its
        # host.
        nobodys = waited if lease.free else min(waited, now - lease.since.death) if gone else 0
        if nobodys > _bound(node, node.times.read_ms):
            raise NotAtOnce(f"{node.name} has watched for {waited} ms a lease without a holder", (node.name,))
        if waited > _bound(node, _term(node.times)):
            raise TooLate(f"{node.name} has watched for {waited} ms a lease that is silent", (node.name,))


def _term(times: Times) -> int:
    return times.lease_ms + times.margin_ms + 2 * times.read_ms


def _bound(node: DriverNode, local_ms: int) -> int:
    """Return the longest exact time in which its clock counts `local_ms`, plus one for each rounding."""
    return -(-(local_ms + 1) * 100 // node.rate) + 2
