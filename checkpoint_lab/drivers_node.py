"""A process of the world of drivers: what it believes, its view of the job's log, and the one commit that it has under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from checkpoint_lab.spark_store import CREATED, JOB, MemoryTable, Shared
from spark_ckpt.coordination.renewals import again_ms, renewal_ms
from spark_ckpt.coordination.standby import Standby
from spark_ckpt.errors import StoreUnreachable
from spark_ckpt.store.delta_log import CommitLost
from spark_ckpt.store.epoch_log import EpochLog, LogState
from spark_ckpt.store.log_table import LogTable, NewRow
from spark_ckpt.store.records import Holder, Manifest
from spark_ckpt.store.restore import LATEST


@dataclass(frozen=True, slots=True)
class Times:
    """In milliseconds, in the proportions of those that ship. `gap_ms`: see `Standby`."""

    lease_ms: int = 48
    margin_ms: int = 3
    read_ms: int = 4
    gap_ms: int = 12
    epoch_ms: int = 9

    @property
    def renewal_ms(self) -> int:
        """From one renewal to the next."""
        return renewal_ms(self.lease_ms)

    @property
    def again_ms(self) -> int:
        """From one that was missed to the next attempt."""
        return again_ms(self.lease_ms)


class JobLog(Shared):
    """The rows of the job's log. What epochs hold is judged elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.append(CREATED, 0)

    def _judge(self, manifest: Manifest) -> None:
        """Nothing."""

    def verify(self, manifest: Manifest) -> None:
        """Nothing."""


class View(MemoryTable):
    """What a process has read of the log. Pinned: it proposes on that, whatever came since; a lost commit is proposed anew."""

    pinned = False
    reaches = True
    """The store answers this process."""
    acts = True
    """The process can do something about a lost commit."""

    def refresh(self) -> None:
        """Read, unless what was read last is pinned."""
        if not self.reaches:
            raise StoreUnreachable("the store does not answer")
        if not self.pinned:
            super().refresh()

    def append(self, new: NewRow) -> None:
        """As ever. Whoever does not act any more loses a commit for good."""
        self.pinned = False
        try:
            super().append(new)
        except CommitLost:
            if not self.acts:
                raise StoreUnreachable("nobody waits for this commit") from None
            raise


@dataclass(frozen=True, slots=True)
class Commit:
    """What a process wants to append. `token`: of the lease that it has seen end, None where it goes by its wall clock;
    `usurps`: where it does not even do that."""

    what: str
    incarnation: int = 0
    token: int | None = None
    usurps: bool = False


@dataclass
class DriverNode:
    """One process after the other on one host. `rate`: of its clock, in percent of time; `wall_ms`: the error of its wall
    clock."""

    name: str
    host: str
    rate: int
    wall_ms: int
    times: Times
    life: int = 0
    up: bool = False
    paused: bool = False
    cut: bool = False
    """The store does not answer this host."""
    born: int = 0
    standby: Standby | None = None
    """None: a driver that does not wait."""
    log: EpochLog = field(init=False)
    view: View = field(init=False)
    incarnation: int = 0
    """That it leads, as far as it knows."""
    look_ms: int = 0
    renew_ms: int | None = None
    """When its keeper renews next, by its own clock; None: there is no keeper."""
    last_renewal: bool = True
    """Whether the newest one went well."""
    todo: list[Commit] = field(default_factory=list)
    under_way: Commit | None = None
    """Read and proposed; not in the log yet."""
    ends: bool = False
    """Its incarnation is about to end, or has."""
    able_since: int = 0
    """When it last became able to look or renew."""
    awake_since: int = 0
    """When it last woke, or its own way to the store was mended."""
    decides_ms: int = 0
    """When it may decide the next epoch, by its own clock."""

    @property
    def awake(self) -> bool:
        """It can take a step."""
        return self.up and not self.paused

    @property
    def able(self) -> bool:
        """It can take a step, and reach the store."""
        return self.awake and self.view.reaches

    @property
    def holder(self) -> Holder:
        """As the log names it: each life has a number of its own. Without a boot id nobody looks for it in this machine's /proc."""
        return Holder(host=self.host, pid=self.life, name=self.name)

    def local(self, now: int) -> int:
        """What its clock reads."""
        return (now - self.born) * self.rate // 100

    def when(self, local_ms: int) -> int:
        """The first moment at which its clock reads that."""
        return self.born - (-local_ms * 100 // self.rate)

    def begin(self, job_log: JobLog, life: int, now: int, wall: Callable[[], int], standby: Standby | None) -> None:
        """A new process."""
        self.life, self.born, self.able_since = life, now, now
        self.up, self.paused, self.standby = True, False, standby
        self.view = View(job_log)
        self.log = EpochLog(cast(LogTable, self.view), job_log.verify, lambda: wall() + self.wall_ms)
        self.incarnation, self.look_ms, self.renew_ms, self.last_renewal, self.decides_ms = 0, 0, None, True, 0
        self.todo, self.under_way, self.ends = [], None, False

    def leads(self, incarnation: int, now: int) -> None:
        """It has begun an incarnation; its keeper renews from now on."""
        self.incarnation, self.last_renewal, self.ends = incarnation, True, False
        self.renewed(now)

    def renewed(self, now: int) -> None:
        """The keeper comes again in a third of the lease."""
        self.renew_ms = self.local(now) + self.times.renewal_ms

    def missed(self, now: int) -> None:
        """The keeper comes again sooner."""
        self.last_renewal = False
        self.renew_ms = self.local(now) + self.times.again_ms

    def may_decide(self, now: int) -> bool:
        """It has collected rows for a while."""
        return self.local(now) >= self.decides_ms

    def has_decided(self, now: int) -> None:
        """The next epoch takes its time."""
        self.decides_ms = self.local(now) + self.times.epoch_ms

    def die(self) -> None:
        """Nothing of it is left but what is on its way to the log."""
        self.up = self.paused = False
        self.standby, self.incarnation, self.renew_ms = None, 0, None
        self.todo, self.under_way = [], None

    @property
    def waits(self) -> bool:
        """It is a standby that has nothing to do but look."""
        return self.standby is not None and not self.incarnation and not self.todo and self.under_way is None

    def wants_to_renew(self, now: int) -> bool:
        """Its keeper's time has come."""
        return self.renew_ms is not None and self.local(now) >= self.renew_ms

    def due(self, now: int) -> int | None:
        """When it next has to do something by its clock."""
        if self.waits:
            return self.when(self.look_ms)
        return None if self.renew_ms is None or self.under_way else self.when(self.renew_ms)


def carry_out(commit: Commit, log: EpochLog, holder: Holder, lease_ms: int) -> LogState | int:
    """Through the shipped log: the number of the incarnation that it began, or the state before it."""
    if commit.what == "renew":
        return log.renew(commit.incarnation, lease_ms)
    if commit.what == "decide":
        return log.commit_epoch(_manifest(log.state(), commit.incarnation))
    if commit.what in ("leave", "keep"):
        log.release(commit.incarnation, commit.what, keeps=commit.what == "keep")
        return log.state()
    return log.begin_incarnation(holder, LATEST, lease_ms, takeover=commit.usurps, ended=commit.token).incarnation


def _manifest(log_state: LogState, incarnation: int) -> Manifest:
    """Of an epoch right behind what was read."""
    epoch = log_state.last + 1
    return Manifest(
        job=JOB, epoch=epoch, incarnation=incarnation, attempt=f"{incarnation}-{epoch}", base=log_state.latest,
        previous=log_state.last, created_ms=0,
    )  # fmt: skip
