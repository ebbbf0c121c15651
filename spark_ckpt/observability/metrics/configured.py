"""Turns the setting `metrics` into listeners: `prometheus`, `prometheus://HOST:PORT`, `otel`, or several of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spark_ckpt.errors import ConfigInvalid, EnvironmentUnfit
from spark_ckpt.events.listener import RunListener

_PROMETHEUS = re.compile(r"prometheus(?:://(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+):(?P<port>\d{1,5}))?")
_DEFAULT_PORT = 9464
"""OpenTelemetry's default port for Prometheus endpoints."""


def check_targets(targets: Sequence[str]) -> None:
    """Raise `ConfigInvalid` for an unknown target."""
    for target in targets:
        if target != "otel" and _PROMETHEUS.fullmatch(target) is None:
            raise ConfigInvalid(
                f"'{target}' is no place for metrics",
                hint="write 'prometheus', 'prometheus://127.0.0.1:9464', 'otel', or several with commas",
            )


def listeners_of(targets: Sequence[str], job: str) -> list[RunListener]:
    """Return the listeners that record metrics. Opens endpoints.

    Raises `ConfigInvalid`, or `EnvironmentUnfit` if the extra is not installed.
    """
    check_targets(targets)
    return [listener for target in targets for listener in _listeners(target, job)]


def _listeners(target: str, job: str) -> list[RunListener]:
    from spark_ckpt.observability.metrics.meter import Meter

    if target == "otel":
        with _extra("opentelemetry-api"):
            from spark_ckpt.observability.metrics.opentelemetry import EpochSpans, OpenTelemetry
        return [Meter(job, OpenTelemetry()), EpochSpans()]
    with _extra("prometheus-client"):
        from spark_ckpt.observability.metrics.prometheus import endpoints
    address = _PROMETHEUS.fullmatch(target)
    host, port = (address["host"], address["port"]) if address else (None, None)
    meter = Meter(job, endpoints.backend())
    endpoints.serve((host or "127.0.0.1").strip("[]"), _DEFAULT_PORT if port is None else int(port))
    return [meter]


@contextmanager
def _extra(package: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise EnvironmentUnfit(
            f"metrics need the package {package}", hint="pip install 'spark-ckpt[metrics]'"
        ) from error
