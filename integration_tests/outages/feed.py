"""Shared by tests of outages and signals: input, a job's drivers, and an oracle for the table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from integration_tests.survival.process import Driver, Lives
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.store.existing import existing_store

KEYS = 7


@dataclass
class Feed:
    """Rows are numbered from 0; row n has key n mod `KEYS`, unless the test chooses one."""

    folder: Path
    store: Path
    lives: Lives
    keys: list[str] = field(default_factory=list)
    files: int = 0

    def put(self, rows: int, key: str | None = None) -> None:
        """Write one more input file atomically."""
        first = len(self.keys)
        self.keys += [key or f"k{number % KEYS}" for number in range(first, first + rows)]
        lines = [json.dumps({"n": number, "k": self.keys[number]}) for number in range(first, first + rows)]
        self.files += 1
        fresh = self.folder / "fresh"
        fresh.write_text("\n".join(lines) + "\n")
        fresh.rename(self.folder / "in" / f"{self.files:05}.json")

    def start(self, *options: str) -> Driver:
        return self.lives.start(*options)

    def go_on(self, spark: SparkSession) -> None:
        """Run another incarnation in this process: it starts at once, and runs to the end of the input."""
        self.lives.drain_on(spark)
        self.check_exact()

    def rows(self) -> list[tuple[int, str, int]]:
        table = DeltaTable(str(self.folder / "table"))
        found = pa.table(table.scan(columns=["n", "k", "nth"]).read_all())
        return sorted((row["n"], row["k"], row["nth"]) for row in found.to_pylist())

    def shown(self) -> int:
        """Number of rows in the table."""
        return len(self.rows()) if (self.folder / "table" / "_delta_log" / f"{0:020}.json").is_file() else 0

    def state(self) -> LogState:
        return existing_store(str(self.store)).log.state()

    def reasons(self) -> list[str]:
        """Reason of each kept epoch, oldest first."""
        log = existing_store(str(self.store)).log
        return [log.manifest(brief.epoch).reason for brief in log.state().epochs]

    def check_exact(self) -> None:
        """Every row once, and every key counted from 1 without a gap: state and output have the same prefix of the input."""
        rows = self.rows()
        assert [(number, key) for number, key, _ in rows] == list(enumerate(self.keys))
        counts: dict[str, list[int]] = defaultdict(list)
        for _, key, nth in rows:
            counts[key].append(nth)
        assert all(sorted(each) == list(range(1, len(each) + 1)) for each in counts.values())


@contextmanager
def feeding(folder: Path, store: Path) -> Iterator[Feed]:
    """A feed whose drivers end with the test."""
    (folder / "in").mkdir()
    arguments = ["--input", str(folder / "in"), "--table", str(folder / "table"), "--store", str(store)]
    arguments += ["--local-dir", str(folder / "local")]
    lives = Lives(folder, arguments, program="integration_tests.outages.driver")
    try:
        yield Feed(folder, store, lives)
    finally:
        lives.end()
