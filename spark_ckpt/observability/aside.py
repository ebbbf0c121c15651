"""A listener on a thread of its own: for one that waits for a network, which nothing of a run may wait for."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from spark_ckpt.driver.listener import (
    EpochEvent,
    IncarnationEvent,
    LagEvent,
    OutageEvent,
    ProgressEvent,
    RunListener,
    StandbyEvent,
    UpkeepEvent,
)

_log = logging.getLogger(__name__)
_WAITING = 1000
_CLOSE_S = 2.0


class Aside(RunListener):
    """Passes everything on in its order. When the listener is `most` events behind, further ones are left out; the log says so."""

    def __init__(self, listener: RunListener, most: int = _WAITING) -> None:
        self._listener = listener
        self._events: queue.Queue[Callable[[], None]] = queue.Queue(most)
        self._left_out = 0
        name = f"ckpt-{type(listener).__name__}"
        self._thread = threading.Thread(target=self._pass_on, name=name, daemon=True)

    def start(self) -> None:
        """Begin to pass on, what was heard before as well."""
        self._thread.start()

    def close(self) -> None:
        """Pass on what is left, as far as that takes no longer than two seconds: the last event tells how a run ended."""
        if self._thread.is_alive():
            self.drained(_CLOSE_S)

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onIncarnationStarted(event))

    def onProgress(self, event: ProgressEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onProgress(event))

    def onPhases(self, event: ProgressEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onPhases(event))

    def onLag(self, event: LagEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onLag(event))

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onEpochCommitted(event))

    def onEpochAborted(self, event: EpochEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onEpochAborted(event))

    def onEpochPublished(self, event: EpochEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onEpochPublished(event))

    def onOutage(self, event: OutageEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onOutage(event))

    def onStandby(self, event: StandbyEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onStandby(event))

    def onUpkeep(self, event: UpkeepEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onUpkeep(event))

    def onHandover(self, event: IncarnationEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onHandover(event))

    def onIncarnationEnded(self, event: IncarnationEvent) -> None:
        """Later."""
        self._put(lambda: self._listener.onIncarnationEnded(event))

    def drained(self, within_s: float) -> bool:
        """Wait until all that was heard so far is passed on; whether it was."""
        done = threading.Event()
        try:
            self._events.put(done.set, timeout=within_s)
        except queue.Full:
            return False
        return done.wait(within_s)

    def _put(self, call: Callable[[], None]) -> None:
        try:
            self._events.put_nowait(call)
        except queue.Full:
            self._left_out += 1
            if self._left_out.bit_count() == 1:
                _log.warning("%s is behind: %d events left out", type(self._listener).__name__, self._left_out)

    def _pass_on(self) -> None:
        while True:
            call = self._events.get()
            try:
                call()
            except Exception as error:  # noqa: BLE001 - somebody else's code or network; the next event is tried again
                _log.warning("%s failed: %s: %s", type(self._listener).__name__, type(error).__name__, error)
