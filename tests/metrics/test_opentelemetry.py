"""The same metrics through OpenTelemetry, and a trace per epoch, as an SDK collects them."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from spark_ckpt.events.listener import EpochEvent, ProgressEvent
from spark_ckpt.observability.metrics.meter import Meter
from spark_ckpt.observability.metrics.opentelemetry import EpochSpans, OpenTelemetry

PARTS = {"barrier": 100, "snapshot": 400, "decision": 20}
NOW_NS = 1_700_000_000_000_000_000


@pytest.fixture
def spans():
    """A listener and its spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield EpochSpans(provider, now_ns=lambda: NOW_NS), exporter.get_finished_spans
    provider.shutdown()


def epoch(number, **detail):
    return EpochEvent("orders", number, 3, detail)


def by_name(found):
    return {span.name: span for span in found}


def ms(span):
    return (span.end_time - span.start_time) // 1_000_000


def test_metrics_arrive_with_their_unit_and_labels():
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    Meter("orders", OpenTelemetry(provider)).onProgress(ProgressEvent("orders", 3, 7, {"numInputRows": 10}))
    scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
    provider.shutdown()

    metrics = {metric.name: metric for scope in scopes for metric in scope.metrics}
    rows = metrics["spark_ckpt.input.rows"]
    [point] = rows.data.data_points
    assert (point.value, dict(point.attributes), rows.unit) == (10, {"ckpt_job": "orders"}, "{row}")
    assert metrics["spark_ckpt.batch.duration"].unit == "s"


def test_an_epoch_is_a_trace_of_its_parts_one_after_another(spans):
    listener, finished = spans
    listener.onEpochCommitted(epoch(8, reason="interval", rows_in=10, parts_ms=PARTS))

    found = by_name(finished())
    whole = found["spark_ckpt.epoch"]
    assert {name: ms(found[f"spark_ckpt.{name}"]) for name in PARTS} == PARTS
    assert ms(whole) == sum(PARTS.values())
    assert whole.end_time == found["spark_ckpt.decision"].end_time == NOW_NS
    assert found["spark_ckpt.barrier"].end_time == found["spark_ckpt.snapshot"].start_time
    assert all(found[f"spark_ckpt.{name}"].parent.span_id == whole.context.span_id for name in PARTS)
    assert whole.attributes["spark_ckpt.rows_in"] == 10


def test_a_later_publish_belongs_to_its_epochs_trace(spans):
    listener, finished = spans
    listener.onEpochCommitted(epoch(8, parts_ms=PARTS))
    listener.onEpochCommitted(epoch(9, parts_ms=PARTS))
    listener.onEpochPublished(epoch(8, sink="out", rows=5, duration_ms=30))

    first = next(span for span in finished() if span.name == "spark_ckpt.epoch")
    publish = by_name(finished())["spark_ckpt.publish"]
    assert publish.context.trace_id == first.context.trace_id
    assert (ms(publish), publish.attributes["spark_ckpt.sink"]) == (30, "out")


def test_every_epoch_has_its_own_trace(spans):
    listener, finished = spans
    for number in (8, 9):
        listener.onEpochCommitted(epoch(number, parts_ms=PARTS))

    assert len({span.context.trace_id for span in finished()}) == 2


def test_a_publish_of_an_earlier_incarnations_epoch_has_its_own_trace(spans):
    listener, finished = spans
    listener.onEpochPublished(epoch(4, sink="out", rows=5, duration_ms=30))

    [publish] = finished()
    assert publish.parent is None


def test_an_aborted_epoch_is_an_error_with_its_reason(spans):
    listener, finished = spans
    listener.onEpochAborted(epoch(8, why="timed out"))

    [aborted] = finished()
    assert (aborted.status.status_code, aborted.status.description) == (StatusCode.ERROR, "timed out")


def test_spans_of_unpublished_epochs_are_dropped_after_a_bound(spans):
    listener, finished = spans
    for number in range(500):
        listener.onEpochCommitted(epoch(number))
    finished()

    for number in range(400):
        listener.onEpochPublished(epoch(number))
    assert all(publish.parent is None for publish in finished()), "a dropped span has no children"
