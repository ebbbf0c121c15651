"""Starts one incarnation after the other until a stop, or until the restart policy gives up.

After a failure a new incarnation continues from the last committed epoch. A fence ends the run at once: another
driver runs the job. `Patience` decides if and when an incarnation follows an error. Progress, log and listeners show
the current outage.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from spark_ckpt.connector import Cursor
from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.coordination.patience import Ended, GiveUp, Patience, Pause, stop_bound_ms
from spark_ckpt.coordination.standby import NO_OTHERS
from spark_ckpt.driver.incarnation import Ending, SparkIncarnation
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.progress import Progress
from spark_ckpt.driver.query.failures import typed
from spark_ckpt.driver.query.inputs import skip_lost, with_next_step, with_source
from spark_ckpt.endpoints import identities
from spark_ckpt.endpoints.markers import sinks_taken_back
from spark_ckpt.epochs.identity import Confirmed, check_unchanged, still_confirmed
from spark_ckpt.epochs.restore import LATEST, RecoveryPoint, RestoreTarget
from spark_ckpt.errors import CkptError, EpochDamaged, Fenced, RowsLost, RunFailed, StoreOutage
from spark_ckpt.events.announcer import Announcer
from spark_ckpt.events.listener import OutageEvent, RunListener
from spark_ckpt.store.holder import current_holder
from spark_ckpt.wording import counted

_log = logging.getLogger(__name__)
PAUSE_S = 1.0
SPARE_S = 1.0
"""Seconds by which an outage is waited for less than a stop: the attempt after it takes time as well."""


class Supervisor:
    """All incarnations of one run.

    Call `begin` on the caller's thread, then `live` on another one. The other methods are thread-safe. `targets`: per
    source, the cursor at which a draining run ends.
    """

    def __init__(
        self, plan: JobPlan, listeners: Sequence[RunListener], progress: Progress, targets: Mapping[str, Cursor]
    ) -> None:
        self._plan = plan
        self._listeners = tuple(listeners)
        self._progress = progress
        self._targets = targets
        self._last_planned = plan.store.log.known().last
        """Newest epoch when the plan was made."""
        self._patience = Patience(
            plan.config.max_failed_epochs, plan.config.store_patience_ms / 1000, first_pause_s=PAUSE_S
        )
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._wake = threading.Event()
        self._close_within_s = 0.0
        self._incarnation: SparkIncarnation | None = None
        self._began_s = time.monotonic()

    @property
    def living(self) -> SparkIncarnation:
        """The incarnation that runs, or ran last. Raises `RunFailed` before the first."""
        if self._incarnation is None:
            raise RunFailed("the run has not started")
        return self._incarnation

    @property
    def has_drained(self) -> bool:
        """True if a draining run has read every source up to its target."""
        return self._incarnation is not None and self._incarnation.has_drained

    @property
    def hands_over(self) -> bool:
        """True if the run ends, or has ended, because a standby is to take over."""
        return self._incarnation is not None and self._incarnation.hands_over

    @property
    def stop_bound_s(self) -> float:
        """Seconds that a stop waits for its final epoch."""
        return stop_bound_ms(self._plan.config.stop_timeout_ms, self._progress.longest_batch_ms()) / 1000

    def ask_to_stop(self) -> None:
        """End with a final epoch. An outage is waited for no longer than a stop may take."""
        # First the bound: the request below ends a pause, and the attempt that follows has to keep to it.
        self._patience.stop_by(time.monotonic() + self.stop_bound_s - SPARE_S)
        # Set before the incarnation is read: one that is just starting checks it and gets the request as well.
        self._stopping.set()
        self._wake.set()
        if self._incarnation is not None:
            self._incarnation.request_stop()

    def abandon(self, close_within_s: float) -> None:
        """End now, without a final epoch. Open resources get `close_within_s` to close, then they are left open."""
        self._close_within_s = close_within_s  # before the flag that says it is set
        self._abandoned.set()
        self._stopping.set()
        self._wake.set()
        if self._incarnation is not None:
            self._incarnation.abandon(close_within_s)

    @property
    def stopping(self) -> threading.Event:
        """Set once a stop was requested."""
        return self._stopping

    def begin(self, restore: str | int, takeover: bool, ended: int | None = None, levels: Path | None = None) -> None:
        """Start the first incarnation. Raises its errors.

        `restore`: the epoch to start from. `takeover`: replace a driver whose lease is valid. `ended`: token of
        another driver's lease that expired. `levels`: folder with local levels of the newest epoch.
        """
        self._began_s = time.monotonic()
        try:
            self._make_current(self._begin_incarnation(restore, takeover, ended, levels))
        # A failed start must not make other drivers wait for its lease.
        except BaseException:
            self._release_lease()
            raise

    def pause_after(self, error: CkptError) -> float:
        """Return the seconds until a standby may try again, after its first incarnation failed to begin with `error`.

        Raises the error if the restart policy gives up.
        """
        verdict = self._patience.after(Ended(error, time.monotonic(), 0.0, progressed=False))
        if isinstance(verdict, GiveUp):
            raise _given_up(error, verdict, self._stopping.is_set()) from error
        return verdict.pause_s

    def live(self) -> CkptError | None:
        """Run incarnations until one stops or fails for good; return the error in the second case.

        Between two incarnations the lease is kept. A standby takes over after the end of the run, or after a long
        silence.
        """
        try:
            return self._run_to_the_end()
        finally:
            self._release_lease()

    def _run_to_the_end(self) -> CkptError | None:
        ending = self.living.watch()
        # A fence comes here as well: it is an error that no restart cures, so `Patience` gives up at once.
        while ending.outcome is not Outcome.STOPPED:
            if ending.progressed:
                # The epoch has what was confirmed. Rows that are lost later need a confirmation of their own, and a new sink
                # whose topic has no id yet would count as replaced once more, also by the advice of this very error.
                self._plan = replace(self._plan, confirmed=Confirmed())
            error = self._reason(_as_error(ending))
            now_s = time.monotonic()
            verdict = self._patience.after(Ended(error, now_s, now_s - self._began_s, ending.progressed))
            if isinstance(verdict, GiveUp):
                return _given_up(error, verdict, self._stopping.is_set())
            self._notify(error, verdict)
            self._wait(verdict.pause_s)
            # The program ends: another incarnation would only be killed in its start.
            if self._abandoned.is_set():
                return None
            ending = self._next_incarnation()
        return None if ending.error is None else _as_error(ending)

    def _release_lease(self) -> None:
        log = self._plan.store.log
        if log.own_incarnation is not None:
            # If the store is unavailable, the lease has to expire.
            with suppress(CkptError):
                log.release(log.own_incarnation)

    def _notify(self, error: CkptError, pause: Pause) -> None:
        job, incarnation = self._plan.job, self.living.incarnation
        _log.warning(
            "job=%s incarnation %d ended, the next begins in %.1f s: %s", job, incarnation, pause.pause_s, error
        )
        # Only outages are shown as such; any other failure is in the log and in the ended incarnation.
        if error.passes:
            event = OutageEvent(
                job, incarnation, error.condition, error.what, round(pause.waited_s * 1000),
                self._plan.config.store_patience_ms, round(pause.pause_s * 1000), pause.attempt,
            )  # fmt: skip
            Announcer(job, incarnation, self._listeners).outage(event)
            self._progress.outage_began(event)

    def _wait(self, pause_s: float) -> None:
        self._wake.wait(pause_s)
        # A stop ends only the current pause: the run tries at once, and later at the usual pace.
        self._wake.clear()

    def _reason(self, error: CkptError) -> CkptError:
        """Return the error that explains the end of an incarnation.

        The query of a zombie fails in any way, because its successor removes its files; the reason is the fence. If
        the store is unavailable, other failures and apparent damage are its consequences.
        """
        log = self._plan.store.log
        try:
            newest = log.state().incarnation
        # A missing file is no damage while the file system does not answer.
        except StoreOutage as outage:
            return outage if error.retriable or isinstance(error, EpochDamaged) else error
        except CkptError:
            return error
        if newest == log.own_incarnation:
            return with_next_step(error, self._plan)
        return Fenced(
            f"incarnation {newest} took over",
            incarnation=self.living.incarnation,
            hint="another driver runs this job; this one can be ended",
        )

    def _next_incarnation(self) -> Ending:
        """Run an incarnation from the newest epoch to its end. A failed start counts like any other failure."""
        self._began_s = time.monotonic()
        try:
            # The lease may have expired in an outage. The run continues under it, and takes no other driver's, independent of
            # clocks.
            incarnation = self._begin_incarnation(LATEST, takeover=False, ended=NO_OTHERS)
        except Exception as error:  # noqa: BLE001 - the run ends with any error, or waits for its end
            # A start that failed has not lived: the time that it waited for a store must not look like the end of the outage.
            self._began_s = time.monotonic()
            if not isinstance(error, CkptError):
                _log.exception("job=%s the next incarnation could not begin", self._plan.job)
            return Ending(Outcome.FENCED if isinstance(error, Fenced) else Outcome.FAILED, typed(error), False)
        self._make_current(incarnation)
        return incarnation.watch()

    def _make_current(self, incarnation: SparkIncarnation) -> None:
        """Make the incarnation current, and pass on the requests that came while it started."""
        # Its life begins when it runs: a slow start must not look like a long life to `Patience`.
        self._incarnation, self._began_s = incarnation, time.monotonic()
        self._progress.outage_over()
        if self._stopping.is_set():
            incarnation.request_stop()
        if self._abandoned.is_set():
            incarnation.abandon(self._close_within_s)

    def _begin_incarnation(
        self, restore: str | int, takeover: bool, ended: int | None = None, levels: Path | None = None
    ) -> SparkIncarnation:
        if self._incarnation is not None or ended is not None:
            # A later incarnation, or a standby, starts long after the plan was made.
            self._plan = self._asked_again()
        plan, log = self._plan, self._plan.store.log
        # Checked before any write: an incarnation on the wrong epoch would move the job there.
        plan.check_start(restore)
        # Only a start by the user compares markers; a restart or takeover continues from the newest epoch.
        taken_back = sinks_taken_back(plan.bindings, plan.store, restore, plan.confirmed) if ended is None else {}
        holder = current_holder(plan.job)
        point: RecoveryPoint = log.begin_incarnation(
            holder, restore, plan.config.lease_ms, takeover=takeover, ended=ended, taken_back=taken_back
        )
        try:
            return self._begun(point, levels, restore)
        except RowsLost as error:
            raise with_source(error, plan, point.manifest, restore) from error
        except BaseException as error:
            _raise_outage(error)
            raise

    def _asked_again(self) -> JobPlan:
        """Return the plan with current endpoints: a table or topic may have been re-created since the last start."""
        plan = self._plan
        found = identities.found_again(plan.found, plan.spark, plan.sources, plan.bindings)
        # A topic that was deleted and made again gives the same offsets to other rows, so the cursor would skip or repeat rows.
        if self._incarnation is not None:
            check_unchanged(plan.found, found)
            return replace(plan, found=found)
        # A standby has read nothing yet, and the driver that it waited for may have confirmed another one: the log tells.
        read_on = plan.store.log.known().last > self._last_planned
        return replace(plan.with_found(found), confirmed=still_confirmed(plan.confirmed, plan.found, found, read_on))

    def _begun(self, point: RecoveryPoint, levels: Path | None, restore: RestoreTarget) -> SparkIncarnation:
        plan = self._plan
        # Checked again: another driver may have committed an epoch between `check_start` and the append of the incarnation.
        plan.check_base(point.manifest, point.unpublished, restore)
        log = plan.store.log
        standing = identities.reconciled(
            log, log.state(), point.manifest, point.unpublished, plan.found, plan.confirmed, restore != LATEST
        )
        standing = skip_lost(plan, point.manifest, standing)
        for name, cursor in standing.skipped.items():
            _log.warning(
                "job=%s source %s has lost rows that the job has not read: it continues at %s, not at %s",
                plan.job, name, dict(cursor), dict(point.manifest.cursors[name]),
            )  # fmt: skip
        announcer = Announcer(plan.job, point.incarnation, self._listeners)
        incarnation = SparkIncarnation(plan, point, announcer, self._progress, self._targets, standing, levels)
        try:
            incarnation.begin()
        except BaseException as error:
            # Publishers or the query may run already, and would fence those of the next incarnation.
            incarnation.close(Ending(Outcome.FAILED, error, progressed=False))
            raise
        return incarnation


def _raise_outage(error: BaseException) -> None:
    """Raise an outage as such, independent of the library that met it: a full disk, a host too busy for Python
    workers.
    """
    # The error may come from delta-rs, Java or Python, and only its type says that it passes.
    ours = typed(error)
    if ours.passes and ours is not error:
        raise ours from error


def _as_error(ending: Ending) -> CkptError:
    if ending.outcome is Outcome.FENCED and not isinstance(ending.error, Fenced):
        return Fenced("a newer incarnation runs this job", hint="this driver can be ended")
    return typed(ending.error or RunFailed("the incarnation ended without saying why"))


def _given_up(error: CkptError, verdict: GiveUp, stopping: bool) -> CkptError:
    if error.passes:
        why = "no final epoch was taken" if stopping else "store_patience is over"
        context = {**error.context, "waited": f"{verdict.waited_s:.0f} s; {why}"}
        # The same condition: programs and alerts match it, and the wait is only context.
        return type(error)(error.what, hint=error.hint, **context)
    if not error.retriable:
        return error
    return RunFailed(
        f"{counted(verdict.failures, 'incarnation')} in a row failed without a new epoch; the last: {error.what}",
        hint=error.hint,
        **error.context,
    )
