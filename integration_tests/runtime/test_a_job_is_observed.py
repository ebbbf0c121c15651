"""Observability of a job on Spark: its metrics are scraped, its page answers, its store has the parts of its epochs."""

from __future__ import annotations

import json
import logging
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from runtime_kit import ENOUGH_S, Heard, totals

import spark_ckpt as ckpt
from spark_ckpt.observability import companions
from spark_ckpt.observability.metrics.prometheus import endpoints
from spark_ckpt.observability.page.facts import COLUMNS, epoch_of, facts_of

MONITORING = Path(ckpt.__file__).parents[1] / "docs" / "monitoring"
NEEDS_MORE = {
    "spark_ckpt_publish_part_duration_seconds_bucket": "a sink that reports the parts of its publishes",
    "spark_ckpt_in_flight_rows": "an edge",
    "spark_ckpt_source_lag_rows": "a source that can count",
    "spark_ckpt_late_rows_total": "event time",
    "spark_ckpt_watermark_timestamp_seconds": "event time",
    "spark_ckpt_program_line_timestamp_seconds": "stages",
    "spark_ckpt_common_line_timestamp_seconds": "stages",
    "spark_ckpt_outage_attempts_total": "an outage",
    "spark_ckpt_outbox_batches_total": "an outbox",
    "spark_ckpt_staged_rows_total": "an outbox",
    "spark_ckpt_retries_total": "an outbox with a sink that is unavailable",
}
"""Metrics that this job cannot have, and their requirements."""

pytestmark = pytest.mark.spark


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples}


def metrics_in(text):
    return set(re.findall(r"spark_ckpt_[a-z_]+", text))


@pytest.mark.long  # in the gate: tests/metrics, tests/page and tests/test_live_view.py
def test_a_job_is_visible_in_metrics_page_and_store(bench, capsys, caplog):
    bench.put(("a", 1), ("b", 2))
    job = bench.job(metrics="prometheus://127.0.0.1:0")
    totals(job.source("in", bench.source())).to(bench.sink(), name="out")
    heard = Heard()
    job.addListener(heard)
    with caplog.at_level(logging.INFO, companions.__name__):
        run = job.start(ui="0")
    try:
        assert run.savepoint("seen", timeout=ENOUGH_S)
        heard.wait("published", 2)
        capsys.readouterr()
        run.show(seconds=0.1)
        drawn = capsys.readouterr().out
        [url] = re.findall(r"is shown at (\S+)", caplog.text)
        with urllib.request.urlopen(f"{url}api/jobs", timeout=30) as answer:
            [shown] = json.load(answer)
        found = scraped(endpoints.serve("127.0.0.1", 0))
    finally:
        run.stop(ENOUGH_S)

    assert "job job, incarnation 1" in drawn
    assert (shown["job"], shown["driver"]["holds_lease"]) == ("job", True)
    assert found["spark_ckpt_input_rows_total"].value == 2
    assert found["spark_ckpt_running"].value == 1
    for name in ("grafana.json", "alerts.yml"):
        named = metrics_in((MONITORING / name).read_text()) - NEEDS_MORE.keys()
        assert len(named) > 4
        assert named - found.keys() == set(), name

    log = bench.store()
    facts = facts_of(log, 0)
    rows = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in facts["epochs"]}
    seen = rows[log.log.state().savepoints["seen"]]
    assert all(seen[f"{part}_ms"] is not None for part in ("barrier", "snapshot", "decision", "publish"))
    assert seen["snapshot_ms"] > 0
    assert seen["state_bytes"] > 0
    assert {each["id"]: each["inputs"] for each in epoch_of(log, facts["latest"])["graph"]} == {
        "source/in": [],
        "operator/totals": ["source/in"],
        "sink/out": ["operator/totals"],
    }
    assert facts["incarnations"][-1]["ended"] == "stopped"
