"""Two programs joined by an edge: rows pass exactly once despite SIGKILL of both, the reader reports a restore of the sender."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from integration_tests.edges.judged_lines import judged_lines
from integration_tests.edges.two_programs import described, parsed
from integration_tests.spark import connected_session
from integration_tests.survival.kills import at_point
from integration_tests.survival.process import ROOT, Lives
from spark_ckpt.errors import SourceUndone
from spark_ckpt.store.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.kill]
KEYS, FILES, ROWS = 7, 14, 25
FEW = 6
"""Files of the test in the gate."""
ENOUGH_S = 120.0


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


@dataclass
class Pair:
    """Both programs, their input, and the expected output."""

    spark: SparkSession
    root: Path
    written: int = 0
    protocol: str = "independent"

    def __post_init__(self) -> None:
        given = ["--root", str(self.root), "--protocol", self.protocol]
        self.lives = Lives(self.root / "lives", given, program="integration_tests.edges.two_programs")

    def write(self, files: int) -> None:
        folder = self.root / "in"
        folder.mkdir(exist_ok=True)
        for _ in range(files):
            numbers = range(self.written * ROWS, (self.written + 1) * ROWS)
            lines = (json.dumps({"k": f"k{number % KEYS}", "v": number}) + "\n" for number in numbers)
            hidden = folder / f".{self.written:03}.json"
            hidden.write_text("".join(lines))
            hidden.rename(folder / f"{self.written:03}.json")
            self.written += 1

    def live_and_die(self, role: str, point: str, nth: int = 1) -> None:
        kill = at_point(point, self._folder(role, point), nth)
        with self.lives.start(role, environment=kill.environment) as driver:
            kill.strike(driver)

    def _folder(self, role: str, point: str) -> Path:
        folder = self.root / f"{role}-{point}"
        folder.mkdir()
        return folder

    def drain(self, role: str, restore: str | int = "latest") -> None:
        """Run an incarnation that reads all input, in the test's own process."""
        self.lives.drain_on(self.spark, role, "--restore", str(restore))

    def running(self, role: str) -> ckpt.Run:
        """Run an incarnation that waits for rows, in the test's own process."""
        options = parsed([role, "--root", str(self.root), "--events", str(self.root / "events")])
        return described(self.spark, options).start()

    def store(self, role: str) -> Store:
        return Store.open(str(self.root / role), role)

    def expected(self) -> dict[str, tuple[int, int, int]]:
        values = range(self.written * ROWS)
        counts = Counter(f"k{value % KEYS}" for value in values)
        return {
            key: (count, sum(value for value in values if f"k{value % KEYS}" == key), 0)
            for key, count in counts.items()
        }

    def state(self) -> dict[str, tuple[int, int, int]]:
        """The reader's state: newest number, sum, breaks of the sequence."""
        store = self.store("totals")
        rows = store.state("check").read(store.log.state().latest).to_pylist()
        return {row["k"]: (row["last"], row["total"], row["wrong"]) for row in rows}

    def table(self) -> Counter[tuple[object, ...]]:
        uris = DeltaTable(str(self.root / "table")).file_uris()
        rows = [row for uri in uris for row in pq.read_table(uri, partitioning=None).to_pylist()]
        return Counter((row["k"], row["last"]) for row in rows)


# The first epoch pins the sources, and has no rows.
SENDER = (("orders", "EPOCH_COMMITTED", 2),)
BOTH = (*SENDER, ("totals", "STAGED", 1))
EVERYWHERE = (
    ("orders", "EPOCH_COMMITTING", 2),
    ("orders", "EPOCH_COMMITTED", 1),
    ("totals", "STAGED", 1),
    ("orders", "STAGED", 1),
    ("totals", "EPOCH_COMMITTED", 1),
)


@pytest.mark.parametrize(
    ("kills", "protocol", "files"),
    [
        # in the gate: a stage that dies in test_stages_of_a_program.py; lines in tests/simulator and in tests/specs
        *(pytest.param(kills, "index", FEW, marks=pytest.mark.long) for kills in (SENDER, BOTH)),
        *(pytest.param(kills, "independent", FILES, marks=pytest.mark.long) for kills in (BOTH, EVERYWHERE)),
    ],
    ids=["sender, lines", "both, lines", "both", "everywhere"],
)
def test_rows_pass_exactly_once_although_programs_are_killed(
    spark: SparkSession, tmp_path: Path, kills: tuple[tuple[str, str, int], ...], protocol: str, files: int
) -> None:
    """With lines, each line is one cut."""
    pair = Pair(spark, tmp_path, protocol=protocol)
    pair.write(files // 2)
    for number, (role, point, nth) in enumerate(kills):
        if number == 3:
            pair.write(files - files // 2)
        pair.live_and_die(role, point, nth)
    pair.write(files - pair.written)
    pair.drain("orders")
    pair.drain("totals")

    assert pair.state() == pair.expected()
    once = {(key, number): 1 for key, (count, _, _) in pair.expected().items() for number in range(1, count + 1)}
    assert pair.table() == once
    assert protocol != "index" or judged_lines(tmp_path / "orders", tmp_path / "totals") >= 2


@pytest.mark.long  # in the gate: as above
def test_every_line_of_two_programs_is_one_cut_although_the_reader_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    pair = Pair(spark, tmp_path, protocol="index")
    pair.write(4)
    pair.drain("orders")
    pair.live_and_die("totals", "EPOCH_COMMITTED", 2)
    for files in (3, 3):
        pair.write(files)
        pair.drain("orders")
        pair.drain("totals")

    assert pair.state() == pair.expected()
    assert judged_lines(tmp_path / "orders", tmp_path / "totals") >= 2


@pytest.mark.long  # in the gate: tests/edges/test_edges_between_programs.py
def test_the_error_of_a_restored_senders_reader_names_the_epoch_to_restore(spark: SparkSession, tmp_path: Path) -> None:
    pair = Pair(spark, tmp_path)
    for files in (2, 2, 3):
        pair.write(files)
        pair.drain("orders")
        pair.drain("totals")
    [reader] = pair.store("orders").log.state().readers.values()
    assert Path(reader.row.place) == tmp_path / "totals" / "sources" / "totals"

    cursors = [each.cursors["totals"]["epoch"] for each in pair.store("totals").log.manifests()]
    middle = sorted(set(cursors))[-2]
    assert isinstance(middle, int)
    run = pair.running("totals")
    pair.drain("orders", restore=middle)
    with pytest.raises(SourceUndone) as while_it_ran:
        run.awaitTermination(ENOUGH_S)
    pair.write(1)
    pair.drain("orders")
    with pytest.raises(SourceUndone) as at_start:
        pair.drain("totals")
    back = at_start.value.context["restore"]
    assert [each.value.context["source"] for each in (while_it_ran, at_start)] == ["totals", "totals"]
    assert while_it_ran.value.context["restore"] == back
    assert isinstance(back, int)
    assert pair.store("totals").log.manifest(back).cursors["totals"]["epoch"] == middle

    pair.drain("totals", restore=back)
    assert pair.state() == pair.expected()


# in the gate: the how-to, which has the steps of the other page
@pytest.mark.parametrize("name", [pytest.param("edges-between-programs", marks=pytest.mark.long), "two-teams-one-line"])
def test_the_pages_about_edges_run_as_written(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / "inbox").mkdir()
    orders = [
        {"customer": "ada", "amount": 9.0},
        {"customer": "bob", "amount": 4.0},
        {"customer": "ada", "amount": 3.0},
    ]
    (tmp_path / "inbox" / "1.json").write_text("".join(json.dumps(order) + "\n" for order in orders))
    page = (ROOT / "docs" / f"{name}.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))

    exec(compile(code, f"{name}.md", "exec"), {"spark": spark, "root": str(tmp_path)})

    assert DeltaTable(str(tmp_path / "large")).to_pyarrow_table().to_pylist() == [{"customer": "ada", "total": 12.0}]
