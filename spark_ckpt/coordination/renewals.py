"""When a driver renews its lease: a third of the term after the last time, and sooner after a time that was missed.

A store that is away for a moment, at the wrong moments, would else make a driver silent for its term that could renew nearly all
the time: a standby, which reads between these moments, sees no outage.
"""

from __future__ import annotations

_RENEWALS_PER_LEASE = 3
_ATTEMPTS_PER_LEASE = 10


def renewal_ms(lease_ms: int) -> int:
    """From one renewal to the next."""
    return lease_ms // _RENEWALS_PER_LEASE


def again_ms(lease_ms: int) -> int:
    """From one that was missed to the next attempt."""
    return lease_ms // _ATTEMPTS_PER_LEASE
