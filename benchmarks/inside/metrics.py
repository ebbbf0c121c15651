"""What metrics cost: an endless job with an epoch every second, with metrics on between two runs of it with none.

On means all of it: Prometheus' endpoint, scraped every second, OpenTelemetry's metrics, and a trace per epoch. Java gets faster for
minutes, so each run is compared with the mean of the runs before and after it. The target is less than one percent, which is less
than such runs differ on a machine that does something else; so the processor time of what metrics do is measured by itself as well.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import generate_latest
from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from benchmarks.inside.endless import EndlessSource
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.run_rate import end_of_batch, rows_per_s
from benchmarks.inside.sessions import benchmark_session
from spark_ckpt.seen.metrics.configured import listeners_of
from spark_ckpt.seen.metrics.prometheus import endpoints

ROWS, KEYS = 100_000, 10_000
ADDRESS = "127.0.0.1:9466"
TARGETS = {"metrics": f"prometheus://{ADDRESS},otel", "lag_interval": "1 second"}
WINDOW_S, WARM_UP_S, SCRAPE_S = 25.0, 5.0, 1.0
MOST = 0.01


@contextmanager
def scraped(on: bool) -> Iterator[list[int]]:
    """The sizes of the answers to a scraper that asks every second."""
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


def rate(spark: SparkSession, store: Path, seconds: float, settings: Mapping[str, object]) -> float:
    """Rows per second between two ends of batches. Raises `RuntimeError` if metrics are on and nothing was scraped."""
    job = ckpt.Job(spark, "metrics", store=str(store), interval="1 second", key_groups=16, **settings)
    rows = job.source("input", EndlessSource(ROWS, f"pmod(hash(n), {KEYS})"))
    rows.groupBy("k").agg("append", total=ckpt.sum("v"), n=ckpt.count()).to(NullSink())
    run = job.start()
    try:
        end_of_batch(run)
        with scraped(bool(settings)) as sizes:
            time.sleep(min(WARM_UP_S, seconds))
            found = rows_per_s(run, seconds)
        if settings and not sizes:
            raise RuntimeError("nothing was scraped")
    finally:
        run.stop()
    return found


def provide_opentelemetry() -> None:
    """An SDK that takes everything and keeps it in memory: what a program sets up, without a network."""
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


def told_ms(events: int = 2000) -> tuple[float, float]:
    """Processor time of one batch's record, told to Prometheus and OpenTelemetry, and of one scrape, in ms."""
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
    lost, rates = [], []
    with tempfile.TemporaryDirectory() as name:
        stores = (Path(name) / str(number) for number in itertools.count())
        rate(spark, next(stores), seconds, TARGETS)
        before = rate(spark, next(stores), seconds, {})
        for _ in range(rounds):
            measured = rate(spark, next(stores), seconds, TARGETS)
            after = rate(spark, next(stores), seconds, {})
            rates.append(measured)
            lost.append(1 - measured / statistics.mean((before, after)))
            before = after
    spread = f"{statistics.median(lost):.2%} ({min(lost):.2%} to {max(lost):.2%})"
    print("| metrics, traces, a scrape a second | rows/s, median | throughput lost, median (min-max) | under 1 % |")
    print("|---|---|---|---|")
    verdict = "yes" if statistics.median(lost) < MOST else "no"
    batch_ms, scrape_ms = told_ms()
    print(f"| processor time of a batch's record, {batch_ms:.2f} ms; of a scrape, {scrape_ms:.2f} ms | | | |")
    print(f"| {rounds} rounds of {seconds:g} s | {statistics.median(rates):,.0f} | {spread} | {verdict} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=WINDOW_S)
    options = parser.parse_args()
    main(options.rounds, options.seconds)
