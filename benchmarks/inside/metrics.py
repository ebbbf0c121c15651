"""Cost of metrics: an endless job with an epoch every second, with metrics, between two runs of it without metrics.

"With metrics" means all of them: a Prometheus endpoint that is scraped every second, OpenTelemetry's metrics, and a trace per
epoch. Java gets faster for minutes, so each run is compared with the mean of the runs before and after it. The target is less
than one percent. Wall-clock times differ by more on a machine with other work, so processor time per row is reported too: of all
processes of this session, the scraper included, which counts against metrics. The error of the mean shows if one percent could
have been detected. The cost of one record of metrics is also measured by itself.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import os
import statistics
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from prometheus_client import generate_latest
from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from benchmarks.inside.endless import EndlessSource
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.run_rate import end_of_batch, rows_per_s
from benchmarks.inside.sessions import benchmark_session
from benchmarks.side_by_side.usage import processes
from spark_ckpt.observability.metrics.configured import listeners_of
from spark_ckpt.observability.metrics.prometheus import endpoints

ROWS, KEYS = 100_000, 10_000
ADDRESS = "127.0.0.1:9466"
TARGETS = {"metrics": f"prometheus://{ADDRESS},otel", "lag_interval": "1 second"}
WINDOW_S, WARM_UP_S, SCRAPE_S = 25.0, 5.0, 1.0
MOST = 0.01


@contextmanager
def scraped(on: bool) -> Iterator[list[int]]:
    """Scrape every second; yield the sizes of the answers."""
    sizes: list[int] = []
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(SCRAPE_S):
            with urllib.request.urlopen(f"http://{ADDRESS}/metrics", timeout=10) as answer:
                sizes.append(len(answer.read()))

    thread = threading.Thread(target=scrape, name="scraper")
    if on:
        thread.start()
    try:
        yield sizes
    finally:
        ended.set()
        if on:
            thread.join()


class Rate(NamedTuple):
    """Rate of one run: rows per second, and processor time for a million rows."""

    rows_per_s: float
    cpu_s: float


def used_s() -> float:
    """Processor time of this session's processes: the driver, its JVM, and Python workers, which live as long as the session."""
    return sum(each.cpu_s for each in processes([os.getsid(0)]))


def lost(measured: float, before: float, after: float) -> float:
    """Increase over the mean of both neighbours, as a share."""
    return measured / statistics.mean((before, after)) - 1


def with_error(parts: Sequence[float]) -> str:
    """Mean with its standard error, and the range."""
    error = statistics.stdev(parts) / math.sqrt(len(parts)) if len(parts) > 1 else math.inf
    return f"{statistics.mean(parts):.2%} +- {error:.2%} ({min(parts):.2%} to {max(parts):.2%})"


def verdict(parts: Sequence[float]) -> str:
    """Compare with the limit; two standard errors on either side must agree, else the result is undecided."""
    mean = statistics.mean(parts)
    error = statistics.stdev(parts) / math.sqrt(len(parts)) if len(parts) > 1 else math.inf
    return "yes" if mean + 2 * error < MOST else "no" if mean - 2 * error > MOST else "cannot be seen: more rounds"


def rate(spark: SparkSession, store: Path, seconds: float, settings: Mapping[str, object]) -> Rate:
    """Measure between two ends of batches. Raises `RuntimeError` if metrics are on and nothing was scraped."""
    job = ckpt.Job(spark, "metrics", store=str(store), interval="1 second", key_groups=16, **settings)
    rows = job.source("input", EndlessSource(ROWS, f"pmod(hash(n), {KEYS})"))
    rows.groupBy("k").agg("each row", total=ckpt.sum("v"), n=ckpt.count()).to(NullSink())
    run = job.start()
    try:
        end_of_batch(run)
        with scraped(bool(settings)) as sizes:
            time.sleep(min(WARM_UP_S, seconds))
            before_s, began_s = used_s(), time.monotonic()
            found = rows_per_s(run, seconds)
            cpu_per_s = (used_s() - before_s) / (time.monotonic() - began_s)
        if settings and not sizes:
            raise RuntimeError("nothing was scraped")
    finally:
        run.stop()
    return Rate(found, 1e6 * cpu_per_s / found)


def provide_opentelemetry() -> None:
    """Install an SDK that keeps everything in memory, without a network."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(provider)


def cost_ms(events: int = 2000) -> tuple[float, float]:
    """Processor time in ms of one batch's record in Prometheus and OpenTelemetry, and of one scrape."""
    listeners = listeners_of(["prometheus://127.0.0.1:0", "otel"], "alone")
    progress = {
        "numInputRows": ROWS,
        "durationMs": {"batch": 500},
        "lateRows": {"aggregate": 0},
        "inFlightRows": {},
        "rejected": 0,
    }
    event = ckpt.ProgressEvent("alone", 1, 1, progress)
    began_s = time.process_time()
    for _ in range(events):
        for listener in listeners:
            listener.onProgress(event)
    batch_ms = 1000 * (time.process_time() - began_s) / events
    began_s = time.process_time()
    for _ in range(100):
        generate_latest(endpoints.registry)
    return batch_ms, 1000 * (time.process_time() - began_s) / 100


def main(rounds: int, seconds: float) -> None:
    """Print a Markdown table: each round, and the median."""
    logging.getLogger("spark_ckpt").setLevel(logging.ERROR)
    provide_opentelemetry()
    spark = benchmark_session()
    slower, dearer, rates = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as name:
        stores = (Path(name) / str(number) for number in itertools.count())
        rate(spark, next(stores), seconds, TARGETS)
        before = rate(spark, next(stores), seconds, {})
        for _ in range(rounds):
            measured = rate(spark, next(stores), seconds, TARGETS)
            after = rate(spark, next(stores), seconds, {})
            rates.append(measured.rows_per_s)
            slower.append(lost(1 / measured.rows_per_s, 1 / before.rows_per_s, 1 / after.rows_per_s))
            dearer.append(lost(measured.cpu_s, before.cpu_s, after.cpu_s))
            before = after
    print("| metrics, traces, a scrape a second | rows/s, median | more, mean +- its error (min to max) | under 1 % |")
    print("|---|---|---|---|")
    batch_ms, scrape_ms = cost_ms()
    print(f"| processor time of a batch's record, {batch_ms:.2f} ms; of a scrape, {scrape_ms:.2f} ms | | | |")
    head = f"{rounds} rounds of {seconds:g} s, for a row"
    print(f"| {head}, processor time | {statistics.median(rates):,.0f} | {with_error(dearer)} | {verdict(dearer)} |")
    print(f"| {head}, by the clock | | {with_error(slower)} | {verdict(slower)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=WINDOW_S)
    options = parser.parse_args()
    main(options.rounds, options.seconds)
