"""A re-entrant lock with an acquisition timeout, for calls into a store that may never return."""

from __future__ import annotations

import threading
from types import TracebackType

from spark_ckpt.errors import StoreUnreachable

LONGEST_WAIT_S = 60.0


class Turns:
    """A lock that its thread may acquire again. A wait of more than `wait_s` seconds raises `StoreUnreachable`."""

    def __init__(self, what: str, wait_s: float = LONGEST_WAIT_S) -> None:
        self._what = what
        self.wait_s = wait_s
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self.wait_s):
            raise StoreUnreachable(
                f"{self._what} has not answered an earlier call for {self.wait_s:g} s",
                hint="is the store's file system or object store reachable?",
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._lock.release()
