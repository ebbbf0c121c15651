"""Announces the events of a run to listeners and to Python's log; an error in a listener affects no other one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_ckpt.connector import Json
from spark_ckpt.events.listener import (
    EpochEvent,
    IncarnationEvent,
    LagEvent,
    LineEvent,
    MaintenanceEvent,
    OutageEvent,
    ProgressEvent,
    RetryEvent,
    RunListener,
    StandbyEvent,
)
from spark_ckpt.tasks.user_frames import user_traceback
from spark_ckpt.wording import counted

if TYPE_CHECKING:
    from spark_ckpt.epochs.records import Manifest

_log = logging.getLogger("spark_ckpt")
CONSOLE = "spark_ckpt.console"
"""Logger of the lines for people: one for each incarnation, and one for an epoch, at most one a second."""
_console = logging.getLogger(CONSOLE)
_console.setLevel(logging.WARNING)
_EPOCH_LINE_S = 1.0
# By job and not by announcer: each incarnation has a new one, and a job that restarts often would print a line each time.
_epoch_line_due_s: dict[str, float] = {}
_called = threading.local()


def in_listener_of(job: str) -> bool:
    """Return true if the current thread is inside of a listener of this job, which continues when the listener returns."""
    return job in getattr(_called, "jobs", ())


@dataclass(frozen=True, slots=True)
class Announcer:
    """Announces the events of one incarnation; every log line carries job, incarnation and epoch.

    `kind`: "job" or "outbox", for the log lines.
    """

    job: str
    incarnation: int
    listeners: Sequence[RunListener]
    kind: str = "job"

    def started(self, base: int, reason: str, unpublished: Mapping[str, Sequence[int]] | None = None) -> None:
        """Announce that the incarnation continues from epoch `base`. `unpublished`: epochs that each sink lacks."""
        self._info(base, "started from", reason)
        _console.info("%s %s: incarnation %d runs, from epoch %d", self.kind, self.job, self.incarnation, base)
        event = IncarnationEvent(self.job, self.incarnation, base, reason, unpublished or {})
        self._notify(lambda listener: listener.onIncarnationStarted(event))

    def progressed(self, epoch: int, record: Mapping[str, Json]) -> None:
        """Announce that a micro-batch is over. `epoch`: the newest committed one."""
        event = ProgressEvent(self.job, self.incarnation, epoch, record)
        self._notify(lambda listener: listener.onProgress(event))

    def spark_is_through(self, record: Mapping[str, Json]) -> None:
        """Announce that Spark finished a micro-batch; its record now has Spark's phases."""
        event = ProgressEvent(self.job, self.incarnation, int(str(record["epoch"])), record)
        self._notify(lambda listener: listener.onPhases(event))

    def committed(self, epoch: int, detail: Mapping[str, Json], manifest: Manifest | None = None) -> None:
        """Announce that the epoch is committed."""
        self._epoch_line(epoch, manifest)
        event = replace(self._epoch("committed", epoch, detail), manifest=manifest)
        self._notify(lambda listener: listener.onEpochCommitted(event))

    def aborted(self, epoch: int, why: str) -> None:
        """Announce that the epoch will not be committed."""
        event = self._epoch("aborted", epoch, {"why": why})
        self._notify(lambda listener: listener.onEpochAborted(event))

    def published(self, epoch: int, detail: Mapping[str, Json]) -> None:
        """Announce that a sink has published the epoch."""
        event = self._epoch("published", epoch, detail)
        self._notify(lambda listener: listener.onEpochPublished(event))

    def retries(self, event: RetryEvent) -> None:
        """Announce that a step of an outbox is tried again."""
        place = f"sink={event.sink} epoch={event.epoch}" if event.sink else "the log"
        said = (self.kind, self.job, place, event.attempt, event.pause_ms, event.what)
        _log.warning("%s=%s %s: attempt %d follows in %d ms: %s", *said)
        self._notify(lambda listener: listener.onRetry(event))

    def lines(self, served: Mapping[str, int], released: int | None) -> None:
        """Announce the newest line of each program, by program, and the newest epoch that sinks may publish."""
        event = LineEvent(self.job, served, released)
        self._notify(lambda listener: listener.onLines(event))

    def lags(self, rows: Mapping[str, int]) -> None:
        """Announce the rows that wait, by source."""
        event = LagEvent(self.job, rows)
        self._notify(lambda listener: listener.onLag(event))

    def outage(self, event: OutageEvent) -> None:
        """Announce that the job waits for the end of an outage."""
        self._notify(lambda listener: listener.onOutage(event))

    def outage_over(self, event: OutageEvent) -> None:
        """Announce that the job waits no longer. `event`: the last one of the outage."""
        self._notify(lambda listener: listener.onOutageOver(event))

    def stood_by(self, event: StandbyEvent) -> None:
        """Announce that a standby waits, follows an epoch, is warm or takes over."""
        detail = f"behind incarnation {event.lease_of} of {event.holder}" if event.holder else "for the first driver"
        _log.info("job=%s epoch=%d standby %s %s %s", self.job, event.epoch, event.what, detail, event.why)
        self._notify(lambda listener: listener.onStandby(event))

    def kept_up(self, event: MaintenanceEvent) -> None:
        """Announce a change of the job's maintenance: leased, done, returned or reclaimed, or a damaged file."""
        level = logging.ERROR if event.what == "found damage" else logging.INFO
        told = (self.job, event.epoch, event.what, event.token, event.standby, event.why)
        _log.log(level, "job=%s epoch=%d maintenance %s lease=%d %s %s", *told)
        self._notify(lambda listener: listener.onMaintenance(event))

    def hands_over(self, epoch: int) -> None:
        """Announce a handover: this driver takes a final epoch, then a standby continues. `epoch`: the newest
        committed one.
        """
        _log.info("job=%s incarnation=%d epoch=%d hands over", self.job, self.incarnation, epoch)
        event = IncarnationEvent(self.job, self.incarnation, epoch, "handover")
        self._notify(lambda listener: listener.onHandover(event))

    def ended(self, epoch: int, reason: str) -> None:
        """Announce that the incarnation is over. `epoch`: its last committed one."""
        self._info(epoch, "ended:", reason)
        _console.info("%s %s: incarnation %d ended, at epoch %d", self.kind, self.job, self.incarnation, epoch)
        event = IncarnationEvent(self.job, self.incarnation, epoch, reason)
        self._notify(lambda listener: listener.onIncarnationEnded(event))

    def _epoch_line(self, epoch: int, manifest: Manifest | None) -> None:
        now_s = time.monotonic()
        if manifest is None or manifest.reason == "initial" or now_s < _epoch_line_due_s.get(self.job, 0.0):
            return
        _epoch_line_due_s[self.job] = now_s + _EPOCH_LINE_S
        # An outbox counts no input.
        rows_in = "" if self.kind == "outbox" else f"{counted(manifest.rows_in, 'row')} in, "
        said = (self.kind, self.job, epoch, rows_in, counted(manifest.rows_out, "row"))
        _console.info("%s %s: epoch %d committed, %s%s out", *said)

    def _epoch(self, what: str, epoch: int, detail: Mapping[str, Json]) -> EpochEvent:
        self._info(epoch, what, dict(detail))
        return EpochEvent(self.job, epoch, self.incarnation, detail)

    def _info(self, epoch: int, what: str, detail: object) -> None:
        _log.info("%s=%s incarnation=%d epoch=%d %s %s", self.kind, self.job, self.incarnation, epoch, what, detail)

    def _notify(self, call: Callable[[RunListener], None]) -> None:
        for listener in self.listeners:
            before: tuple[str, ...] = getattr(_called, "jobs", ())
            try:
                _called.jobs = (*before, self.job)
                call(listener)
            except Exception as error:  # noqa: BLE001 - the user's code; the run continues
                trace = user_traceback(error) or f"{type(error).__name__}: {error}"
                said = (self.kind, self.job, type(listener).__name__, trace)
                _log.error("%s=%s listener %s failed, the run continues\n%s", *said)
            finally:
                _called.jobs = before
