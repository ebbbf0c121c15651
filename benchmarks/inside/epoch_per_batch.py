"""Growth of an epoch per batch over a long run: commit time, time to read the log, files.

An endless input from the JVM, a running sum, a null sink. `--minutes 60` for an hour. Times depend on the machine; the result
is their growth.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import spark_ckpt as ckpt
from benchmarks.inside.chains import chain
from benchmarks.inside.endless import EndlessSource
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.sessions import benchmark_session
from spark_ckpt.config import EVERY_BATCH
from spark_ckpt.store.store import Store

JOB = "epoch_per_batch"
ROWS, KEYS = 1000, 10_000
ROWS_SHOWN = 10
FOLDERS = ("epochs", "state", "edges", "runs")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample. `commits_ms`: of the epochs since the last sample. `reading_ms`: reading the whole log. `files`: by folder."""

    minute: float
    epochs: int
    commits_ms: Sequence[int]
    reading_ms: float
    files: Mapping[str, int]
    mib: float


@dataclass
class Commits(ckpt.RunListener):
    """Durations of commits. The coordinator's thread records them, another thread takes them."""

    _ms: list[int] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def onEpochCommitted(self, event: ckpt.EpochEvent) -> None:
        """Record one commit."""
        parts_ms = event.detail["parts_ms"]
        if isinstance(parts_ms, Mapping):
            with self._lock:
                self._ms.append(int(str(parts_ms["decision"])))

    def taken(self) -> list[int]:
        """Take the durations since the last call."""
        with self._lock:
            found, self._ms = self._ms, []
        return found


def measured(store: Path, minutes: float, every_s: float) -> list[Sample]:
    """Run the job and sample it every `every_s`. A run that ends by itself is an error."""
    commits = Commits()
    job = ckpt.Job(benchmark_session(), JOB, store=str(store), interval=EVERY_BATCH)
    job.addListener(commits)
    chain(job.source("input", EndlessSource(ROWS, f"pmod(hash(n), {KEYS})")), 1).to(NullSink())
    run = job.start()
    began_s, samples = time.monotonic(), list[Sample]()
    try:
        while (elapsed_s := time.monotonic() - began_s) < minutes * 60:
            if run.awaitTermination(min(every_s, minutes * 60 - elapsed_s)):
                raise RuntimeError("the run has ended") from run.exception()
            before = samples[-1].epochs if samples else 0
            samples.append(sample(store, (time.monotonic() - began_s) / 60, before, commits.taken()))
    finally:
        run.stop()
    return samples


def sample(store: Path, minute: float, before: int, commits_ms: Sequence[int]) -> Sample:
    """Sample the store while the run continues."""
    began_s = time.perf_counter()
    Store.open(str(store), JOB).log.state()
    reading_ms = (time.perf_counter() - began_s) * 1000
    files, size = files_in(store)
    return Sample(minute, before + len(commits_ms), commits_ms, reading_ms, files, size / 1024**2)


def files_in(store: Path) -> tuple[dict[str, int], int]:
    """Files by folder of the store, and bytes of all. A file that vanishes during the walk was deleted by the run."""
    counts, size = Counter[str](), 0
    for folder, _, names in os.walk(store):
        counts[Path(folder).relative_to(store).parts[0] if Path(folder) != store else "."] += len(names)
        for name in names:
            try:
                size += (Path(folder) / name).stat().st_size
            except FileNotFoundError:
                continue
    return dict(counts), size


def growth(values: Sequence[float]) -> float:
    """Median of the last third over that of the middle third. The first third holds Java's warm-up and the retention that fills up.

    NaN if there are too few values, or the middle third is zero."""
    third = len(values) // 3
    middle = statistics.median(values[third : 2 * third]) if third else 0
    return statistics.median(values[-third:]) / middle if middle else float("nan")


def table(samples: Sequence[Sample]) -> list[str]:
    """Up to ten rows over the run, and the growth of every column."""
    head = (
        "minute",
        "epochs",
        "commit ms, median (p95)",
        "log read, ms",
        *(f"files in {each}" for each in FOLDERS),
        "MiB",
    )
    lines = [f"| {' | '.join(head)} |", "|" + "---:|" * len(head)]
    parts = [part for part in np.array_split(np.arange(len(samples)), min(ROWS_SHOWN, len(samples))) if len(part)]
    lines += [_row([samples[at] for at in part]) for part in parts]
    return [*lines, _grown(samples)]


def _row(some: Sequence[Sample]) -> str:
    last, commits_ms = some[-1], [ms for each in some for ms in each.commits_ms] or [0]
    cells = [
        f"{last.minute:.1f}",
        f"{last.epochs:,}",
        f"{statistics.median(commits_ms):.0f} ({np.percentile(commits_ms, 95):.0f})",
    ]
    cells.append(f"{statistics.median(each.reading_ms for each in some):.0f}")
    return f"| {' | '.join([*cells, *(f'{last.files.get(each, 0):,}' for each in FOLDERS), f'{last.mib:.1f}'])} |"


def _grown(samples: Sequence[Sample]) -> str:
    """The last row: last third over middle third."""
    commits = [statistics.median(each.commits_ms) for each in samples if each.commits_ms]
    reading, mib = [each.reading_ms for each in samples], [each.mib for each in samples]
    files = [[float(each.files.get(folder, 0)) for each in samples] for folder in FOLDERS]
    return f"| {' | '.join(['last third over middle', '', *(_times(growth(each)) for each in (commits, reading, *files, mib))])} |"


def _times(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.2f}x"


def main(minutes: float, every_s: float) -> None:
    """Print a Markdown table."""
    with tempfile.TemporaryDirectory() as name:
        print("\n".join(table(measured(Path(name) / "store", minutes, every_s))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=10, help="seconds between samples")
    options = parser.parse_args()
    main(options.minutes, options.every)
