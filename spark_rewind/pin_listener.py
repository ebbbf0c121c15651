"""Listener in the program of running queries that pins points periodically, as `spark-ckpt rewind pin` does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_ckpt.errors import CkptError, ConfigInvalid, PinsForeign, PinsInUse
from spark_rewind.declared import Declared, read_declared
from spark_rewind.pinning import PinRequest, Taken, take_pin
from spark_rewind.pins import bytes_of, kept_points
from spark_rewind.planning import RewindRequest

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


RETRY_MS_MAX = 60_000


@dataclass(slots=True)
class PinSchedule:
    """At most one pin at a time, `every_ms` after the newest point, and only if queries progressed since.

    `newest_ms`: time of the newest point of any program; None until it is known.
    """

    every_ms: int
    newest_ms: int | None = None
    _moved: bool = False
    _busy: bool = False
    _not_before_ms: int = 0

    def moved(self) -> None:
        """Record that a query completed a batch."""
        self._moved = True

    def begins(self, now_ms: int) -> bool:
        """Return true if a pin is due; it then counts as begun.

        No other pin is due until `pinned`, `passes` or `failed` ends this one.
        """
        # A longer wait than a try ever has comes from a clock that was set back.
        waits = 0 < self._not_before_ms - now_ms <= RETRY_MS_MAX
        if self._busy or not self._moved or waits or not self._is_time(now_ms):
            return False
        self._busy, self._moved = True, False
        return True

    def passes(self, now_ms: int, newest_ms: int | None) -> bool:
        """Return true if a point of another program, taken at `newest_ms`, makes this pin unnecessary.

        The pin then ends.
        """
        if newest_ms is not None:
            self.newest_ms = max(newest_ms, self.newest_ms or 0)
        if self._is_time(now_ms):
            return False
        self._busy, self._moved = False, True
        return True

    def pinned(self, taken_at_ms: int) -> None:
        """Record that a pin ended with a point."""
        self._busy, self.newest_ms = False, taken_at_ms

    def failed(self, now_ms: int) -> None:
        """Record that a pin ended without a point. The next try follows after a minute at most."""
        self._busy, self._moved = False, True
        self._not_before_ms = now_ms + min(self.every_ms, RETRY_MS_MAX)

    def _is_time(self, now_ms: int) -> bool:
        # A point of the future is of a clock that was set back since: it must not end the pins until then.
        return self.newest_ms is None or not 0 <= now_ms - self.newest_ms < self.every_ms


_log = logging.getLogger(__name__)
_MINUTE_MS = 60_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class PinListener(StreamingQueryListener):
    """Pins a point of these queries every `every_minutes`, as long as one of them makes progress.

        listener = PinListener(["checkpoints/ingest", ...], into="/backup/pins", tables=["/lake"], budget="10GiB")
        spark.streams.addListener(listener)

    - `checkpoints`: the checkpoint folder of each query, or the storage root of a declarative pipeline. Queries of
      other programs count, too. These may have a listener with the same folder `into`: all listeners together make one
      point per period.
    - `tables`: Delta tables, or folders with tables in them.
    - `declared`: the YAML file of `--declared`.
    - `outboxes`: stores of the queries' outboxes.
    - `budget`: size of all points together, for example 10GiB. The oldest points without a name are removed for a new
      one.
    - `table_files`: hold data files of the tables, too.
    - `now_ms`: the clock, in milliseconds since 1970.

    A pin runs on its own thread, so queries do not wait for it. An error is logged as a warning and kept in `error`
    until a pin succeeds. The next try follows within a minute; a query never fails for a pin. Raises `ConfigInvalid`.
    """

    def __init__(
        self,
        checkpoints: Sequence[str],
        into: str,
        *,
        budget: str,
        tables: Sequence[str] = (),
        declared: str | None = None,
        outboxes: Sequence[str] = (),
        table_files: bool = False,
        every_minutes: float = 60,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        if isinstance(checkpoints, str) or not checkpoints:
            raise ConfigInvalid(
                "a PinListener has no checkpoints", hint="give a list with the checkpoint folder of each query"
            )
        if every_minutes <= 0:
            raise ConfigInvalid(f"every_minutes={every_minutes} is no time", hint="write for example every_minutes=60")
        known = read_declared(Path(declared)) if declared is not None else Declared()
        plan = RewindRequest(list(checkpoints), "", list(tables), known, outboxes=list(outboxes))
        self._request = PinRequest(plan, Path(into), None, bytes_of(budget), table_files)
        self._schedule = PinSchedule(max(int(every_minutes * _MINUTE_MS), 1))
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._pinning: threading.Thread | None = None
        self.error: CkptError | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Ignore the start of a query: there is no batch to pin."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Record a completed batch, and pin if a pin is due."""
        with self._lock:
            self._schedule.moved()
        self._look()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Pin if a pin is due: no point may hold the newest batches yet."""
        self._look()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Pin if a pin is due: no point may hold the newest batches yet."""
        self._look()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the current pin ends, for at most `timeout_s` seconds."""
        pinning = self._pinning
        if pinning is not None:
            pinning.join(timeout_s)

    def _look(self) -> None:
        with self._lock:
            if self._schedule.begins(self._now_ms()):
                # A daemon: a pin must not keep a program alive that ends. The next pin removes a half one.
                self._pinning = threading.Thread(target=self._pin, name="ckpt-pin", daemon=True)
                self._pinning.start()

    def _pin(self) -> None:
        try:
            self._pin_unless_pinned()
        except PinsInUse:
            self._failed(None)  # another process pins: its point counts for this listener, too
        except CkptError as error:
            _log.warning("no point was pinned: %s", error)
            self._failed(error)
        except Exception:  # noqa: BLE001 - the log shows it; no query fails for a pin
            _log.exception("no point was pinned")
            self._failed(None)

    def _pin_unless_pinned(self) -> None:
        # another program may have pinned the same queries since: its point is as good
        now_ms = self._now_ms()
        newest_ms = _newest_ms(self._request.into, now_ms)
        with self._lock:
            if self._schedule.passes(now_ms, newest_ms):
                return
        # Without the lock: `onQueryProgress` must not wait for a pin.
        taken = take_pin(self._request, now_ms)
        with self._lock:
            self._schedule.pinned(now_ms)
            self.error = None
        _tell(taken)

    def _failed(self, error: CkptError | None) -> None:
        with self._lock:
            self._schedule.failed(self._now_ms())
            # A pin of another process is no error, and hides none: the last one stays until a pin succeeds.
            self.error = error or self.error


def _newest_ms(pins: Path, now_ms: int) -> int | None:
    """Return the time of the newest point without a name, made by any program until `now_ms`."""
    try:
        points = [each.point for each in kept_points(pins) if each.point is not None and each.point.name is None]
    except PinsForeign:
        return None
    return max((each.taken_at_ms for each in points if each.taken_at_ms <= now_ms), default=None)


def _tell(taken: Taken) -> None:
    _log.info("pinned %s", taken.kept.folder.name)
    for each in taken.dropped:
        _log.info("over the budget: point %s was removed", each.folder.name)
