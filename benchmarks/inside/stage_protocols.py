"""The protocols between stages, compared as CheckMate (Siachamis et al., ICDE 2024) compares them: same queries, same failure.

Run: python -m benchmarks.inside.stage_protocols RESULTS [--seconds 20] [--of q3 ...], then the same with --show PLOTS.

Each cell is a program of two stages that reads at a fixed rate. After the warm-up, its rows are timed from their creation to the
Delta commit that shows them. Then the query of one stage is stopped from outside. Columns of the table:

- p50, p99: seconds from a row to its commit, before the failure;
- epoch: milliseconds from barrier to commit, mean of all stages; epochs: per stage and minute, including those that a line forces;
- line: seconds from the first stage that serves a line to the last one;
- restart: seconds from the failure to the next commit of the last table;
- again: rows that the failed stage read a second time;
- discarded: share of all epochs that a restore of every stage to the newest line would undo;
- log: bytes of the logs per epoch.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink

import spark_ckpt as ckpt
from benchmarks.inside.sessions import benchmark_session
from benchmarks.report.charts import Bar, Bars
from benchmarks.report.drawing import draw
from benchmarks.report.runs import Spread
from spark_ckpt.api.stream import Stream
from spark_ckpt.coordination.stage_process import Between
from spark_ckpt.epochs.lines import greatest, lines
from spark_ckpt.errors import EpochNotFound
from spark_ckpt.program_edges.line_stores import read_stores
from spark_ckpt.store.existing import existing_store

JOB, INTERVAL, KEYS, RATE = "protocols", "2 seconds", 1_000, 1_000
HOT_SHARE, SLOW_S = 30, 1.0
WARM_UP_S, PATIENCE_S = 8.0, 60.0
CATEGORIES, STATES = 10, 8
POLL_S = 0.1


@dataclass(frozen=True)
class Load:
    """Rows of a program. `hot`: percent of the rows that belong to one key. `slow`: a batch of the victim sleeps."""

    name: str
    hot: int = 0
    slow: bool = False


LOADS = (Load("even"), Load("skewed", hot=HOT_SHARE), Load("slow stage", slow=True))


def _key(load: Load, keys: int = KEYS) -> Column:
    number = F.pmod(F.hash("value"), F.lit(keys))
    return F.when(F.pmod(F.xxhash64("value"), F.lit(100)) < load.hot, F.lit(0)).otherwise(number)


def _source(job: ckpt.Job, name: str, rate: int, load: Load) -> Stream:
    rows = job.source(name, ckpt.SparkSource("rate", {"rowsPerSecond": rate, "numPartitions": 2}))
    return rows.withColumn("k", _key(load)).withColumnRenamed("timestamp", "at")


def _slowed(stream: Stream, load: Load) -> Stream:
    if not load.slow:
        return stream

    def sleeping(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        time.sleep(SLOW_S)  # the work of a slow stage, for each task
        yield from frames

    return stream.mapInPandas(sleeping, stream.schema)


def q1(job: ckpt.Job, load: Load) -> Stream:
    """Convert the price of each bid."""
    bids = _slowed(_source(job, "bids", RATE, load).through("to-bids", stage="convert"), load)
    return bids.select("at", "k", (F.col("value") * 0.908).alias("price"))


def q3(job: ckpt.Job, load: Load) -> Stream:
    """Join the auctions of one category with their sellers in some states."""
    persons = (
        _source(job, "persons", RATE // 4, Load("even")).where("pmod(value, 8) < 3").through("to-persons", stage="join")
    )
    auctions = _source(job, "auctions", RATE, load).where("pmod(value, 10) = 0").through("to-auctions", stage="join")
    people = persons.select(F.col("value").alias("id"))
    auctions = _slowed(auctions, load)

    def joined(left: DataFrame, right: DataFrame) -> DataFrame:
        return left.join(right, F.expr("k = id")).select("at", "k", "id")

    return auctions.transform(joined, people)


def q8(job: ckpt.Job, load: Load) -> Stream:
    """Join persons with the auctions that they open within the same 10 seconds."""
    persons = _source(job, "persons", RATE // 2, Load("even")).through("to-persons", stage="join")
    auctions = _slowed(_source(job, "auctions", RATE // 2, load).through("to-auctions", stage="join"), load)

    def windowed(frame: DataFrame) -> DataFrame:
        with_windows = frame.withWatermark("at", "10 seconds").withColumn("window", F.window("at", "10 seconds"))
        # The window is the event time of the join, which takes one.
        return with_windows.withColumn("at", F.timestamp_millis(F.unix_millis("at")))

    def joined(left: DataFrame, right: DataFrame) -> DataFrame:
        people = (
            windowed(right).dropDuplicates(["k", "window"]).select(F.col("k").alias("id"), F.col("window").alias("of"))
        )
        return windowed(left).join(people, F.expr("k = id AND window = of")).select("at", "k")

    return auctions.transform(joined, persons)


def q12(job: ckpt.Job, load: Load) -> Stream:
    """Count the bids of each bidder; each bid is answered with the new count."""
    bids = _slowed(_source(job, "bids", RATE, load).through("to-bids", stage="count"), load)
    return bids.groupBy("k").agg("each row", "counts", n=ckpt.count())


def cycle(job: ckpt.Job, load: Load) -> Stream:
    """Each row passes both stages, and both once more through a loop."""
    back = job.feedback("again", "at timestamp, k int, round int")
    rows = _source(job, "edges", RATE, load).select("at", "k", F.lit(0).alias("round"))
    first = rows.union(back).groupBy("k").agg("each row", "first", met=ckpt.count())
    second = _slowed(first.through("onward", stage="second"), load)
    onward = second.where("round = 0").through("back", stage="main")
    back.close(onward.select("at", F.col("k").cast("int"), F.lit(1).alias("round")))
    return second.where("round = 1").select("at", "k", "met")


Query = Callable[[ckpt.Job, Load], Stream]
QUERIES: Mapping[str, tuple[Query, str]] = {
    "q1": (q1, "convert"),
    "q3": (q3, "join"),
    "q8": (q8, "join"),
    "q12": (q12, "count"),
    "cycle": (cycle, "second"),
}
"""Each query with the stage that fails."""


@dataclass
class Heard(ckpt.RunListener):
    """Events of the stages with their times. `begun`, `served`: by line, when the first stage and the last stage serve it."""

    epochs_ms: list[int] = field(default_factory=list)
    begun: dict[int, float] = field(default_factory=dict)
    served: dict[int, float] = field(default_factory=dict)
    rows: dict[tuple[str, int], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def onEpochCommitted(self, event: ckpt.EpochEvent) -> None:
        """Record its duration."""
        parts_ms = event.detail["parts_ms"]
        if isinstance(parts_ms, Mapping):
            with self._lock:
                self.epochs_ms.append(sum(int(str(each)) for each in parts_ms.values()))

    def onLines(self, event: ckpt.LineEvent) -> None:
        """Record the newest line of each stage."""
        now_s = time.monotonic()
        with self._lock:
            self.begun.setdefault(max(event.served.values()), now_s)
            self.served.setdefault(event.common, now_s)

    def onProgress(self, event: ckpt.ProgressEvent) -> None:
        """Record its rows."""
        key = event.job, event.incarnation
        with self._lock:
            self.rows[key] = self.rows.get(key, 0) + int(str(event.progress["numInputRows"]))

    def lines_s(self) -> list[float]:
        """Seconds of each line from the first stage to the last."""
        return [self.served[number] - self.begun[number] for number in self.served if number in self.begun and number]


@dataclass(frozen=True)
class Commit:
    """A commit of the last table: its time, and the creation times of its rows."""

    at_ms: int
    rows_ms: Sequence[int]


def commits(table: Path, after: int = -1) -> list[tuple[int, Commit]]:
    """Versions of the table after `after` that have rows."""
    found = []
    for path in sorted((table / "_delta_log").glob("*.json")):
        version = int(path.stem)
        if version <= after:
            continue
        actions = [json.loads(text) for text in path.read_text().splitlines()]
        at_ms = next((int(each["commitInfo"]["timestamp"]) for each in actions if "commitInfo" in each), 0)
        files = [table / each["add"]["path"] for each in actions if "add" in each]
        rows_ms = [moment for file in files for moment in _created_ms(file)]
        if rows_ms:
            found.append((version, Commit(at_ms, rows_ms)))
    return found


def _created_ms(file: Path) -> list[int]:
    column = pq.read_table(file, columns=["at"], partitioning=None).column("at")
    return [int(each) for each in pc.divide(column.cast("timestamp[us]").cast("int64"), 1000).to_pylist()]


def latencies_s(table: Path, began_ms: int, ended_ms: int) -> list[float]:
    """Seconds from each row to the commit that shows it, of the rows created between `began_ms` and `ended_ms`."""
    return [
        (commit.at_ms - row) / 1000
        for _, commit in commits(table)
        for row in commit.rows_ms
        if began_ms <= row < ended_ms
    ]


@dataclass(frozen=True)
class Cell:
    """Query, load and protocol of one measurement."""

    query: str
    load: Load
    protocol: Between


@dataclass(frozen=True)
class Figures:
    """Results of a cell."""

    p50_s: float
    p99_s: float
    epoch_ms: float
    epochs_per_minute: float
    line_s: float | None
    restart_s: float
    rows_again: int
    given_up: float
    log_bytes: float


def measured(spark: SparkSession, root: Path, cell: Cell, seconds: float) -> Figures:
    """Run one cell. Raises `RuntimeError` if its table stays empty."""
    build, victim = QUERIES[cell.query]
    settings: dict[str, Any] = {"interval": INTERVAL, "line_interval": INTERVAL, "protocol": cell.protocol}
    job = ckpt.Job(spark, JOB, store=str(root / "store"), local_dir=str(root), key_groups=2, **settings)
    heard, table = Heard(), root / "table"
    job.addListener(heard)
    build(job, cell.load).to(DeltaSink(str(table)), name="answers")
    run = job.start_stages()
    try:
        wait_until(lambda: bool(commits(table)), f"{cell} has no answer")
        time.sleep(WARM_UP_S)
        began_ms, epochs = now_ms(), len(heard.epochs_ms)
        time.sleep(seconds)
        ended_ms, counted = now_ms(), len(heard.epochs_ms) - epochs
        wait_until(lambda: newest_row_ms(table) >= ended_ms, f"{cell} does not show the last rows")
        restart_s = fail(spark, table, f"{JOB}.{victim}")
        if cell.protocol.indexed:  # so that the newest line is one of a running program
            known = max(heard.served)
            wait_until(lambda: max(heard.served) > known, f"{cell} serves no line after its failure")
    finally:
        run.stop("60 seconds")
    quantiles = statistics.quantiles(latencies_s(table, began_ms, ended_ms), n=100)
    stages = list(run.stages)
    return Figures(
        p50_s=quantiles[49],
        p99_s=quantiles[98],
        epoch_ms=statistics.mean(heard.epochs_ms[epochs : epochs + counted]),
        epochs_per_minute=60 * counted / seconds / len(stages),
        line_s=statistics.mean(heard.lines_s()) if heard.lines_s() else None,
        restart_s=restart_s,
        rows_again=_rows_again(root, victim, heard),
        given_up=_given_up(root, stages, cell.protocol),
        log_bytes=_log_bytes(root, stages),
    )


def newest_row_ms(table: Path) -> int:
    """Creation time of the newest row in the last commit."""
    found = commits(table, newest_version(table) - 1)
    return max(found[-1][1].rows_ms) if found else 0


def newest_version(table: Path) -> int:
    """Newest version of a Delta table; -1 without one."""
    return max((int(path.stem) for path in (table / "_delta_log").glob("*.json")), default=-1)


def fail(spark: SparkSession, table: Path, job: str) -> float:
    """Stop the query of a stage; return the seconds until the last table has rows again."""
    [query] = [each for each in spark.streams.active if (each.name or "").startswith(f"{job}/")]
    known = newest_version(table)
    began_s = time.monotonic()
    query.stop()
    # Epochs that the stage committed before may still be published: the first rows younger than the failure count.
    failed_ms = now_ms()
    wait_until(
        lambda: any(max(commit.rows_ms) > failed_ms for _, commit in commits(table, known)), f"{job} does not go on"
    )
    return time.monotonic() - began_s


def _rows_again(root: Path, victim: str, heard: Heard) -> int:
    """Rows that the first incarnation of the victim has read and not committed."""
    branch = existing_store(str(root / "store" / victim)).log.state().lineage()
    committed = sum(brief.rows_in for brief in branch if brief.incarnation == 1)
    return max(0, heard.rows.get((f"{JOB}.{victim}", 1), 0) - committed)


def _given_up(root: Path, stages: Sequence[str], protocol: Between) -> float:
    programs = read_stores([existing_store(str(root / "store" / stage)) for stage in stages]).programs
    try:
        line = next(each for each in lines(programs, 10_000) if each.number) if protocol.indexed else greatest(programs)
    except (EpochNotFound, StopIteration):
        return 1.0
    newer = [each.epoch > line.epochs[name] for name, program in programs.items() for each in program.epochs]
    return sum(newer) / len(newer)


def _log_bytes(root: Path, stages: Sequence[str]) -> float:
    """Bytes of the logs for each epoch, of all stages."""
    stores = {stage: existing_store(str(root / "store" / stage)) for stage in stages}
    size = sum(
        file.stat().st_size
        for stage in stages
        for file in (root / "store" / stage / "epochs").rglob("*")
        if file.is_file()
    )
    return size / sum(len(store.log.state().by_id) for store in stores.values())


def now_ms() -> int:
    """Wall-clock time, ms since 1970."""
    return time.time_ns() // 1_000_000


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll. Raises `RuntimeError` if the condition does not hold within `PATIENCE_S`."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(what)
        time.sleep(POLL_S)


HEAD = "query | protocol | p50, s | p99, s | epoch, ms | epochs/min | line, s | restart, s | again | discarded | log, B"
PROTOCOLS = tuple(Between)

Line = Mapping[str, Any]
"""A cell of a results file: `query`, `load`, `protocol`, and the fields of `Figures`."""


def line_of(cell: Cell, found: Figures) -> Line:
    """Return the cell for the results file."""
    return {"query": cell.query, "load": cell.load.name, "protocol": str(cell.protocol), **asdict(found)}


def row(line: Line) -> str:
    """Return a row of the table."""
    served = "-" if line["line_s"] is None else f"{line['line_s']:.1f}"
    name = f"{line['query']} | {line['protocol']} | {line['p50_s']:.1f} | {line['p99_s']:.1f}"
    rest = f"{line['epoch_ms']:.0f} | {line['epochs_per_minute']:.0f} | {served} | {line['restart_s']:.1f}"
    return f"| {name} | {rest} | {line['rows_again']:,} | {line['given_up']:.0%} | {line['log_bytes']:,.0f} |"


def cells(queries: Sequence[str], loads: Sequence[str]) -> Iterator[Cell]:
    """The protocols take turns, so that neighbours can be compared. A loop is refused with `aligned`."""
    for load in (each for each in LOADS if each.name in loads):
        for query in queries:
            for protocol in PROTOCOLS:
                if (query, protocol) != ("cycle", Between.ALIGNED):
                    yield Cell(query, load, protocol)


def charts(lines: Sequence[Line]) -> list[Bars]:
    """Return a chart of each load: bars are p99, ticks p50."""
    found = []
    for load in dict.fromkeys(line["load"] for line in lines):
        bars = tuple(
            Bar(
                label=f"{line['query']}, {line['protocol']}",
                text=f"{line['p99_s']:.1f} s, restart {line['restart_s']:.1f} s",
                value=Spread.of([line["p99_s"]]),
                ours=line["protocol"] == Between.ALIGNED,
                solid=True,
                mark=line["p50_s"],
            )
            for line in lines
            if line["load"] == load
        )
        axis = "seconds from a row to the commit that shows it; bar: p99, tick: p50"
        found.append(Bars(f"{load.replace(' ', '-')}.svg", f"Protocols between stages: {load}", axis, bars))
    return found


def main(queries: Sequence[str], loads: Sequence[str], seconds: float, results: Path) -> None:
    """Measure; append a JSON line for each cell."""
    logging.getLogger("spark_ckpt").setLevel(logging.ERROR)
    spark = benchmark_session()
    with tempfile.TemporaryDirectory() as name:
        for number, cell in enumerate(cells(queries, loads)):
            line = line_of(cell, measured(spark, Path(name) / str(number), cell, seconds))
            print(row(line), flush=True)
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")


def show(results: Path, plots: Path) -> None:
    """Print a table of each load, and draw its chart."""
    lines = [json.loads(text) for text in results.read_text().splitlines()]
    plots.mkdir(parents=True, exist_ok=True)
    for chart in charts(lines):
        draw(chart, plots)
    for load in dict.fromkeys(line["load"] for line in lines):
        print(f"\n{load}:\n\n| {HEAD} |\n|{'---|' * len(HEAD.split('|'))}")
        print("\n".join(row(line) for line in lines if line["load"] == load))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, help="a JSON line for each cell is appended")
    parser.add_argument("--show", type=Path, help="measure nothing; print the tables, draw the charts into this folder")
    parser.add_argument("--of", nargs="*", choices=QUERIES, default=list(QUERIES), help="queries")
    names = [load.name for load in LOADS]
    parser.add_argument("--loads", nargs="*", choices=names, default=names)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    if options.show is not None:
        show(options.results, options.show)
    else:
        main(options.of, options.loads, options.seconds, options.results)
