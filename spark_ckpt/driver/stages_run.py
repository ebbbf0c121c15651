"""Handle of the stages of one program that run in this process: each is a run of its own, with its own incarnations."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from spark_ckpt.config import DurationText, checked_duration_ms
from spark_ckpt.connector import Json
from spark_ckpt.driver.companion import Companion, close
from spark_ckpt.driver.run import Run
from spark_ckpt.epochs.partial_recovery import StageStatus, of_stage, recovery_text
from spark_ckpt.errors import CkptError, DrainStopped, RunFailed
from spark_ckpt.events.listener import IncarnationEvent, RunListener
from spark_ckpt.store.proposals import is_held
from spark_ckpt.store.store import Store

_log = logging.getLogger(__name__)
_POLL_S = 0.1

StartStage = Callable[[Sequence[RunListener]], Run]
"""Start a stage, whose plan is checked, with these further listeners."""


class StagesRun:
    """The stages of a program that this process runs. Methods have the names of Spark's `StreamingQuery`.

    A stage that fails starts again by itself, like any job, while the others continue. If it gives up, the others stop
    with a final epoch, and the run ends with its error.
    """

    def __init__(
        self, job: str, stores: Mapping[str, Store], starts: Mapping[str, StartStage], companions: Sequence[Companion]
    ) -> None:
        self._job = job
        self._stores = stores
        self._starts = dict(starts)
        self._companions = companions
        self._runs: dict[str, Run] = {}
        self._error: CkptError | None = None
        self._stopping = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"ckpt-stages-{job}", daemon=True)

    @classmethod
    def start(
        cls,
        job: str,
        stores: Mapping[str, Store],
        starts: Mapping[str, StartStage],
        availableNow: bool,
        companions: Sequence[Companion] = (),
    ) -> StagesRun:
        """Start the stages, senders first. The first error is raised here, after the stages before it have stopped.

        - `stores`: the store of every stage of the program, by name.
        - `starts`: the start of each stage that this process runs, senders before their readers.
        - `availableNow`: start a stage when the stages before it have ended.
        - `companions`: services of all stages, such as their page. They close when the last stage has ended.
        """
        run = cls(job, stores, starts, companions)
        try:
            for companion in companions:
                companion.start()
            for name in list(starts)[: 1 if availableNow else None]:
                run._start_stage(name)
        except BaseException:
            run._stop_after_failed_start()
            close(companions)
            raise
        # After the stages that have started: it is called before theirs, whose ends would make a drain start the next one.
        atexit.register(run._stopping.set)
        run._thread.start()
        return run

    # -- for the program -----------------------------------------------------------------------------------------------

    @property
    def stages(self) -> Mapping[str, Run]:
        """The runs of this process, by stage."""
        # A copy: the thread of a drain adds stages, and Python ends the iteration over a dict that grows.
        return dict(self._runs)

    @property
    def isActive(self) -> bool:
        """True while a stage runs."""
        for run in self.stages.values():
            _ = run.isActive  # the program checks the run, so a signal need not end the program
        return not self._done.is_set()

    @property
    def lastProgress(self) -> dict[str, dict[str, Json] | None]:
        """`Run.lastProgress` of each stage, by stage."""
        return {name: run.lastProgress for name, run in self.stages.items()}

    def exception(self) -> CkptError | None:
        """Return the error of the first stage that failed for good, or None. Its context names the stage."""
        return self._error

    def awaitTermination(self, timeout: DurationText | None = None) -> bool:
        """Wait until every stage has ended, at most `timeout` (seconds, or "5m"); return true if they have.

        Raises the error of the first stage that failed for good.
        """
        bound_s = None if timeout is None else checked_duration_ms("timeout", timeout) / 1000
        deadline_s = None if bound_s is None else time.monotonic() + bound_s
        # In slices, so that Python's signal handler runs on the main thread.
        while self.isActive and (deadline_s is None or time.monotonic() < deadline_s):
            self._done.wait(_POLL_S)
        if self._done.is_set() and self._error is not None:
            raise self._error
        return self._done.is_set()

    def stop(self, timeout: DurationText | None = None) -> bool:
        """Take a final epoch of every stage, publish it, and end; return true if all have ended within `timeout`.

        Raises the errors of `awaitTermination`.
        """
        self._ask_to_stop()
        return self.awaitTermination(timeout)

    def _stop_after_failed_start(self) -> None:
        self._ask_to_stop()
        for name, run in self._runs.items():
            try:
                run.stop()
            except CkptError as error:
                # The error of the start is raised. This one must not keep the stages after it running without a watch.
                _log.warning("job=%s stage %s ended with an error: %s", self._job, name, error)

    # -- the watch -----------------------------------------------------------------------------------------------------

    def _start_stage(self, name: str) -> None:
        log = self._stores[name].log
        before = log.state()
        # Judged by the log before the start, since the start itself takes the lease.
        died = before.holder is not None and not before.is_free and not is_held(before, log.now_ms())
        with _errors_of(name):
            self._runs[name] = self._starts[name]([_Restarts(name, self._tell)])
        if died:
            self._tell(name)

    def _tell(self, restarted: str) -> None:
        """Say which stages a restart did not concern, as their logs have it."""
        status = {name: self._status(name, restarted) for name in self._stores}
        _log.warning("job=%s %s", self._job, recovery_text(status))

    def _status(self, name: str, restarted: str) -> StageStatus:
        if name == restarted:
            return StageStatus.RESTARTED
        try:
            log = self._stores[name].reopened().log
            return StageStatus.WENT_ON if is_held(log.state(), log.now_ms()) else StageStatus.NOT_RUNNING
        except CkptError:
            return StageStatus.NOT_RUNNING

    def _follow(self) -> None:
        """Wait for the stages' ends; start the next one of a drain."""
        try:
            while self._error is None and not self._stopping.is_set():
                have_ended = all(run.has_ended for run in self._runs.values())
                self._error = self._failed_stage()  # read after their end: the next stage must not follow a failure
                if have_ended and not self._start_next():
                    break
                self._stopping.wait(_POLL_S)
            # The other stages would run on unnoticed behind a program that looks alive.
            if self._error is not None:
                self._ask_to_stop()
            while not all(run.has_ended for run in self._runs.values()):
                time.sleep(_POLL_S)
            self._error = self._error or self._failed_stage()
        except CkptError as error:  # the next stage of a drain did not start
            self._error = error
        except Exception as error:  # noqa: BLE001 - the user sees the run, not this thread
            _log.exception("job=%s the watch over its stages failed", self._job)
            self._error = RunFailed(f"the watch over the stages failed: {error}")
        close(self._companions)
        atexit.unregister(self._stopping.set)
        self._done.set()

    def _start_next(self) -> bool:
        """Start the next stage of a drain; return False if there is none, after an error, or after a stop."""
        name = next((each for each in self._starts if each not in self._runs), None)
        if name is None or self._error is not None or self._stopping.is_set():
            return False
        # The signal came while the stage published its last epoch, and nothing else of the program has it.
        if signal := next((run.stopped_by for run in self._runs.values() if run.stopped_by), None):
            self._error = DrainStopped(
                f"{signal} ended the program before stage '{name}' had read the available input",
                hint="nothing is lost: start the stages again, each continues after its newest epoch",
            )
            return False
        self._start_stage(name)
        if self._stopping.is_set():
            self._runs[name].ask_to_stop()
        return True

    def _failed_stage(self) -> CkptError | None:
        for name, run in self._runs.items():
            error = run.exception()
            if error is not None:
                return _of_stage(error, name)
        return None

    def _ask_to_stop(self) -> None:
        # Set before the runs are read: a stage that is just starting checks it, and is asked as well.
        self._stopping.set()
        for run in self.stages.values():
            run.ask_to_stop()


def checked_starts(checks: Mapping[str, Callable[[], StartStage]], availableNow: bool) -> dict[str, StartStage]:
    """Check all stages before the first one runs and publishes: a later one may be refused, such as for an operator that moved.

    - `checks`: functions that check a stage and return its start, senders before their readers.
    """
    starts: dict[str, StartStage] = {}
    for name, check in checks.items():
        with _errors_of(name):
            checked = check()
        # A drain starts the later ones hours after this check: tables and topics may be others by then.
        starts[name] = partial(_checked_again, check) if availableNow and starts else checked
    return starts


def _checked_again(check: Callable[[], StartStage], listeners: Sequence[RunListener]) -> Run:
    return check()(listeners)


@contextmanager
def _errors_of(stage: str) -> Iterator[None]:
    """Name the stage in the errors of this block."""
    try:
        yield
    except CkptError as error:
        _of_stage(error, stage)
        raise


def _of_stage(error: CkptError, stage: str) -> CkptError:
    """Name the stage in an error, and put its advice in terms of it."""
    error.context, error.hint = {"stage": stage, **error.context}, of_stage(error.hint, stage)
    return error


class _Restarts(RunListener):
    """Reports incarnations after the first one of a run."""

    def __init__(self, stage: str, tell: Callable[[str], None]) -> None:
        self._stage = stage
        self._tell = tell
        self._started = False

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        """Report a restart."""
        if self._started:
            self._tell(self._stage)
        self._started = True
