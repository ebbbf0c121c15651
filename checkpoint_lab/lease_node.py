"""One node of the lease world: what a crash takes, what it leaves, and a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.messages import Admission, Checkpoint, Report, Terms
from checkpoint_protocols.lease.primary import Primary
from checkpoint_protocols.lease.replica import Replica, ReplicaPhase


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the replicated log: a lease, or a command of somebody. `author`: who appended it, in which term."""

    terms: Terms | None
    author: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Upload:
    """A checkpoint on its way to the store; `boot`: the life that sent it."""

    node: ProcessId
    boot: int
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Answer:
    """The store's answer on its way back."""

    node: ProcessId
    boot: int
    token: int
    admission: Admission


@dataclass
class Node:
    """One node. `rate` in percent of time; `unit`: steps of the world's time in a millisecond, divisible by rates."""

    name: ProcessId
    rate: int
    health: int
    unit: int
    log: dict[int, Entry] = field(default_factory=dict)
    """Durable: the entries that it possesses, by index."""
    payload: int = 0
    """Durable."""
    boot: int = 0
    """Durable."""
    up: bool = False
    paused: bool = False
    born: int = 0
    """When its clock read 0."""
    replica: Replica | None = None
    primary: Primary | None = None
    """It believes to be the primary."""
    term: int = 0
    """Of its newest election."""
    due: int | None = None
    """When the timer of its lease runs out, or ran out if it stands still."""
    due_token: int = 0
    outbox: Terms | None = None
    """What it wants to append as the primary."""
    reports: list[Report] = field(default_factory=list)
    """Its heartbeats under way."""

    @property
    def awake(self) -> bool:
        """It can take a step now."""
        return self.up and not self.paused

    def stands_in(self, phase: ReplicaPhase) -> bool:
        """It is up, and its replica is there."""
        return self.replica is not None and self.replica.phase is phase

    def local(self, now: int) -> int:
        """What its clock reads, in whole milliseconds."""
        return self.rate * (now - self.born) // (100 * self.unit)

    def when(self, local_ms: int) -> int:
        """When its clock will read that. Exact: the unit is divisible by the rate."""
        return self.born + local_ms * 100 * self.unit // self.rate

    def phase_of_clock(self, now: int) -> int:
        """How far its clock is into the millisecond that it reads."""
        return self.rate * (now - self.born) % (100 * self.unit)

    def holds(self, now: int) -> bool:
        """It may take a checkpoint, in time; who stands still beyond its time is the store's concern."""
        in_time = self.due is None or self.due >= now
        return self.replica is not None and self.replica.may_take and in_time

    def takes(self, now: int) -> bool:
        """It is at work on one, in time."""
        return self.holds(now) and self.replica is not None and self.replica.taking

    def die(self) -> None:
        """What is volatile is gone."""
        self.up = self.paused = False
        self.replica = self.primary = self.outbox = self.due = None
        self.reports.clear()
