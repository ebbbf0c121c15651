"""The world of the checkpoint lease in which leases are returned in order, at every awkward moment.

A holder that returns its lease stops its work first, then says so; the primary hears of it when it has executed the lease, and
may give the next one at once. What was said may be lost, come twice, or come when another lease is out: only the token tells. A
life may end in order, which returns what it has, or be seen to be over, which does so too. A primary may resign. A follower's
clock may jump ahead; nobody's goes back.

Choices beside those of `LeaseWorld`: `return n times` (0: it is lost on its way), `returned n token`, `gone n`; faults: `stop n`,
`resign n`, `jump n`. Schedules of `LeaseWorld` are what they were: it has none of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkpoint_lab.faults import Faults
from checkpoint_lab.lease_node import Node, Upload
from checkpoint_lab.lease_oracles import Wait, judge_fence, judge_returned, judge_wait
from checkpoint_lab.lease_world import LeaseWorld, Rules, Scope
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
"""What a holder has asked the store to publish it cannot take back: there the answer, or the time, ends its lease."""
TIMES = (1, 2, 0)
"""How often a return arrives."""
JUMP_MS = 10


@dataclass(frozen=True, slots=True)
class Returns:
    """Budgets of what this world adds."""

    returns: int = 6
    stops: int = 2
    resigns: int = 1
    jumps: int = 1


@dataclass(frozen=True, slots=True)
class Said:
    """A return on its way to whoever is primary when it comes."""

    node: ProcessId
    token: int


class ReturningWorld(LeaseWorld):
    """Holders return their leases."""

    RETURNABLE = RETURNABLE

    def __init__(
        self,
        scope: Scope | None = None,
        faults: Faults | None = None,
        rules: Rules | None = None,
        returns: Returns | None = None,
    ) -> None:
        super().__init__(scope, faults, rules)
        returns = returns or Returns()
        self.budget |= {"return": returns.returns, "stop": returns.stops}
        self.budget |= {"resign": returns.resigns, "jump": returns.jumps}
        self.said: list[Said] = []
        """Returns under way."""
        self.returned: set[int] = set()
        """Tokens whose holders said that they will not use them."""
        self.wait: Wait | None = None
        """What the primary waits for, as it is seen from outside."""

    # -- what can happen -----------------------------------------------------------------------------------------

    def choices(self) -> Sequence[Choice]:
        """Until the calm holders may return; returns come, and lives that are over are seen to be."""
        found = list(super().choices())
        if self.budget["return"] and self.owed is None:
            holders = [node.name for node in self.nodes.values() if node.awake and self._may_return(node)]
            found += [("return", name, times) for name in holders for times in TIMES]
        found += [("returned", said.node, said.token) for said in dict.fromkeys(self.said) if self._comes(said)]
        out = self._out()
        return [*found, ("gone", out.terms.holder)] if out is not None and self._is_gone(out) else found

    def faults(self) -> Sequence[Choice]:
        """Lives end in order, primaries resign, clocks jump."""
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
        """The return is behind its lease: who has not executed the one does not hear of the other."""
        if self.leader is None or not self.nodes[self.leader].awake or (said.node, self.leader) in self.cuts:
            return False
        replica = self.nodes[self.leader].replica
        return replica is not None and replica.applied >= said.token

    def _out(self) -> Lease | None:
        """The lease that the primary waits for, if it can take a step."""
        leader = self.nodes[self.leader] if self.leader else None
        return None if leader is None or not leader.awake or leader.primary is None else leader.primary.lease

    def _is_gone(self, out: Lease) -> bool:
        """The life that has the lease is over. A pause is not seen as an end, nor is a cut."""
        holder = self.nodes[out.terms.holder]
        return not holder.up or holder.boot != out.terms.boot

    # -- one step ------------------------------------------------------------------------------------------------

    def do(self, choice: Choice) -> None:
        """As before; then what was returned is judged, and how long the primary waits."""
        super().do(choice)
        judge_returned(self.nodes, self.returned, self.now)
        judge_fence(self.published, self.store.token)
        self.wait = judge_wait(self.nodes[self.leader] if self.leader else None, self.wait, self.now)

    def _do_return(self, name: ProcessId, times: int) -> None:
        self.budget["return"] -= 1
        self._say(self.nodes[name], times)

    def _say(self, node: Node, times: int = 1) -> None:
        """It takes no further step, then it says so."""
        token = node.due_token
        self._stop_work(node, token)
        self.returned.add(token)
        self.said += [Said(node.name, token)] * times
        self.tell(node.name, "returns", str(token))

    def _stop_work(self, node: Node, token: int) -> None:
        """A turn that was not begun is begun and given up."""
        if node.stands_in(ReplicaPhase.GRANTED):
            self._handle(node, CheckpointStarted(token, node.local(self.now)))
        self._handle(node, CheckpointFailed(token))

    def _do_returned(self, name: ProcessId, token: int) -> None:
        self.said.remove(Said(name, token))
        self._hear_of_return(token)

    def _do_gone(self, name: ProcessId) -> None:
        out = self._out()
        assert out is not None  # noqa: S101 - for the type checker; it is a choice only then
        self.tell(name, "gone", str(out.token))
        self._hear_of_return(out.token)

    def _hear_of_return(self, token: int) -> None:
        if self.wait is not None and self.wait.token == token:
            self.wait = self.wait.returned()
        self._lead(self.nodes[self._leader()], LeaseReturned(token))

    def _do_stop(self, name: ProcessId) -> None:
        """The life ends in order: what can be returned is."""
        self.budget["stop"] -= 1
        node = self.nodes[name]
        if self._may_return(node):
            self._say(node)
        node.die()
        if self.leader == name:
            self.leader = None
        self.tell(name, "stop")

    def _do_resign(self, name: ProcessId) -> None:
        """Its term is over at once; what it was about to append is not appended."""
        self.budget["resign"] -= 1
        self.leader, node = None, self.nodes[name]
        node.primary = node.outbox = None
        self.tell(name, "resigns")
        self._handle(node, Deposed())

    def _do_jump(self, name: ProcessId) -> None:
        """Its clock goes ahead, and what is due by it is due sooner."""
        self.budget["jump"] -= 1
        node = self.nodes[name]
        node.born -= JUMP_MS * self.unit
        if node.due is not None:
            node.due = max(self.now, node.due - JUMP_MS * self.unit)

    def _publish(self, upload: Upload) -> None:
        judge_returned(self.nodes, self.returned, self.now, upload)
        super()._publish(upload)
