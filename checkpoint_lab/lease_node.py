"""One node of the lease world: its volatile and durable state, and its own clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.messages import Admission, Checkpoint, Report, Terms
from checkpoint_protocols.lease.primary import Primary
from checkpoint_protocols.lease.replica import Replica, ReplicaPhase


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the replicated log: a lease, or a command. `author`: the node that appended it, and its term."""

    terms: Terms | None
    author: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Upload:
    """A checkpoint on its way to the store; `boot`: the incarnation that sent it."""

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
    """Entries that it possesses, by index. Durable."""
    payload: int = 0
    """The payload recorded last. Durable."""
    boot: int = 0
    """Number of its incarnation. Durable."""
    up: bool = False
    paused: bool = False
    born: int = 0
    """Time at which its clock read 0."""
    replica: Replica | None = None
    primary: Primary | None = None
    """The primary's machine while the node believes to be primary."""
    term: int = 0
    """Term of its newest election."""
    due: int | None = None
    """Time at which its lease's timer expires; in the past if the node is paused."""
    due_token: int = 0
    outbox: Terms | None = None
    """The lease that it wants to append as the primary."""
    reports: list[Report] = field(default_factory=list)
    """Its heartbeats under way."""

    @property
    def awake(self) -> bool:
        """True if it can take a step now."""
        return self.up and not self.paused

    def stands_in(self, phase: ReplicaPhase) -> bool:
        """Return True if it is up and its replica is in `phase`."""
        return self.replica is not None and self.replica.phase is phase

    def local(self, now: int) -> int:
        """Return the reading of its clock, in whole milliseconds."""
        return self.rate * (now - self.born) // (100 * self.unit)

    def when(self, local_ms: int) -> int:
        """Return the time at which its clock reads `local_ms`. Exact: the unit is divisible by the rate."""
        return self.born + local_ms * 100 * self.unit // self.rate

    def phase_of_clock(self, now: int) -> int:
        """Return the position of its clock within the current millisecond."""
        return self.rate * (now - self.born) % (100 * self.unit)

    def holds(self, now: int) -> bool:
        """Return True if it may take a checkpoint, within its time.

        The store fences a node that is paused beyond its time.
        """
        in_time = self.due is None or self.due >= now
        return self.replica is not None and self.replica.may_take and in_time

    def takes(self, now: int) -> bool:
        """Return True if it takes a checkpoint, within its time."""
        return self.holds(now) and self.replica is not None and self.replica.taking

    def die(self) -> None:
        """Drop the volatile state."""
        self.up = self.paused = False
        self.replica = self.primary = self.outbox = self.due = None
        self.reports.clear()
