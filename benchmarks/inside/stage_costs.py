"""Costs of stages: the latency of a hop, lines after a backlog, a restart while other stages run.

Run: python -m benchmarks.inside.stage_costs [hop|backlog|restart ...] [--rounds 3] [--seconds 20].

- hop: 1,000 rows/s through one query, and through two stages with an edge between them, in turns, an epoch per batch. Seconds
  from a row to the commit that shows it, the seconds that the edge adds, and those beyond a batch of the second stage.
- backlog: a million rows of half a KiB wait on the edge of a slow stage. Seconds from its start until a line that begins
  later is committed, and until the backlog is read, by protocol.
- restart: two stages read a third one. The query of one is stopped from outside: the longest time between two commits of
  each table, before the failure and across it.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from benchmarks.inside.run_rate import running
from benchmarks.inside.sessions import benchmark_session, median_and_spread
from benchmarks.inside.stage_protocols import (
    Heard,
    commits,
    fail,
    latencies_s,
    newest_row_ms,
    now_ms,
    wait_until,
)
from spark_ckpt.api.stream import Stream
from spark_ckpt.config import EVERY_BATCH
from spark_ckpt.coordination.stage_process import Between

RATE, KEYS, WARM_UP_S = 1_000, 1_000, 8.0
SHAPES = ("one query", "two stages")


def _rows(job: ckpt.Job) -> Stream:
    rows = job.source("rows", ckpt.SparkSource("rate", {"rowsPerSecond": RATE, "numPartitions": 2}))
    return rows.withColumn("k", F.pmod(F.hash("value"), F.lit(KEYS))).withColumnRenamed("timestamp", "at")


def _counted(stream: Stream, name: str, table: Path) -> None:
    counts = stream.groupBy("k").agg("each row", name, n=ckpt.count())
    # Every epoch is published: by default a table gets a version every 10 s if epochs are short.
    counts.to(DeltaSink(str(table)), name=f"of-{name}", publish_every="1 millisecond")


def _job(spark: SparkSession, root: Path, interval: object, protocol: Between = Between.INDEPENDENT) -> ckpt.Job:
    settings: dict[str, Any] = {"interval": interval, "protocol": protocol, "key_groups": 2}
    if protocol.indexed:
        settings["line_interval"] = interval
    return ckpt.Job(spark, "costs", store=str(root / "store"), local_dir=str(root), **settings)


# -- a hop -------------------------------------------------------------------------------------------------------------


def _shaped(spark: SparkSession, root: Path, shape: str) -> ckpt.Job:
    job = _job(spark, root, EVERY_BATCH)
    rows = _rows(job)
    _counted(rows if shape == SHAPES[0] else rows.through("hop", stage="last"), "counts", root / "table")
    return job


def latency(spark: SparkSession, root: Path, shape: str, seconds: float) -> tuple[float, float]:
    """Return the median of the times from a row to its commit, and that of the batches of the last query, in seconds."""
    table = root / "table"
    with running(_shaped(spark, root, shape), "" if shape == SHAPES[0] else "last") as run:
        wait_until(lambda: bool(commits(table)), f"{shape} has no row")
        time.sleep(WARM_UP_S)
        began_ms = now_ms()
        time.sleep(seconds)
        ended_ms = now_ms()
        wait_until(lambda: newest_row_ms(table) >= ended_ms, f"{shape} does not show the last rows")
        records = run.recentProgress
    return statistics.median(latencies_s(table, began_ms, ended_ms)), statistics.median(batches_s(records))


def batches_s(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of each batch with rows, from Spark's trigger to its end."""
    full = [each for each in records if each["numInputRows"] and "triggerExecution" in each["durationMs"]]
    return [each["durationMs"]["triggerExecution"] / 1000 for each in full]


def hop(spark: SparkSession, folders: Iterator[Path], rounds: int, seconds: float) -> None:
    """Print the latency that an edge adds."""
    found: dict[str, list[tuple[float, float]]] = {shape: [] for shape in SHAPES}
    for _, shape in itertools.product(range(rounds), SHAPES):
        found[shape].append(latency(spark, next(folders), shape, seconds))
    print("| p50 of a row, ms | of a batch, ms |\n|---|---|")
    for shape, pairs in found.items():
        print(f"| {shape} | {_ms(row for row, _ in pairs)} | {_ms(batch for _, batch in pairs)} |")
    added = [two[0] - one[0] for one, two in zip(*found.values(), strict=True)]
    beyond = [two[0] - one[0] - two[1] for one, two in zip(*found.values(), strict=True)]
    print(f"| the hop adds | {_ms(added)} | beyond a batch: {_ms(beyond)} |", flush=True)


def _ms(seconds: Iterable[float]) -> str:
    return median_and_spread([each * 1000 for each in seconds])


# -- a line after a backlog --------------------------------------------------------------------------------------------

BACKLOG, FILES, SLOW_S = 1_000_000, 10, 1.0
PIECES = 16
"""Hashes in a row's payload: 32 bytes each, which no codec can compress."""
LINE_S = 2


def _payload() -> Any:
    return F.concat(*(F.unhex(F.sha2(F.concat_ws("-", "id", F.lit(piece)), 256)) for piece in range(PIECES)))


def _slow(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    time.sleep(SLOW_S)  # the work of a slow stage, for each task
    yield from frames


def behind_backlog(spark: SparkSession, root: Path, protocol: Between) -> tuple[float, float]:
    """Return seconds until the first line that begins after the backlog is committed, and until the backlog is read."""
    numbers = spark.range(0, BACKLOG, 1, FILES).select(F.col("id").alias("v"), _payload().alias("payload"))
    numbers.write.parquet(str(root / "in"))
    job, heard = _job(spark, root, f"{LINE_S} seconds", protocol), Heard()
    job.addListener(heard)
    source = FilesSource(str(root / "in"), "parquet", "v long, payload binary", maxFilesPerTrigger=1)
    slow = job.source("rows", source).through("hop", stage="last")
    slow.mapInPandas(_slow, slow.schema).select("v").to(DeltaSink(str(root / "table")), name="out")
    sender = job.start_stages("main")
    try:
        wait_until(lambda: _committed(sender.stages["main"]) == BACKLOG, "the backlog is not there")
        began_s = time.time()
        reader = job.start_stages("last")
        try:
            wait_until(lambda: max(heard.served) > began_s, f"{protocol}: no line behind the backlog")
            decided_s = time.time() - began_s
            wait_until(lambda: _committed(reader.stages["last"]) == BACKLOG, f"{protocol}: the backlog stays")
            return decided_s, time.time() - began_s
        finally:
            reader.stop("60 seconds")
    finally:
        sender.stop("60 seconds")


def _committed(run: ckpt.Run) -> int:
    return sum(each.rows_in for each in run.epochs())


def backlog(spark: SparkSession, folders: Iterator[Path], rounds: int, seconds: float) -> None:
    """Print when a line that begins after a backlog is committed."""
    print("| protocol | the line is committed, s | the backlog is read, s |\n|---|---|---|")
    chosen = (Between.UNALIGNED, Between.ALIGNED)
    found: dict[Between, list[tuple[float, float]]] = {protocol: [] for protocol in chosen}
    for _, protocol in itertools.product(range(rounds), chosen):
        found[protocol].append(behind_backlog(spark, next(folders), protocol))
    for protocol, pairs in found.items():
        decided, read = ([pair[at] for pair in pairs] for at in (0, 1))
        print(f"| {protocol} | {median_and_spread(decided, 1)} | {median_and_spread(read, 1)} |", flush=True)


# -- a restart while other stages run ----------------------------------------------------------------------------------

VICTIM, OTHERS = "second", ("main", "third")


def restart(spark: SparkSession, folders: Iterator[Path], rounds: int, seconds: float) -> None:
    """Print how long each table waits for its next commit, before the failure of one stage and across it."""
    found: dict[str, list[tuple[float, float]]] = {stage: [] for stage in (VICTIM, *OTHERS)}
    for _ in range(rounds):
        for stage, gaps in commit_gaps_s(spark, next(folders), seconds).items():
            found[stage].append(gaps)
    print("| longest time between commits, s | before | across the failure |\n|---|---|---|")
    for stage, pairs in found.items():
        before, across = ([pair[at] for pair in pairs] for at in (0, 1))
        name = f"{stage}, which fails" if stage == VICTIM else stage
        print(f"| {name} | {median_and_spread(before, 1)} | {median_and_spread(across, 1)} |", flush=True)


def commit_gaps_s(spark: SparkSession, root: Path, seconds: float) -> Mapping[str, tuple[float, float]]:
    """Return the longest gaps between commits of each stage's table, before the failure and across it, in seconds."""
    job = _job(spark, root, "1 second")
    tables = {stage: root / f"of-{stage}" for stage in (*OTHERS, VICTIM)}
    rows = _rows(job)
    _counted(rows, "main", tables["main"])
    for stage in ("second", "third"):
        _counted(rows.through(f"to-{stage}", stage=stage), stage, tables[stage])
    stages = job.start_stages()
    try:
        for stage, table in tables.items():
            wait_until(lambda table=table: bool(commits(table)), f"{stage} has no row")  # type: ignore[misc]
        time.sleep(WARM_UP_S)
        began_ms = now_ms()
        time.sleep(seconds)
        failed_ms = now_ms()
        fail(spark, tables[VICTIM], f"costs.{VICTIM}")
        ended_ms = now_ms()
    finally:
        stages.stop("60 seconds")
    return {stage: gaps_s(table, began_ms, failed_ms, ended_ms) for stage, table in tables.items()}


def gaps_s(table: Path, began_ms: int, failed_ms: int, ended_ms: int) -> tuple[float, float]:
    """Return the longest time between two commits up to the failure, and the longest that ends after it, in seconds."""
    times_ms = [commit.at_ms for _, commit in commits(table) if began_ms <= commit.at_ms <= ended_ms]
    pairs = list(itertools.pairwise(times_ms))
    before = [second - first for first, second in pairs if second <= failed_ms]
    across = [second - first for first, second in pairs if second > failed_ms]
    return max(before) / 1000, max(across) / 1000


PARTS = {"hop": hop, "backlog": backlog, "restart": restart}


def main(parts: Sequence[str], rounds: int, seconds: float) -> None:
    """Print a Markdown table of each part."""
    logging.getLogger("spark_ckpt").setLevel(logging.ERROR)
    spark = benchmark_session()
    with tempfile.TemporaryDirectory() as name:
        folders = (Path(name) / str(number) for number in itertools.count())
        for part in parts:
            PARTS[part](spark, folders, rounds, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    main(options.parts, options.rounds, options.seconds)
