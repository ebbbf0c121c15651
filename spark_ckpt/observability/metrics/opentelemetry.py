"""Metrics and a trace per epoch for OpenTelemetry, through its API only.

The program sets up the SDK, or runs under `opentelemetry-instrument`. Without an SDK the API does nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode

from spark_ckpt.events.listener import EpochEvent, RunListener
from spark_ckpt.json_values import number, numbers
from spark_ckpt.observability.metrics.catalogue import CATALOGUE, PREFIX, SECONDS, Instrument, MetricKind

_NS_PER_MS = 1_000_000
_COUNTS = ("rows_in", "rows_out", "rejected")
_OPEN = 100
_PARTS = ("barrier", "snapshot", "staging", "decision")
"""Parts of an epoch in order; each begins at the end of the one before."""


class OpenTelemetry:
    """All instruments of one meter. `provider`: None is the program's own."""

    def __init__(self, provider: metrics.MeterProvider | None = None) -> None:
        meter = metrics.get_meter(PREFIX, meter_provider=provider)
        self._recorders = {each.name: _recorder(meter, each) for each in CATALOGUE.values()}

    def record(self, instrument: Instrument, value: float, *labels: str) -> None:
        """Add to a counter, set a gauge, or observe a duration in seconds in a histogram."""
        attributes = dict(zip(instrument.label_names, labels, strict=True))
        self._recorders[instrument.name](value, attributes)


def _recorder(meter: metrics.Meter, instrument: Instrument) -> Callable[[float, dict[str, str]], None]:
    described = instrument.otel_name, instrument.unit, instrument.description
    match instrument.kind:
        case MetricKind.COUNTER:
            return meter.create_counter(*described).add
        case MetricKind.GAUGE:
            return meter.create_gauge(*described).set
        case MetricKind.HISTOGRAM:
            return meter.create_histogram(*described, explicit_bucket_boundaries_advisory=SECONDS).record


class EpochSpans(RunListener):
    """A trace for each epoch: the epoch with its barrier, snapshot and commit, and a publish for each sink.

    `now_ns` returns nanoseconds since 1970. Spans are created at their end, from the events. An epoch that an earlier
    incarnation committed has only its publish as a span, in a separate trace.
    """

    def __init__(self, provider: trace.TracerProvider | None = None, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._tracer = trace.get_tracer(PREFIX, tracer_provider=provider)
        self._now_ns = now_ns
        self._decided: OrderedDict[int, Context] = OrderedDict()

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """Record the epoch and its parts; their times are computed backwards from now."""
        parts = {part: int(took_ms) for part, took_ms in numbers(event.detail.get("parts_ms")).items()}
        end_ns = self._now_ns()
        begin_ns = end_ns - sum(parts.values()) * _NS_PER_MS
        counts: dict[str, str | int] = {f"{PREFIX}.{name}": int(number(event.detail.get(name))) for name in _COUNTS}
        counts[f"{PREFIX}.reason"] = str(event.detail.get("reason", ""))
        # An empty context: otherwise a span that the program has open would become the parent of every epoch.
        span = self._span("epoch", Context(), begin_ns, event, counts)
        inside = trace.set_span_in_context(span, Context())
        at_ns = begin_ns
        for part in _PARTS:
            if part in parts:
                until_ns = at_ns + parts[part] * _NS_PER_MS
                self._span(part, inside, at_ns, event).end(until_ns)
                at_ns = until_ns
        span.end(end_ns)
        self._decided[event.epoch] = inside
        # Keep the newest epochs only: a sink that never publishes must not fill the memory.
        while len(self._decided) > _OPEN:
            self._decided.popitem(last=False)

    def onEpochPublished(self, event: EpochEvent) -> None:
        """Record a sink's publish; its start is computed backwards from now."""
        end_ns = self._now_ns()
        begin_ns = end_ns - int(number(event.detail.get("duration_ms"))) * _NS_PER_MS
        more: dict[str, str | int] = {
            f"{PREFIX}.sink": str(event.detail.get("sink", "")),
            f"{PREFIX}.rows": int(number(event.detail.get("rows"))),
        }
        self._span("publish", self._decided.get(event.epoch, Context()), begin_ns, event, more).end(end_ns)

    def onEpochAborted(self, event: EpochEvent) -> None:
        """Record the epoch as an error."""
        now_ns = self._now_ns()
        span = self._span("epoch", Context(), now_ns, event)
        span.set_status(Status(StatusCode.ERROR, str(event.detail.get("why", ""))))
        span.end(now_ns)

    def _span(
        self, name: str, inside: Context, begin_ns: int, event: EpochEvent, more: Mapping[str, str | int] | None = None
    ) -> Span:
        attributes: dict[str, str | int] = {
            f"{PREFIX}.job": event.job,
            f"{PREFIX}.epoch": event.epoch,
            f"{PREFIX}.incarnation": event.incarnation,
            **(more or {}),
        }
        return self._tracer.start_span(f"{PREFIX}.{name}", inside, attributes=attributes, start_time=begin_ns)
