"""SIGTERM and SIGINT as a stop: a final epoch within a limit, then the lease is freed. A second signal ends the
program.

Kubernetes, systemd and Ctrl-C end programs by signals. One listener per process serves all its runs. A Python signal
handler runs between two instructions of the main thread, which may hold any lock. So it only puts the signal's number
into a queue that is safe there, and a thread does the rest.
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
RESEND_S = 1.0
"""Seconds until a signal that is handed to the program is sent again, if its handler has not run."""
Handler = Callable[[int, FrameType | None], object] | int | None


class Stoppable(Protocol):
    """The part of a run that signals use."""

    @property
    def notices_its_end(self) -> bool:
        """True if the program checks this run for its end; otherwise nothing else would end the program."""

    def stop_for_signal(self, name: str) -> None:
        """Stop within the run's limit; return when the run has ended. `name`: name of the signal."""


class SignalStops:
    """Stops the runs of this process at a signal."""

    def __init__(self) -> None:
        self._runs: list[Stoppable] = []
        self._changing = threading.Lock()
        """Held to replace the list, never by a handler: the thread that it interrupts may hold it."""
        self._earlier: dict[int, Handler] = {}
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._handled: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.ends_program: str | None = None
        """Name of a signal that stops the runs, or has stopped them, and that the program does not handle itself.

        Not of SIGINT: Ctrl-C in a notebook stops a run, and the next cell may start another one.
        """

    def listen(self, run: Stoppable) -> bool:
        """Stop `run` at a signal from now on. Return false off the main thread, where Python forbids signal handlers,
        unless an earlier run has installed them.

        Each run calls it before it starts.
        """
        # `signal.signal` raises off the main thread. The run works all the same, without an orderly stop. The stages of a
        # drain start on a thread of their own, all but the first.
        on_main = threading.current_thread() is threading.main_thread()
        if not on_main and any(signal.getsignal(each) not in (self._handle, signal.SIG_IGN) for each in HANDLED):
            return False
        with self._changing:
            self._runs = [*self._runs, run]
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="ckpt-signals", daemon=True)
                self._thread.start()
        for number in HANDLED if on_main else ():
            self._install(number)
        return True

    def forget(self, run: Stoppable) -> None:
        """Remove a run that has ended; without runs, signals have their earlier effect. Thread-safe."""
        # Replaced, never changed: a handler may run between any two instructions and reads the list without a lock.
        with self._changing:
            self._runs = [each for each in self._runs if each is not run]

    def _install(self, number: int) -> None:
        handler = signal.getsignal(number)
        # A program that ignores a signal keeps ignoring it; a handler in C cannot be restored.
        if handler not in (self._handle, signal.SIG_IGN, None):
            self._earlier[number] = handler
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal, on the main thread, between any two instructions."""
        self._handled.put(number)
        if self._runs and not self._stopping:
            # Set here and not by the thread: a second signal may come before the thread has run.
            self._stopping = True
            self._received.put(number)
        elif self._stopping:
            end_by(number)
        else:
            self._hand_back(number, frame)

    def _hand_back(self, number: int, frame: FrameType | None) -> None:
        """Apply the signal's earlier effect: no run of ours is left."""
        earlier = self._earlier.get(number)
        if callable(earlier):
            earlier(number, frame)
        else:
            end_by(number)

    def _serve(self) -> None:
        while True:
            self._stop_all(self._received.get())

    def _stop_all(self, number: int) -> None:
        runs, name = list[Stoppable](), signal.Signals(number).name
        has_handler = has_own_handler(self._earlier.get(number))
        # Again for a run that starts meanwhile: the program was between two starts, and nothing else would stop it.
        while more := [run for run in self._runs if run not in runs]:
            # Before the runs end: the program may start another one as soon as they have.
            if number == signal.SIGTERM and not has_handler:
                self.ends_program = name
            # Side by side: each run may take its whole limit, and the limits must not add up.
            stops = [threading.Thread(target=run.stop_for_signal, args=(name,), daemon=True) for run in more]
            for stop in stops:
                stop.start()
            for stop in stops:
                stop.join()
            runs += more
        # Forgotten before the signal is sent again: otherwise the handler would take it for another request to stop them.
        for run in runs:
            self.forget(run)
        self._stopping = False
        noticed = bool(runs) and all(run.notices_its_end for run in runs)
        if has_handler or not noticed:
            _log.info("every run has ended; %s is handed to the program", name)
            self._send(number)

    def _send(self, number: int) -> None:
        """Send the signal to this process, and again until a handler has run."""
        # A new queue: the first signal's own entry must not count as the answer to this one.
        self._handled = queue.SimpleQueue()
        os.kill(os.getpid(), number)
        # A signal that comes just before the main thread blocks does not wake it. The handler would run much later.
        while signal.getsignal(number) == self._handle:
            try:
                self._handled.get(timeout=RESEND_S)
            except queue.Empty:
                os.kill(os.getpid(), number)
            else:
                return


def has_own_handler(handler: Handler) -> bool:
    """Return true if the program itself handles the signal.

    Python's default handler does not count, and neither does PySpark's, which cancels all jobs.
    """
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    return not is_pysparks_handler(handler)


def end_by(number: int) -> None:
    """End the process by the signal's default action, so that its parent sees the signal."""
    # Not `sys.exit`: threads of Spark and the publishers may hold locks, and a shell looks at the signal, not at a code.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


stops = SignalStops()
"""Listener of this process."""
