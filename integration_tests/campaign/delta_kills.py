"""Files to Delta, appended and merged, killed repeatedly while another writer commits to the same table."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from integration_tests.campaign.hard_input import feeding
from integration_tests.campaign.trial import Results
from integration_tests.survival.kills import IN_DRIVER, Kill, at_point, at_random
from integration_tests.survival.process import Lives

PROGRAM = "integration_tests.campaign.delta_driver"
FOREIGN = "foreign"
KEYS, ROWS_A_FILE, FILES_A_LIFE = 40, 60, 2
POINTS = (*IN_DRIVER, "STAGED")


@dataclass
class Inbox:
    """The folder of input files, and the expected output."""

    folder: Path
    draw: random.Random
    rows: list[tuple[str, int, int]] = field(default_factory=list)
    files: int = 0

    def write(self) -> None:
        """Write one more file."""
        new = [
            (f"key-{self.draw.randrange(KEYS)}", self.draw.randrange(100), len(self.rows) + n)
            for n in range(ROWS_A_FILE)
        ]
        self.rows += new
        hidden = self.folder / f".part-{self.files:05}.json"
        hidden.write_text("".join(json.dumps({"k": k, "v": v, "n": n}) + "\n" for k, v, n in new))
        hidden.rename(self.folder / f"part-{self.files:05}.json")
        self.files += 1

    def appended(self) -> Counter[tuple[str, int, int]]:
        """(key, count, total) after every row."""
        figures: dict[str, tuple[int, int]] = {}
        found: Counter[tuple[str, int, int]] = Counter()
        for key, value, _ in self.rows:
            count, total = figures.get(key, (0, 0))
            figures[key] = (count + 1, total + value)
            found[(key, *figures[key])] += 1
        return found

    def merged(self) -> Counter[tuple[str, int, int]]:
        """(key, count, total) at the end."""
        counts, totals = Counter(k for k, _, _ in self.rows), Counter[str]()
        for key, value, _ in self.rows:
            totals[key] += value
        return Counter((key, counts[key], totals[key]) for key in counts)


class OtherWriter(threading.Thread):
    """Another writer that appends to the table once a second. `yields`: at most once between two commits of other writers."""

    def __init__(self, table: Path, yields: bool) -> None:
        super().__init__(name="other-writer", daemon=True)
        self._table = table
        self._yields = yields
        self._over = threading.Event()
        self._version = -1
        self.commits = 0

    def run(self) -> None:
        while not self._over.wait(1.0):
            if (self._table / "_delta_log" / f"{0:020}.json").exists():
                self._append(DeltaTable(str(self._table)))

    def _append(self, table: DeltaTable) -> None:
        if self._yields and table.version() == self._version:
            return
        row = {"k": [FOREIGN], "count": [self.commits], "total": [0]}
        schema = pa.schema(table.schema().to_arrow())
        rows = pa.table({name: row.get(name, [None]) for name in schema.names}, schema=schema)
        write_deltalake(table, rows, mode="append")
        self.commits += 1
        self._version = DeltaTable(str(self._table)).version()

    def stop(self) -> None:
        self._over.set()
        self.join(30)


def delta_kills(folder: Path, kills: int, seed: int, results: Results) -> None:
    """Kill a job that appends two thirds of `kills` times, and one that merges one third."""
    draw = random.Random(seed)
    merging = kills // 3
    for mode, share in (("append", kills - merging), ("merge", merging)):
        _one_job(folder / mode, mode, share, draw, results)


def _one_job(folder: Path, mode: str, kills: int, draw: random.Random, results: Results) -> None:
    (folder / "in").mkdir(parents=True)
    inbox, table = Inbox(folder / "in", draw), folder / "table"
    arguments = ["--input", str(inbox.folder), "--table", str(table), "--store", str(folder / "store")]
    lives = Lives(folder, [*arguments, "--local-dir", str(folder), "--mode", mode], program=PROGRAM)
    writer = OtherWriter(table, yields=mode == "merge")  # otherwise every MERGE conflicts and retries for ever
    writer.start()
    try:
        for number in range(kills):
            for _ in range(FILES_A_LIFE):
                inbox.write()
            kill = _drawn(draw, folder / f"death-{number:03}")
            name = kill.name if kill.name in POINTS else "random moment"
            results.add(f"{mode}, {name}", why=_die(lives, inbox, kill))
        lives.drain(timeout_s=1800)
    finally:
        writer.stop()
        lives.end()
    compare(inbox, table, mode, writer.commits, results)


def _drawn(draw: random.Random, folder: Path) -> Kill:
    folder.mkdir()
    return at_point(draw.choice(POINTS), folder) if draw.random() < 0.4 else at_random(draw)


def _die(lives: Lives, inbox: Inbox, kill: Kill) -> str:
    try:
        with lives.start(environment=kill.environment) as driver, feeding(lambda _: inbox.write(), 1):
            kill.strike(driver)
    except AssertionError as error:
        return str(error)
    return ""


def compare(inbox: Inbox, table: Path, mode: str, foreign: int, results: Results) -> None:
    rows = pa.table(DeltaTable(str(table)).scan(columns=["k", "count", "total"]).read_all()).to_pylist()
    found = Counter((row["k"], row["count"], row["total"]) for row in rows)
    others = Counter({row: times for row, times in found.items() if row[0] == FOREIGN})
    wanted = inbox.appended() if mode == "append" else inbox.merged()
    lost, extra = wanted - (found - others), (found - others) - wanted
    twice = sum(times for row, times in extra.items() if row in wanted)
    figures = {"records": len(inbox.rows), "lost": lost.total(), "duplicated": twice, "wrong": extra.total() - twice}
    figures |= {"foreign": others.total(), "foreign lost": foreign - others.total()}
    broken = any(figures[name] for name in ("lost", "duplicated", "wrong", "foreign lost"))
    results.add(f"{mode}, table compared", figures, f"{lost} {extra}"[:500] if broken else "")
