"""From the start of a program to the end of its first batch: a job with an operator against an empty Spark query.

Each runs in its own process, in turn, with the same session settings. The job's batch has as many rows as the first batch of a
job with a backlog. The difference is this library's cost of a start.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from benchmarks.inside.endless import EndlessSource
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.result_line import result_line
from benchmarks.inside.sessions import benchmark_session, median_and_spread
from spark_ckpt.driver.query.admission import FIRST_BATCH_ROWS

ROWS, KEYS = FIRST_BATCH_ROWS, 10_000
WORKLOAD = f"{ROWS // 1000}k rows"
POLL_S = 0.005
TIMEOUT_S = 120


class Started(NamedTuple):
    """A program's query: a test for its first batch, and its end."""

    done: Callable[[], bool]
    stop: Callable[[], object]


def empty_query(spark: SparkSession, folder: str) -> Started:
    """A query with one row a batch and a sink that drops it."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", folder).start()
    return Started(lambda: query.lastProgress is not None, query.stop)


def keyed_job(spark: SparkSession, folder: str) -> Started:
    """A running aggregation with epochs."""
    job = ckpt.Job(spark, "first-batch", store=folder, interval="5 seconds", key_groups=16)
    source = job.source("input", EndlessSource(ROWS, f"pmod(hash(n), {KEYS})"))
    source.groupBy("k").agg("each row", total=ckpt.sum("v"), n=ckpt.count()).to(NullSink())
    run = job.start()
    return Started(lambda: run.lastProgress is not None, run.stop)


PROGRAMS = {"empty Spark query": empty_query, f"spark_ckpt, built-in, {WORKLOAD}": keyed_job}


def first_batch_s(program: str) -> float:
    """Seconds to the first batch, measured in a new process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.inside.first_batch",
        "--program",
        program,
        "--started",
        str(time.time()),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S)
    return float(done.stdout.split()[-1])


def child(program: str, started_s: float) -> None:
    """Print the seconds since `started_s`, a wall-clock time."""
    spark = benchmark_session()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        started = PROGRAMS[program](spark, str(Path(name) / "run"))
        deadline_s = time.monotonic() + TIMEOUT_S
        while not started.done():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no batch within {TIMEOUT_S} s")
            time.sleep(POLL_S)
        print(time.time() - started_s, flush=True)
        started.stop()


def main(rounds: int) -> None:
    """Print a result line for every round, then a Markdown table."""
    taken: dict[str, list[float]] = {program: [] for program in PROGRAMS}
    for repeat in range(rounds):
        for program, found in taken.items():
            found.append(first_batch_s(program))
        values = dict(zip(("empty_s", "job_s"), (found[-1] for found in taken.values()), strict=True))
        print(result_line("start", WORKLOAD, 5, repeat, values), flush=True)
    print("\n".join(table(taken)))


def table(taken: Mapping[str, Sequence[float]]) -> list[str]:
    """A Markdown table in milliseconds, since the spread is a tenth of a second."""
    head = ["| from the start of the program to the end of its first batch | ms, median (min-max) |", "|---|---|"]
    return head + [
        f"| {program} | {median_and_spread([1000 * s for s in found])} |" for program, found in taken.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", choices=PROGRAMS)
    parser.add_argument("--started", type=float, default=0.0)
    options = parser.parse_args()
    if options.program:
        child(options.program, options.started)
    else:
        main(options.rounds)
