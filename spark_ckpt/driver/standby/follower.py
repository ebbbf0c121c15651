"""Keeps a standby warm: it follows the committed epochs, and runs the job's plan once.

All of this is optional: a failure is logged, and retried with the next epoch, after an outage with the same one. One
kind of error ends the wait, as it would end the takeover: this job cannot continue from the store's newest epoch.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.query.stage import Stage
from spark_ckpt.driver.standby.rehearsal import can_rehearse, rehearse, remove, runs_here, scratch_for, stage_behind
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.errors import UNREADABLE, CkptError, StoreOutage
from spark_ckpt.store.holder import current_holder, provably_dead
from spark_ckpt.tasks.state.local_folder import remove_empty

_log = logging.getLogger(__name__)
FOLLOW_S = 0.25
RETRY_S = 10.0
"""Seconds until an epoch is followed again that an outage prevented."""
_LEAVE_S = 5.0
_REHEARSALS = 3
_PREFIX = "standby"


def name_of_a_wait() -> str:
    """Return the name of one wait of this process: of its note, its folder, and its checkpoint leases."""
    holder = current_holder()
    return f"{_PREFIX}-{holder.pid}-{holder.pid_start}-{uuid.uuid4().hex[:8]}"


class Follower(threading.Thread):
    """Follower of the wait `name` of one standby. `say(what, epoch)`: announces its progress."""

    def __init__(self, plan: JobPlan, name: str, say: Callable[[str, int], None]) -> None:
        super().__init__(name="ckpt-standby", daemon=True)
        self.failure: CkptError | None = None
        """Error that a takeover would end with now; None if there is none."""
        self.epoch = 0
        """Newest followed epoch."""
        self.is_warm = False
        """True if the job's plan has run here."""
        self._plan = plan
        self._say = say
        self._store = plan.store.reopened()
        self._folder = plan.cache / name
        self._scratch = scratch_for(plan, f"{name}-scratch")
        self._over = threading.Event()
        self._busy = threading.Lock()
        self._handed_over = False
        self._tried = self._rehearsals = 0

    # -- from the run's thread --------------------------------------------------------------------------------------------

    def handed_over(self) -> Path:
        """End, and return the folder of local levels for the incarnation that begins now.

        A running rehearsal is stopped, and this call does not wait for its batch.
        """
        # Before the end is requested: `leave` must not wait for a rehearsal's batch then.
        self._handed_over = True
        self._over.set()
        with self._busy:
            return self._folder

    def leave(self) -> None:
        """End, and remove the folder, with the job's own if it was the last in it."""
        self._over.set()
        if self.is_alive() and not self._handed_over:
            self.join(_LEAVE_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        remove_empty(self._folder.parent)

    # -- thread body -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Follow the epochs until the end."""
        try:
            self._tidy()
            while not self._over.is_set():
                self._look()
                self._over.wait(FOLLOW_S)
        except CkptError as error:
            self.failure = error
        except Exception:  # noqa: BLE001 - a log that cannot be read so; a takeover does without
            _log.warning("job=%s standby: nothing is kept warm any more", self._plan.job, exc_info=True)

    def _look(self) -> None:
        try:
            log_state = self._store.log.state()
        except StoreOutage:  # the run's thread reads the log as often, and says it once
            return
        # Each epoch once: one that could not be followed is not tried four times a second.
        if log_state.latest == self._tried:
            return
        self._tried = log_state.latest
        try:
            self._take_in(self._store.log.manifest(log_state.latest), log_state.incarnation)
        except CkptError as error:
            # Damage and retention concern this epoch only; the next one may be followed. Other errors would fail a takeover,
            # too.
            if not (error.retriable or isinstance(error, UNREADABLE)):
                raise
            _log.warning("job=%s standby: epoch %d was not followed: %s", self._plan.job, self._tried, error)
            if isinstance(error, StoreOutage):
                # A quiet job commits no next epoch, and this standby would stay cold.
                self._tried = 0
                self._over.wait(RETRY_S)
        except Exception:  # noqa: BLE001 - an error of Java's or the user's code may pass, and the standby waits for days
            _log.warning("job=%s standby: epoch %d was not followed", self._plan.job, self._tried, exc_info=True)

    def _take_in(self, base: Manifest, incarnation: int) -> None:
        """Check the job against the epoch, fetch its state as local levels, and rehearse the plan once."""
        # First: a job that does not fit must say so now, while another driver runs, and not at the takeover.
        self._plan.check_base(base)
        stage = stage_behind(self._plan, base, incarnation + 1, self._folder, self._scratch)
        if runs_here(self._plan):
            # A takeover takes the folder under this lock: no level may be written there afterwards.
            with self._busy:
                for host in stage.hosts().values():
                    host.have_levels(self._over.is_set)
        if self._over.is_set():
            return
        self.epoch = base.epoch
        self._say("follows", base.epoch)
        if not self.is_warm and self._rehearsals < _REHEARSALS and can_rehearse(self._plan, base):
            self._rehearse(stage)

    def _rehearse(self, stage: Stage) -> None:
        self._rehearsals += 1
        started_s = time.monotonic()
        try:
            self.is_warm = rehearse(stage, self._busy, self._over.is_set)
        finally:
            remove(self._scratch)
        if self.is_warm:
            _log.info("job=%s standby: the plan has run within %.1f s", self._plan.job, time.monotonic() - started_s)
            self._say("is warm", self.epoch)

    def _tidy(self) -> None:
        """Remove the folders of dead standbys on this host."""
        for left in self._plan.cache.glob(f"{_PREFIX}-*-*-*"):
            pid, started = left.name.split("-")[1:3]  # as `name_of_a_wait` writes them
            dead = current_holder().model_copy(update={"pid": int(pid), "pid_start": int(started)})
            # A living standby of this host uses its folder; one whose end cannot be proved keeps it.
            if provably_dead(dead):
                shutil.rmtree(left, ignore_errors=True)
