"""Timing of lease renewals: after a third of the term, and sooner after a missed renewal.

With the long interval alone, short outages at the wrong moments could silence a driver for its whole term. A standby
reads between these moments and sees no outage.
"""

from __future__ import annotations

_RENEWALS_PER_LEASE = 3
_ATTEMPTS_PER_LEASE = 10


def renewal_ms(lease_ms: int) -> int:
    """Return the milliseconds between two renewals."""
    return lease_ms // _RENEWALS_PER_LEASE


def again_ms(lease_ms: int) -> int:
    """Return the milliseconds from a missed renewal to the next attempt."""
    return lease_ms // _ATTEMPTS_PER_LEASE
