"""Checkpoints, tables and sink files of Spark 3.5.7 and Delta 3.3.2 are planned for, rolled back, undone and adopted."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from rewind_kit import planned, query_of

from integration_tests.campaign.rewinds import settings_for
from spark_ckpt.cli.app import exit_code
from spark_rewind.applying import apply, undo
from spark_rewind.checkpoint import QueryCheckpoint, read_checkpoint
from spark_rewind.plan import RewindPlan
from spark_rewind.positions import FilesPosition

MADE_BY_SPARK = Path(__file__).parent / "made_by_spark_3_5.zip"
HOME = "/home/shop"
"""The original folder, in logs that name files."""
DAYS, ORDERS_OF_A_DAY = 6, 4
STATES = {
    "dedup": "HDFS-backed, changes and snapshots",
    "windows": "RocksDB, changelogs and snapshots",
    "totals": "RocksDB, a snapshot for each version",
}


class Shop:
    """`ingest`: files to bronze; `dedup`: bronze to silver; `windows`, `totals` and `export` read silver; `reader` the export."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with zipfile.ZipFile(MADE_BY_SPARK) as made:
            made.extractall(root)
        for log in ("checkpoints/ingest/sources/0", "checkpoints/reader/sources/0", "export/_spark_metadata"):
            for path in (root / log).iterdir():
                path.write_text(path.read_text().replace(HOME, str(root)))

    def read(self, name: str) -> QueryCheckpoint:
        return read_checkpoint(self.root / "checkpoints" / name, name)

    def plan(self, to: str) -> RewindPlan:
        declared = {"folders": [{"path": str(self.root / "export"), "written_by": "export"}]}
        return planned(sorted((self.root / "checkpoints").iterdir()), to, [self.root / "lake"], declared)

    def orders(self) -> dict[str, int]:
        """Counts of rows of the tables and files that hold each order once, read with other libraries."""
        tables = {
            name: DeltaTable(str(self.root / "lake" / name)).to_pyarrow_table() for name in ("silver", "fromexport")
        }
        files = [pq.read_table(path, columns=["id"]) for path in (self.root / "export").glob("*.parquet")]
        return {name: table.num_rows for name, table in tables.items()} | {"files": sum(map(len, files))}


@pytest.fixture(scope="module")
def as_left(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.mark.parametrize("name", STATES)
def test_every_state_in_the_log_can_be_loaded(as_left, name):
    query = as_left.read(name)
    assert [each.number for each in query.batches] == list(range(12 if name == "windows" else DAYS))
    assert [(query.state_gone(each), query.state_torn(each)) for each in query.batches] == [(None, None)] * len(
        query.batches
    )
    assert all(each.state_ids is None for each in query.batches)


@pytest.mark.parametrize(
    ("name", "lost", "gone"),
    [
        ("dedup", "state/0/0/2.delta", [1, 2]),  # version 4 has a snapshot
        ("windows", "state/0/1/8.changelog", [7]),  # every other version has one
        ("totals", "state/0/0/3.zip", [2]),
    ],
)
def test_a_state_with_a_missing_file_is_not_used(tmp_path, name, lost, gone):
    shop = Shop(tmp_path)
    (shop.root / "checkpoints" / name / lost).unlink()
    query = shop.read(name)
    assert [each.number for each in query.batches if query.state_gone(each) is not None] == gone


def test_offsets_watermarks_and_settings_are_read(as_left):
    ingest, windows = as_left.read("ingest"), as_left.read("windows")
    assert [each.ends["0"] for each in ingest.batches] == [FilesPosition(number) for number in range(DAYS)]
    assert all(each.committed_ms is not None for each in ingest.batches)
    marks = [each.watermark_ms for each in windows.batches]
    assert marks == sorted(marks)
    assert marks[-1] > marks[0]


def test_all_queries_roll_back_together_and_an_undo_returns_them(tmp_path):
    shop = Shop(tmp_path)
    plan = shop.plan("ingest@2")
    back = {each.name: each.batch for each in plan.queries}
    assert back == {"ingest": 2, "dedup": 2, "windows": 5, "totals": 2, "export": 2, "reader": 2}
    assert query_of(plan, "windows").state_version == 6
    assert query_of(plan, "reader").reasons[-1].exact
    apply(plan, settings_for(plan))
    assert shop.orders() == dict.fromkeys(("silver", "fromexport", "files"), 3 * ORDERS_OF_A_DAY)
    assert {name: shop.read(name).committed for name in back} == back
    assert [shop.read(name).state_gone(shop.read(name).batches[-1]) for name in STATES] == [None] * len(STATES)
    undo(plan, settings_for(plan))
    assert shop.orders() == dict.fromkeys(("silver", "fromexport", "files"), DAYS * ORDERS_OF_A_DAY)


def test_a_stateless_query_is_adopted_and_a_stateful_one_needs_spark_4(as_left, tmp_path, capsys):
    names = ["--job", "orders", "--source", "silver", "--watch-s", "0"]
    checkpoints = as_left.root / "checkpoints"
    assert exit_code(["adopt", str(checkpoints / "export"), str(tmp_path / "store"), *names]) == 0
    assert "before version 6" in capsys.readouterr().out
    assert (
        exit_code(["adopt", str(checkpoints / "totals"), str(tmp_path / "other"), *names, "--operator", "add_up"]) == 5
    )
    assert "start the query once with Spark 4" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
