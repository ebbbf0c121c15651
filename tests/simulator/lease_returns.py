"""The world of the checkpoint lease in which holders return their leases, at every inconvenient moment.

A holder first stops its work, then sends the return. The primary hears it after it has executed the lease, and may
issue the next lease at once. A return may be lost, duplicated, or arrive while another lease is out: only the token
tells. An incarnation that ends in order returns its lease; one that is seen to be over returns it too. A primary may
resign. A follower's clock may jump ahead, never back.

Choices in addition to those of `LeaseWorld`: `return n times` (0: lost on its way), `returned n token`, `gone n`;
faults: `stop n`, `resign n`, `jump n`. `LeaseWorld` has none of these, so its schedules are unchanged.

Its oracles: a returned lease is not used (L7); no primary waits for a lease that was returned to it, whose holder reports that
it has published, or longer than a lease's full time (L8); no return lowers the store's fence (L9).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from checkpoint_lab.faults import Faults
from checkpoint_lab.lease_node import Node, Upload
from checkpoint_lab.lease_world import LeaseRules, LeaseWorld, Scope
from checkpoint_lab.violations import Violation
from checkpoint_lab.world import Choice
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.messages import (
    CheckpointFailed,
    CheckpointStarted,
    Deposed,
    Lease,
    LeaseReturned,
)
from checkpoint_protocols.lease.replica import ReplicaPhase

RETURNABLE = (ReplicaPhase.GRANTED, ReplicaPhase.TAKING)
"""Phases in which a holder can return its lease. After its publish request, only the answer or the time ends it."""
TIMES = (1, 2, 0)
"""Numbers of arrivals of a return."""
JUMP_MS = 10


@dataclass(frozen=True, slots=True)
class Returns:
    """Budgets of the additional faults."""

    returns: int = 6
    stops: int = 2
    resigns: int = 1
    jumps: int = 1


@dataclass(frozen=True, slots=True)
class Said:
    """A return on its way to the node that is primary at its arrival."""

    node: ProcessId
    token: int


class ReturnedUsed(Violation):
    """A lease is used that its holder has returned."""

    ORACLE = "L7"


class HeldBack(Violation):
    """The primary waits for a lease that is used or was returned to it, or longer than a lease's full time."""

    ORACLE = "L8"


class FenceLowered(Violation):
    """The store has forgotten the newest token that it admitted."""

    ORACLE = "L9"


@dataclass(frozen=True, slots=True)
class Wait:
    """The lease that a primary waits for, its term, and the begin of the wait by the primary's clock.

    `most_ms`: longest allowed wait; -1 after a return, or a report of its use, that the primary has heard.
    """

    token: int
    term: int
    since_ms: int
    most_ms: int

    def over(self) -> Wait:
        """Return the wait after the primary has heard that the lease is returned or used."""
        return replace(self, most_ms=-1)


def judge_returned(nodes: Mapping[ProcessId, Node], returned: Set[int], now: int, landed: Upload | None = None) -> None:
    """L7: `returned` holds tokens whose holders have stopped; `landed` is the upload just admitted, if any."""
    if landed is not None and landed.checkpoint.token in returned:
        raise ReturnedUsed(f"{landed.node} publishes under {landed.checkpoint.token}, which it returned", [landed.node])
    for node in nodes.values():
        lease = node.replica.lease if node.replica else None
        if lease is not None and lease.token in returned and node.holds(now):
            raise ReturnedUsed(f"{node.name} may take a checkpoint under {lease.token}, which it returned", [node.name])


def judge_wait(leader: Node | None, known: Wait | None, now: int) -> Wait | None:
    """L8: judge the primary's wait and return the current one. `known`: the wait before this step."""
    lease = leader.primary.lease if leader is not None and leader.primary is not None else None
    if leader is None or leader.primary is None or lease is None:
        return None
    local_ms = leader.local(now)
    # a new lease, or a new primary, starts a new wait
    if known is None or (known.token, known.term) != (lease.token, leader.term):
        return Wait(lease.token, leader.term, local_ms, lease.terms.ttl_ms)
    if local_ms - known.since_ms > known.most_ms and not leader.primary.is_due(local_ms):
        why = "it was returned or used" if known.most_ms < 0 else f"its {known.most_ms} ms are over"
        raise HeldBack(f"{leader.name} waits for lease {lease.token}, though {why}", [leader.name])
    return known


def judge_fence(published: Sequence[int], newest: int) -> None:
    """L9: `newest` is the token that the store compares with."""
    if published and newest < published[-1]:
        raise FenceLowered(f"the store compares with {newest}, {published[-1]} is published")


class ReturningWorld(LeaseWorld):
    """The lease world with returned leases."""

    RETURNABLE = RETURNABLE

    def __init__(
        self,
        scope: Scope | None = None,
        faults: Faults | None = None,
        rules: LeaseRules | None = None,
        returns: Returns | None = None,
    ) -> None:
        super().__init__(scope, faults, rules)
        returns = returns or Returns()
        self.budget |= {"return": returns.returns, "stop": returns.stops}
        self.budget |= {"resign": returns.resigns, "jump": returns.jumps}
        self.said: list[Said] = []
        """Returns under way."""
        self.returned: set[int] = set()
        """Tokens that their holders have returned."""
        self.wait: Wait | None = None
        """The primary's wait, as seen from outside."""

    # -- what can happen -----------------------------------------------------------------------------------------

    def choices(self) -> Sequence[Choice]:
        """Return the choices: before the calm holders return leases; returns arrive; ended incarnations are noticed."""
        found = list(super().choices())
        if self.budget["return"] and self.unpublished is None:
            holders = [node.name for node in self.nodes.values() if node.awake and self._may_return(node)]
            found += [("return", name, times) for name in holders for times in TIMES]
        found += [("returned", said.node, said.token) for said in dict.fromkeys(self.said) if self._comes(said)]
        out = self._out()
        return [*found, ("gone", out.terms.holder)] if out is not None and self._is_gone(out) else found

    def faults(self) -> Sequence[Choice]:
        """Return the faults: incarnations end in order, primaries resign, clocks jump."""
        found = list(super().faults())
        for node in self.nodes.values():
            if node.awake:
                found += [(kind, node.name) for kind in self._ways_out(node) if self.budget[kind]]
        return found

    def _ways_out(self, node: Node) -> Iterator[str]:
        yield "stop"
        if self.leader == node.name:
            yield "resign"
        elif node.primary is None:
            yield "jump"

    def _may_return(self, node: Node) -> bool:
        return node.replica is not None and node.replica.phase in self.RETURNABLE

    def _comes(self, said: Said) -> bool:
        """Return True if the return can arrive: the primary has executed its lease."""
        if self.leader is None or not self.nodes[self.leader].awake or (said.node, self.leader) in self.cuts:
            return False
        replica = self.nodes[self.leader].replica
        return replica is not None and replica.applied >= said.token

    def _out(self) -> Lease | None:
        """Return the lease that the primary waits for, if the primary can take a step."""
        leader = self.nodes[self.leader] if self.leader else None
        return None if leader is None or not leader.awake or leader.primary is None else leader.primary.lease

    def _is_gone(self, out: Lease) -> bool:
        """Return True if the lease's holder has ended. A pause or a cut does not count as an end."""
        holder = self.nodes[out.terms.holder]
        return not holder.up or holder.boot != out.terms.boot

    # -- one step ------------------------------------------------------------------------------------------------

    def do(self, choice: Choice) -> None:
        """Perform the choice; judge returned leases and the primary's wait."""
        super().do(choice)
        judge_returned(self.nodes, self.returned, self.now)
        judge_fence(self.published, self.store.token)
        self.wait = judge_wait(self.nodes[self.leader] if self.leader else None, self.wait, self.now)

    def _do_return(self, name: ProcessId, times: int) -> None:
        self.budget["return"] -= 1
        self._say(self.nodes[name], times)

    def _say(self, node: Node, times: int = 1) -> None:
        """Stop the holder's work, then send the return."""
        token = node.due_token
        self._stop_work(node, token)
        self.returned.add(token)
        # 0 times: the return is lost, and the lease ends by time
        self.said += [Said(node.name, token)] * times
        self.tell(node.name, "returns", str(token))

    def _stop_work(self, node: Node, token: int) -> None:
        """Stop the work; a turn that has not begun is begun and aborted."""
        if node.stands_in(ReplicaPhase.GRANTED):
            self._handle(node, CheckpointStarted(token, node.local(self.now)))
        self._handle(node, CheckpointFailed(token))

    def _do_hear(self, name: ProcessId) -> None:
        """Hear a report. A holder that has published under its lease, and recorded that, does not work under it any more."""
        out, payload = self._out(), self.nodes[name].reports[0].payload
        super()._do_hear(name)
        if out is not None and self.wait is not None and out.terms.holder == name and self._is_used(out.token, payload):
            self.wait = self.wait.over()

    def _is_used(self, token: int, payload: int) -> bool:
        return token in self.published and payload >= token

    def _do_returned(self, name: ProcessId, token: int) -> None:
        self.said.remove(Said(name, token))
        self._hear_of_return(token)

    def _do_gone(self, name: ProcessId) -> None:
        out = self._out()
        assert out is not None
        self.tell(name, "gone", str(out.token))
        self._hear_of_return(out.token)

    def _hear_of_return(self, token: int) -> None:
        if self.wait is not None and self.wait.token == token:
            self.wait = self.wait.over()
        self._lead(self.nodes[self._leader()], LeaseReturned(token))

    def _do_stop(self, name: ProcessId) -> None:
        """End the incarnation in order, after the return of its lease if that is possible."""
        self.budget["stop"] -= 1
        node = self.nodes[name]
        if self._may_return(node):
            self._say(node)
        node.die()
        if self.leader == name:
            self.leader = None
        self.tell(name, "stop")

    def _do_resign(self, name: ProcessId) -> None:
        """End the primary's term at once; a pending append is dropped."""
        self.budget["resign"] -= 1
        self.leader, node = None, self.nodes[name]
        node.primary = node.outbox = None
        self.tell(name, "resigns")
        self._handle(node, Deposed())

    def _do_jump(self, name: ProcessId) -> None:
        """Let its clock jump ahead; its timers expire sooner."""
        self.budget["jump"] -= 1
        node = self.nodes[name]
        node.born -= JUMP_MS * self.unit
        if node.due is not None:
            node.due = max(self.now, node.due - JUMP_MS * self.unit)

    def _publish(self, upload: Upload) -> None:
        judge_returned(self.nodes, self.returned, self.now, upload)
        super()._publish(upload)
