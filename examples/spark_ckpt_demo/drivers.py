"""Incarnations of the demo's job: one that is killed and one that runs to the end.

The epoch log shows their progress.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief
from spark_ckpt.errors import RunFailed
from spark_ckpt.observability.live_view import epoch_rate
from spark_ckpt.store.store import Store
from spark_ckpt_demo.display import Watch
from spark_ckpt_demo.driver import JOB
from spark_ckpt_demo.places import DemoPlaces
from spark_ckpt_demo.process import DriverProcess

_POLL_S = 0.2
_STALLED_S = 300.0
_MAX_DELAY_S = 1.0


@dataclass(frozen=True, slots=True)
class DemoJob:
    """Settings with which drivers of the job start."""

    places: DemoPlaces
    folder: Path
    progress: bool = False

    @property
    def store_uri(self) -> str:
        """The job's store."""
        return str(self.folder / "store")

    def store(self) -> Store:
        """Open the store; create it before the first driver."""
        return Store.open(self.store_uri, JOB)

    def driver(self, life: str, output: str, restore: str = "latest") -> DriverProcess:
        """Start a driver; its log is named after `life`."""
        arguments = ["--store", self.store_uri, "--restore", restore, *self.places.arguments(output)]
        return DriverProcess(arguments, self.folder / f"driver-{life}.log", self.progress)


def run_and_kill(job: DemoJob, store: Store, after: int, watch: Watch) -> tuple[int, int]:
    """Run a first driver and kill it at a random moment once `after` flights are committed.

    Return its pid and exit code.
    """
    with job.driver("1", "figures") as driver:
        # without the delay the kill would always hit the moment right after a commit
        _watched(store, driver, watch, until=after)
        _delay(driver, SystemRandom().uniform(0, _MAX_DELAY_S))
        if driver.exit_code is not None:
            driver.check_ended_well()
            raise RunFailed("the driver was done before it could be killed", hint="give a smaller --kill-after")
        driver.kill()
        return driver.pid, driver.exit_code or 0


def run_to_the_end(job: DemoJob, store: Store, life: str, output: str, restore: str, watch: Watch) -> None:
    """Run a driver until everything is processed and published. Raises `RunFailed` with the end of its log."""
    with job.driver(life, output, restore) as driver:
        _watched(store, driver, watch, until=None)
        driver.check_ended_well()
    watch(committed(store.log.state()), "")


def committed(log_state: LogState) -> int:
    """Return the number of flights in the epochs of the current lineage."""
    return sum(brief.rows_in for brief in log_state.lineage())


def _watched(store: Store, driver: DriverProcess, watch: Watch, until: int | None) -> None:
    """Show the progress until the driver ends or `until` flights are committed. Raises `RunFailed` without progress."""
    before, moved_s = -1, time.monotonic()
    begun = store.log.state().incarnation
    while driver.exit_code is None:
        log_state = store.log.state()
        done = committed(log_state)
        # until the new driver has begun, the log shows the epochs of the last one
        if log_state.incarnation > begun:
            rate = epoch_rate(_of_this_driver(log_state))
            watch(done, f"epoch {log_state.latest}" + (f", rows/s {rate:,.0f}" if rate else ""))
        if until is not None and done >= until:
            return
        if done != before:
            before, moved_s = done, time.monotonic()
        elif time.monotonic() - moved_s > _STALLED_S:
            raise RunFailed(f"the driver made no progress for {_STALLED_S:.0f} s", hint="read its log", pid=driver.pid)
        time.sleep(_POLL_S)


def _of_this_driver(log_state: LogState) -> list[EpochBrief]:
    # a rate must not include the time between two drivers
    return [brief for brief in log_state.epochs if brief.incarnation == log_state.incarnation]


def _delay(driver: DriverProcess, delay_s: float) -> None:
    # in short steps, because the driver may be done before
    deadline_s = time.monotonic() + delay_s
    while driver.exit_code is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
