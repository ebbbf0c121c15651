"""Runs a listener on its own thread, so that a listener that waits for a network cannot block the job."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from spark_ckpt.events.listener import RunListener

_log = logging.getLogger(__name__)
_WAITING = 1000
_CLOSE_S = 2.0
# By name, so that an event that is added later is passed on, too.
_METHODS = [name for name in vars(RunListener) if name.startswith("on")]


class Aside(RunListener):
    """Passes events on to a listener in order. Drops events while `most` wait, and logs the number of dropped
    events.
    """

    def __init__(self, listener: RunListener, most: int = _WAITING) -> None:
        self._listener = listener
        self._events: queue.Queue[Callable[[], None] | None] = queue.Queue(most)
        self._left_out = 0
        name = f"ckpt-{type(listener).__name__}"
        # A daemon: a listener that hangs in a network call must not keep the program alive.
        self._thread = threading.Thread(target=self._pass_on, name=name, daemon=True)
        # On the instance, where they hide the methods of the class, which do nothing.
        for method in _METHODS:
            setattr(self, method, partial(self._put, method))

    def start(self) -> None:
        """Start the thread. It also passes on events from before the start."""
        self._thread.start()

    def close(self) -> None:
        """Pass on the remaining events, for at most two seconds: the last event reports the end of a run. End the thread."""
        if self._thread.is_alive() and self.drained(_CLOSE_S):
            # A program may start a job every hour for months, and each has a thread.
            with suppress(queue.Full):
                self._events.put_nowait(None)

    def drained(self, within_s: float) -> bool:
        """Wait until all events so far are passed on. Return False if that takes longer than `within_s` seconds."""
        done = threading.Event()
        try:
            self._events.put(done.set, timeout=within_s)  # after all events so far
        except queue.Full:
            return False
        return done.wait(within_s)

    def _put(self, method: str, event: object) -> None:
        try:
            self._events.put_nowait(partial(getattr(self._listener, method), event))
        except queue.Full:
            self._left_out += 1
            # Log at 1, 2, 4, 8, ... dropped events, so that a slow listener does not flood the log.
            if self._left_out.bit_count() == 1:
                _log.warning("%s is behind: %d events left out", type(self._listener).__name__, self._left_out)

    def _pass_on(self) -> None:
        while (call := self._events.get()) is not None:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - a listener's code or network; the next event is tried again
                _log.warning("%s failed: %s: %s", type(self._listener).__name__, type(error).__name__, error)
