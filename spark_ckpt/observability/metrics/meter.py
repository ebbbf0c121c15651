"""Turns the events of a run into metrics; a backend sends them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Protocol

from spark_ckpt.connector import Json
from spark_ckpt.events.listener import (
    EpochEvent,
    IncarnationEvent,
    LagEvent,
    LineEvent,
    OutageEvent,
    ProgressEvent,
    RetryEvent,
    RunListener,
    StandbyEvent,
)
from spark_ckpt.json_values import number, numbers
from spark_ckpt.observability.metrics import catalogue
from spark_ckpt.observability.metrics.catalogue import Instrument

_COUNTS = {
    "numInputRows": catalogue.INPUT_ROWS,
    "numOutputRows": catalogue.OUTPUT_ROWS,
    "rejected": catalogue.REJECTED_ROWS,
}

_WHOLES = {"batch", "addBatch", "triggerExecution"}
"""Durations of a micro-batch that contain other durations."""


class Backend(Protocol):
    """Receiver of metrics. `labels` are those of the instrument, in its order, the job first. Runs' threads call it."""

    def record(self, instrument: Instrument, value: float, *labels: str) -> None:
        """Add to a counter, set a gauge, or observe a duration in seconds in a histogram."""


class Meter(RunListener):
    """Records the metrics of one run. `now_s` returns seconds since 1970."""

    def __init__(self, job: str, backend: Backend, now_s: Callable[[], float] = time.time) -> None:
        self._job = job
        self._backend = backend
        self._now_s = now_s
        self._unpublished: dict[str, set[int]] = {}
        self._counted: set[str] = set()
        """Sources whose lag was counted."""
        self._released: int | None = None
        # A counter that begins with its first event has no increase that a rate could show, so all begin at 0.
        for counted in (*_COUNTS.values(), catalogue.BATCHES, catalogue.EPOCHS_ABORTED, catalogue.INCARNATIONS):
            self._record(counted, 0)
        for shown in (catalogue.RUNNING, catalogue.OUTAGE, catalogue.STANDBY, catalogue.STANDBY_WARM):
            self._record(shown, 0)

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        """Record the start of an incarnation."""
        self._record(catalogue.INCARNATIONS, 1)
        self._record(catalogue.INCARNATION, event.incarnation)
        self._record(catalogue.RUNNING, 1)
        # A standby that begins a job without any driver before it announces no takeover.
        self._record(catalogue.STANDBY, 0)
        self._record(catalogue.STANDBY_WARM, 0)
        # A restore lowers the newest epoch.
        self._record(catalogue.LAST_EPOCH, event.base)
        for sink, epochs in event.unpublished.items():
            self._unpublished[sink] = set(epochs)
            self._put_unpublished(sink)

    def onIncarnationEnded(self, event: IncarnationEvent) -> None:
        """Record the end of an incarnation."""
        self._record(catalogue.RUNNING, 0)

    def onProgress(self, event: ProgressEvent) -> None:
        """Record a completed micro-batch."""
        record = event.progress
        for name, instrument in _COUNTS.items():
            self._record(instrument, number(record.get(name)))
        self._record(catalogue.BATCHES, 1)
        took_ms = numbers(record.get("durationMs")).get("batch", 0.0)
        self._record(catalogue.BATCH_DURATION, took_ms / 1000)
        if (verdict := record.get("verdict")) is not None:
            self._record(catalogue.OUTBOX_BATCHES, 1, str(verdict))
        for operator, rows in numbers(record.get("lateRows")).items():
            self._record(catalogue.LATE_ROWS, rows, operator)
        for edge, rows in numbers(record.get("inFlightRows")).items():
            self._record(catalogue.IN_FLIGHT_ROWS, rows, edge)

    def onPhases(self, event: ProgressEvent) -> None:
        """Record what is known when Spark has completed a micro-batch: the durations of its parts, its watermark."""
        for part, took_ms in numbers(event.progress.get("durationMs")).items():
            if part not in _WHOLES:
                self._record(catalogue.BATCH_PARTS, took_ms / 1000, part)
        times = event.progress.get("eventTime")
        watermark_s = _seconds(times.get("watermark")) if isinstance(times, Mapping) else 0.0
        if watermark_s > 0:  # Spark begins with 1970: no row has moved it
            self._record(catalogue.WATERMARK, watermark_s)

    def onStandby(self, event: StandbyEvent) -> None:
        """Record a standby that waits for the driver, or takes over."""
        waits = event.what != "takes over"
        self._record(catalogue.STANDBY, float(waits))
        # Other events, such as "follows", say nothing about it.
        if not waits or event.what in ("waits", "is warm"):
            self._record(catalogue.STANDBY_WARM, float(event.what == "is warm"))

    def onLag(self, event: LagEvent) -> None:
        """Record the rows that wait at the sources."""
        # A source that does not answer has no lag: the one counted last would stay, and an alert would judge by it.
        for source in self._counted | event.rows.keys():
            self._record(catalogue.LAG_ROWS, event.rows.get(source, math.nan), source)
        self._counted |= event.rows.keys()

    def onLines(self, event: LineEvent) -> None:
        """Record the newest line of each program, and of all of them."""
        for program, line in event.served.items():
            self._record(catalogue.PROGRAM_LINE, line, program)
        self._record(catalogue.COMMON_LINE, event.common)
        self._released = event.released
        for sink in self._unpublished:
            self._put_unpublished(sink)

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """Record a committed epoch."""
        self._record(catalogue.EPOCHS_COMMITTED, 1, str(event.detail.get("reason", "")))
        self._record(catalogue.LAST_EPOCH, event.epoch)
        self._record(catalogue.LAST_EPOCH_AT, self._now_s())
        for part, took_ms in numbers(event.detail.get("parts_ms")).items():
            self._record(catalogue.EPOCH_PARTS, took_ms / 1000, part, "")
        for operator, size in numbers(event.detail.get("state_bytes")).items():
            self._record(catalogue.STATE_SIZE, size, operator)
        for sink, rows in numbers(event.detail.get("staged_rows")).items():
            self._record(catalogue.STAGED_ROWS, rows, sink)
        for sink in _names(event.detail.get("sinks")):
            self._unpublished.setdefault(sink, set()).add(event.epoch)
            self._put_unpublished(sink)

    def onEpochAborted(self, event: EpochEvent) -> None:
        """Record an aborted epoch."""
        self._record(catalogue.EPOCHS_ABORTED, 1)

    def onEpochPublished(self, event: EpochEvent) -> None:
        """Record a publish: the sink has everything up to this epoch."""
        sink = str(event.detail.get("sink", ""))
        self._record(catalogue.EPOCHS_PUBLISHED, 1, sink)
        self._record(catalogue.LAST_PUBLISH_AT, self._now_s(), sink)
        self._record(catalogue.PUBLISHED_ROWS, number(event.detail.get("rows")), sink)
        if (took_ms := event.detail.get("duration_ms")) is not None:
            self._record(catalogue.EPOCH_PARTS, number(took_ms) / 1000, "publish", sink)
        for part, took_ms in numbers(event.detail.get("parts_ms")).items():
            self._record(catalogue.PUBLISH_PARTS, took_ms / 1000, part, sink)
        # A publish covers all earlier epochs of the sink, also those whose event was lost.
        self._unpublished[sink] = {epoch for epoch in self._unpublished.get(sink, ()) if epoch > event.epoch}
        self._put_unpublished(sink)

    def _record(self, instrument: Instrument, value: float, *labels: str) -> None:
        self._backend.record(instrument, value, self._job, *labels)

    def _put_unpublished(self, sink: str) -> None:
        # Epochs that wait for a line of all stages are not the sink's to publish yet.
        due = [epoch for epoch in self._unpublished[sink] if self._released is None or epoch <= self._released]
        self._record(catalogue.UNPUBLISHED, len(due), sink)

    def onRetry(self, event: RetryEvent) -> None:
        """Record an attempt of an outbox that failed and follows again."""
        self._record(catalogue.RETRIES, 1, event.sink, event.condition)

    def onOutage(self, event: OutageEvent) -> None:
        """Record a failed attempt during an outage of the store or a disk."""
        self._record(catalogue.OUTAGE, 1)
        self._record(catalogue.OUTAGES, 1, event.condition)

    def onOutageOver(self, event: OutageEvent) -> None:
        """Record the end of an outage, or of the run that waited for it."""
        self._record(catalogue.OUTAGE, 0)


def _seconds(moment: Json) -> float:
    """Return the seconds since 1970 of a time that Spark has written; 0 for none, or one after the year 9999."""
    with suppress(ValueError):
        return datetime.fromisoformat(moment).timestamp() if isinstance(moment, str) else 0.0
    return 0.0


def _names(value: Json) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list | tuple) else []
