"""The coordinator's thread: hosts the pure machine, turns events into its inputs and its effects into deeds.

Decide, then do: the machine decides; this loop keeps the timers and calls the deeds.  Everything the machine sees
arrives through one queue, so it is single-threaded.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from spark_ckpt.protocol.machine import Effect, Event


class Decides(Protocol):
    """A machine of any protocol."""

    def handle(self, event: Event) -> list[Effect]:
        """What is to be done about `event`, in order."""


class Deed(Protocol):
    """Does what one effect says. Called on the coordinator's thread."""

    def __call__(self, effect: Effect) -> None:
        """Do it now: effects come in order."""


@dataclass(order=True, slots=True)
class _Timer:
    due_s: float
    item: Event | Callable[[], None] = field(compare=False)


class CoordinatorLoop(threading.Thread):
    """Runs one machine. `post` may be called from any thread; an error ends the loop through `failed`."""

    def __init__(self, machine: Decides, deed: Deed, failed: Callable[[BaseException], None]) -> None:
        super().__init__(name="ckpt-coordinator", daemon=True)
        self._machine = machine
        self._deed = deed
        self._failed = failed
        self._inbox: queue.SimpleQueue[Callable[[], None] | Event | None] = queue.SimpleQueue()
        self._timers: list[_Timer] = []

    def post(self, item: Event | Callable[[], None]) -> None:
        """An event for the machine, or a call to make on the coordinator's thread."""
        self._inbox.put(item)

    def close(self) -> None:
        """End the thread after what has been posted."""
        self._inbox.put(None)

    def set_timer(self, delay_ms: int, item: Event | Callable[[], None]) -> None:
        """Feed an event to the machine, or make a call, after `delay_ms`. On the coordinator's thread only."""
        heapq.heappush(self._timers, _Timer(time.monotonic() + delay_ms / 1000, item))

    def tell(self, *events: Event) -> None:
        """Feed events to the machine and do what it says. On the coordinator's thread only."""
        for event in events:
            for effect in self._machine.handle(event):
                self._deed(effect)

    def run(self) -> None:
        """Thread body."""
        try:
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001 - handed to the run, which ends with it
            self._failed(error)

    def _step(self) -> bool:
        try:
            item = self._inbox.get(timeout=self._wait_s())
        except queue.Empty:
            self._fire_timers()
            return True
        if item is None:
            return False
        self._take(item)
        self._fire_timers()
        return True

    def _take(self, item: Event | Callable[[], None]) -> None:
        if isinstance(item, Event):
            self.tell(item)
        else:
            item()

    def _wait_s(self) -> float | None:
        return max(0.0, self._timers[0].due_s - time.monotonic()) if self._timers else None

    def _fire_timers(self) -> None:
        while self._timers and self._timers[0].due_s <= time.monotonic():
            self._take(heapq.heappop(self._timers).item)
