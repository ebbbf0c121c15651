"""One node of the lease world: its volatile and durable state, and its own clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from checkpoint_lab.violations import ReusedId, Violation
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.messages import Admission, HealthReport, LeasedCheckpoint, LeaseSettings, Terms
from checkpoint_protocols.lease.primary import Primary
from checkpoint_protocols.lease.replica import Replica, ReplicaPhase
from checkpoint_protocols.lease.rotation import patience


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """One entry of the replicated log: a lease, or a command. `author`: the node that appended it, and its term."""

    terms: Terms | None
    author: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Upload:
    """A checkpoint on its way to the store; `boot`: the incarnation that sent it."""

    node: ProcessId
    boot: int
    checkpoint: LeasedCheckpoint


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
    log: dict[int, LeaseEntry] = field(default_factory=dict)
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
    reports: list[HealthReport] = field(default_factory=list)
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


# -- Oracles of the lease world, for every state, clause by clause of the published model's SafetyInvariant.
#
# They judge from outside: the machines tell which node works within its time; the primary, the log and the published
# checkpoints are the world's. Two clauses go beyond the published ones: tokens of published checkpoints strictly
# increase, and every eligible node gets its turn. `tests/simulator/lease_returns.py` has those of returned leases.


class TwoAtOnce(Violation):
    """Two nodes may take, or take, a checkpoint at the same time."""

    ORACLE = "L1"


class PrimaryTakes(Violation):
    """The primary may take, or takes, a checkpoint."""

    ORACLE = "L2"


class UnknownLease(Violation):
    """A node has a right that the primary does not know of."""

    ORACLE = "L3"


class WithoutRight(Violation):
    """A node takes a checkpoint without a lease of its own."""

    ORACLE = "L4"


class TornLog(Violation):
    """Two replicas' logs differ at an index."""

    ORACLE = "L5"


class CandidatePassedOver(Violation):
    """An eligible replica was not picked, too often."""

    ORACLE = "L6"


def judge_rights(nodes: Mapping[ProcessId, Node], leader: Node | None, log: Sequence[LeaseEntry], now: int) -> None:
    """L1 to L4, in every state."""
    holders = [node for node in nodes.values() if node.holds(now)]
    for holder in holders:
        _judge_own(holder)
    if len(holders) > 1:
        names = [holder.name for holder in holders]
        raise TwoAtOnce(f"{names} may all take a checkpoint, {[h.name for h in holders if h.takes(now)]} do", names)
    if leader is not None:
        _judge_primary(leader, holders, log)


def _judge_own(node: Node) -> None:
    lease = node.replica.lease if node.replica else None
    if lease is None or lease.terms.holder != node.name or node.due is None:
        raise WithoutRight(f"{node.name} may take a checkpoint, its lease is {lease}", [node.name])


def judge_step(node: Node, now: int) -> None:
    """L4: a node that was paused takes no step of the work when its time is up, before its timer is handled either."""
    until_ms = node.replica.until_ms if node.replica else None
    if until_ms is not None and node.local(now) >= until_ms:
        raise WithoutRight(f"{node.name} works on at {node.local(now)}, its time was up at {until_ms}", [node.name])


def _judge_primary(leader: Node, holders: Sequence[Node], log: Sequence[LeaseEntry]) -> None:
    known = _known_holder(leader, log)
    for holder in holders:
        if holder is leader:
            raise PrimaryTakes(f"{leader.name} is primary and may take a checkpoint", [leader.name])
        if holder.name != known:
            what = f"{holder.name} may take a checkpoint, {leader.name} is primary and knows of {known or 'no lease'}"
            raise UnknownLease(what, [leader.name, holder.name])


def _known_holder(leader: Node, log: Sequence[LeaseEntry]) -> ProcessId | None:
    primary = leader.primary
    if primary is None:
        return None
    if primary.lease is not None:
        return primary.lease.terms.holder
    # a chosen lease counts before the primary has executed it: its holder may be faster
    unexecuted = log[leader.replica.applied :] if leader.replica else ()
    return next((entry.terms.holder for entry in unexecuted if entry.terms and entry.terms == primary.asked), None)


def judge_logs(nodes: Mapping[ProcessId, Node], log: Sequence[LeaseEntry]) -> None:
    """L5: every replica's entries are the chosen ones."""
    for node in nodes.values():
        torn = [index for index, entry in node.log.items() if index > len(log) or log[index - 1] != entry]
        if torn:
            raise TornLog(f"{node.name} has other entries at {torn} than were chosen", [node.name])


def judge_publish(published: Sequence[int], token: int, node: ProcessId) -> None:
    """O8: tokens strictly increase, so none is used twice."""
    if published and token <= published[-1]:
        raise ReusedId(f"{node} publishes under {token} after {published[-1]}", [node])


def judge_turns(passed: Mapping[ProcessId, int], settings: LeaseSettings) -> None:
    """L6: `passed` counts, for each node, leases to others since its last one at which it was eligible."""
    limit = patience(len(passed), settings)
    late = [node for node, times in passed.items() if times > limit]
    if late:
        raise CandidatePassedOver(f"{late} could have been picked more than {limit} times and were not", late)
