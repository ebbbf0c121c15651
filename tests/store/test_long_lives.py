"""The cost of a commit, the log and the folders stay bounded for a job that runs forever."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from store_world import ELSEWHERE, JOB, OPERATOR, SINK, World

from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, SinkAck, StagedOutput, StateFile
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_table import FOLD_AFTER, LogTable
from spark_ckpt.store.trim import HORIZON_MS

GROUPS = tuple(
    StateFile(
        path=f"i1-e1-g{group}-x.parquet", size_bytes=9, ranges=((group, 9, 0, 9),), epoch=1, incarnation=1, kind="full"
    )
    for group in range(32)
)


def manifest(epoch: int) -> Manifest:
    snapshot = OperatorSnapshot(
        operator=OPERATOR, key_groups=32, key_schema="k STRING", state_schema="v INT", files=GROUPS
    )
    return Manifest(
        job=JOB,
        epoch=epoch,
        incarnation=1,
        attempt=f"attempt-{epoch}",
        base=epoch - 1,
        previous=epoch - 1,
        created_ms=epoch,
        operators={OPERATOR: snapshot},
        outputs={SINK: StagedOutput(sink=SINK)},
        acks=(SinkAck(sink=SINK, epoch=epoch - 1),),
    )


@pytest.mark.long
def test_two_thousand_commits_stay_cheap_without_any_retention(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "epochs"))
    log = EpochLog.open(location, JOB)
    assert log is not None
    log.begin_incarnation(ELSEWHERE)
    times_s = []
    for epoch in range(1, 2001):
        # Processor time, because the machine may be busy with other things.
        before = time.process_time()
        log.commit_epoch(manifest(epoch))
        times_s.append(time.process_time() - before)
    early, late = sorted(times_s[100:300]), sorted(times_s[-200:])
    assert late[100] < 3 * early[100] + 0.005, (early[100], late[100])
    assert late[190] < 10 * early[100] + 0.02, (early[100], late[190])
    table = LogTable.open(location, lambda: 0, create=False)
    assert table is not None
    table.refresh()
    assert len(table.paths) < 3 * FOLD_AFTER
    reopened = EpochLog.open(location, JOB)
    assert reopened is not None
    assert reopened.state() == log.state()
    assert len(reopened.state().epochs) == 2000
    assert reopened.manifest(1234) == manifest(1234)


@pytest.mark.parametrize("epochs", [90, pytest.param(400, marks=pytest.mark.long)])
def test_retention_bounds_every_folder(tmp_path: Path, epochs: int) -> None:
    world = World(tmp_path / "store")
    world.clock.ms = 4_000_000_000_000
    world.begin()
    policy = Retention(keep_last=5, slack=10)
    sizes = []
    for number in range(1, epochs + 1):
        world.epoch({"a": number, f"k{number % 7}": number}, full=number % 6 == 0, acked=number)
        world.store.retain(policy)
        if number % 30 == 0:
            world.clock.ms += 2 * HORIZON_MS
            sizes.append(count_files(tmp_path / "store"))
    assert max(sizes[1:]) < 1.5 * sizes[0] + 60, sizes
    assert len(world.store.log.state().epochs) <= 5 + 10 + 1
    assert world.state_at(epochs) == world.expected[epochs]


def count_files(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file())


def test_a_reader_survives_a_fold_that_deletes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "store")
    world.begin()
    for number in range(1, 6):
        world.epoch({"a": number}, full=True, acked=number)
    reader, read_table = world.store.reopened().log, Location.read_table
    for number in range(6, 9):
        world.epoch({"a": number}, full=True, acked=number)

    def folded_first(self: Location, *args: object, **kwargs: object) -> object:
        monkeypatch.setattr(Location, "read_table", read_table)
        world.clock.ms += 2 * HORIZON_MS
        world.store.retain(Retention(keep_last=2, slack=0))
        return read_table(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Location, "read_table", folded_first)
    assert [brief.epoch for brief in reader.state().epochs] == [7, 8]
    assert reader.manifest(8) == world.store.log.manifest(8)
