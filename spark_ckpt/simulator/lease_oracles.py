"""What must hold in every state of the lease world, clause by clause of the published model's SafetyInvariant.

Judged from outside: who is at work and in time is read off the machines, who is primary, what the log holds and
what was published are the world's.  Beyond the published clauses: tokens of published checkpoints strictly
increase, and nobody who can be picked is passed over for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_ckpt.protocol.ids import ProcessId
from spark_ckpt.protocol.lease.messages import LeaseSettings
from spark_ckpt.protocol.lease.rotation import patience
from spark_ckpt.simulator.lease_node import Entry, Node
from spark_ckpt.simulator.violations import ReusedId, Violation


class TwoAtOnce(Violation):
    """Two nodes may take, or take, a checkpoint at a time."""

    ORACLE = "L1"


class PrimaryTakes(Violation):
    """The primary may take, or takes, a checkpoint."""

    ORACLE = "L2"


class UnknownLease(Violation):
    """Somebody has a right that the primary does not know of."""

    ORACLE = "L3"


class WithoutRight(Violation):
    """A checkpoint is being taken without a lease of one's own."""

    ORACLE = "L4"


class TornLog(Violation):
    """Two replicas' logs differ at an index."""

    ORACLE = "L5"


class PassedOver(Violation):
    """A replica that could have been picked was not, too often."""

    ORACLE = "L6"


def judge_rights(nodes: Mapping[ProcessId, Node], leader: Node | None, log: Sequence[Entry], now: int) -> None:
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


def _judge_primary(leader: Node, holders: Sequence[Node], log: Sequence[Entry]) -> None:
    known = _known_holder(leader, log)
    for holder in holders:
        if holder is leader:
            raise PrimaryTakes(f"{leader.name} is primary and may take a checkpoint", [leader.name])
        if holder.name != known:
            what = f"{holder.name} may take a checkpoint, {leader.name} is primary and knows of {known or 'no lease'}"
            raise UnknownLease(what, [leader.name, holder.name])


def _known_holder(leader: Node, log: Sequence[Entry]) -> ProcessId | None:
    """Whom the primary believes to have a right: also by a lease that is chosen and that it has yet to execute."""
    primary = leader.primary
    if primary is None:
        return None
    if primary.lease is not None:
        return primary.lease.terms.holder
    unexecuted = log[leader.replica.applied :] if leader.replica else ()
    return next((entry.terms.holder for entry in unexecuted if entry.terms and entry.terms == primary.asked), None)


def judge_logs(nodes: Mapping[ProcessId, Node], log: Sequence[Entry]) -> None:
    """L5: every replica's entries are those that were chosen."""
    for node in nodes.values():
        torn = [index for index, entry in node.log.items() if index > len(log) or log[index - 1] != entry]
        if torn:
            raise TornLog(f"{node.name} has other entries at {torn} than were chosen", [node.name])


def judge_publish(published: Sequence[int], token: int, node: ProcessId) -> None:
    """O8: tokens strictly increase, so none is used twice either."""
    if published and token <= published[-1]:
        raise ReusedId(f"{node} publishes under {token} after {published[-1]}", [node])


def judge_turns(passed: Mapping[ProcessId, int], settings: LeaseSettings) -> None:
    """L6: `passed` counts leases to others since the last of one's own, at which one could have been picked."""
    limit = patience(len(passed), settings)
    late = [node for node, times in passed.items() if times > limit]
    if late:
        raise PassedOver(f"{late} could have been picked more than {limit} times and were not", late)
