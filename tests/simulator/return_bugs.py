"""Bugs planted around returned leases: in the primary's rules, in a holder's actions, in the host's knowledge."""

from __future__ import annotations

from dataclasses import dataclass, replace

from checkpoint_lab.lease_node import Node
from checkpoint_lab.lease_world import LeaseRules
from checkpoint_protocols.lease.messages import HealthReported, Lease, LeaseElapsed, LeaseReturned, Watched
from checkpoint_protocols.lease.primary import Primary
from checkpoint_protocols.lease.replica import ReplicaPhase
from checkpoint_protocols.machine import Effect, Event
from tests.protocol.literal.lease import BlindPrimary
from tests.simulator.eager import TIMES
from tests.simulator.lease_returns import RETURNABLE, ReturningWorld
from tests.simulator.lease_runs import Run, run_returning


class EndsWhateverIsOut(BlindPrimary):
    """A late return ends the current lease, as no token is compared."""

    def _stale(self, event: Event) -> str | None:
        if isinstance(event, LeaseReturned):
            return None if self.lease is not None else "none is out"
        return super()._stale(event)


class WaitsForTheTimeout(BlindPrimary):
    """Waits for a lease after its return."""

    def _on_returned(self, _event: LeaseReturned) -> list[Effect]:
        return []


class WantsAnEntryBehindTheLease(BlindPrimary):
    """Takes a checkpoint that ends with its own lease, the newest entry of the log, for an earlier one."""

    def _on_report_waiting(self, event: HealthReported) -> list[Effect]:
        used = self.lease is not None and event.report.payload > self.lease.token
        return super()._on_report_waiting(event) if used else self._on_report(event)


class BeginsTheWaitAnew(BlindPrimary):
    """A late return of another lease restarts the wait for the current one."""

    def _stale(self, event: Event) -> str | None:
        late = super()._stale(event)
        if late is not None and isinstance(event, LeaseReturned) and self._watched is not None:
            self._watched = replace(self._watched, since_ms=self._newest_ms())
        return late

    def _newest_ms(self) -> int:
        return max((at for _, at in self.heard.values()), default=0)


class InheritsNoWait(BlindPrimary):
    """A primary elected after a resignation takes the checkpoint lease for returned as well."""

    def _wait(self, lease: Lease, local_ms: int) -> None:
        super()._wait(lease, local_ms)
        if self.asked is None and not self.heard:
            self._watched = Watched(lease.token, 0, local_ms - 1)


class GoesOn(ReturningWorld):
    """The holder sends its return and continues to work."""

    def _stop_work(self, node: Node, token: int) -> None:
        """Do not stop."""


class ReturnsWhatIsOnItsWay(ReturningWorld):
    """A holder returns its lease while the store compares its token: the upload lands after all."""

    RETURNABLE = (*RETURNABLE, ReplicaPhase.PUBLISHING)

    def _stop_work(self, node: Node, token: int) -> None:
        if node.stands_in(ReplicaPhase.PUBLISHING):
            node.replica.handle(LeaseElapsed(token))  # type: ignore[union-attr]
        else:
            super()._stop_work(node, token)


class ClearsTheFence(ReturningWorld):
    """With a return the store forgets the newest token, so a fenced upload is admitted."""

    def _do_returned(self, name: str, token: int) -> None:
        super()._do_returned(name, token)  # type: ignore[arg-type]
        self.store = replace(self.store, token=0)


class TakesSilenceForAnEnd(ReturningWorld):
    """Takes a paused or unreachable holder for gone, so its lease is free before its return."""

    def _is_gone(self, out: Lease) -> bool:
        holder = out.terms.holder
        return super()._is_gone(out) or self.nodes[holder].paused or (holder, self.leader) in self.cuts


@dataclass(frozen=True)
class Planted:
    """A bug, and the oracles that may condemn it."""

    oracles: str
    primary: type[Primary] = Primary
    world: type[ReturningWorld] = ReturningWorld

    @property
    def name(self) -> str:
        """Name in reports."""
        return (self.world if self.primary is Primary else self.primary).__name__

    def run(self, seed: int) -> Run:
        """One long schedule with it."""
        return run_returning(seed, LeaseRules(primary=self.primary), self.world, TIMES)


PLANTED = (
    Planted("L1|L3", EndsWhateverIsOut),
    Planted("L8", WaitsForTheTimeout),
    Planted("L8", WantsAnEntryBehindTheLease),
    Planted("L8", BeginsTheWaitAnew),
    Planted("L1|L3", InheritsNoWait),
    Planted("L3|L7", world=GoesOn),
    Planted("L7", world=ReturnsWhatIsOnItsWay),
    Planted("L9", world=ClearsTheFence),
    Planted("L1|L3", world=TakesSilenceForAnEnd),
)
