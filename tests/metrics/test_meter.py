"""Events of a run arrive as metrics, with names by the conventions of each system."""

from __future__ import annotations

import math
import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from spark_ckpt.events.listener import (
    EpochEvent,
    IncarnationEvent,
    LagEvent,
    LineEvent,
    OutageEvent,
    ProgressEvent,
    StandbyEvent,
)
from spark_ckpt.observability.metrics.catalogue import CATALOGUE, MetricKind
from spark_ckpt.observability.metrics.meter import Meter
from spark_ckpt.observability.metrics.prometheus import Prometheus

JOB = 'orders "new"\n'
PROGRESS = {
    "numInputRows": 10, "numOutputRows": 4, "rejected": 1, "durationMs": {"batch": 250}, "lateRows": {"totals": 2},
    "inFlightRows": {"loop": 7},
}  # fmt: skip


class Scraped:
    """Samples of a Prometheus scrape, read by Prometheus' own parser."""

    def __init__(self, registry):
        self.text = generate_latest(registry).decode()
        families = text_string_to_metric_families(self.text)
        self.samples = [sample for family in families for sample in family.samples]

    def value(self, name, **labels):
        [found] = [each.value for each in self.samples if each.name == name and labels.items() <= each.labels.items()]
        return found


@pytest.fixture
def run():
    """A meter and its scraped samples."""
    registry = CollectorRegistry()
    meter = Meter(JOB, Prometheus(registry), now_s=lambda: 1_700_000_000.5)
    return meter, lambda: Scraped(registry)


def epoch(number, **detail):
    return EpochEvent(JOB, number, 3, detail)


def test_rows_are_counted_over_micro_batches(run):
    meter, scraped = run
    for _ in range(2):
        meter.onProgress(ProgressEvent(JOB, 3, 7, PROGRESS))

    found = scraped()
    assert found.value("spark_ckpt_input_rows_total", ckpt_job=JOB) == 20
    assert found.value("spark_ckpt_output_rows_total") == 8
    assert found.value("spark_ckpt_rejected_rows_total") == 2
    assert found.value("spark_ckpt_late_rows_total", operator="totals") == 4
    assert found.value("spark_ckpt_in_flight_rows", edge="loop") == 7
    assert found.value("spark_ckpt_batch_duration_seconds_sum") == 0.5
    assert found.value("spark_ckpt_batch_duration_seconds_bucket", le="0.25") == 2


def test_an_epoch_has_metrics_of_its_parts_its_time_and_its_state(run):
    meter, scraped = run
    parts = {"barrier": 100, "snapshot": 400, "decision": 20}
    meter.onEpochCommitted(epoch(8, reason="interval", parts_ms=parts, state_bytes={"totals": 4096}, sinks=["out"]))

    found = scraped()
    assert found.value("spark_ckpt_epochs_committed_total", reason="interval") == 1
    assert found.value("spark_ckpt_last_epoch") == 8
    assert found.value("spark_ckpt_last_epoch_timestamp_seconds") == 1_700_000_000.5
    assert found.value("spark_ckpt_state_size_bytes", operator="totals") == 4096
    for part, took_ms in parts.items():
        assert found.value("spark_ckpt_epoch_part_duration_seconds_sum", part=part) == took_ms / 1000


def test_a_finished_batch_has_metrics_of_its_parts_without_totals(run):
    meter, scraped = run
    took_ms = {"batch": 400, "triggerExecution": 600, "addBatch": 450, "queryPlanning": 100, "fetch": 250}
    meter.onPhases(ProgressEvent(JOB, 3, 7, {"durationMs": took_ms}))

    found = scraped()
    sums = {
        each.labels["part"]: each.value
        for each in found.samples
        if each.name == "spark_ckpt_batch_part_duration_seconds_sum"
    }
    assert sums == {"queryPlanning": 0.1, "fetch": 0.25}


@pytest.mark.parametrize(
    ("watermarks", "seconds"),
    [
        (["2026-01-02T03:04:05.500Z"], 1_767_323_045.5),
        (["2026-01-02T03:04:05.500Z", None], 1_767_323_045.5),
        (["1970-01-01T00:00:00.000Z"], None),
        ([None], None),
        (["11476-08-15T05:20:00.000Z"], None),
    ],
    ids=["moved", "not in every batch", "not moved yet", "no watermark", "after the year 9999"],
)
def test_a_batch_has_a_watermark_metric_after_a_row_has_advanced_it(run, watermarks, seconds):
    meter, scraped = run
    for each in watermarks:
        meter.onPhases(ProgressEvent(JOB, 3, 7, {"eventTime": {"watermark": each} if each else {}}))

    found = scraped()
    said = [each.value for each in found.samples if each.name == "spark_ckpt_watermark_timestamp_seconds"]
    assert said == ([] if seconds is None else [seconds])


def test_a_publish_has_metrics_of_its_parts(run):
    meter, scraped = run
    meter.onEpochPublished(epoch(8, sink="out", rows=5, duration_ms=120, parts_ms={"send": 90, "commit": 10}))

    found = scraped()
    assert found.value("spark_ckpt_publish_part_duration_seconds_sum", part="send", sink="out") == 0.09
    assert found.value("spark_ckpt_publish_part_duration_seconds_count", part="commit") == 1


def test_a_waiting_standby_is_counted_as_warm_or_cold(run):
    meter, scraped = run
    shown = []
    for what in ("waits", "follows", "is warm", "follows", "takes over"):
        meter.onStandby(StandbyEvent(JOB, what, 3, 7, "host", ""))
        found = scraped()
        shown.append((found.value("spark_ckpt_standby"), found.value("spark_ckpt_standby_warm")))

    assert shown == [(1, 0), (1, 0), (1, 1), (1, 1), (0, 0)]


def test_a_standby_that_begins_a_job_of_no_driver_is_none_any_more(run):
    meter, scraped = run
    meter.onStandby(StandbyEvent(JOB, "is warm", 0, 0, "", ""))
    meter.onIncarnationStarted(IncarnationEvent(JOB, 1, 0, "latest"))
    found = scraped()
    assert [found.value(f"spark_ckpt_{name}") for name in ("running", "standby", "standby_warm")] == [1, 0, 0]


def test_epochs_that_a_sink_lacks_are_counted_until_it_has_them(run):
    meter, scraped = run
    for number in (8, 9, 10):
        meter.onEpochCommitted(epoch(number, sinks=["out", "side"]))
    meter.onEpochPublished(epoch(9, sink="out", rows=5, duration_ms=30))

    found = scraped()
    assert found.value("spark_ckpt_unpublished_epochs", sink="out") == 1
    assert found.value("spark_ckpt_unpublished_epochs", sink="side") == 3
    assert found.value("spark_ckpt_published_rows_total", sink="out") == 5
    assert found.value("spark_ckpt_epoch_part_duration_seconds_sum", part="publish", sink="out") == 0.03


def test_an_outage_is_reported_until_it_is_over(run):
    meter, scraped = run
    outage = OutageEvent(JOB, 3, "CKPT_STORE_FULL", "full", 10, 600_000, 1000, 1)
    meter.onOutage(outage)
    during = scraped()
    meter.onOutageOver(outage)

    assert during.value("spark_ckpt_outage") == 1
    assert during.value("spark_ckpt_outage_attempts_total", condition="CKPT_STORE_FULL") == 1
    assert scraped().value("spark_ckpt_outage") == 0


def test_a_run_has_metrics_of_its_liveness_and_its_restarts(run):
    meter, scraped = run
    meter.onIncarnationStarted(IncarnationEvent(JOB, 3, 7, "latest"))
    alive = scraped()
    meter.onIncarnationEnded(IncarnationEvent(JOB, 3, 7, "failed"))

    assert (alive.value("spark_ckpt_running"), alive.value("spark_ckpt_incarnation")) == (1, 3)
    assert scraped().value("spark_ckpt_running") == 0
    assert scraped().value("spark_ckpt_incarnations_started_total") == 1


def test_a_source_that_does_not_answer_has_no_lag(run):
    meter, scraped = run
    meter.onLag(LagEvent(JOB, {"orders": 9, "clicks": 2}))
    meter.onLag(LagEvent(JOB, {"clicks": 3}))
    assert math.isnan(scraped().value("spark_ckpt_source_lag_rows", source="orders"))
    assert scraped().value("spark_ckpt_source_lag_rows", source="clicks") == 3


def test_lag_is_the_newest_value_of_each_source(run):
    meter, scraped = run
    meter.onLag(LagEvent(JOB, {"orders": 12}))
    meter.onLag(LagEvent(JOB, {"orders": 5}))

    assert scraped().value("spark_ckpt_source_lag_rows", source="orders") == 5


def test_the_common_line_is_that_of_the_slowest_program(run):
    meter, scraped = run
    meter.onLines(LineEvent(JOB, {JOB: 120, "fraud.model": 60}))
    held_up = scraped()
    meter.onLines(LineEvent(JOB, {JOB: 120, "fraud.model": 120}))

    assert held_up.value("spark_ckpt_program_line_timestamp_seconds", program="fraud.model") == 60
    assert held_up.value("spark_ckpt_program_line_timestamp_seconds", program=JOB) == 120
    assert held_up.value("spark_ckpt_common_line_timestamp_seconds") == 60
    assert scraped().value("spark_ckpt_common_line_timestamp_seconds") == 120


def test_epochs_that_wait_for_their_line_do_not_count_as_unpublished(run):
    meter, scraped = run
    meter.onLines(LineEvent(JOB, {JOB: 60}, released=8))
    for number in (8, 9, 10):
        meter.onEpochCommitted(epoch(number, sinks=["out"]))
    waiting = scraped()
    meter.onLines(LineEvent(JOB, {JOB: 120}, released=10))
    due = scraped()
    meter.onEpochPublished(epoch(9, sink="out", rows=5, duration_ms=30))

    found = [each.value("spark_ckpt_unpublished_epochs", sink="out") for each in (waiting, due, scraped())]
    assert found == [1, 3, 1]


def test_counters_are_zero_before_the_first_batch(run):
    _, scraped = run

    found = scraped()
    assert found.value("spark_ckpt_input_rows_total") == 0
    assert found.value("spark_ckpt_running") == 0


def test_names_follow_the_conventions_of_prometheus():
    """https://prometheus.io/docs/practices/naming: base units last, `_total` for counters only."""
    for instrument in CATALOGUE.values():
        name = instrument.prometheus_name
        assert re.fullmatch(r"spark_ckpt(_[a-z]+)+", name)
        assert name.endswith("_total") == (instrument.kind is MetricKind.COUNTER), name
        assert ("_seconds" in name) == (instrument.unit == "s"), name
        assert ("_bytes" in name) == (instrument.unit == "By"), name
        assert "job" not in instrument.label_names, name  # the scraped target's


def test_names_follow_the_conventions_of_opentelemetry():
    """https://opentelemetry.io/docs/specs/semconv/general/metrics: dots, no unit and no `total` in the name."""
    for instrument in CATALOGUE.values():
        name = instrument.otel_name
        assert re.fullmatch(r"spark_ckpt(\.[a-z]+)+", name)
        assert not name.endswith((".total", ".seconds", ".bytes"))
        assert instrument.unit in ("s", "By", "1") or re.fullmatch(r"\{[a-z]+\}", instrument.unit), name
