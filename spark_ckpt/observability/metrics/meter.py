"""Turns the events of a run into metrics; a backend sends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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

    def add(self, instrument: Instrument, amount: float, *labels: str) -> None:
        """Add to a counter."""

    def put(self, instrument: Instrument, value: float, *labels: str) -> None:
        """Set the value of a gauge."""

    def observe(self, instrument: Instrument, seconds: float, *labels: str) -> None:
        """Record one duration in a histogram."""


class Meter(RunListener):
    """Records the metrics of one run. `now_s` returns seconds since 1970."""

    def __init__(self, job: str, backend: Backend, now_s: Callable[[], float] = time.time) -> None:
        self._job = job
        self._backend = backend
        self._now_s = now_s
        self._unpublished: dict[str, set[int]] = {}
        self._released: int | None = None
        for counted in (*_COUNTS.values(), catalogue.BATCHES, catalogue.EPOCHS_ABORTED, catalogue.INCARNATIONS):
            backend.add(counted, 0, job)
        for shown in (catalogue.RUNNING, catalogue.OUTAGE, catalogue.STANDBY, catalogue.STANDBY_WARM):
            backend.put(shown, 0, job)

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        """Record the start of an incarnation."""
        self._backend.add(catalogue.INCARNATIONS, 1, self._job)
        self._backend.put(catalogue.INCARNATION, event.incarnation, self._job)
        self._backend.put(catalogue.RUNNING, 1, self._job)
        self._backend.put(catalogue.OUTAGE, 0, self._job)
        # A restore lowers the newest epoch.
        self._backend.put(catalogue.LAST_EPOCH, event.base, self._job)
        for sink, epochs in event.unpublished.items():
            self._unpublished[sink] = set(epochs)
            self._put_unpublished(sink)

    def onIncarnationEnded(self, event: IncarnationEvent) -> None:
        """Record the end of an incarnation."""
        self._backend.put(catalogue.RUNNING, 0, self._job)

    def onProgress(self, event: ProgressEvent) -> None:
        """Record a completed micro-batch."""
        record = event.progress
        for name, instrument in _COUNTS.items():
            self._backend.add(instrument, _number(record.get(name)), self._job)
        self._backend.add(catalogue.BATCHES, 1, self._job)
        took_ms = _numbers(record.get("durationMs")).get("batch", 0.0)
        self._backend.observe(catalogue.BATCH_DURATION, took_ms / 1000, self._job)
        if (verdict := record.get("verdict")) is not None:
            self._backend.add(catalogue.OUTBOX_BATCHES, 1, self._job, str(verdict))
        for operator, rows in _numbers(record.get("lateRows")).items():
            self._backend.add(catalogue.LATE_ROWS, rows, self._job, operator)
        for edge, rows in _numbers(record.get("inFlightRows")).items():
            self._backend.put(catalogue.IN_FLIGHT_ROWS, rows, self._job, edge)

    def onPhases(self, event: ProgressEvent) -> None:
        """Record what is known when Spark has completed a micro-batch: the durations of its parts, its watermark."""
        for part, took_ms in _numbers(event.progress.get("durationMs")).items():
            if part not in _WHOLES:
                self._backend.observe(catalogue.BATCH_PARTS, took_ms / 1000, self._job, part)
        times = event.progress.get("eventTime")
        watermark_s = _seconds(times.get("watermark")) if isinstance(times, Mapping) else 0.0
        if watermark_s > 0:  # Spark begins with 1970: no row has moved it
            self._backend.put(catalogue.WATERMARK, watermark_s, self._job)

    def onStandby(self, event: StandbyEvent) -> None:
        """Record a standby that waits for the driver, or takes over."""
        waits = event.what != "takes over"
        self._backend.put(catalogue.STANDBY, float(waits), self._job)
        if not waits or event.what in ("waits", "is warm"):
            self._backend.put(catalogue.STANDBY_WARM, float(event.what == "is warm"), self._job)

    def onLag(self, event: LagEvent) -> None:
        """Record the rows that wait at the sources."""
        for source, rows in event.rows.items():
            self._backend.put(catalogue.LAG_ROWS, rows, self._job, source)

    def onLines(self, event: LineEvent) -> None:
        """Record the newest line of each program, and of all of them."""
        for program, number in event.served.items():
            self._backend.put(catalogue.PROGRAM_LINE, number, self._job, program)
        self._backend.put(catalogue.COMMON_LINE, event.common, self._job)
        self._released = event.released
        for sink in self._unpublished:
            self._put_unpublished(sink)

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """Record a committed epoch. A commit also ends an outage."""
        self._backend.add(catalogue.EPOCHS_COMMITTED, 1, self._job, str(event.detail.get("reason", "")))
        self._backend.put(catalogue.LAST_EPOCH, event.epoch, self._job)
        self._backend.put(catalogue.LAST_EPOCH_AT, self._now_s(), self._job)
        self._backend.put(catalogue.OUTAGE, 0, self._job)
        for part, took_ms in _numbers(event.detail.get("parts_ms")).items():
            self._backend.observe(catalogue.EPOCH_PARTS, took_ms / 1000, self._job, part, "")
        for operator, size in _numbers(event.detail.get("state_bytes")).items():
            self._backend.put(catalogue.STATE_SIZE, size, self._job, operator)
        for sink, rows in _numbers(event.detail.get("staged_rows")).items():
            self._backend.add(catalogue.STAGED_ROWS, rows, self._job, sink)
        for sink in _names(event.detail.get("sinks")):
            self._unpublished.setdefault(sink, set()).add(event.epoch)
            self._put_unpublished(sink)

    def onEpochAborted(self, event: EpochEvent) -> None:
        """Record an aborted epoch."""
        self._backend.add(catalogue.EPOCHS_ABORTED, 1, self._job)

    def onEpochPublished(self, event: EpochEvent) -> None:
        """Record a publish: the sink has everything up to this epoch."""
        sink = str(event.detail.get("sink", ""))
        self._backend.add(catalogue.EPOCHS_PUBLISHED, 1, self._job, sink)
        self._backend.put(catalogue.LAST_PUBLISH_AT, self._now_s(), self._job, sink)
        self._backend.add(catalogue.PUBLISHED_ROWS, _number(event.detail.get("rows")), self._job, sink)
        if (took_ms := event.detail.get("duration_ms")) is not None:
            self._backend.observe(catalogue.EPOCH_PARTS, _number(took_ms) / 1000, self._job, "publish", sink)
        for part, took_ms in _numbers(event.detail.get("parts_ms")).items():
            self._backend.observe(catalogue.PUBLISH_PARTS, took_ms / 1000, self._job, part, sink)
        # A publish covers all earlier epochs of the sink, also those whose event was lost.
        self._unpublished[sink] = {epoch for epoch in self._unpublished.get(sink, ()) if epoch > event.epoch}
        self._put_unpublished(sink)

    def _put_unpublished(self, sink: str) -> None:
        # Epochs that wait for a line of all stages are not the sink's to publish yet.
        due = [epoch for epoch in self._unpublished[sink] if self._released is None or epoch <= self._released]
        self._backend.put(catalogue.UNPUBLISHED, len(due), self._job, sink)

    def onRetry(self, event: RetryEvent) -> None:
        """Record an attempt of an outbox that failed and follows again."""
        self._backend.add(catalogue.RETRIES, 1, self._job, event.sink, event.condition)

    def onOutage(self, event: OutageEvent) -> None:
        """Record a failed attempt during an outage of the store or a disk."""
        self._backend.put(catalogue.OUTAGE, 1, self._job)
        self._backend.add(catalogue.OUTAGES, 1, self._job, event.condition)


def _number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _numbers(value: Json) -> dict[str, float]:
    return {name: _number(each) for name, each in value.items()} if isinstance(value, Mapping) else {}


def _seconds(moment: Json) -> float:
    """Return the seconds since 1970 of a time that Spark has written; 0 for none."""
    return datetime.fromisoformat(moment).timestamp() if isinstance(moment, str) else 0.0


def _names(value: Json) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list | tuple) else []
