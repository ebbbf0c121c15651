"""Output and exit codes of `spark-ckpt rewind pin`, `points` and `unpin`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_ckpt.cli.app import exit_code
from spark_ckpt.errors import ConfigInvalid
from spark_rewind.cli.pins import bytes_of
from tests.rewind.rewind_kit import WrittenQuery, WrittenTable


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    query, table = WrittenQuery(tmp_path / "ckpt" / "ingest"), WrittenTable(tmp_path / "lake" / "bronze")
    for number in range(4):
        query.batch({"logOffset": number}, state=True)
        table.version((query.query, number))
    return tmp_path


def pin(lake: Path, *more: str) -> int:
    folders = [str(lake / "ckpt" / "ingest"), "--table", str(lake / "lake")]
    return exit_code(["rewind", "pin", *folders, "--into", str(lake / "pins"), *more])


def test_a_point_is_pinned_listed_planned_for_and_deleted(lake, capsys):
    assert pin(lake, "--name", "release-7", "--budget", "10GiB") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("pinned release-7: 1 query, 1 table\n  ingest at batch 3\n")
    assert exit_code(["rewind", "points", str(lake / "pins")]) == 0
    printed = capsys.readouterr().out
    assert "release-7" in printed
    assert "ingest@3" in printed
    assert "bronze@3" in printed
    folders = [str(lake / "ckpt" / "ingest"), "--table", str(lake / "lake"), "--pins", str(lake / "pins")]
    assert exit_code(["rewind", "plan", *folders, "--to", "release-7"]) == 0
    assert capsys.readouterr().out.startswith("to release-7: 0 queries go back")
    assert exit_code(["rewind", "unpin", str(lake / "pins"), "release-7"]) == 0
    assert capsys.readouterr().out == "point release-7 is taken away\n"
    assert exit_code(["rewind", "unpin", str(lake / "pins"), "release-7"]) == 5


def test_json_names_the_point_that_is_deleted(lake, capsys):
    assert pin(lake, "--name", "release-7", "--json") == 0
    taken = json.loads(capsys.readouterr().out)["point"]
    assert exit_code(["rewind", "unpin", str(lake / "pins"), "release-7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"id": taken["id"], "name": "release-7"}


def test_json_has_batches_versions_bytes_and_missing_files(lake, capsys):
    assert pin(lake, "--json") == 0
    taken = json.loads(capsys.readouterr().out)
    assert (taken["point"]["queries"], taken["dropped"]) == ({"ingest": 3}, [])
    kept = lake / "pins" / "points" / taken["point"]["id"] / "queries" / "0"
    (kept / "offsets" / "3").write_text("v1")
    assert exit_code(["rewind", "points", str(lake / "pins"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    [point] = printed["points"]
    assert point["tables"] == {str(lake / "lake" / "bronze"): 3}
    assert "offsets/3 has 2 bytes" in point["gone"][0]
    assert 0 < point["held_bytes"] == printed["bytes"]


def test_a_pin_over_the_budget_is_an_error_of_its_own(lake, capsys):
    assert pin(lake, "--budget", "1kB") == 3
    assert capsys.readouterr().err.startswith("[CKPT_PINS_OVER_BUDGET]")
    assert pin(lake, "--budget", "much") == 2
    assert list((lake / "pins" / "points").iterdir()) == []


@pytest.mark.parametrize(
    ("written", "size"), [("10GiB", 10 << 30), ("1.5MB", 1_500_000), ("200", 200), ("3k", 3000), ("2TiB", 2 << 40)]
)
def test_sizes_are_read_as_people_write_them(written, size):
    assert bytes_of(written) == size


@pytest.mark.parametrize("written", ["", "0", "-1GB", "10iB", "ten", "1PB"])
def test_an_invalid_size_is_refused(written):
    with pytest.raises(ConfigInvalid):
        bytes_of(written)
