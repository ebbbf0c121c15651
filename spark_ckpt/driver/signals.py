"""SIGTERM and SIGINT as a stop: a final epoch within a bound, then the lease is free. A second signal ends the program.

Kubernetes, systemd and a user's Ctrl-C end programs by signals. One listener per process serves all its runs. A handler of
Python runs between two instructions of the main thread, which may hold any lock: it only puts the signal's number into a
queue that may be used there, and a thread does the rest.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from spark_ckpt.spark_internals.launching import is_pysparks_handler

_log = logging.getLogger("spark_ckpt")
HANDLED = (signal.SIGTERM, signal.SIGINT)
Handler = Callable[[int, FrameType | None], object] | int | None


class Stoppable(Protocol):
    """A run, as far as a signal is concerned."""

    @property
    def notices_its_end(self) -> bool:
        """Whether the program asks this run when it has ended; otherwise nobody would end the program."""

    def stop_for_signal(self, name: str) -> None:
        """Stop within the run's bound; returns when the run has ended. `name`: of the signal."""


class SignalStops:
    """Stops the runs of this process at a signal. `listen` is called on the main thread, by each run before it begins."""

    def __init__(self) -> None:
        self._runs: list[Stoppable] = []
        self._earlier: dict[int, Handler] = {}
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def listen(self, run: Stoppable) -> bool:
        """Stop `run` at a signal from now on. False where Python lets nobody handle signals: off the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._runs = [*self._runs, run]
        for number in HANDLED:
            self._install(number)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._serve, name="ckpt-signals", daemon=True)
            self._thread.start()
        return True

    def forget(self, run: Stoppable) -> None:
        """The run has ended: signals are the program's own again. Any thread may say so."""
        self._runs = [each for each in self._runs if each is not run]

    def _install(self, number: int) -> None:
        handler = signal.getsignal(number)
        # A program that ignores a signal goes on ignoring it; what C code handles cannot be handed back.
        if handler not in (self._handle, signal.SIG_IGN, None):
            self._earlier[number] = handler
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """On the main thread, at any moment."""
        if self._runs and not self._stopping:
            self._stopping = True
            self._received.put(number)
        elif self._stopping:
            end_by(number)
        else:
            self._hand_back(number, frame)

    def _hand_back(self, number: int, frame: FrameType | None) -> None:
        """Nothing of ours runs: what would have happened without us happens."""
        earlier = self._earlier.get(number)
        if callable(earlier):
            earlier(number, frame)
        else:
            end_by(number)

    def _serve(self) -> None:
        while True:
            self._stop_all(self._received.get())

    def _stop_all(self, number: int) -> None:
        runs, name = self._runs, signal.Signals(number).name
        stops = [threading.Thread(target=run.stop_for_signal, args=(name,), daemon=True) for run in runs]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
        for run in runs:
            self.forget(run)
        self._stopping = False
        noticed = bool(runs) and all(run.notices_its_end for run in runs)
        if has_own_handler(self._earlier.get(number)) or not noticed:
            _log.info("every run has ended; %s is handed to the program", name)
            os.kill(os.getpid(), number)


def has_own_handler(handler: Handler) -> bool:
    """Whether the program handles the signal itself: neither Python's own answer nor PySpark's, which cancels all jobs."""
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    return not is_pysparks_handler(handler)


def end_by(number: int) -> None:
    """End the process as the signal ends a program that does not handle it: its parent sees the signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


stops = SignalStops()
"""The one of this process."""
