"""Keeps an incarnation's lease while no epoch does, on a thread of its own: no slow table, no retention holds it up.

Trouble that may pass is no end: every commit asks for the lease anyway, so an expired one costs nothing but that another
driver may take over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spark_ckpt.coordination.renewals import again_ms, renewal_ms
from spark_ckpt.errors import CkptError

_SHORTEST_S = 0.05


class LeaseKeeper(threading.Thread):
    """Calls `renew` whenever its time has come (`coordination.renewals`) and no epoch has renewed the lease.

    `served` and `missed` hear how it went, the latter with the seconds since it last went well; `failed` hears of an error
    that no later renewal cures, and the thread ends.
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
        """An epoch was committed, which renews the lease."""
        self._served_s = time.monotonic()
        self._due_s = self._served_s + self._every_s

    def close(self) -> None:
        """Renew no more."""
        self._over.set()

    def run(self) -> None:
        """Thread body."""
        while not self._over.wait(max(0.0, self._due_s - time.monotonic())):
            if time.monotonic() >= self._due_s and not self._tried():
                return

    def _tried(self) -> bool:
        """Renew once; whether to go on."""
        self._due_s = time.monotonic() + self._every_s
        try:
            self._renew()
        except CkptError as error:
            if not error.retriable:
                self._failed(error)
                return False
            self._due_s = time.monotonic() + self._again_s
            self._missed(error, time.monotonic() - self._served_s)
        except BaseException as error:  # noqa: BLE001 - handed to the incarnation, which ends with it
            self._failed(error)
            return False
        else:
            self._served_s = time.monotonic()
            self._served()
        return True
