"""Runs a listener on its own thread, so that a listener that waits for a network cannot block the job."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from spark_ckpt.events.listener import (
    EpochEvent,
    IncarnationEvent,
    LagEvent,
    LineEvent,
    MaintenanceEvent,
    OutageEvent,
    ProgressEvent,
    RetryEvent,
    RunListener,
    StandbyEvent,
)

_log = logging.getLogger(__name__)
_WAITING = 1000
_CLOSE_S = 2.0


class Aside(RunListener):
    """Passes events on to a listener in order. Drops events while `most` wait, and logs the number of dropped
    events.
    """

    def __init__(self, listener: RunListener, most: int = _WAITING) -> None:
        self._listener = listener
        self._events: queue.Queue[Callable[[], None]] = queue.Queue(most)
        self._left_out = 0
        name = f"ckpt-{type(listener).__name__}"
        # A daemon: a listener that hangs in a network call must not keep the program alive.
        self._thread = threading.Thread(target=self._pass_on, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. It also passes on events from before the start."""
        self._thread.start()

    def close(self) -> None:
        """Pass on the remaining events, for at most two seconds: the last event reports the end of a run."""
        if self._thread.is_alive():
            self.drained(_CLOSE_S)

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onIncarnationStarted(event))

    def onProgress(self, event: ProgressEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onProgress(event))

    def onPhases(self, event: ProgressEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onPhases(event))

    def onLag(self, event: LagEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onLag(event))

    def onLines(self, event: LineEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onLines(event))

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onEpochCommitted(event))

    def onEpochAborted(self, event: EpochEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onEpochAborted(event))

    def onEpochPublished(self, event: EpochEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onEpochPublished(event))

    def onRetry(self, event: RetryEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onRetry(event))

    def onOutage(self, event: OutageEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onOutage(event))

    def onStandby(self, event: StandbyEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onStandby(event))

    def onMaintenance(self, event: MaintenanceEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onMaintenance(event))

    def onHandover(self, event: IncarnationEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onHandover(event))

    def onIncarnationEnded(self, event: IncarnationEvent) -> None:
        """Queue the event."""
        self._put(lambda: self._listener.onIncarnationEnded(event))

    def drained(self, within_s: float) -> bool:
        """Wait until all events so far are passed on. Return False if that takes longer than `within_s` seconds."""
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
            # Log at 1, 2, 4, 8, ... dropped events, so that a slow listener does not flood the log.
            if self._left_out.bit_count() == 1:
                _log.warning("%s is behind: %d events left out", type(self._listener).__name__, self._left_out)

    def _pass_on(self) -> None:
        while True:
            call = self._events.get()
            try:
                call()
            except Exception as error:  # noqa: BLE001 - a listener's code or network; the next event is tried again
                _log.warning("%s failed: %s: %s", type(self._listener).__name__, type(error).__name__, error)
