"""Handle of a started job."""

from __future__ import annotations

import atexit
import logging
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

from spark_ckpt.config import DurationText, checked_duration_ms
from spark_ckpt.connector import Json
from spark_ckpt.coordination.edges import Bound
from spark_ckpt.driver.all_available import AllAvailable, Arrivals, Step
from spark_ckpt.driver.companion import Companion, close
from spark_ckpt.driver.companion import start as start_companions
from spark_ckpt.driver.incarnation import SparkIncarnation
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.progress import Progress
from spark_ckpt.driver.query.failures import typed
from spark_ckpt.driver.showing import show
from spark_ckpt.driver.signals import stops
from spark_ckpt.driver.standby.standing_by import StandingBy
from spark_ckpt.driver.supervisor import Supervisor
from spark_ckpt.endpoints.markers import refuse_newer_sinks
from spark_ckpt.epochs.records import EpochBrief
from spark_ckpt.errors import (
    CkptError,
    ConfigInvalid,
    DrainStopped,
    EpochTimedOut,
    RunFailed,
    StopTimedOut,
    StoreOutage,
)
from spark_ckpt.events.announcer import Announcer, in_listener_of
from spark_ckpt.events.listener import RunListener
from spark_ckpt.store.epoch_log import EpochLog, check_savepoint_name

_log = logging.getLogger(__name__)
POLL_S = 0.1
_SLICE_S = 0.5
_EXIT_S = 20.0
CLOSE_S = 8.0
"""Seconds in which a run without a final epoch closes its resources and frees its lease.

The query and the publishers get a third of it each.
"""


CreateCompanions = Callable[["JobPlan", Progress, Sequence[RunListener]], Sequence[Companion]]


def _none(plan: JobPlan, progress: Progress, listeners: Sequence[RunListener]) -> Sequence[Companion]:
    return ()


class Run:
    """A started job. Methods have the names of Spark's `StreamingQuery`."""

    def __init__(
        self,
        plan: JobPlan,
        available_now: bool,
        listeners: Sequence[RunListener],
        companions: CreateCompanions = _none,
        standby: bool = False,
    ) -> None:
        self._plan = plan
        self._progress = Progress(plan.job, Bound(plan.config.max_in_flight))
        self._progress.outage_ended = lambda event: Announcer(plan.job, event.incarnation, listeners).outage_over(event)
        self._arrivals = Arrivals(binding.name for binding in plan.bindings)
        targets = plan.sources_ends() if available_now else {}
        self._supervisor = Supervisor(plan, [self._arrivals, *listeners], self._progress, targets)
        self._standing_by = _standing_by(plan, self._supervisor, listeners, self._progress) if standby else None
        self._done = threading.Event()
        self._error: CkptError | None = None
        self._cut_short: StopTimedOut | None = None
        self._drains = available_now
        self._signal: str | None = None
        self._asked_about = False
        self._thread = threading.Thread(target=self._supervise, name=f"ckpt-run-{plan.job}", daemon=True)
        # Last: a page has its port from here on, and a source that does not say its end would leave it taken.
        self._companions = companions(plan, self._progress, listeners)

    @classmethod
    def start(
        cls,
        plan: JobPlan,
        restore: str | int,
        available_now: bool,
        listeners: Sequence[RunListener],
        companions: CreateCompanions = _none,
        standby: bool = False,
    ) -> Self:
        """Start the first incarnation on the caller's thread, so that errors are raised there.

        `restore`: the epoch to start from. `available_now`: end at the current end of the sources. `standby`: wait
        for the end of another driver that has the job. The parameter after `listeners` creates the run's companions.
        """
        if available_now and plan.config.handle_signals and stops.ends_program is not None:
            # It came while another drain of the program published its last epoch: that one had read everything, so it ended
            # without an error.
            raise DrainStopped(
                f"{stops.ends_program} ended the program before job '{plan.job}' had read the available input",
                hint="nothing is lost: start the program again",
            )
        # Before anything is written: a marker above the log shows that the log lost epochs, whose numbers would be given again.
        refuse_newer_sinks(plan.bindings, plan.store)
        run = cls(plan, available_now, listeners, companions, standby)
        # Before the first incarnation: a start takes seconds, and a signal in them has to stop the run as well.
        if plan.config.handle_signals and not stops.listen(run):
            _log.info("job=%s was not started on the main thread: signals do not stop it in order", plan.job)
        try:
            if run._standing_by is None:
                run._supervisor.begin(restore, plan.config.takeover)
            else:
                run._standing_by.begin()
        except BaseException:
            run._done.set()
            close(run._companions)
            stops.forget(run)
            raise
        start_companions(run._companions)
        # Before the thread starts: the thread removes this entry at the run's end.
        atexit.register(run._end_with_program)
        run._thread.start()
        return run

    # -- for the program -----------------------------------------------------------------------------------------------

    @property
    def isActive(self) -> bool:
        """True while the job runs."""
        self._asked_about = True
        return not self._done.is_set()

    @property
    def has_ended(self) -> bool:
        """`not isActive`, for the library: a signal still ends a program that checks no run itself."""
        return self._done.is_set()

    @property
    def isStandby(self) -> bool:
        """True while another driver has the job and this one waits for its end."""
        return self._standing_by is not None and self._standing_by.waits

    @property
    def incarnation(self) -> int:
        """Number of the incarnation that runs, or ran last. Raises `RunFailed` on a standby."""
        return self._living.incarnation

    @property
    def lastProgress(self) -> dict[str, Json] | None:
        """Record of the newest micro-batch: rows, rejected and late rows, durations, cursors, the newest committed
        epoch.

        - `durationMs`: duration of its action (`batch`) and, once Spark has finished it, Spark's own phases.
        - `eventTime`, `stateOperators`: as in Spark's `StreamingQueryProgress`, once Spark has finished the batch.
        - `epochPartsMs`: durations of the newest epoch's parts.
        - `outage`: the outage that the job waits for now, or null.

        On a standby only `standby`: the driver that it waits for, the newest followed epoch, and if it is warm.
        """
        return self._progress.last()

    @property
    def recentProgress(self) -> list[dict[str, Json]]:
        """Up to the last 100 micro-batches, oldest first."""
        return self._progress.recent()

    def epochs(self) -> list[EpochBrief]:
        """Return the restorable epochs in the log, oldest first."""
        return list(self._plan.store.reopened().log.state().epochs)

    def exception(self) -> CkptError | None:
        """Return the error that the run failed with, or None. For user code `context["traceback"]` has the lines."""
        return self._error

    def awaitTermination(self, timeout: DurationText | None = None) -> bool:
        """Wait until the run has ended, at most `timeout` (seconds, or "5m"); return true if it has. Raises the error it
        failed with.

        It also returns after SIGTERM or SIGINT (Ctrl-C), once the final epoch is taken. Raises `StopTimedOut` if that
        takes too long, and `DrainStopped` if the run has not read what `availableNow` names. A program that does not catch
        them ends with their exit code, without a traceback; see `docs/operations.md`.
        """
        self._asked_about = True
        if timeout is None:
            self._refuse_in_listener()
        ended = self._waited(None if timeout is None else time.monotonic() + _seconds(timeout))
        # Only after the end: an error that passes is shown in `lastProgress`, and the run continues.
        if ended and self._error is not None:
            raise self._error
        return ended

    def _waited(self, deadline_s: float | None) -> bool:
        # In slices, since Python runs its signal handler on the main thread: a signal that the system delivers to
        # another thread does not end the main thread's wait.
        while True:
            left_s = _SLICE_S if deadline_s is None else min(_SLICE_S, deadline_s - time.monotonic())
            if self._done.wait(max(0.0, left_s)):
                return True
            if left_s < _SLICE_S:
                return False

    def processAllAvailable(self, timeout: DurationText | None = None) -> bool:
        """Wait until every sink has the output of the rows that the sources have now, at most `timeout` (seconds, or
        "5m"); return true if they have it.

        For tests, as in Spark. It takes epochs, so results of windows that the watermark has closed are published, too.
        Rows that a sink holds back (`every`) come later. Raises the run's error, or `RunFailed`, if the run ends first,
        and `ConfigInvalid` if a source has no end.
        """
        self._refuse_in_listener()
        self._plan.check_ends()
        self._asked_about = True
        # The ends are asked for now: rows that come later do not count.
        waiting = AllAvailable(self._plan.sources_ends(), self._plan.have_reached, self._arrivals)
        deadline_s = None if timeout is None else time.monotonic() + _seconds(timeout)
        while deadline_s is None or time.monotonic() < deadline_s:
            living = self._living
            # Of the incarnation at this moment: after a restart the goal is counted again from its epochs.
            step = waiting.next_step(living.incarnation, living.cursors)
            if step is Step.DONE:
                return True
            if step is Step.ASK:
                living.request_epoch()
            if self._done.wait(POLL_S):
                raise self._error or RunFailed("the run ended before it had published all available rows")
        return False

    def show(self, seconds: float | None = None) -> None:
        """Show rows per second, lag, the epoch, its parts and outages in a terminal or notebook.

        Returns when the run ends, or after `seconds`.
        """
        show(self._plan, self._progress, self._done.wait, seconds)

    def savepoint(self, name: str, timeout: DurationText = "10 minutes") -> int:
        """Take an epoch now, keep it under `name`, and return its number.

        Raises:
        - `EpochTimedOut` after `timeout` (seconds, or a text such as "5m");
        - `ConfigInvalid` for a name that is invalid or in use;
        - the run's error, or `RunFailed`, if the run ends first.
        """
        self._refuse_in_listener()
        check_savepoint_name(name)
        log = self._plan.store.reopened().log
        if name in log.state().savepoints:
            raise ConfigInvalid(
                f"there is a savepoint '{name}' already",
                hint=f"choose another name, or: spark-ckpt savepoint drop {shlex.quote(self._plan.store.location.uri)} {name}",
            )
        # The log decides, not an answer of the incarnation: it may die between the commit and the answer.
        asked: SparkIncarnation | None = None
        within_s = _seconds(timeout)
        deadline_s = time.monotonic() + within_s
        while True:
            living, epoch = self._living, _named(log, name)
            if epoch is not None:
                return epoch
            # Only after a read: the name may have come in the last moment, and a second call would be refused for it.
            if time.monotonic() >= deadline_s:
                raise EpochTimedOut(f"savepoint '{name}' was not taken within {within_s:g} seconds")
            if living is not asked:  # the previous incarnation may have ended without it
                living.request_savepoint(name)
                asked = living
            # Read again after the end: the final epoch of a stop may have got the name since.
            if self._done.wait(POLL_S) and _named(log, name) is None:
                raise self._error or RunFailed("the run ended before the savepoint was taken")

    def stop(self, timeout: DurationText | None = None) -> bool:
        """Take a final epoch, publish it and end; return true if the run has ended within `timeout` (seconds, or "5m").

        Raises the errors of `awaitTermination`. An outage of the store is waited for at most `stop_timeout`, or three
        times the longest recent batch. Then the outage is raised, and the next start continues from the last epoch.
        """
        if timeout is None:
            self._refuse_in_listener()
        self.ask_to_stop()
        return self.awaitTermination(timeout)

    def ask_to_stop(self) -> None:
        """Request the end that `stop` waits for."""
        self._supervisor.ask_to_stop()

    def _refuse_in_listener(self) -> None:
        # Both would wait for each other, and the job would stand still without a word.
        if in_listener_of(self._plan.job):
            raise ConfigInvalid(
                "a listener cannot wait for the run that calls it",
                hint="call run.ask_to_stop() in the listener, and wait for the end in the program",
            )

    # -- for signals, and for the end of the program ---------------------------------------------------------------------

    @property
    def notices_its_end(self) -> bool:
        """True if the program has checked the state of the run at least once."""
        return self._asked_about

    @property
    def stopped_by(self) -> str | None:
        """Name of the signal that asked the run to stop, also if it ended a drain that was complete; None for no signal."""
        return self._signal

    def stop_for_signal(self, name: str) -> None:
        """Stop, without the final epoch if it is not taken in time. Returns after the end."""
        within_s, self._signal = self._supervisor.stop_bound_s, name
        _log.warning(
            "job=%s %s: stopping with a final epoch, within %g s; another signal ends the program at once",
            self._plan.job, name, within_s,
        )  # fmt: skip
        self._supervisor.ask_to_stop()
        if self._done.wait(within_s):
            return
        # The program must end now: the epoch is skipped, and the next start repeats its work.
        self._cut_short = StopTimedOut(
            f"the job ends without its final epoch, which was not taken within {within_s:g} s after {name}",
            hint="nothing is lost, the next start repeats what came after the last epoch; "
            f'Job(..., stop_timeout="{2 * within_s:g} seconds") waits longer',
        )
        self._supervisor.abandon(CLOSE_S / 3)
        if not self._done.wait(CLOSE_S):
            self._end(None)

    def _stopped_drain(self) -> DrainStopped | None:
        """Return the error of a drain that something else than its program has ended early: what follows in the program expects
        all input.
        """
        ended_by = self._signal or ("a handover to a standby" if self._supervisor.hands_over else None)
        if ended_by is None or not self._drains or self._supervisor.has_drained:
            return None
        return DrainStopped(
            f"{ended_by} ended the run before it had read the available input",
            hint="nothing is lost: the standby continues after the newest epoch"
            if self._signal is None
            else "nothing is lost: start the job again, it continues after its newest epoch",
        )

    def _end_with_program(self) -> None:
        # Like a kill, but in order: a thread that returns from Spark or the store during Python's shutdown crashes it.
        # A third for the query, a third for the publishers, the rest to free the lease.
        self._supervisor.abandon(_EXIT_S / 3)
        self._done.wait(_EXIT_S)

    # -- the supervisor's thread -------------------------------------------------------------------------------------------

    @property
    def _living(self) -> SparkIncarnation:
        return self._supervisor.living

    def _supervise(self) -> None:
        try:
            # On the run's thread: a standby may wait for days, and `start` has to return.
            begun = self._standing_by is None or self._standing_by.wait()
            error = self._supervisor.live() if begun else None
        except CkptError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - the user sees the run, not this thread
            _log.exception("job=%s the supervisor failed", self._plan.job)
            error = typed(raised)
        self._end(error)
        stops.forget(self)
        atexit.unregister(self._end_with_program)

    def _end(self, error: CkptError | None) -> None:
        # A signal that waited long enough may have ended the run before its thread comes here.
        if not self._done.is_set():
            early = self._cut_short or self._stopped_drain()
            self._error = error or early
            if error is not None:
                _log.error("job=%s ended: %s", self._plan.job, error)
            elif early is not None:
                _log.error("job=%s %s; %s", self._plan.job, early.what, early.hint)
            self._progress.outage_over()
            close(self._companions)
            self._done.set()


def _standing_by(
    plan: JobPlan, supervisor: Supervisor, listeners: Sequence[RunListener], progress: Progress
) -> StandingBy:
    from spark_ckpt.driver.standby.standing_by import (
        StandingBy,  # imported only by a standby: it would slow down other starts
    )

    return StandingBy(plan, supervisor, listeners, progress)


def _named(log: EpochLog, savepoint: str) -> int | None:
    """Return the epoch of a savepoint; None if there is none, or if the log cannot be read now."""
    # The job waits for the end of an outage, and so does a caller who waits for the job.
    with suppress(StoreOutage):
        epoch = log.state().savepoints.get(savepoint)
        return None if epoch is None else int(epoch)
    return None


def _seconds(timeout: DurationText) -> float:
    return checked_duration_ms("timeout", timeout) / 1000
