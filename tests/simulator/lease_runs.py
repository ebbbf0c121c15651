"""Random schedules of the lease world."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint_lab.faults import Faults
from checkpoint_lab.lease_world import LeaseRules, LeaseWorld, Scope
from checkpoint_lab.schedules import Driver, scope_of
from checkpoint_lab.violations import Violation
from checkpoint_lab.world import Choice, Trace
from checkpoint_protocols.machine import ProtocolViolation
from tests.simulator.lease_returns import ReturningWorld

FAULTS = Faults(crashes=3, store_errors=1, pauses=2, partitions=2)
SLOW = ("execute", "hear", "land", "answer", "append", "write", "start", "propagate", "report", "depose", "recover")
RETURNS = ("return", "returned", "gone")
RETURN_FAULTS = Faults(crashes=2, store_errors=1, pauses=2, partitions=2)
STEPS = 200

Complaint = Violation | ProtocolViolation


@dataclass(frozen=True)
class Run:
    """One schedule: the world at its end, its choices, and the violation if there is one."""

    world: LeaseWorld
    trace: Trace
    complaint: Complaint | None


class LeaseDriver(Driver):
    """Delays other kinds of choices in each schedule, at all nodes or at some."""

    KINDS = SLOW

    def __init__(self, world: LeaseWorld, seed: int) -> None:
        super().__init__(world, seed, fault_rate=0.08, timer_rate=0.25)
        self.slow = {(kind, name) for kind in self.KINDS for name in ("", *world.nodes) if self.draw() < 0.15}

    def _work(self) -> Choice | None:
        """Let time pass before a delayed choice."""
        quick = [choice for choice in self.world.choices() if not self._is_slow(choice)]
        return self.pick(quick or self.world.timers() or self.world.choices())

    def _is_slow(self, choice: Choice) -> bool:
        slow = (choice[0], "") in self.slow or choice[:2] in self.slow
        return slow and self.draw() < 0.95


class ReturningDriver(LeaseDriver):
    """Delays returns as well."""

    KINDS = (*SLOW, *RETURNS)


def run(seed: int, rules: LeaseRules | None = None, scope: Scope | None = None, steps: int = STEPS) -> Run:
    """Run chaos, calm and drain, and judge."""
    world = LeaseWorld(scope or scope_of(seed), FAULTS, rules)
    return _driven(world, LeaseDriver(world, seed), steps)


def run_returning(
    seed: int, rules: LeaseRules | None = None, world_of: type[ReturningWorld] = ReturningWorld, times: int = 1
) -> Run:
    """A run with returned leases; `times`: length in usual runs."""
    world = world_of(scope_of(seed), RETURN_FAULTS.times(times), rules)
    world.stretch = times
    return _driven(world, ReturningDriver(world, seed), STEPS * times)


def _driven(world: LeaseWorld, driver: LeaseDriver, steps: int) -> Run:
    try:
        driver.chaos(steps)
        driver.drain()
    except (Violation, ProtocolViolation) as complaint:
        return Run(world, driver.trace, complaint)
    return Run(world, driver.trace, None)
