"""The coordinator's thread: feeds events to an incarnation's rules and carries out their effects.

The rules decide. This loop keeps the timers and carries out each effect. All events arrive through one queue, so the
rules are single-threaded. An answer that arrives while effects are carried out waits until all of them are done.
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
    """The rules of an incarnation: events in, effects out."""

    def handle(self, event: Event, now_ms: float) -> list[Effect]:
        """Return the effects of `event`, in order."""


Call = Callable[[], None]


@dataclass(order=True, slots=True)
class _Timer:
    due_s: float
    item: Event | Call = field(compare=False)  # events have no order


class CoordinatorLoop(threading.Thread):
    """Thread that runs the rules of one incarnation.

    `carry_out`: called on this thread, effect by effect. `failed`: receives the error that ends the loop. `post` may
    be called from any thread.
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
        """Queue an event for the rules, or a call to make on the coordinator's thread."""
        # One queue for all threads, so the rules see one order of events and need no lock.
        self._inbox.put(item)

    def close(self) -> None:
        """End the thread after all posted items."""
        # After everything posted so far: a stop request or a publish that has just ended is still handled.
        self._inbox.put(None)

    def set_timer(self, delay_ms: int, item: Event | Call) -> None:
        """Feed an event to the rules, or make a call, after `delay_ms`.

        Call it on the coordinator's thread, or before the thread starts.
        """
        # Never cancelled: a timer carries the number that it was armed with, and the rules drop an old one.
        heapq.heappush(self._timers, _Timer(time.monotonic() + delay_ms / 1000, item))

    def handle(self, event: Event) -> None:
        """Feed an event to the rules, then carry out the effects of the event and of all answers to them.

        Call it on the coordinator's thread, or before the thread starts.
        """
        self._events.append(event)
        # A nested call queues its event: an effect's answer is handled after the remaining effects.
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                # Monotonic: a clock that is set back or forward must not time out an epoch.
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
        # A busy inbox must not hold up the timers: an epoch's timeout is one of them.
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
            self._take(heapq.heappop(self._timers).item)  # taken out first: the call may set a timer itself
