"""Cost of epochs as the interval shrinks: an endless job with an epoch every 60 to 1 seconds, between two runs without epochs.

Java gets faster for minutes, so each run is compared with the mean of the runs without epochs before and after it. Rows per
second count between two ends of batches that are whole intervals apart, so every window holds its share of epochs. The input
comes from the JVM and the sink publishes nothing: the rest is the operator and its epochs.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from benchmarks.inside.chains import chain
from benchmarks.inside.endless import EndlessSource
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.result_line import result_line
from benchmarks.inside.run_rate import end_of_batch, rows_per_s
from benchmarks.inside.sessions import benchmark_session

ROWS, KEYS = 100_000, 10_000
KEY = f"pmod(hash(n), {KEYS})"
INTERVALS_S = (60, 30, 10, 5, 2, 1)
NEVER_S = 24 * 3600
WARM_UP_S, WINDOW_S, WITHOUT_S, SHORT_S, SHORT_EPOCHS = 5.0, 25.0, 15.0, 5, 8


@dataclass(frozen=True, slots=True)
class Window:
    """One run between its warm-up and its stop. `lost`: share of the throughput without epochs."""

    rows_per_s: float
    epoch_ms: Sequence[int]
    lost: float = 0.0


def window_s(interval_s: float | None, least_s: float) -> float:
    """At least `least_s`, a whole number of intervals, and at least eight of them if they are short."""
    if interval_s is None:
        return least_s
    epochs = math.ceil(least_s / interval_s)
    return interval_s * (max(epochs, SHORT_EPOCHS) if interval_s <= SHORT_S else epochs)


def measured(spark: SparkSession, store: Path, interval_s: float | None, least_s: float, operators: int) -> Window:
    """Start the job, warm it up, and measure it."""
    job = ckpt.Job(spark, "epochs", store=str(store), interval=f"{interval_s or NEVER_S} seconds", key_groups=16)
    chain(job.source("input", EndlessSource(ROWS, KEY)), operators).to(NullSink())
    run = job.start()
    try:
        end_of_batch(run)
        time.sleep(min(WARM_UP_S, least_s))
        rate = rows_per_s(run, window_s(interval_s, least_s))
    finally:
        run.stop()
    return Window(rate, [brief.duration_ms for brief in run.epochs() if brief.reason == "interval"])


def main(rounds: int, least_s: float, operators: int, intervals_s: Sequence[int]) -> None:
    """Print a result line for every run with epochs, then a Markdown table."""
    spark = benchmark_session()
    windows: dict[float, list[Window]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        stores = (Path(name) / str(number) for number in itertools.count())

        def without() -> float:
            return measured(spark, next(stores), None, min(WITHOUT_S, least_s), operators).rows_per_s

        measured(spark, next(stores), 1, least_s, operators)
        before = without()
        for repeat in range(rounds):
            for interval_s in intervals_s:
                window, after = measured(spark, next(stores), interval_s, least_s, operators), without()
                lost = 1 - window.rows_per_s / statistics.mean((before, after))
                windows[interval_s].append(replace(window, lost=lost))
                values = {"records_per_s": window.rows_per_s, "lost": lost}
                print(result_line("interval", "uniform-10k", interval_s, repeat, values), flush=True)
                before = after
    print("\n".join(table(windows)))


def table(windows: Mapping[float, Sequence[Window]]) -> list[str]:
    """Loss of throughput against no epochs."""
    head = [
        "| epochs every | rows/s, median | throughput lost, median (min-max) | epoch, median ms |",
        "|---|---|---|---|",
    ]
    return head + [_row(interval_s, runs) for interval_s, runs in windows.items()]


def _row(interval_s: float, runs: Sequence[Window]) -> str:
    rate = statistics.median(run.rows_per_s for run in runs)
    lost = [run.lost for run in runs]
    lengths = [length for run in runs for length in run.epoch_ms]
    spread = f"**{statistics.median(lost):.1%}** ({min(lost):.1%} to {max(lost):.1%})"
    return f"| {interval_s} s | {rate:,.0f} | {spread} | {statistics.median(lengths) if lengths else 0:.0f} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=WINDOW_S, help="shortest window; a longer interval extends it")
    parser.add_argument("--operators", type=int, default=1, help="number of running sums in a chain")
    parser.add_argument("--interval", type=int, action="append", help="seconds between epochs; default: 60 to 1")
    options = parser.parse_args()
    main(options.rounds, options.seconds, options.operators, options.interval or INTERVALS_S)
