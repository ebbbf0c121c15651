"""The checkpoint lease as seed 002 has it, and with one wrong rule at a time, for the lease world to condemn.

`SEED` counts a lease from its execution, ignores boots and checks the time by its timer only (erratum E10).
"""

from __future__ import annotations

from dataclasses import replace

from checkpoint_lab.lease_world import LeaseRules
from checkpoint_protocols.ids import ProcessId, TimerId
from checkpoint_protocols.lease.messages import (
    Admission,
    AppendLease,
    Lease,
    LeaseElapsed,
    LeaseSettings,
    TakeCheckpoint,
    Terms,
    Turns,
    Watched,
)
from checkpoint_protocols.lease.primary import Primary
from checkpoint_protocols.lease.replica import Replica, ReplicaPhase
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.vocabulary import SetTimer


class BlindReplica(Replica):
    """A replica without its own invariants, so that only the world can find the bug."""

    def validate(self) -> None:
        """Off."""


class BlindPrimary(Primary):
    """A primary without its own invariants."""

    def validate(self) -> None:
        """Off, as above."""


class TimedFromExecution(BlindReplica):
    """The holder's time begins when it executes the lease, however late."""

    def _is_for_me(self, terms: Terms, local_ms: int) -> bool:
        return terms.holder == self.me and terms.boot == self.boot and self.phase is not ReplicaPhase.LEADING

    def _grant(self, lease: Lease, local_ms: int) -> list[Effect]:
        self._right = lease
        self.phase = ReplicaPhase.GRANTED
        until_ms = local_ms + lease.terms.budget_ms
        timer = SetTimer("lease", lease.terms.budget_ms, TimerId(lease.token), LeaseElapsed(lease.token))
        return [timer, TakeCheckpoint(lease.token, until_ms)]

    def _is_over(self, local_ms: int) -> bool:
        return False


class SeedReplica(TimedFromExecution):
    """Moreover, a lease is valid in every incarnation of its holder."""

    def _is_for_me(self, terms: Terms, local_ms: int) -> bool:
        return terms.holder == self.me and self.phase is not ReplicaPhase.LEADING


class AnyBoot(BlindReplica):
    """A lease is valid in every incarnation of its holder."""

    def _is_for_me(self, terms: Terms, local_ms: int) -> bool:
        mine = terms.holder == self.me and self.phase is not ReplicaPhase.LEADING
        return mine and local_ms < terms.until_ms


class AnyHolder(BlindReplica):
    """A replica uses the lease of any other."""

    def _is_for_me(self, terms: Terms, local_ms: int) -> bool:
        return terms.boot == self.boot and local_ms < terms.until_ms and self.phase is not ReplicaPhase.LEADING


class GoesOnAsPrimary(BlindReplica):
    """An elected holder keeps its right."""

    def _on_elected(self, _event: Event) -> list[Effect]:
        if self._right is None:
            self.phase = ReplicaPhase.LEADING
        return []


class NeverLooksAtTheClock(BlindReplica):
    """Only the timer ends a right: the clock is checked neither at execution nor at the begin or end of the work."""

    def _is_for_me(self, terms: Terms, local_ms: int) -> bool:
        return terms.holder == self.me and terms.boot == self.boot and self.phase is not ReplicaPhase.LEADING

    def _is_over(self, local_ms: int) -> bool:
        return False


class PreemptsItsOwn(BlindPrimary):
    """A primary that holds the lease itself issues the next one at once."""

    def __init__(
        self, me: ProcessId, boot: int, settings: LeaseSettings, inherited: Lease | None, turns: Turns, local_ms: int
    ) -> None:
        own = inherited is not None and inherited.terms.holder == me
        super().__init__(me, boot, settings, None if own else inherited, turns, local_ms)


class ForgetsTheLease(BlindPrimary):
    """A new primary issues at once."""

    def __init__(
        self, me: ProcessId, boot: int, settings: LeaseSettings, inherited: Lease | None, turns: Turns, local_ms: int
    ) -> None:
        super().__init__(me, boot, settings, None, turns, local_ms)


class ReachesTheDeadline(BlindPrimary):
    """Times out at the deadline instead of after it: clocks of whole milliseconds hide almost one."""

    def _wait(self, lease: Lease, local_ms: int) -> None:
        super()._wait(lease, local_ms)
        self._watched = Watched(lease.token, lease.terms.ttl_ms - 1, local_ms)


class WaitsTheHoldersTime(BlindPrimary):
    """The primary waits only the holder's 70 percent, on its own clock."""

    def _wait(self, lease: Lease, local_ms: int) -> None:
        super()._wait(lease, local_ms)
        self._watched = Watched(lease.token, lease.terms.budget_ms, local_ms)


class PromisesTheWholeTime(BlindPrimary):
    """The holder may use all of the lease, not 70 percent of it, and its clock may be slower."""

    def _issue(self, holder: ProcessId) -> list[Effect]:
        super()._issue(holder)
        assert self.asked is not None
        self.asked = replace(self.asked, budget_ms=self.asked.ttl_ms)
        return [AppendLease(self.asked)]


class WeighsZero(BlindPrimary):
    """Weights have no floor and no replica is ever forced: a replica of health 0 never gets a lease."""

    def weights(self, local_ms: int) -> dict[ProcessId, int]:
        candidates = self.candidates(local_ms)
        return {name: health * (1 + self.turns[name].since) for name, health in candidates.items() if health}


def admits_all(_newest: int, _token: int) -> Admission:
    """A store that does not compare tokens."""
    return Admission.ACCEPTED


SEED = LeaseRules(replica=SeedReplica)
PREEMPTING_SEED = LeaseRules(replica=SeedReplica, primary=PreemptsItsOwn)
LATE_TIMER = LeaseRules(replica=TimedFromExecution)
LATE_TIMER_AND_NO_MARGIN = LeaseRules(replica=TimedFromExecution, primary=ReachesTheDeadline)
POSSESSING = LeaseRules(executed=False)
UNFENCED = LeaseRules(admission=admits_all)
ISSUES_AT_ONCE = LeaseRules(primary=ForgetsTheLease)
WEIGHT_ZERO = LeaseRules(primary=WeighsZero)
