"""Cost of an epoch and a restart as the state grows: 1 % of the keys change, of a thousand to ten million keys.

A process fills the state and is killed. A second run restarts on its local levels, and is stopped, which removes them. A third
run rebuilds them from the store, as a restart on another host does. Both runs change the same 1 % of the keys, spread over all
key groups, in every batch, so an epoch changes 1 % regardless of its number of batches.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from benchmarks.inside.endless import EndlessSource
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.result_line import result_line
from benchmarks.inside.sessions import WARM_UP_BATCHES, BatchTimes, benchmark_session, median_and_spread
from benchmarks.side_by_side.usage import processes, status_kib
from spark_ckpt.epochs.records import EpochBrief, Manifest
from spark_ckpt.store.existing import existing_store

SIZES, LARGE = (1_000, 10_000, 100_000, 1_000_000), 10_000_000
SHARE = 100
FILL_ROWS = 200_000
INTERVAL_S, WARM_UP_EPOCHS = 2, 2
POLL_S = 0.5
MEBIBYTE = 1024 * 1024

Values = dict[str, float]


def measured(spark: SparkSession, store: Path, keys: int, epochs: int) -> Values:
    """Medians over `epochs` epochs of a state of `keys` keys."""
    command = [sys.executable, "-m", "benchmarks.inside.state_size", "--fill", str(store), "--sizes", str(keys)]
    ended = subprocess.run(command, check=False)
    if ended.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the state was not filled, exit code {ended.returncode}")
    changes = EndlessSource(keys // SHARE, f"(n % {keys // SHARE}) * {SHARE}")
    run, after_kill_s = _restarted(spark, store, changes)
    run.stop()
    times = BatchTimes(spark)
    run, elsewhere_s = _restarted(spark, store, changes)
    try:
        found = _after(run, WARM_UP_EPOCHS + epochs)[WARM_UP_EPOCHS:]
        workers_mib = _workers_mib()
        log = existing_store(str(store)).log
        written = [_bytes(log.manifest(brief.epoch)) for brief in found]
    finally:
        run.stop()
    return {
        "keys": keys,
        "changed": keys // SHARE,
        "epoch_ms": statistics.median(brief.duration_ms for brief in found),
        "bytes": statistics.median(written),
        "restart_s": after_kill_s,
        "restart_elsewhere_s": elsewhere_s,
        "workers_mib": workers_mib,
        "batch_ms": statistics.median(times.full_batches_ms(keys // SHARE, WARM_UP_BATCHES)),
    }


def fill(store: Path, keys: int) -> None:
    """Run until the state holds all keys, and kill the process."""
    source = EndlessSource(min(keys, max(FILL_ROWS, keys // SHARE)), f"n % {keys}")
    run = _job(benchmark_session(), store, source).start()
    while _rows_committed(store, run) < keys:
        if not run.isActive:
            raise RuntimeError("the run has ended") from run.exception()
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _rows_committed(store: Path, run: ckpt.Run) -> int:
    epochs = run.epochs()
    if not epochs:
        return 0
    return int(str(existing_store(str(store)).log.manifest(epochs[-1].epoch).cursors["input"]["rows"]))


def _restarted(spark: SparkSession, store: Path, source: EndlessSource) -> tuple[ckpt.Run, float]:
    """Start a run; return it, and the seconds to its first epoch."""
    began_s = time.monotonic()
    run = _job(spark, store, source).start()
    _after(run, 1)
    return run, time.monotonic() - began_s


def _job(spark: SparkSession, store: Path, source: EndlessSource) -> ckpt.Job:
    job = ckpt.Job(spark, "state-size", store=str(store), interval=f"{INTERVAL_S} seconds", key_groups=16)
    stream = job.source("input", source)
    stream.groupBy("k").agg("each row", total=ckpt.sum("v"), n=ckpt.count()).to(NullSink())
    return job


def _after(run: ckpt.Run, epochs: int) -> list[EpochBrief]:
    """Wait for `epochs` epochs of this run."""
    found: list[EpochBrief] = []
    while len(found) < epochs:
        if not run.isActive:
            raise RuntimeError("the run has ended") from run.exception()
        time.sleep(POLL_S)
        found = [brief for brief in run.epochs() if brief.incarnation == run.incarnation and brief.reason == "interval"]
    return found[:epochs]


def _workers_mib() -> float:
    """Anonymous memory of Spark's Python workers: local levels are mapped files, whose pages the system may drop."""
    found = 0
    for each in processes([os.getsid(0)]):
        with suppress(OSError):
            if b"-m\0spark_ckpt.tasks.python_daemon" in Path(f"/proc/{each.pid}/cmdline").read_bytes():
                found += status_kib(each.pid, "RssAnon")
    return found / 1024


def _bytes(manifest: Manifest) -> int:
    """Bytes of the state files that the epoch itself wrote, without those of older epochs."""
    files = [file for operator in manifest.operators.values() for file in operator.files]
    return sum(file.size_bytes for file in files if file.epoch == manifest.epoch)


def main(sizes: Sequence[int], rounds: int, epochs: int) -> None:
    """Print a result line for every run, then a Markdown table."""
    spark = benchmark_session()
    results: dict[int, list[Values]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        measured(spark, Path(name) / "warm-up", SIZES[0], 1)
        for repeat in range(rounds):
            for keys in sizes:
                store = Path(name) / f"{keys}-{repeat}"
                results[keys].append(measured(spark, store, keys, epochs))
                shutil.rmtree(store)
                print(result_line("epoch", f"state-{keys}", INTERVAL_S, repeat, results[keys][-1]), flush=True)
    print("\n".join(table(results)))


def table(results: Mapping[int, Sequence[Values]]) -> list[str]:
    """Medians over the rounds, each the median of its epochs."""
    columns = ("epoch, ms", "written, MiB", "batch, ms", "first epoch after a kill, s", "elsewhere, s", "workers, MiB")
    head = f"| keys, 1/{SHARE} of them changed | {' | '.join(columns)} |"
    return [head, "|---|---|---|---|---|---|---|", *(_row(keys, runs) for keys, runs in results.items())]


def _row(keys: int, runs: Sequence[Values]) -> str:
    epoch, batch = (median_and_spread([run[name] for run in runs]) for name in ("epoch_ms", "batch_ms"))
    written = statistics.median(run["bytes"] for run in runs) / MEBIBYTE
    names = ("restart_s", "restart_elsewhere_s", "workers_mib")
    here, elsewhere, workers = (statistics.median(run[name] for run in runs) for name in names)
    return f"| {keys:,} | {epoch} | {written:.2f} | {batch} | {here:.1f} | {elsewhere:.1f} | {workers:.0f} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12, help="measured epochs in each run")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--large", action="store_true", help="ten million keys too")
    parser.add_argument(
        "--fill",
        type=Path,
        help="fill this store with the first of `--sizes` keys and die; used by the benchmark itself",
    )
    options = parser.parse_args()
    if options.fill is not None:
        fill(options.fill, options.sizes[0])
    main([*options.sizes, *([LARGE] if options.large else [])], options.rounds, options.epochs)
