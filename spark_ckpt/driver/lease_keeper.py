"""Renews an incarnation's lease while no epoch does; on its own thread, since tables and retention may be slow.

A transient error does not end the job. Every commit checks the lease anyway, so after an expired one only a takeover
by another driver is possible.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spark_ckpt.coordination.standby import again_ms, renewal_ms
from spark_ckpt.errors import CkptError

_SHORTEST_S = 0.05


class LeaseKeeper(threading.Thread):
    """Thread that calls `renew` when a renewal is due (`coordination.standby`) and no epoch has renewed the lease.

    `served`: called after a success. `missed`: called after a transient error, with the seconds since the last
    success. `failed`: called with an error that no later renewal cures; then the thread ends.
    """

    def __init__(
        self,
        renew: Callable[[], None],
        lease_ms: int,
        served: Callable[[], None],
        missed: Callable[[CkptError, float], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="ckpt-lease", daemon=True)
        self._renew = renew
        self._every_s = max(_SHORTEST_S, renewal_ms(lease_ms) / 1000)
        self._again_s = max(_SHORTEST_S, again_ms(lease_ms) / 1000)
        self._served = served
        self._missed = missed
        self._failed = failed
        self._served_s = time.monotonic()
        self._due_s = self._served_s + self._every_s
        self._over = threading.Event()

    def renewed(self) -> None:
        """Postpone the next renewal: a committed epoch renewed the lease."""
        self._served_s = time.monotonic()
        self._due_s = self._served_s + self._every_s

    def close(self) -> None:
        """Stop renewing."""
        self._over.set()

    def run(self) -> None:
        """Renew until `close` or a permanent error."""
        while not self._over.wait(max(0.0, self._due_s - time.monotonic())):
            # An epoch may have renewed the lease during the wait.
            if time.monotonic() >= self._due_s and not self._tried():
                return

    def _tried(self) -> bool:
        """Renew once; return false after a permanent error, and after one that came when the keeper was closed."""
        # Set before the call: a commit may postpone the next renewal meanwhile, and must not be overwritten.
        self._due_s = time.monotonic() + self._every_s
        try:
            self._renew()
        except CkptError as error:
            # Another driver has the job, or the log is damaged: no later renewal can succeed.
            if not error.retriable:
                self._failed(error)
                return False
            # After the end the next incarnation renews, and nothing would announce the end of this outage.
            if self._over.is_set():
                return False
            # Sooner than a regular one: an attempt more may save the lease before a standby sees it expire.
            self._due_s = time.monotonic() + self._again_s
            self._missed(error, time.monotonic() - self._served_s)
        except BaseException as error:  # noqa: BLE001 - handed to the incarnation, which ends with it
            self._failed(error)
            return False
        else:
            self._served_s = time.monotonic()
            self._served()
        return True
