"""Cost of an edge between two stages against one query, in rows per second of the last stage.

Run: python -m benchmarks.inside.edges [--rounds 3] [--seconds 20]. Both shapes compute the same two running sums over 10,000
keys, from endless rows into a null sink. They take turns in one session on two cores, so the two stages share the cores that
the one query has alone.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from benchmarks.inside.endless import EndlessSource
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.run_rate import end_of_batch, rows_per_s, running
from benchmarks.inside.sessions import benchmark_session, median_and_spread
from spark_ckpt.config import EVERY_BATCH

ROWS, KEYS, WARM_UP_S = 100_000, 10_000, 20.0
INTERVALS = {"an epoch per batch": EVERY_BATCH, "an epoch every 5 s": "5 seconds"}
SHAPES = ("one query", "two stages")


def shaped(spark: SparkSession, shape: str, store: Path, interval: object) -> ckpt.Job:
    """Return the job of the shape."""
    source = EndlessSource(ROWS, f"pmod(hash(n), {KEYS})")
    job = ckpt.Job(spark, "edges", store=str(store), interval=interval, key_groups=4)
    first = job.source("input", source).groupBy("k").agg("each row", "first", sums=ckpt.sum("v"))
    passed = first if shape == SHAPES[0] else first.through("hop", stage="last")
    passed.groupBy("k").agg("each row", "second", counts=ckpt.count()).to(NullSink(), name="out")
    return job


def rate(spark: SparkSession, shape: str, store: Path, interval: object, seconds: float) -> float:
    """Rows per second of the last stage, after a warm-up."""
    with running(shaped(spark, shape, store, interval), "" if shape == SHAPES[0] else "last") as run:
        end_of_batch(run)
        time.sleep(min(WARM_UP_S, seconds))
        return rows_per_s(run, seconds)


def main(rounds: int, seconds: float) -> None:
    """Print a Markdown table."""
    logging.getLogger("spark_ckpt").setLevel(logging.ERROR)
    spark = benchmark_session()
    with tempfile.TemporaryDirectory() as name:
        folders = (Path(name) / str(number) for number in itertools.count())
        print("| rows/s, median (range) | one query | two stages | of one query |\n|---|---|---|---|")
        for text, interval in INTERVALS.items():
            found: dict[str, list[float]] = {shape: [] for shape in SHAPES}
            for _ in range(rounds):
                for shape in SHAPES:
                    found[shape].append(rate(spark, shape, next(folders), interval, seconds))
            one, two = (found[shape] for shape in SHAPES)
            shares = [stages / query for query, stages in zip(one, two, strict=True)]
            print(
                f"| {text} | {median_and_spread(one)} | {median_and_spread(two)} | {median_and_spread(shares, 2)} |",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    main(options.rounds, options.seconds)
