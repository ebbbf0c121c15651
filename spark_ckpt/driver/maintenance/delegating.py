"""The driver's part of maintenance: do it here, or lease it to a standby."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.delegation import SETTINGS, Delegation, StandbyReport, turns_of
from checkpoint_protocols.lease.messages import Lease, Terms
from checkpoint_protocols.lease.rotation import DRAWS
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.epochs.log_state import LogState, MaintenanceEntry
from spark_ckpt.epochs.records import MaintenanceLeased, MaintenanceTurn, Manifest
from spark_ckpt.errors import StoreOutage
from spark_ckpt.events.listener import MaintenanceEvent
from spark_ckpt.store.holder import runs_here
from spark_ckpt.store.maintenance_lease import MaintenanceLog
from spark_ckpt.store.standbys import StandbyNote, Standbys

_log = logging.getLogger(__name__)
LOOK_S = 1.0
"""Seconds between two reads of the standbys' notes: one request to list them, and one for each."""

Say = Callable[[MaintenanceEvent], None]


class MaintenanceDelegation:
    """Maintenance of one incarnation; used by one thread at a time.

    It reads notes at most every `LOOK_S` seconds, and if there is work. `say`: receives events for listeners.
    `watched`: called with true once a standby waits, with false once none does any more.
    """

    def __init__(self, plan: JobPlan, incarnation: int, say: Say, watched: Callable[[bool], None]) -> None:
        self._job = plan.job
        self._incarnation = incarnation
        self._log = plan.store.log
        self._standbys = Standbys(plan.store.location)
        self._say = say
        self._watched, self._is_watched = watched, False
        self._rules: Delegation | None = None
        self._looked_s = float("-inf")
        self._is_left = self._is_away = False
        self._done = (0, 0)
        """Incarnation and epoch of the newest successful turn."""

    def is_ours(self) -> bool:
        """Return true if this driver must do the maintenance now. Raises errors that end the incarnation."""
        self.look()
        ours = self._delegation().is_ours(steady_ms())
        for note in self._delegation().notes():
            _log.warning("job=%s incarnation=%d %s: %s", self._job, self._incarnation, note.what, note.detail)
        if ours and self._is_left:
            self._is_left = False
            self._say(MaintenanceEvent(self._job, "revoked", 0, "", why="no standby is left"))
        return ours

    def is_done(self, manifest: Manifest) -> bool:
        """Return true if a standby has done the maintenance for the epoch; else lease it to a candidate, if there is
        one.
        """
        self._is_left = True
        # A turn for a newer epoch covers this one, since tables follow the newest.
        if self._done >= (self._incarnation, manifest.epoch):
            return True
        try:
            self._lease()
        except StoreOutage as outage:
            self._missed(outage)
        return False

    def look(self) -> None:
        """Read the log and the notes; an outage keeps the last known state."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = time.monotonic()
        rules = self._delegation()
        try:
            # Only a lease that is out can have ended, and the look costs a request to an object store.
            if rules.out is not None:
                self._take_in(self._log.state(), rules)
            rules.heard([_report_of(name, note) for name, note in self._standbys.named().items()], steady_ms())
        except StoreOutage as outage:
            self._missed(outage)
        else:
            self._is_away = False
        self._tell_watched(rules.is_watched(steady_ms()))

    def _tell_watched(self, is_watched: bool) -> None:
        if is_watched != self._is_watched:
            self._is_watched = is_watched
            self._watched(is_watched)

    def _missed(self, outage: StoreOutage) -> None:
        if not self._is_away:
            _log.warning("job=%s the checkpoint lease waits: %s", self._job, outage)
        self._is_away = True

    def _delegation(self) -> Delegation:
        if self._rules is None:
            maintenance = self._log.state().maintenance
            # A lease of the last driver may still be held: until it ends, this one gives no other.
            inherited = None if maintenance is None or maintenance.ended is not None else lease_of(maintenance)
            turns = {} if maintenance is None else _turns_in(maintenance.lease.turns)
            self._rules = Delegation(self._incarnation, SETTINGS, inherited, turns_of(turns), steady_ms())
        return self._rules

    def _take_in(self, log_state: LogState, rules: Delegation) -> None:
        maintenance = log_state.maintenance
        # Only the end of the lease that is out concerns the rules.
        if (
            maintenance is None
            or maintenance.ended is None
            or rules.out is None
            or rules.out.token != maintenance.token
        ):
            return
        ended = maintenance.ended
        rules.ended(lease_of(maintenance), maintenance.ended_token, ended.clock_ms, bool(ended.failure), steady_ms())
        if ended.failure:
            _log.warning(
                "job=%s standby %s gave the maintenance back: %s", self._job, maintenance.lease.holder, ended.failure
            )
            return
        self._done = max(self._done, (ended.incarnation, ended.epoch))
        if ended.damage:
            self._say(
                MaintenanceEvent(
                    self._job, "found damage", maintenance.token, maintenance.lease.holder, ended.epoch, ended.damage
                )
            )

    def _lease(self) -> None:
        rules = self._delegation()
        terms = rules.asks(steady_ms(), random.randrange(DRAWS))  # noqa: S311 - fairness, no secret
        if terms is None:
            return
        # The token is the row's number in the log, so it grows with each lease and needs no counter of its own.
        token = MaintenanceLog(self._log).lease(_record(self._incarnation, terms, rules))
        rules.chosen(token, steady_ms())
        self._say(MaintenanceEvent(self._job, "leased", token, terms.holder))


def lease_of(told: MaintenanceEntry) -> Lease:
    """Return a lease of the log as the lease machines represent it."""
    lease = told.lease
    terms = Terms(ProcessId(lease.holder), lease.boot, lease.reported_ms, lease.budget_ms, lease.ttl_ms)
    return Lease(told.token, terms)


def _record(incarnation: int, terms: Terms, rules: Delegation) -> MaintenanceLeased:
    turns = {str(node): MaintenanceTurn(since=turn.since, ttl_ms=turn.ttl_ms) for node, turn in rules.turns.items()}
    return MaintenanceLeased(
        incarnation=incarnation, holder=terms.holder, boot=terms.boot, reported_ms=terms.reported_ms,
        budget_ms=terms.budget_ms, ttl_ms=terms.ttl_ms, turns=turns,
    )  # fmt: skip


def _turns_in(turns: Mapping[str, MaintenanceTurn]) -> Mapping[str, tuple[int, int]]:
    return {node: (turn.since, turn.ttl_ms) for node, turn in turns.items()}


def _report_of(name: str, note: StandbyNote) -> StandbyReport:
    return StandbyReport(ProcessId(name), note.lease_of, note.clock_ms, note.health, runs_here(note.holder))


def steady_ms() -> int:
    """Return the monotonic clock in milliseconds."""
    return round(time.monotonic() * 1000)
