"""Choice of the next lease holder: weighted by health and by waiting time, so that every replica has its turn (seed 002).

The seed wants healthier replicas more often and even rotation, which conflict unless weights have a floor (erratum
E11). The floor alone makes starvation improbable. A replica that waited for `rounds * (N - 1)` leases is next for
certain, the longest waiting first. So a replica that can be picked waits for at most `patience` leases.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.messages import LeaseSettings, Turn, Turns

DRAWS = 2**32
"""Random numbers are drawn from [0, DRAWS)."""


def weights(candidates: Mapping[ProcessId, int], turns: Turns, settings: LeaseSettings) -> dict[ProcessId, int]:
    """Return the weight of each candidate, given its health in percent. An overdue candidate is the only one."""
    forced = _overdue(candidates, turns, settings)
    if forced is not None:
        return {forced: 1}
    return {
        candidate: max(settings.least_health, health) * (1 + _since(turns, candidate))
        for candidate, health in sorted(candidates.items())
    }


def pick(weights: Mapping[ProcessId, int], draw: int) -> ProcessId:
    """Return the candidate in whose share of [0, DRAWS) `draw` falls. Raises `ValueError` if there is none."""
    target = draw * sum(weights.values()) // DRAWS
    for candidate, weight in weights.items():
        if target < weight:
            return candidate
        target -= weight
    raise ValueError(f"{draw} is not in [0, {DRAWS}), or there is no candidate: {dict(weights)}")


def patience(members: int, settings: LeaseSettings) -> int:
    """Return the most leases to others between two of a replica that can always be picked.

    `members` counts all replicas including the primary.
    """
    return settings.rounds * (members - 1) + members - 1


def _overdue(candidates: Mapping[ProcessId, int], turns: Turns, settings: LeaseSettings) -> ProcessId | None:
    # `turns` includes the primary, which takes no lease.
    limit = settings.rounds * (len(turns) - 1)
    overdue = [candidate for candidate in candidates if _since(turns, candidate) >= limit]
    return max(overdue, key=lambda candidate: (_since(turns, candidate), candidate), default=None)


def _since(turns: Turns, candidate: ProcessId) -> int:
    return turns.get(candidate, Turn()).since
