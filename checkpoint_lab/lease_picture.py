"""Pictures of the lease world for exhaustive exploration: two worlds with equal pictures behave alike.

Clock readings count by their distance from now, and not at all beyond every deadline. Readings of an ended incarnation
do not count. Estimates are left out if lease times are fixed (`least_ms == most_ms`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from checkpoint_lab.lease_node import Node
from checkpoint_protocols.lease.messages import Lease, Report, Terms
from checkpoint_protocols.lease.primary import Primary

if TYPE_CHECKING:
    from checkpoint_lab.lease_world import LeaseWorld


def picture_of(world: LeaseWorld) -> Hashable:
    """Return the picture of the whole world."""
    view = _View(world)
    return (
        tuple(view.node(node) for node in world.nodes.values()),
        tuple((view.terms(entry.terms), entry.author) for entry in world.log),
        world.leader,
        frozenset(world.cuts),
        tuple(world.uploads and map(repr, world.uploads)),
        tuple(world.answers),
        world.store.token,
        world.store.applied,
        tuple(world.passed.values()),
        tuple(world.budget.values()),
        None if world.owed is None else frozenset(world.owed),
    )


class _View:
    """Pictures of the world's parts, with distances from now."""

    def __init__(self, world: LeaseWorld) -> None:
        settings = world.scope.settings
        self.world = world
        self.fixed = settings.least_ms == settings.most_ms
        self.far = settings.most_ms + settings.fresh_ms + 2

    def ago(self, node: Node, local_ms: int) -> int:
        """Return the distance of a reading of the node's current clock from now."""
        return max(local_ms - node.local(self.world.now), -self.far)

    def reading(self, name: str, boot: int, local_ms: int) -> int | None:
        """Return the distance of a reading of an incarnation's clock; None if that incarnation is over."""
        node = next(node for node in self.world.nodes.values() if node.name == name)
        same = node.boot == boot or not self.world.rules.clocks_reset
        return self.ago(node, local_ms) if node.up and same else None

    def terms(self, terms: Terms | None) -> Hashable:
        if terms is None:
            return None
        left = self.reading(terms.holder, terms.boot, terms.until_ms)
        return (terms.holder, terms.boot, terms.ttl_ms, None if left is None else max(left, -1))

    def lease(self, lease: Lease | None) -> Hashable:
        return None if lease is None else (lease.token, self.terms(lease.terms))

    def report(self, report: Report) -> Hashable:
        return (report.node, report.boot, self.reading(report.node, report.boot, report.clock_ms), report.payload)

    def node(self, node: Node) -> Hashable:
        if not node.up or node.replica is None:
            return (tuple(sorted(node.log)), node.payload, node.boot, node.rate)
        replica, now = node.replica, self.world.now
        return (
            tuple(sorted(node.log)),
            node.payload,
            node.boot,
            node.paused,
            node.phase_of_clock(now),
            replica.phase,
            replica.applied,
            self.lease(replica.lease),
            self.lease(replica._right),
            tuple(turn for turn in replica.turns.items()),
            None if node.due is None else (max(node.due - now, -1), node.due_token),
            self.terms(node.outbox),
            tuple(map(self.report, node.reports)),
            None if node.primary is None else (node.term, self.primary(node, node.primary)),
        )

    def heard(self, node: Node, report: Report, at: int) -> Hashable:
        """Return the picture of a heard report; one that is too old for a candidate counts by its incarnation only."""
        ago = self.ago(node, at)
        fresh = ago >= -self.world.scope.settings.fresh_ms
        return (self.report(report), ago) if fresh else (report.node, report.boot)

    def primary(self, node: Node, primary: Primary) -> Hashable:
        heard = [self.heard(node, report, at) for report, at in primary.heard.values()]
        since = primary._counted_from
        estimates = None if self.fixed else tuple(sorted(primary._estimates.items()))
        return (
            primary.phase,
            self.lease(primary.lease),
            None if primary.lease is None else max(self.ago(node, primary.deadline_ms), -1),
            self.terms(primary.asked),
            tuple(sorted(heard, key=str)),
            estimates,
            None if since is None or self.fixed else self.ago(node, since),
        )
