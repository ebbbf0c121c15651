"""The benchmark of the driver's work runs a job's rules and store, and its stub tasks report every key group."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.inside.driver_at_scale import CHAIN, OPERATOR, SINK, Driver, Job, main, measured, of_long_logs


def test_every_epoch_names_a_snapshot_of_each_group_and_a_file_of_each_task(tmp_path: Path) -> None:
    driver = Driver(Job(tasks=3, groups=5), tmp_path / "store")
    for _ in range(2 * CHAIN):
        driver.run_epoch(batches=2)
    manifest = driver.newest
    files = manifest.operators[OPERATOR].files
    chains = [sum(group in file.key_groups for file in files) for group in range(5)]
    assert sum(file.epoch == manifest.epoch for file in files) == 3
    assert max(chains) <= CHAIN
    assert len(manifest.outputs[SINK].files) == 2 * 3
    assert driver.store.log.state().latest == manifest.epoch == 2 * CHAIN
    driver.store.verify(manifest)


def test_every_part_of_the_work_is_measured() -> None:
    tasks, groups, *cells = measured(Job(tasks=2, groups=3), epochs=4)
    assert (tasks, groups) == ("2", "3")
    assert all(float(cell) > 0 for cell in cells[:7])


def test_the_table_has_a_row_per_job(capsys: pytest.CaptureFixture[str]) -> None:
    main(epochs=2, tasks=[1, 2], groups=[2])
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.count("|") for row in rows] == [head.count("|")] * 2


def test_a_long_log_has_every_epoch_and_a_job_starts_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    of_long_logs(lengths=[20, 40], groups=[2])
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[1] for row in rows] == ["20", "40"]
    assert all(float(cell) > 0 for row in rows for cell in row.strip("| ").split(" | ")[3:])
    assert head.count("|") == rows[0].count("|")
