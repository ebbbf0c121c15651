"""Metrics for Prometheus through its official client: one registry for all jobs of the process, and an endpoint."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.observability.metrics.catalogue import CATALOGUE, SECONDS, Instrument, MetricKind

_log = logging.getLogger(__name__)
_KINDS: Mapping[MetricKind, Callable[..., Counter | Gauge | Histogram]] = {
    MetricKind.COUNTER: Counter,
    MetricKind.GAUGE: Gauge,
    MetricKind.HISTOGRAM: partial(Histogram, buckets=SECONDS),
}


class Prometheus:
    """All instruments in one registry. Created once for a registry, which accepts each name once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = {
            each.name: _KINDS[each.kind](*_described(each), registry=registry) for each in CATALOGUE.values()
        }

    def record(self, instrument: Instrument, value: float, *labels: str) -> None:
        """Add to a counter, set a gauge, or observe a duration in seconds in a histogram."""
        match self._metrics[instrument.name].labels(*labels):
            case Counter() as counter:
                counter.inc(value)
            case Gauge() as gauge:
                gauge.set(value)
            case Histogram() as histogram:
                histogram.observe(value)


def _described(instrument: Instrument) -> tuple[str, str, tuple[str, ...]]:
    return instrument.prometheus_name, instrument.description, instrument.label_names


@dataclass(slots=True)
class Endpoints:
    """Endpoints of this process. Each opens once and stays open, so that a job's last numbers can still be scraped."""

    registry: CollectorRegistry = field(default_factory=lambda: REGISTRY)
    _backend: Prometheus | None = None
    _ports: dict[tuple[str, int], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def backend(self) -> Prometheus:
        """Return the backend of the registry."""
        with self._lock:
            # A registry refuses a name that it has: the second job of a process shares the instruments of the first.
            if self._backend is None:
                self._backend = Prometheus(self.registry)
            return self._backend

    def serve(self, host: str, port: int) -> int:
        """Serve scrapes at `http://HOST:PORT/metrics` and return the port, which the system chooses for 0. Raises
        `ConfigInvalid`.
        """
        with self._lock:
            if (host, port) not in self._ports:
                self._ports[host, port] = self._opened(host, port)
            return self._ports[host, port]

    def _opened(self, host: str, port: int) -> int:
        try:
            server, _ = start_http_server(port, host, self.registry)
        except (OSError, OverflowError, UnicodeError) as error:  # the last: a name that no host can have
            raise ConfigInvalid(
                f"metrics cannot be served at {host}:{port}: {error}",
                hint="give another address: metrics='prometheus://127.0.0.1:PORT'",
            ) from error
        _log.info("metrics are at http://%s:%d/metrics", host, server.server_port)
        return int(server.server_port)


endpoints = Endpoints()
"""Endpoints of this process."""
