"""A lease world that is small enough to explore all of its states.

Two reductions.  Choices whose delay changes nothing happen at once: a report arrives, terms are appended, entries are
propagated, an answer arrives (a delay only makes a report older, and so does one before the tick).  And nodes report
only if the primary can use it.
"""

from __future__ import annotations

from collections.abc import Sequence

from checkpoint_lab.faults import Faults
from checkpoint_lab.lease_node import Node
from checkpoint_lab.lease_world import LeaseRules, LeaseWorld, Scope
from checkpoint_lab.world import Choice
from checkpoint_protocols.lease.messages import LeaseSettings

AT_ONCE = ("hear", "append", "answer", "propagate", "depose")
TINY = LeaseSettings(rate_percent=50, least_ms=2, first_ms=2, most_ms=2, margin_ms=1, fresh_ms=1, rounds=2)
"""A lease of two milliseconds of the primary's clock, of which the holder may use one of its own clock."""


def small(
    leases: int, crashes: int, rules: LeaseRules | None = None, rates: tuple[int, int, int] = (100, 50, 100)
) -> SmallWorld:
    """Three nodes whose clocks tick `rates` percent; `a` is primary and has reports of both others."""
    scope = Scope(dict(zip("abc", rates, strict=True)), settings=TINY, leases=leases, commands=0, advances=(1,))
    world = SmallWorld(scope, Faults(crashes, 0, 0, 0, 0, 0, 0), rules)
    for choice in (("elect", "a"), ("report", "b"), ("hear", "b"), ("report", "c"), ("hear", "c")):
        world.do(choice)
    return world


class SmallWorld(LeaseWorld):
    """The reductions, with machines that keep no recent events."""

    def choices(self) -> Sequence[Choice]:
        found = super().choices()
        return [choice for choice in found if choice[0] in AT_ONCE][:1] or found

    def timers(self) -> Sequence[Choice]:
        return () if any(choice[0] in AT_ONCE for choice in super().choices()) else super().timers()

    def faults(self) -> Sequence[Choice]:
        return () if any(choice[0] in AT_ONCE for choice in super().choices()) else super().faults()

    def do(self, choice: Choice) -> None:
        super().do(choice)
        for node in self.nodes.values():
            for machine in (node.replica, node.primary):
                if machine is not None:
                    machine.recent.clear()

    def _has_news(self, node: Node) -> bool:
        if not super()._has_news(node) or self.leader is None:
            return False
        primary = self.nodes[self.leader].primary
        if primary is None or primary.asked is not None:
            return False
        lease = primary.lease
        if lease is None or self.nodes[self.leader].local(self.now) > primary.deadline_ms:
            return self.unpublished is not None or self._leases_left()
        return lease.terms.holder == node.name and node.payload >= lease.token
