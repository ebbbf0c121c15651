"""The standby's part of maintenance: write its note, and do the job's maintenance under the checkpoint lease.

It has its own thread (rules in `checkpoint_protocols.lease.delegation`). So the note is also written during a
rehearsal, and a turn delays no takeover. A step in progress when the standby takes over ends late, but does no harm:
the log and each table guard its writes.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.delegation import StandbyLease
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.maintenance.delegating import Say, lease_of, steady_ms
from spark_ckpt.driver.maintenance.materializing import retention_of
from spark_ckpt.driver.standby.follower import Follower
from spark_ckpt.driver.standby.lookout import Lookout
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import MaintenanceEnded
from spark_ckpt.errors import CkptError, EpochNotFound, Fenced, StoreOutage
from spark_ckpt.events.listener import MaintenanceEvent
from spark_ckpt.store.epoch_log import wall_ms
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.maintenance_lease import MaintenanceLog, damage_of, under_lease
from spark_ckpt.store.standbys import StandbyNote, Standbys

_log = logging.getLogger(__name__)
LOOK_S = 0.05
"""Seconds between two checks of the log state that the lookout has read; costs no request."""
TELL_S = 2.0
"""Seconds between two writes of an unchanged note."""
_LEAVE_S = 5.0
_COLD_HEALTH = 50  # of 100: a cold standby is drawn less often
_MOST_TOLD = 500  # characters of an error in the log


class _TurnOver(Exception):
    """No further step: the turn's time is up, or the standby ends."""


class StandbyMaintenance(threading.Thread):
    """Maintenance thread of the wait `name` of one standby. `lookout`: its view of the other driver."""

    def __init__(self, plan: JobPlan, name: str, lookout: Lookout, followed: Follower, say: Say) -> None:
        super().__init__(name="ckpt-standby-maintenance", daemon=True)
        self._plan = plan
        self._name = name
        self._lookout = lookout
        self._followed = followed
        self._say = say
        # A handle of this thread: a long read of retention must not hold up the takeover, which uses the run's.
        self._store = plan.store.reopened()
        self._rows = MaintenanceLog(self._store.log)
        self._standbys = Standbys(self._store.location)
        self._holding = StandbyLease(ProcessId(name))
        self._whole: set[str] = set()
        """Files that were read and verified."""
        self._over = threading.Event()
        self._since_ms = wall_ms()
        self._told: tuple[object, ...] = ()
        self._told_s = float("-inf")

    # -- from the run's thread -----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Take no further step; return at once."""
        self._over.set()

    def leave(self) -> None:
        """End, and wait a little for the step in progress; after an earlier `end` there is no time to wait."""
        is_hurried = self._over.is_set()
        self.end()
        if self.is_alive() and not is_hurried:
            self.join(_LEAVE_S)

    # -- thread body ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Write notes and take turns until the end. An outage does not end it."""
        try:
            self._look()  # before the first note, so that no lease is missed
            # The notes of the dead count for nothing, so an outage here must not end this standby's part for good.
            with suppress(StoreOutage):
                self._standbys.forget_dead()
            while not self._over.wait(LOOK_S):
                self._step()
        except Exception:  # noqa: BLE001 - without this standby, the driver does the maintenance
            _log.warning("job=%s standby: takes no part in the maintenance any more", self._plan.job, exc_info=True)
        finally:
            with suppress(CkptError):
                self._standbys.withdraw(self._name)

    def _step(self) -> None:
        try:
            self._tell()
            if self._look():
                self._turn()
        except CkptError as error:
            if not error.retriable:
                raise
            _log.warning("job=%s standby: no part in the maintenance for now: %s", self._plan.job, error)

    def _look(self) -> bool:
        """Return true if a turn can begin."""
        maintenance = self._lookout.log_state.maintenance
        return self._holding.looked(None if maintenance is None else lease_of(maintenance), steady_ms())

    def _turn(self) -> None:
        token = self._holding.begins(steady_ms())
        if token is None:
            return
        try:
            self._work(token)
        except (_TurnOver, Fenced) as over:
            self._holding.failed()
            self._tell_of("failed", token, 0, str(over))
        except Exception as error:  # noqa: BLE001 - after any error the lease is returned, and another process tries
            self._holding.failed()
            self._tell_of("failed", token, 0, str(error))
            with suppress(Fenced):  # the log has another lease already
                self._rows.end(MaintenanceEnded(token=token, failure=_in_short(str(error) or type(error).__name__)))

    def _work(self, token: int) -> None:
        kept = retention_of(self._plan.config)
        log_state, _ = under_lease(self._store, token, kept, self._guard)
        damage = self._damage(log_state)
        # After its time another standby may have the lease, and the log would refuse the end anyway.
        if not self._holding.is_done(steady_ms()):
            raise _TurnOver("its time was up when it was done")
        done = MaintenanceEnded(
            token=token,
            incarnation=log_state.incarnation,
            epoch=log_state.latest,
            clock_ms=steady_ms(),
            damage=_in_short(damage),
        )
        admitted = self._is_admitted(done)
        self._holding.answered(admitted)
        if damage:
            self._tell_of("found damage", token, log_state.latest, damage)
        if admitted:
            self._tell_of("done", token, log_state.latest)
        else:
            self._tell_of("failed", token, 0, "the log has another lease, or could not be asked")

    def _is_admitted(self, done: MaintenanceEnded) -> bool:
        """Record the turn in the log, which compares the token; return true if it accepts. Transient errors are
        retried.
        """
        while True:
            try:
                self._rows.end(done)
            except Fenced:
                return False
            except CkptError as error:
                if not error.retriable or self._over.wait(TELL_S):
                    return False
            else:
                return True

    def _damage(self, log_state: LogState) -> str:
        if not log_state.latest:
            return ""
        try:
            manifest = self._store.log.manifest(log_state.latest)
        except EpochNotFound:  # the job has committed more epochs meanwhile than are kept, and this turn has dropped it
            return ""
        damage, self._whole = damage_of(self._store, manifest, frozenset(self._whole), self._guard)
        return damage

    def _guard(self) -> None:
        """Check before each step that the turn is still valid, and write the note: a standby at work is alive."""
        if self._over.is_set():
            raise _TurnOver("this standby has ended")
        if not self._holding.goes_on(steady_ms()):
            raise _TurnOver("the lease's time is up")
        self._tell()

    # -- the note ------------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Write the note every `TELL_S` seconds, and at each change."""
        followed, log_state = self._followed, self._lookout.log_state
        told = (log_state.incarnation, followed.epoch > 0, followed.is_warm)
        # An unchanged note is rewritten so that others see a living standby; more often would only cost requests.
        if told == self._told and time.monotonic() - self._told_s < TELL_S:
            return
        note = StandbyNote(
            holder=current_holder(self._plan.job),
            waits_since_ms=self._since_ms,
            told_ms=wall_ms(),
            lease_of=log_state.incarnation,
            epoch=followed.epoch,
            renewals=self._lookout.rules.renewals,
            warm=followed.is_warm,
            clock_ms=steady_ms(),
            health=100 if followed.is_warm else _COLD_HEALTH,
        )
        # Set first: in an outage the next attempt, and its line in the log, would follow with each look, twenty in a second.
        self._told, self._told_s = told, time.monotonic()
        self._standbys.write(self._name, note)
        self._standbys.forget_silent(time.monotonic())

    def _tell_of(self, what: str, token: int, epoch: int, why: str = "") -> None:
        self._say(MaintenanceEvent(self._plan.job, what, token, self._name, epoch, why))


def _in_short(text: str) -> str:
    return text.partition("\n")[0][:_MOST_TOLD]
