"""Settling beside deciding: a thread makes the store's tables show what is decided, and lets go of what nobody needs.

All of it can be done again, and none of it decides anything: the next decision does not wait for it. Where decisions come faster
than it can follow, it goes straight to the newest one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_ckpt.driver.inputs import InputRetention
from spark_ckpt.host.messages import SettleTables
from spark_ckpt.store.records import Manifest
from spark_ckpt.store.retention import Retention

if TYPE_CHECKING:
    from spark_ckpt.driver.job_plan import JobPlan


class Settling(threading.Thread):
    """Of one incarnation. An error ends the thread through `failed`."""

    def __init__(self, plan: JobPlan, failed: Callable[[BaseException], None]) -> None:
        super().__init__(name="ckpt-settling", daemon=True)
        self._plan = plan
        self._failed = failed
        self._inputs = InputRetention(plan)
        self._asked: queue.SimpleQueue[SettleTables | None] = queue.SimpleQueue()

    def ask(self, effect: SettleTables) -> None:
        """Behind what was asked for before."""
        self._asked.put(effect)

    def close(self) -> None:
        """End behind what has been asked for."""
        self._asked.put(None)

    def run(self) -> None:
        """Thread body."""
        try:
            while (first := self._asked.get()) is not None:
                if not self._take([first, *self._waiting()]):
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the run, which ends with it
            self._failed(error)

    def _waiting(self) -> Iterator[SettleTables | None]:
        while not self._asked.empty():
            yield self._asked.get()

    def _take(self, asked: Sequence[SettleTables | None]) -> bool:
        """False when the end is among them."""
        effects = [effect for effect in asked if effect is not None]
        self._settle(effects[-1].manifest)
        for effect in effects:
            self._remove(effect.spent)
        config = self._plan.config
        kept = Retention(keep_last=config.keep_epochs, keep_age_ms=config.keep_age_ms)
        self._inputs.follow(self._plan.store.retain(kept))
        return len(effects) == len(asked)

    def _settle(self, manifest: Manifest) -> None:
        self._plan.store.settle(manifest)

    def _remove(self, spent: Mapping[str, Sequence[str]]) -> None:
        for edge, paths in spent.items():
            self._plan.store.edge(edge).remove(paths)
