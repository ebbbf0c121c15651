"""Dashboard and alerts query existing metrics with valid queries, checked with the samples of a real run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import spark_ckpt
from spark_ckpt.events.listener import (
    EpochEvent,
    IncarnationEvent,
    LagEvent,
    LineEvent,
    OutageEvent,
    ProgressEvent,
    RetryEvent,
)
from spark_ckpt.explained.causes import CAUSES
from spark_ckpt.observability.metrics.catalogue import CATALOGUE
from spark_ckpt.observability.metrics.dashboard import dashboard
from spark_ckpt.observability.metrics.meter import Meter
from spark_ckpt.observability.metrics.prometheus import Prometheus
from spark_ckpt.pages.metrics import metrics_table

DOCS = Path(spark_ckpt.__file__).parents[1] / "docs"
MONITORING = DOCS / "monitoring"
RULES = [rule for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
QUERIES = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def samples():
    """Names and labels of all samples of a job after every kind of event."""
    registry = CollectorRegistry()
    meter = Meter("job", Prometheus(registry))
    detail = {
        "reason": "interval",
        "parts_ms": {"barrier": 1, "snapshot": 2, "decision": 3},
        "state_bytes": {"op": 1},
        "sinks": ["out"],
        "staged_rows": {"out": 1},
    }
    progress = {"numInputRows": 1, "durationMs": {"batch": 1}, "lateRows": {"op": 1}, "inFlightRows": {"loop": 1}}
    meter.onIncarnationStarted(IncarnationEvent("job", 1, 0, "latest"))
    meter.onProgress(ProgressEvent("job", 1, 1, progress))
    meter.onProgress(ProgressEvent("job", 1, 1, {"verdict": "new"}))
    meter.onRetry(RetryEvent("job", 1, 1, "out", "CKPT_PUBLISH_FAILED", "away", 2, 200))
    finished = {"durationMs": {"fetch": 1}, "eventTime": {"watermark": "2026-01-02T03:04:05.678Z"}}
    meter.onPhases(ProgressEvent("job", 1, 1, finished))
    meter.onLag(LagEvent("job", {"in": 1}))
    meter.onLines(LineEvent("job", {"job": 60}))
    meter.onEpochCommitted(EpochEvent("job", 1, 1, detail))
    meter.onEpochPublished(
        EpochEvent("job", 1, 1, {"sink": "out", "rows": 1, "duration_ms": 5, "parts_ms": {"send": 4}})
    )
    meter.onOutage(OutageEvent("job", 1, "CKPT_STORE_FULL", "full", 1, 1, 1, 1))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def plain(query):
    """The query without Grafana's variables."""
    return query.replace("$__rate_interval", "1m").replace("$job", ".*")


def selectors(query):
    """Metric and queried labels of each part of a query."""
    return [
        (name, re.findall(r"(\w+)=", labels or ""))
        for name, labels in re.findall(r"(spark_ckpt_\w+)(?:\{([^}]*)\})?", query)
    ]


@pytest.mark.parametrize("query", [*QUERIES, *(rule["expr"] for rule in RULES)])
def test_a_query_parses_and_selects_scraped_series(query, samples):
    promql_parser.parse(plain(query))
    asked = selectors(query)
    assert asked
    for name, labels in asked:
        assert name in samples
        assert set(labels) <= samples[name]


def test_a_query_of_an_unknown_metric_or_with_a_syntax_error_is_found(samples):
    assert [name for name, _ in selectors("rate(spark_ckpt_input_row_total[1m])") if name not in samples]
    with pytest.raises(ValueError, match=r"unclosed|unexpected|parenthesis"):
        promql_parser.parse(plain("rate(spark_ckpt_input_rows_total[1m]"))


def test_labels_of_a_legend_or_an_annotation_are_labels_of_its_query(samples):
    shown = [(target["expr"], target["legendFormat"]) for panel in dashboard()["panels"] for target in panel["targets"]]
    shown += [(rule["expr"], " ".join(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))) for rule in RULES]
    for query, legend in shown:
        labels = set(re.findall(r"\{\{(\w+)\}\}", legend)) or set(legend.split())
        known = {label for name, _ in selectors(query) for label in samples[name]}
        assert labels <= known, (query, legend)


def test_every_metric_of_the_catalogue_is_scraped_and_documented(samples):
    page = (DOCS / "monitoring.md").read_text()
    assert metrics_table() in page
    for each in CATALOGUE.values():
        assert any(name.startswith(each.prometheus_name) for name in samples), each.prometheus_name


def test_the_dashboard_in_the_docs_is_generated_from_the_catalogue():
    """Regenerate with: python -m spark_ckpt.observability.metrics.dashboard > docs/monitoring/grafana.json"""
    assert json.loads((MONITORING / "grafana.json").read_text()) == dashboard()


def test_panels_do_not_overlap_and_every_one_has_a_query():
    panels = dashboard()["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["targets"] for panel in panels)


def alert(name):
    """The parsed query of an alert."""
    (rule,) = [rule for rule in RULES if rule["alert"] == name]
    return promql_parser.parse(rule["expr"])


def test_a_waiting_standby_is_no_job_that_has_stopped():
    """Its metric `running` is 0 for as long as it waits."""
    either = alert("CkptNotRunning")
    assert (str(either.op), str(either.rhs.op)) == ("or", "unless")
    assert "spark_ckpt_running" in either.rhs.lhs.prettify()
    assert "spark_ckpt_standby" in either.rhs.rhs.prettify()


def test_a_restarted_job_that_commits_nothing_is_found():
    """Its process has no time of an epoch yet, so that a comparison with it would find nothing."""
    silent = alert("CkptNoNewEpoch").lhs
    assert str(silent.op) == "unless"
    assert "spark_ckpt_last_epoch_timestamp_seconds" in silent.rhs.prettify()


def test_there_is_an_alert_for_each_of_the_seven_failures():
    assert [rule["alert"] for rule in RULES] == [
        "CkptNoNewEpoch", "CkptNotRunning", "CkptOutage", "CkptSinkBehind", "CkptLagGrows", "CkptLineLate",
        "CkptOutboxRetries",
    ]  # fmt: skip
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        named = re.findall(r"CKPT_\w+", rule["annotations"]["description"])
        assert set(named) <= CAUSES.keys()
