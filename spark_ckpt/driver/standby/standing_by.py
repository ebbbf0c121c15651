"""A standby: a run that waits, warm, while another driver has the job, and takes over after its end.

The run's thread only watches, so that a takeover is never delayed. `follower` keeps the standby warm on its own
thread. `maintenance` does maintenance for the job on another one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spark_ckpt.connector import Json
from spark_ckpt.coordination.standby import TakeOver, TakeoverLost, TakeoverWon
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.maintenance.standby_turns import StandbyMaintenance
from spark_ckpt.driver.progress import Progress
from spark_ckpt.driver.query.failures import typed
from spark_ckpt.driver.standby.follower import Follower, name_of_a_wait
from spark_ckpt.driver.standby.lookout import Lookout
from spark_ckpt.driver.supervisor import Supervisor
from spark_ckpt.epochs.restore import LATEST
from spark_ckpt.errors import RestoreUnderWay, StoreInUse, StoreOutage
from spark_ckpt.events.announcer import Announcer
from spark_ckpt.events.listener import MaintenanceEvent, RunListener, StandbyEvent
from spark_ckpt.store.proposals import is_restoring

_log = logging.getLogger(__name__)
_LOOK_S = 0.05
OUTAGE_S = 2.0
"""Seconds between two attempts to take over while the store refuses writes."""


class StandingBy:
    """A standby of one run: call `begin` on the caller's thread, then `wait` on the run's."""

    def __init__(
        self, plan: JobPlan, supervisor: Supervisor, listeners: Sequence[RunListener], progress: Progress
    ) -> None:
        self._plan = plan
        self._supervisor = supervisor
        self._listeners = tuple(listeners)
        self._lookout = Lookout(plan.store.log, plan.config.lease_ms)
        self._follower: Follower | None = None
        self._maintenance: StandbyMaintenance | None = None
        self._away = False
        self.waits = False
        """True while another driver has the job."""
        progress.standby = self.status

    def begin(self) -> bool:
        """Start at once if no driver has the job; return true if it has started. Raises errors of the job."""
        taking = self._lookout.look()
        self.waits = taking is None or not self._taken_over(taking)
        return not self.waits

    def wait(self) -> bool:
        """Wait until the job has started here; return false if a stop was requested before.

        Raises permanent errors: the job no longer fits its store, or the store is damaged.
        """
        if not self.waits:
            return True
        try:
            self._follow()
            while not self._supervisor.stopping.wait(_LOOK_S):
                taking = self._look()
                if taking is not None and self._taken_over(taking):
                    self.waits = False
                    return True
            return False
        # Also after a takeover: the note must not show a standby that waits no more.
        finally:
            self._leave()

    def status(self) -> dict[str, Json] | None:
        """Return the state for `Run.lastProgress`; None for a driver that does not wait."""
        if not self.waits:
            return None
        follower, log_state = self._follower, self._lookout.log_state
        watched: dict[str, Json] = {"leaseOf": log_state.incarnation, "holder": str(log_state.holder or "")}
        epoch, is_warm = (0, False) if follower is None else (follower.epoch, follower.is_warm)
        return {**watched, "renewals": self._lookout.rules.renewals, "epoch": epoch, "isWarm": is_warm}

    def _look(self) -> TakeOver | None:
        """Return the takeover that is due, or None. An outage is not an error: the job's driver has it as well."""
        if self._follower is not None and self._follower.failure is not None:
            raise self._follower.failure
        try:
            taking = self._lookout.look()
        except StoreOutage as outage:
            if not self._away:
                _log.warning("job=%s standby: the log cannot be read for now: %s", self._plan.job, outage)
            self._away = True
            return None
        self._away = False
        if taking is None or not is_restoring(self._lookout.log_state):
            return taking
        # Its command was killed, and blocks every start until it is run again. That frees the lease.
        self._lookout.rules.handle(TakeoverLost())
        return None

    def _taken_over(self, taking: TakeOver) -> bool:
        """Try to take over. The log refuses if it has moved on since; an outage is waited for.

        Any other failure counts like that of an incarnation: the cause may pass, and no other driver may be there.
        """
        follower, before = self._follower, self._lookout.log_state
        if self._maintenance is not None:
            # Not waited for: a step in progress ends late, and the log and the tables guard its writes.
            self._maintenance.end()
        # The follower must not touch the folder any more: the incarnation owns it from here.
        levels = None if follower is None else follower.handed_over()
        try:
            self._supervisor.begin(LATEST, takeover=False, ended=taking.token, levels=levels)
        except Exception as raised:
            error = typed(raised)  # as a driver does with an error of its next incarnation
            is_held = isinstance(error, StoreInUse | RestoreUnderWay)
            # The caller of `begin` sees an outage at once; a standby that already waits keeps waiting.
            if not (isinstance(error, StoreInUse) or (follower is not None and (is_held or error.retriable))):
                raise
            _log.info("job=%s standby: not taken over: %s", self._plan.job, error)
            if not (is_held or isinstance(error, StoreOutage)):
                # The failed start has freed the lease, so another standby may go on meanwhile.
                self._supervisor.stopping.wait(self._supervisor.pause_after(error))
            self._lookout.rules.handle(TakeoverLost())
            if follower is not None:
                self._follow()
            if isinstance(error, StoreOutage):
                # Each attempt asks sources and sinks and ends the follower, which begins to warm up again.
                self._supervisor.stopping.wait(OUTAGE_S)
            return False
        self._lookout.rules.handle(TakeoverWon())
        # A store that no driver ever had is begun, not taken over.
        if before.holder is not None:
            self._say("takes over", before.latest, taking.why)
        return True

    def _follow(self) -> None:
        """Start to wait, with a new follower."""
        self._leave()
        name = name_of_a_wait()
        self._follower = Follower(self._plan, name, self._say)
        self._maintenance = StandbyMaintenance(self._plan, name, self._lookout, self._follower, self._kept_up)
        self._say("waits", 0)
        self._follower.start()
        self._maintenance.start()

    def _leave(self) -> None:
        if self._maintenance is not None:
            self._maintenance.leave()
        if self._follower is not None:
            self._follower.leave()

    def _say(self, what: str, epoch: int, why: str = "") -> None:
        log_state = self._lookout.log_state
        event = StandbyEvent(self._plan.job, what, log_state.incarnation, epoch, str(log_state.holder or ""), why)
        Announcer(self._plan.job, event.lease_of, self._listeners).stood_by(event)

    def _kept_up(self, event: MaintenanceEvent) -> None:
        Announcer(self._plan.job, self._lookout.log_state.incarnation, self._listeners).kept_up(event)
