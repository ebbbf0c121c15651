"""Input of a job of operators that is killed repeatedly, and the rows of its tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from integration_tests.survival.kills import Kill
from integration_tests.survival.process import Lives

KEYS, ROWS_A_FILE = 11, 40


@dataclass
class Feed:
    """Input folders of one job, and the keys that were written to each."""

    folder: Path
    inputs: tuple[str, ...]
    lives: Lives
    keys: dict[str, list[str]] = field(default_factory=dict)
    files: int = 0

    def put(self) -> None:
        """Write one more file for every input."""
        for name in self.inputs:
            keys = self.keys.setdefault(name, [])
            new = [f"k{(len(keys) + number) % KEYS}" for number in range(ROWS_A_FILE)]
            keys += new
            fresh = self.folder / "fresh"
            fresh.write_text("".join(json.dumps({"k": key, "at": self.files}) + "\n" for key in new))
            fresh.rename(self.folder / name / f"{self.files:05}.json")
        self.files += 1

    def killed(self, kill: Kill) -> None:
        """Run a driver with new input until its kill."""
        for _ in range(2):
            self.put()
        with self.lives.start(environment=kill.environment) as driver:
            kill.strike(driver)

    def moments(self, name: str) -> list[tuple[str, int]]:
        """Key and second of every row of an input."""
        return [(key, number // ROWS_A_FILE) for number, key in enumerate(self.keys[name])]

    def shown(self, table: str = "table") -> Counter[tuple[object, int]]:
        return Counter((row["key"], row["n"]) for row in self.rows(table, "key", "n"))

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        scan = DeltaTable(str(self.folder / table)).scan(columns=list(columns))
        return pa.table(scan.read_all()).to_pylist()

    def check_way(self) -> None:
        """The sink after the first operator has every row of it once."""
        times = Counter(self.keys["rows"])
        assert self.shown("table-way") == Counter((key, n) for key in times for n in range(1, times[key] + 1))

    def check_aside(self) -> None:
        """The branch with its own end has every row that passes its filter once."""
        assert Counter(row["k"] for row in self.rows("table-aside", "k")) == Counter(
            key for key in self.keys["rows"] if key != "k0"
        )


@contextmanager
def feeding(folder: Path, shape: str, *inputs: str, options: Sequence[str] = ()) -> Iterator[Feed]:
    arguments = ["--shape", shape, "--table", str(folder / "table"), "--store", str(folder / "store")]
    arguments += ["--local-dir", str(folder / "local"), *options]
    for name in inputs:
        (folder / name).mkdir(parents=True)
        arguments += ["--input", str(folder / name)]
    lives = Lives(folder, arguments, program="integration_tests.survival.graph_driver")
    try:
        yield Feed(folder, inputs, lives)
    finally:
        lives.end()
