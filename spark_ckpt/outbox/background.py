"""Work of an outbox between its calls: acknowledgements of an idle query, and retention. No batch waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from spark_ckpt.epochs.records import SinkAck
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import CkptError
from spark_ckpt.store.store import Store

_log = logging.getLogger(__name__)


class Background:
    """A timer for acknowledgements and a thread for retention.

    A marker in a sink may expire, so acknowledgements reach the log even if no batch follows. The timer's thread keeps
    a program that ends alive until then. An error only delays the work: the next batch or the next start repeats it.
    """

    def __init__(self, store: Store, ack_wait_ms: int, retention: Retention) -> None:
        self._store = store
        self._wait_s = ack_wait_ms / 1000
        self._retention = retention
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._waiting: tuple[int, tuple[SinkAck, ...]] | None = None
        self._retaining: threading.Thread | None = None

    def record(self, incarnation: int, acks: Sequence[SinkAck]) -> None:
        """Record these acknowledgements soon, unless a commit carries them first; at once if there is no wait."""
        with self._lock:
            self._cancel()
            # The newer ones replace those that wait: each call names all acknowledgements that no row of the log has.
            self._waiting = incarnation, tuple(acks)
        if not self._wait_s:
            self._record_now()
            return
        with self._lock:
            self._timer = threading.Timer(self._wait_s, self._record_now)
            self._timer.name = "ckpt-acks"
            self._timer.start()

    def drop(self) -> None:
        """Forget the waiting acknowledgements: the next commit carries them."""
        with self._lock:
            self._cancel()

    def retain(self) -> None:
        """Start a retention, unless one is running."""
        if self._retaining is None or not self._retaining.is_alive():
            # A daemon: a retention may stop at any point, and the next one repeats it.
            self._retaining = threading.Thread(target=self._retain, name="ckpt-retention", daemon=True)
            self._retaining.start()

    def close(self) -> None:
        """Record waiting acknowledgements now, and wait for the retention."""
        with self._lock:
            waiting = self._waiting
            if self._timer is not None:
                self._timer.cancel()
        if waiting is not None:
            self._record_now()
        if self._retaining is not None:
            self._retaining.join()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._waiting = None

    def _record_now(self) -> None:
        with self._lock:
            # A commit may carry the same ones meanwhile: the log takes only those that are new to it.
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        try:
            self._store.log.record_acks(*waiting)
        except CkptError as error:
            _log.info("acknowledgements were not recorded: %s", error.what)

    def _retain(self) -> None:
        try:
            self._store.retain(self._retention)
        except CkptError as error:
            _log.info("retention did not finish: %s", error.what)
