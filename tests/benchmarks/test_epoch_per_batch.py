"""A long run's table shows growing values, and constant ones as constant."""

from __future__ import annotations

import pytest

from benchmarks.inside.epoch_per_batch import FOLDERS, Sample, files_in, growth, table


def run(commit_ms=lambda at: 20, files=lambda at: 300):
    return [
        Sample(at / 6, 3 * at, [commit_ms(at)] * 3, 40.0, dict.fromkeys(FOLDERS, files(at)), 5.0) for at in range(1, 61)
    ]


def grown(samples):
    return [cell.strip() for cell in table(samples)[-1].strip("| ").split("|")]


def test_a_constant_value_has_the_factor_one():
    cells = grown(run())
    assert cells[2:] == ["1.00x"] * 7


def test_growth_is_shown_in_the_last_row_only():
    """Planted faults: a log that is never folded, and files that are never deleted."""
    assert grown(run(commit_ms=lambda at: at))[2] == "1.66x"
    assert grown(run(files=lambda at: 10 * at))[4:8] == ["1.66x"] * 4
    assert grown(run(files=lambda at: 10 * at))[2] == "1.00x"


def test_the_warm_up_is_no_growth_and_no_shrinking():
    assert growth([100.0, 50.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0]) == 1.0


def test_a_long_run_has_ten_rows_and_every_epoch_once():
    lines = table(run())
    assert len(lines) == 2 + 10 + 1
    assert [cell.strip() for cell in lines[-2].split("|")][1:3] == ["10.0", "180"]


def test_growth_from_zero_files_has_no_factor():
    assert grown(run(files=lambda at: max(0, at - 40)))[4] == "-"


@pytest.mark.parametrize("count", [1, 2])
def test_a_short_run_has_a_table_too(count):
    assert len(table(run()[:count])) == 2 + count + 1


def test_files_are_counted_by_the_stores_folders(tmp_path):
    for name in ("epochs/_delta_log/0.json", "state/totals/a.parquet", "state/totals/b.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "store.json").write_text("xx")
    files, size = files_in(tmp_path)
    assert (files["epochs"], files["state"], files["."], size) == (1, 2, 1, 5)
