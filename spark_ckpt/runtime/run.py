"""A running job in the user's hands, and the supervisor that starts incarnation after incarnation.

Any failure leads to a new incarnation from the last committed epoch; failures in a row without a new epoch are bounded,
then the run fails with the reason.  A fence ends it at once: somebody else runs the job now.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from spark_ckpt.connector import Json
from spark_ckpt.errors import CkptError, ConfigInvalid, EpochTimedOut, Fenced, RunFailed
from spark_ckpt.listener import RunListener
from spark_ckpt.protocol.barrier import Outcome
from spark_ckpt.runtime import identities
from spark_ckpt.runtime.announcer import Announcer
from spark_ckpt.runtime.life import Ending, Life
from spark_ckpt.runtime.progress import Progress
from spark_ckpt.runtime.query_failures import typed
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.identity import check_unchanged
from spark_ckpt.store.names import valid_name
from spark_ckpt.store.restore import LATEST, RecoveryPoint, choose, no_check
from spark_ckpt.wording import counted

if TYPE_CHECKING:
    from spark_ckpt.runtime.job_plan import JobPlan
    from spark_ckpt.store.records import EpochBrief

_log = logging.getLogger(__name__)
_PAUSE_S = 1.0
_POLL_S = 0.1
_EXIT_S = 20.0


class Run:
    """A started job. Methods are named as on Spark's `StreamingQuery`."""

    def __init__(self, plan: JobPlan, available_now: bool, listeners: Sequence[RunListener]) -> None:
        self._plan = plan
        self._listeners = tuple(listeners)
        self._progress = Progress(plan.job)
        self._targets = {node.name: node.source.end(plan.spark) for node in plan.sources} if available_now else {}
        self._stopping = threading.Event()
        self._done = threading.Event()
        self._error: CkptError | None = None
        self._life: Life | None = None
        self._supervisor = threading.Thread(target=self._supervise, name=f"ckpt-run-{plan.job}", daemon=True)

    @classmethod
    def start(cls, plan: JobPlan, restore: str | int, available_now: bool, listeners: Sequence[RunListener]) -> Self:
        """Start the first incarnation on the caller's thread, so that what is wrong is raised there."""
        run = cls(plan, available_now, listeners)
        run._life = run._born(restore, plan.config.takeover)
        atexit.register(run._end_with_program)
        run._supervisor.start()
        return run

    # -- what a program asks ----------------------------------------------------------------------------------------------

    @property
    def isActive(self) -> bool:
        """Whether the job still runs."""
        return not self._done.is_set()

    @property
    def incarnation(self) -> int:
        """The number of the life that runs, or ran last."""
        return self._living.incarnation

    @property
    def lastProgress(self) -> dict[str, Json] | None:
        """The newest micro-batch: rows, rejected and late rows, durations, cursors, the last committed epoch."""
        return self._progress.last()

    @property
    def recentProgress(self) -> list[dict[str, Json]]:
        """Up to the last 100 micro-batches, oldest first."""
        return self._progress.recent()

    def epochs(self) -> list[EpochBrief]:
        """The epochs in the log that can be restored, oldest first."""
        return list(self._plan.store.reopened().log.tail().epochs)

    def exception(self) -> CkptError | None:
        """Why the run failed, if it did. Of the user's own code its `context["traceback"]` has the lines."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended, at most `timeout` seconds; whether it has. Raises the error it failed with."""
        ended = self._done.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended

    def savepoint(self, name: str, timeout: float = 600.0) -> int:
        """Take an epoch now and keep it under `name`; its number. Raises `EpochTimedOut` after `timeout` seconds."""
        if valid_name("savepoint", name) == LATEST or name.isdigit():
            raise ConfigInvalid(
                f"'{name}' cannot name a savepoint", hint="it would be taken for an epoch when restoring"
            )
        log = self._plan.store.reopened().log
        if name in log.tail().savepoints:
            raise ConfigInvalid(f"there is a savepoint '{name}' already", hint=f"spark-ckpt savepoint drop {name}")
        asked: Life | None = None
        deadline_s = time.monotonic() + timeout
        while time.monotonic() < deadline_s:
            living, epoch = self._living, log.tail().savepoints.get(name)
            if epoch is not None:
                return int(epoch)
            if living is not asked:  # the one asked before may have ended without it
                living.request_savepoint(name)
                asked = living
            if self._done.wait(_POLL_S):
                raise self._error or RunFailed("the run ended before the savepoint was taken")
        raise EpochTimedOut(f"savepoint '{name}' was not taken within {timeout:g} seconds")

    def stop(self, timeout: float | None = None) -> bool:
        """Take a final epoch, publish it, end. Whether the run has ended within `timeout` seconds. Raises as `awaitTermination`."""
        self._stopping.set()
        self._living.request_stop()
        return self.awaitTermination(timeout)

    # -- the supervisor ---------------------------------------------------------------------------------------------------

    @property
    def _living(self) -> Life:
        if self._life is None:
            raise RunFailed("the run has not started")
        return self._life

    def _supervise(self) -> None:
        try:
            self._error = self._live()
        except CkptError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - the user asks the run, not this thread
            _log.exception("job=%s the supervisor failed", self._plan.job)
            self._error = typed(error)
        finally:
            if self._error is not None:
                _log.error("job=%s ended: %s", self._plan.job, self._error)
            self._done.set()
            atexit.unregister(self._end_with_program)

    def _end_with_program(self) -> None:
        """A program that ends without waiting ends its run where it is, as a kill would, without a final epoch. But in
        order: a thread that came back from Spark or the store while Python takes itself down would crash it."""
        self._stopping.set()
        self._living.abandon()
        self._done.wait(_EXIT_S)

    def _live(self) -> CkptError | None:
        """Life after life until one ends well or for good."""
        failures = 0
        ending = self._living.watch()
        while ending.outcome is not Outcome.STOPPED:
            error = self._replaced() or _as_error(ending)
            failures = 1 if ending.progressed else failures + 1
            if not error.retriable or failures > self._plan.config.max_failed_epochs:
                return _given_up(error, failures)
            _log.warning("job=%s incarnation %d failed, starting the next: %s", self._plan.job, self.incarnation, error)
            self._stopping.wait(_PAUSE_S * failures)
            ending = self._next_life()
        return None if ending.error is None else _as_error(ending)

    def _replaced(self) -> Fenced | None:
        """Whatever a zombie's query died of (its successor has removed its files), what matters is that it is one."""
        with suppress(CkptError):
            log = self._plan.store.log
            newest = log.tail().incarnation
            if newest != log.own_incarnation:
                return Fenced(
                    f"incarnation {newest} took over",
                    incarnation=self.incarnation,
                    hint="another driver runs this job; this one can be ended",
                )
        return None

    def _next_life(self) -> Ending:
        """From the newest epoch to this life's end; a life that could not begin for now has failed like any other."""
        try:
            self._life = life = self._born(LATEST, takeover=False)
        except CkptError as error:
            return Ending(Outcome.FENCED if isinstance(error, Fenced) else Outcome.FAILED, error, progressed=False)
        if self._stopping.is_set():
            life.request_stop()
        return life.watch()

    def _born(self, restore: str | int, takeover: bool) -> Life:
        plan, log = self._plan, self._plan.store.log
        # Before anything is written: a new incarnation on the wrong epoch would move the job there.
        chosen = choose(log.tail(), restore, log.manifest, no_check)
        plan.check_base(chosen.base, chosen.unpublished)
        self._check_identities(restore)
        holder = current_holder(plan.job)
        point: RecoveryPoint = log.begin_incarnation(holder, restore, plan.config.lease_ms, takeover=takeover)
        try:
            return self._begun(point)
        except BaseException:
            with suppress(CkptError):
                log.release(point.incarnation)
            raise

    def _check_identities(self, restore: str | int) -> None:
        """The first life's are settled with the plan; while it ran, a table or topic may have been made anew."""
        if self._life is None:
            return
        plan = self._plan
        found = identities.found_again(plan.found, plan.spark, plan.sources, plan.bindings)
        check_unchanged(plan.found, found)
        identities.checked(plan.store.log, restore, found, plan.confirmed)
        self._plan = replace(plan, found=found)

    def _begun(self, point: RecoveryPoint) -> Life:
        plan = self._plan
        plan.check_base(point.manifest, point.unpublished)
        log = plan.store.log
        standing = identities.settled(log, log.tail(), point.manifest, point.unpublished, plan.found, plan.confirmed)
        announcer = Announcer(plan.job, point.incarnation, self._listeners)
        life = Life(plan, point, announcer, self._progress, self._targets, standing)
        try:
            life.begin()
        except BaseException as error:
            life.close(Ending(Outcome.FAILED, error, progressed=False))
            raise
        return life


def _as_error(ending: Ending) -> CkptError:
    if ending.outcome is Outcome.FENCED:
        return (
            ending.error
            if isinstance(ending.error, Fenced)
            else Fenced("a newer incarnation runs this job", hint="this driver can be ended")
        )
    if isinstance(ending.error, CkptError):
        return ending.error
    return typed(ending.error) if ending.error is not None else RunFailed("the incarnation ended without saying why")


def _given_up(error: CkptError, failures: int) -> CkptError:
    if not error.retriable:
        return error
    return RunFailed(
        f"{counted(failures, 'incarnation')} in a row failed without a new epoch; the last: {error.what}",
        hint=error.hint,
        **error.context,
    )
