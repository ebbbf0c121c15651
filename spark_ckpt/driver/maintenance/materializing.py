"""Background maintenance: a thread updates the store's tables to the committed epochs and applies retention.

All of it can be repeated and no commit depends on it. So no commit waits for it, and an outage of the store only delays
it, at most for `store_patience`. If commits come faster than the updates, the thread skips to the newest one. It pauses
between two updates, since it takes disk and Python's lock from the batches. With a standby, the standby maintains tables
and epochs (`delegating`). Segments that only this driver knows and its sources' input stay here.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from spark_ckpt.config import JobConfig
from spark_ckpt.coordination.messages import MaterializeTables
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.maintenance import delegating
from spark_ckpt.driver.maintenance.delegating import MaintenanceDelegation, Say
from spark_ckpt.driver.query.inputs import InputRetention
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.retention import Retention, RetentionReport
from spark_ckpt.errors import LogDamaged, StoreOutage

_log = logging.getLogger(__name__)
WATCH_S = 3.0
"""Seconds between two looks for standbys without work, if epochs are shorter while one waits."""
REST_S = 1.0
"""Seconds between two passes: the tables' delay, in addition to the duration of a pass."""


def retention_of(config: JobConfig) -> Retention:
    """Return the epochs to keep by a job's settings."""
    return Retention(config.keep_epochs, config.keep_age_ms, config.keep_for_readers_ms, thinned_ms=config.thinned_ms)


class Materializing(threading.Thread):
    """Maintenance thread of one incarnation. An error ends the thread through `failed`. `watched`: see `MaintenanceDelegation`."""

    def __init__(
        self,
        plan: JobPlan,
        incarnation: int,
        say: Say,
        failed: Callable[[BaseException], None],
        watched: Callable[[bool], None],
    ) -> None:
        super().__init__(name="ckpt-materializing", daemon=True)
        self._plan = plan
        self._failed = failed
        self._inputs = InputRetention(plan)
        self._delegation = MaintenanceDelegation(plan, incarnation, say, watched)
        # None: only work wakes the thread, since no epoch depends on a standby that waits.
        self._idle_look_s = None if plan.config.standby_interval_ms is None else WATCH_S
        self._asked: queue.SimpleQueue[MaterializeTables | None] = queue.SimpleQueue()
        self._pending: Manifest | None = None
        self._consumed: list[tuple[str, Sequence[str]]] = []
        """Segments to remove, by edge."""
        self._away_s: float | None = None
        """Time at which an outage began; None without one."""
        self._kept: frozenset[int] = frozenset()
        self._rested_s = float("-inf")

    def begin(self, base: Manifest) -> None:
        """Restore the tables to the epoch that the incarnation continues from; with standbys, leave it to the thread.

        Call it before the thread starts.
        """
        if self._delegation.is_ours():
            self._plan.store.materialize(base)
        else:
            # With a standby, the look of the thread decides who does it; the start need not wait.
            self._pending = base

    def ask(self, effect: MaterializeTables) -> None:
        """Queue an update of the tables."""
        self._asked.put(effect)

    def close(self) -> None:
        """End after all queued updates. A standby, or the next incarnation, completes its own maintenance."""
        self._asked.put(None)

    def run(self) -> None:
        """Register sources where rows are kept for them, then update the tables until `close`."""
        try:
            # At the start, not with the first retention: until then the system of the source might delete rows that this job
            # needs.
            self._inputs.hold()
            while self._take(self._waiting()):
                self._rested_s = time.monotonic() + REST_S
        except BaseException as error:  # noqa: BLE001 - handed to the run, which ends with it
            self._failed(error)

    def _waiting(self) -> list[MaterializeTables | None]:
        """Return queued updates; empty when it is time to check a standby's progress."""
        asked = self._asked_within(self._idle_look_s if self._pending is None else delegating.LOOK_S)
        # Epochs that commit during the rest are served by one pass.
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
        """Apply the newest update; return false if the end is among them."""
        effects = [effect for effect in asked if effect is not None]
        # The newest manifest is enough for the tables, but each effect names segments of its own.
        for effect in effects:
            self._pending = effect.manifest
            self._consumed += effect.consumed_segments.items()
        try:
            self._work(is_idle=not asked)
            self._away_s = None
        except StoreOutage as outage:
            self._wait_out(outage)
        return len(effects) == len(asked)

    def _wait_out(self, outage: StoreOutage) -> None:
        """Leave the work for the next pass; raise if the outage lasts for longer than `store_patience`."""
        now_s = time.monotonic()
        if self._away_s is None:
            self._away_s = now_s
            _log.warning("job=%s maintenance waits for the store: %s", self._plan.job, outage)
        if now_s - self._away_s >= self._plan.config.store_patience_ms / 1000:
            raise outage

    def _work(self, *, is_idle: bool) -> None:
        while self._consumed:
            edge, paths = self._consumed[0]
            self._plan.store.edge(edge).remove(paths)
            del self._consumed[0]
        if self._pending is not None and self._is_done(self._pending):
            self._pending = None
        elif is_idle:
            self._delegation.look()

    def _is_done(self, manifest: Manifest) -> bool:
        # Step 9 of docs/design/epoch-in-nine-steps.md.
        if not self._delegation.is_ours():
            done = self._delegation.is_done(manifest)
            if done:
                # The standby applied retention, but only this driver can release its sources' input.
                self._inputs.follow(RetentionReport(self._forgotten()))
            return done
        self._inputs.follow(self._retained(manifest))
        return True

    def _retained(self, manifest: Manifest) -> RetentionReport:
        store, policy = self._plan.store, retention_of(self._plan.config)
        # Tables first: retention deletes files that the tables name until they have followed.
        store.materialize(manifest)
        try:
            return store.retain(policy)
        except LogDamaged as damage:
            # Retention reads the log of each table again. A start would create this one again, and so can this thread: the
            # job needs no table, and ends with this error.
            _log.warning("job=%s %s", self._plan.job, damage.what)
            store.materialize(manifest)
            return store.retain(policy)

    def _forgotten(self) -> tuple[int, ...]:
        """Return the epochs that a standby has removed since the last call."""
        # The first call has nothing to compare with; the first release does not depend on it.
        before, self._kept = self._kept, frozenset(self._plan.store.log.state().by_id)
        return tuple(sorted(before - self._kept))
