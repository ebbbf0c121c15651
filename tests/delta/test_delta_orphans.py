"""Cleaning of files staged by dead attempts never removes a row that can still be read, restored or published."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from delta_kit import context, ids, output, stage
from deltalake import DeltaTable
from spark_ckpt_delta import find_orphans, remove_orphans
from spark_ckpt_delta.publisher import DeltalakePublisher

OLD = {"older_than_ms": 0}


def found(table: Path, incarnation: int = 2, unpublished: tuple[str, ...] = ()) -> list[str]:
    return find_orphans(str(table), context(incarnation), {}, unpublished, older_than_ms=0)


def test_a_file_of_a_dead_attempt_is_found_and_removed(table: Path) -> None:
    kept = stage(table, {"id": [1]})
    DeltalakePublisher(str(table), {}, context()).publish(output(table, 1, [kept]))
    orphan = stage(table, {"id": [2]})

    assert remove_orphans(str(table), context(2), {}, older_than_ms=0) == [orphan.path]
    assert not (table / orphan.path).exists()
    assert ids(table) == [1]


def test_files_of_this_incarnation_are_in_use(table: Path) -> None:
    stage(table, {"id": [1]}, incarnation=2)

    assert found(table, incarnation=2) == []


def test_files_of_unpublished_epochs_are_kept(table: Path) -> None:
    committed = stage(table, {"id": [1]})

    assert found(table, unpublished=(committed.path,)) == []
    assert found(table) == [committed.path]


def test_a_removed_file_that_time_travel_reads_is_kept(table: Path) -> None:
    old = stage(table, {"id": [1]})
    DeltalakePublisher(str(table), {}, context()).publish(output(table, 1, [old]))
    DeltaTable(str(table)).delete()

    assert found(table) == []


@pytest.mark.parametrize(
    "name", ["part-0.parquet", "ckpt-other-i1-b0-x.parquet", "ckpt-out-i1.parquet", "ckpt-out-i1-b0-x.crc"]
)
def test_files_of_others_are_never_named(table: Path, name: str) -> None:
    (table / name).write_bytes(b"x")

    assert found(table) == []


def test_young_files_are_kept_because_another_job_may_own_them(table: Path) -> None:
    orphan = stage(table, {"id": [1]})

    assert find_orphans(str(table), context(2), {}) == []
    os.utime(table / orphan.path, (0, 0))
    assert find_orphans(str(table), context(2), {}) == [orphan.path]


def test_a_clock_that_is_ahead_of_the_storage_makes_no_file_old(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(table, {"id": [1]})
    ahead_s = time.time() + 30 * 86_400
    monkeypatch.setattr(time, "time", lambda: ahead_s)
    monkeypatch.setattr(time, "time_ns", lambda: int(ahead_s * 1e9))

    assert find_orphans(str(table), context(2), {}) == []


def test_files_in_partition_folders_are_compared_by_name(table: Path) -> None:
    orphan = stage(table, {"id": [1]}, city="New York")

    assert found(table) == [orphan.path]
