"""Length of a replica's next lease: from the duration of its checkpoints, doubled after each timeout (seed 002).

The seed names the aim and no formula. This one is TCP's: smoothed time plus four times its mean deviation. The sum is
divided by the rate, since a holder may use only that share of the lease. The measured time begins at the holder's
health report, as the holder's own time does. Measured from the choice, a steady replica's lease would shrink until the
report's age made it time out.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint_protocols.lease.messages import LeaseSettings


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
    needed = smoothed_8 // 8 + max(deviation_4, settings.margin_ms)
    # Rounded up, since a lease that is too short times out.
    return Estimate(_clamped(-(-needed * 100 // settings.rate_percent), settings), smoothed_8, deviation_4)


def _clamped(ttl_ms: int, settings: LeaseSettings) -> int:
    return max(settings.least_ms, min(ttl_ms, settings.most_ms))
