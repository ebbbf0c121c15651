"""Choice of the next lease holder: weighted by health and by waiting time, so that every replica has its turn (seed 002).

The seed wants healthier replicas more often and even rotation, which conflict unless weights have a floor (erratum
E11). The floor alone makes starvation improbable. A replica that waited for `rounds * (N - 1)` leases is next for
certain, the longest waiting first. So a replica that can be picked waits for at most `patience` leases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.messages import LeaseSettings, Turn, Turns

# -- Length of a replica's next lease: from the duration of its checkpoints, doubled after each timeout (seed 002).
#
# The seed names the aim and no formula. This one is TCP's: smoothed time plus four times its mean deviation. The sum is
# divided by the rate, since a holder may use only that share of the lease. The measured time begins at the holder's
# health report, as the holder's own time does. Measured from the choice, a steady replica's lease would shrink until the
# report's age made it time out.


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate for one replica.

    `smoothed_8` and `deviation_4` are in eighths and quarters of a millisecond; -1: no success.
    """

    ttl_ms: int
    smoothed_8: int = -1
    deviation_4: int = 0
    missed_at_most: int = 0

    def succeeded(self, spent_ms: int, settings: LeaseSettings) -> Estimate:
        """Return the estimate after a checkpoint that took `spent_ms` of the primary's clock."""
        if self.smoothed_8 < 0:
            # First measurement, as in TCP: the deviation is half of the time.
            return _estimate(8 * spent_ms, 2 * spent_ms, settings)
        # RFC 6298: the time moves by an eighth of the difference, its deviation by a quarter.
        off = abs(spent_ms - self.smoothed_8 // 8)
        deviation_4 = self.deviation_4 + off - self.deviation_4 // 4
        return _estimate(self.smoothed_8 + spent_ms - self.smoothed_8 // 8, deviation_4, settings)

    def missed(self, settings: LeaseSettings) -> Estimate:
        """Return the estimate after a timeout: twice as long, up to the maximum, at which timeouts are counted."""
        again = self.missed_at_most + 1 if self.ttl_ms >= settings.most_ms else 0
        return Estimate(min(2 * self.ttl_ms, settings.most_ms), self.smoothed_8, self.deviation_4, again)

    def alarming(self, settings: LeaseSettings) -> bool:
        """Return True if the maximum lease was too short several times in a row."""
        return self.missed_at_most >= settings.alert_after


def first_estimate(last_ttl_ms: int, settings: LeaseSettings) -> Estimate:
    """Return a new primary's assumption: the length of the replica's last lease, if it had one."""
    return Estimate(_clamped(last_ttl_ms or settings.first_ms, settings))


def budget_of(ttl_ms: int, settings: LeaseSettings) -> int:
    """Return the time that the slowest allowed holder may use of a lease, on its own clock. Rounded down, the safe side."""
    return ttl_ms * settings.rate_percent // 100


def _estimate(smoothed_8: int, deviation_4: int, settings: LeaseSettings) -> Estimate:
    # `deviation_4` is kept in quarters, so it is four deviations as it stands.
    needed = smoothed_8 // 8 + max(deviation_4, settings.margin_ms)
    # Rounded up, since a lease that is too short times out.
    return Estimate(_clamped(-(-needed * 100 // settings.rate_percent), settings), smoothed_8, deviation_4)


def _clamped(ttl_ms: int, settings: LeaseSettings) -> int:
    return max(settings.least_ms, min(ttl_ms, settings.most_ms))


DRAWS = 2**32
"""Random numbers are drawn from [0, DRAWS)."""


def weights(candidates: Mapping[ProcessId, int], turns: Turns, settings: LeaseSettings) -> dict[ProcessId, int]:
    """Return the weight of each candidate, given its health in percent. An overdue candidate is the only one."""
    forced = _overdue(candidates, turns, settings)
    if forced is not None:
        return {forced: 1}
    return {
        candidate: max(settings.least_health, health) * (1 + passed_over(turns, candidate))
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
    overdue = [candidate for candidate in candidates if passed_over(turns, candidate) >= limit]
    return max(overdue, key=lambda candidate: (passed_over(turns, candidate), candidate), default=None)


def passed_over(turns: Turns, candidate: ProcessId) -> int:
    """Return the number of leases to others since the candidate's last one."""
    return turns.get(candidate, Turn()).since
