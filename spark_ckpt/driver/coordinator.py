"""The coordinator's thread: hosts an incarnation's rules, turns what happens into their events and carries out their effects.

Decide, then do: the rules decide; this loop keeps the timers and has each effect carried out.  Everything the rules see
arrives through one queue, so they are single-threaded.  An answer that is at hand while effects are carried out waits until
all of them are.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from checkpoint_protocols.machine import Effect, Event


class Rules(Protocol):
    """What decides: events in, effects out."""

    def handle(self, event: Event, now_ms: float) -> list[Effect]:
        """What is to be done about `event`, in order."""


Call = Callable[[], None]


@dataclass(order=True, slots=True)
class _Timer:
    due_s: float
    item: Event | Call = field(compare=False)


class CoordinatorLoop(threading.Thread):
    """Runs the rules of one incarnation. `post` may be called from any thread; an error ends the loop through `failed`.

    `carry_out` is called on this thread, effect by effect.
    """

    def __init__(
        self, rules: Rules, carry_out: Callable[[Effect], None], failed: Callable[[BaseException], None]
    ) -> None:
        super().__init__(name="ckpt-coordinator", daemon=True)
        self._rules = rules
        self._carry_out = carry_out
        self._failed = failed
        self._inbox: queue.SimpleQueue[Call | Event | None] = queue.SimpleQueue()
        self._timers: list[_Timer] = []
        self._events: deque[Event] = deque()
        self._handling = False

    def post(self, item: Event | Call) -> None:
        """An event for the rules, or a call to make on the coordinator's thread."""
        self._inbox.put(item)

    def close(self) -> None:
        """End the thread after what has been posted."""
        self._inbox.put(None)

    def set_timer(self, delay_ms: int, item: Event | Call) -> None:
        """Feed an event to the rules, or make a call, after `delay_ms`. On the coordinator's thread, or before it starts."""
        heapq.heappush(self._timers, _Timer(time.monotonic() + delay_ms / 1000, item))

    def handle(self, event: Event) -> None:
        """Feed an event to the rules and have done what they say, and what they say of the answers. On the
        coordinator's thread, or before it starts."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for effect in self._rules.handle(self._events.popleft(), time.monotonic() * 1000):
                    self._carry_out(effect)
        finally:
            self._handling = False

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

    def _take(self, item: Event | Call) -> None:
        if isinstance(item, Event):
            self.handle(item)
        else:
            item()

    def _wait_s(self) -> float | None:
        return max(0.0, self._timers[0].due_s - time.monotonic()) if self._timers else None

    def _fire_timers(self) -> None:
        while self._timers and self._timers[0].due_s <= time.monotonic():
            self._take(heapq.heappop(self._timers).item)
