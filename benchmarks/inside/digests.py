"""Cost of digests: staging rows and reading them for a publish, with and without digests, in turns in one process.

Run: python -m benchmarks.inside.digests [--rounds N]. CPU time of one thread; ratios matter.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
from spark_ckpt_kafka.rows import StagedPart, StagedRows

from spark_ckpt.connector import StagedFile, StagePlan
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.staging import SinkStage, StageWriter

ROWS = 1_000_000


class NoDigest:
    """Replaces `hashlib.sha256`."""

    def __init__(self, content: bytes = b"") -> None:
        """Compute nothing."""

    def update(self, content: bytes) -> None:
        """Compute nothing."""

    def hexdigest(self) -> str:
        """Return no digest."""
        return ""


@contextmanager
def without_digests() -> Iterator[None]:
    """Let writers compute no digest."""
    with mock.patch("spark_ckpt.store.location.hashlib.sha256", NoDigest):
        yield


def table() -> pa.Table:
    """Keys and JSON-like values, about 100 bytes a row."""
    numbers = np.random.default_rng(3).integers(0, 1 << 60, ROWS)
    values = [
        b'{"id": %d, "name": "customer %d", "amount": %d.25}' % (n, n % 9973, n % 100_000) for n in numbers.tolist()
    ]
    return pa.table({"key": [b"%d" % (n % 50_000) for n in numbers.tolist()], "value": values})


def staged(folder: Path, rows: pa.Table, plan: StagePlan) -> list[StagedFile]:
    """Stage the rows as a task does."""
    with StageWriter(SinkStage("out", plan, Location(str(folder)), 1), 0) as writer:
        writer.write(rows)
        return writer.close()


def published(folder: Path, files: list[StagedFile], known: bool) -> int:
    """Read the rows as a Kafka publisher does, without sending them."""
    parts = [StagedPart(file.path, file.rows, file.size_bytes, file.sha256 if known else "") for file in files]
    rows = StagedRows(str(folder), {}, parts, "t", [])
    return sum(len(chunk.values) for group in rows.verified().row_groups() for chunk in group)


def cpu_ms(work: Callable[[], object]) -> float:
    """CPU time of this process for `work`."""
    before = time.process_time()
    work()
    return (time.process_time() - before) * 1000


def main(rounds: int) -> None:
    """Print one row per kind of work."""
    rows = table()
    found: dict[str, list[float]] = {}

    def note(what: str, work: Callable[[], object]) -> None:
        found.setdefault(what, []).append(cpu_ms(work))

    plans = {"lz4": StagePlan(compression="lz4", dictionary=False), "zstd": StagePlan()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = staged(folder, rows, plans["lz4"])
        for _ in range(rounds):
            for kind, plan in plans.items():
                note(f"stage {kind}, with", partial(staged, folder, rows, plan))
                with without_digests():
                    note(f"stage {kind}, without", partial(staged, folder, rows, plan))
            note("read for Kafka, with", lambda: published(folder, files, known=True))
            with mock.patch("spark_ckpt.content.hashlib.sha256", NoDigest):
                note("read for Kafka, without", lambda: published(folder, files, known=False))
    print(f"{ROWS:,} rows, {sum(file.size_bytes for file in files) / 1e6:.0f} MB as lz4")
    for what, each in found.items():
        print(f"| {what} | {statistics.median(each):.0f} ms | least {min(each):.0f} ms |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    main(parser.parse_args().rounds)
