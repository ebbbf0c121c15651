"""Metrics go to the configured target, and no package of theirs is loaded without the setting."""

from __future__ import annotations

import subprocess
import sys
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from spark_ckpt.errors import ConfigInvalid, EnvironmentUnfit
from spark_ckpt.observability.metrics import configured
from spark_ckpt.observability.metrics.meter import Meter
from spark_ckpt.observability.metrics.opentelemetry import EpochSpans
from spark_ckpt.observability.metrics.prometheus import Endpoints


@pytest.mark.parametrize("target", ["promtheus", "prometheus://", "prometheus://host", "http://host:1", "otel://x"])
def test_an_invalid_target_is_refused_at_the_start(target):
    with pytest.raises(ConfigInvalid, match="is no place for metrics"):
        configured.listeners_of([target], "job")


def test_an_endpoint_answers_scrapes_and_two_jobs_share_it():
    endpoints = Endpoints(CollectorRegistry())
    port = endpoints.serve("127.0.0.1", 0)
    for job in ("orders", "totals"):
        Meter(job, endpoints.backend())
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()

    assert endpoints.serve("127.0.0.1", 0) == port
    assert 'spark_ckpt_running{ckpt_job="orders"} 0.0' in text
    assert 'spark_ckpt_running{ckpt_job="totals"} 0.0' in text


def test_an_address_in_use_is_refused_before_the_job_starts():
    port = Endpoints(CollectorRegistry()).serve("127.0.0.1", 0)
    with pytest.raises(ConfigInvalid, match=f"127.0.0.1:{port}"):
        Endpoints(CollectorRegistry()).serve("127.0.0.1", port)
    with pytest.raises(ConfigInvalid, match="cannot be served"):
        Endpoints(CollectorRegistry()).serve("jobs..example", 0)


def test_opentelemetry_gets_metrics_and_a_trace():
    kinds = [type(each) for each in configured.listeners_of(["otel"], "job")]
    assert kinds == [Meter, EpochSpans]


def test_the_error_of_a_missing_package_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "spark_ckpt.observability.metrics.prometheus", None)
    with pytest.raises(EnvironmentUnfit) as caught:
        configured.listeners_of(["prometheus"], "job")
    assert caught.value.hint == "pip install 'spark-ckpt[metrics]'"


def test_a_job_without_metrics_loads_no_metrics_package():
    program = (
        "import sys, spark_ckpt.api.job; "
        "loaded = {name.split('.')[0] for name in sys.modules}; "
        "print(sorted(loaded & {'prometheus_client', 'opentelemetry', 'starlette', 'uvicorn', 'jinja2', 'openlineage'}), "
        "[name for name in sys.modules "
        "if name.startswith(tuple(f'spark_ckpt.observability.{part}' for part in ('metrics', 'page', 'lineage')))])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.strip() == "[] []"
