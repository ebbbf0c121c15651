"""Materializing beside deciding: a thread makes the store's tables show what is decided, and lets go of what nobody needs.

All of it can be done again, and none of it decides anything: the next decision does not wait for it. Where decisions come faster
than it follows, it goes straight to the newest one; it rests between two of them, since it takes disk and Python's lock from the
batches. Where a standby waits, tables and epochs are its to care for (`duty`); what only this driver knows of, and its sources'
input, stays here.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_ckpt.coordination.messages import MaterializeTables
from spark_ckpt.driver import duty as duty_module
from spark_ckpt.driver.duty import Duty, Say
from spark_ckpt.driver.inputs import InputRetention
from spark_ckpt.store.records import Manifest
from spark_ckpt.store.retention import Retention, RetentionReport

if TYPE_CHECKING:
    from spark_ckpt.driver.job_plan import JobPlan

REST_S = 1.0
"""Between the end of one pass and the beginning of the next: how far tables may be behind the log, beside what a pass takes."""


class Materializing(threading.Thread):
    """Of one incarnation. An error ends the thread through `failed`."""

    def __init__(self, plan: JobPlan, incarnation: int, say: Say, failed: Callable[[BaseException], None]) -> None:
        super().__init__(name="ckpt-materializing", daemon=True)
        self._plan = plan
        self._failed = failed
        self._inputs = InputRetention(plan)
        self._duty = Duty(plan, incarnation, say)
        self._asked: queue.SimpleQueue[MaterializeTables | None] = queue.SimpleQueue()
        self._pending: Manifest | None = None
        self._kept: frozenset[int] = frozenset()
        self._rested_s = float("-inf")

    def begin(self, base: Manifest) -> None:
        """Before the thread: the tables go back to where the incarnation begins, now or, where standbys wait, soon."""
        if self._duty.is_ours():
            self._plan.store.materialize(base)
        else:
            self._pending = base

    def ask(self, effect: MaterializeTables) -> None:
        """Behind what was asked for before."""
        self._asked.put(effect)

    def close(self) -> None:
        """End behind what has been asked for. What a standby was to do is left to it, or to the next incarnation."""
        self._asked.put(None)

    def run(self) -> None:
        """Thread body."""
        try:
            while self._take(self._waiting()):
                self._rested_s = time.monotonic() + REST_S
        except BaseException as error:  # noqa: BLE001 - handed to the run, which ends with it
            self._failed(error)

    def _waiting(self) -> list[MaterializeTables | None]:
        """What was asked for; nothing when it is time to look what has become of what a standby is to do."""
        asked = self._asked_within(None if self._pending is None else duty_module.LOOK_S)
        while asked and None not in asked and (left_s := self._rested_s - time.monotonic()) > 0:
            asked += self._asked_within(left_s)
        return asked

    def _asked_within(self, timeout_s: float | None) -> list[MaterializeTables | None]:
        try:
            asked = [self._asked.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        while not self._asked.empty():
            asked.append(self._asked.get())
        return asked

    def _take(self, asked: Sequence[MaterializeTables | None]) -> bool:
        """False when the end is among them."""
        effects = [effect for effect in asked if effect is not None]
        for effect in effects:
            self._pending = effect.manifest
            self._remove(effect.spent)
        if self._pending is not None and self._is_done(self._pending):
            self._pending = None
        return len(effects) == len(asked)

    def _is_done(self, manifest: Manifest) -> bool:
        if not self._duty.is_ours():
            done = self._duty.is_done(manifest)
            if done:
                self._inputs.follow(RetentionReport(self._forgotten()))
            return done
        self._materialize(manifest)
        config = self._plan.config
        kept = Retention(keep_last=config.keep_epochs, keep_age_ms=config.keep_age_ms)
        self._inputs.follow(self._plan.store.retain(kept))
        return True

    def _materialize(self, manifest: Manifest) -> None:
        self._plan.store.materialize(manifest)

    def _forgotten(self) -> tuple[int, ...]:
        """Epochs that a standby has let go since this was asked last."""
        before, self._kept = self._kept, frozenset(self._plan.store.log.state().by_id)
        return tuple(sorted(before - self._kept))

    def _remove(self, spent: Mapping[str, Sequence[str]]) -> None:
        for edge, paths in spent.items():
            self._plan.store.edge(edge).remove(paths)
