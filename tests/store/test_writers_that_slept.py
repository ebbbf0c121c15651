"""A writer or reader that slept while the log was trimmed accepts no stale commit as the newest, and loses none of its own.

A version number is free again once its commit is trimmed. Two guards prevent its reuse: a clock, and the check of the commit
before it. Each is tested without the other; without both the log forks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ckpt.delta_files import commit_name
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import Fenced, StoreOutage
from spark_ckpt.store import delta_log, durable, log_table
from spark_ckpt.store.epoch_log import EpochLog, wall_ms
from spark_ckpt.store.location import Location
from spark_ckpt.store.trim import HORIZON_MS, LOCAL_HORIZON_MS, old_before_ms
from tests.store.store_world import World

POLICY = Retention(keep_last=2, slack=0)
ENOUGH = 40
"""Number of rows that bring a checkpoint, and something to trim."""

NO_STEP = durable.on_step


class Uptime:
    """The clock that counts sleep, set by the test."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def uptime(monkeypatch: pytest.MonkeyPatch) -> Uptime:
    clock = Uptime()
    monkeypatch.setattr(log_table, "uptime_s", clock)
    return clock


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "store")
    world.clock.ms = 4_000_000_000_000 - HORIZON_MS
    world.begin()
    world.epoch({"a": 1}, acked=1)
    return world


def test_a_writer_that_slept_past_a_trim_is_fenced(world: World, uptime: Uptime) -> None:
    slept(world, uptime)


def test_the_clock_alone_fences_it(world: World, uptime: Uptime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_log, "require_predecessor", lambda location, version: None)
    slept(world, uptime, stale=True)


def test_the_commit_before_it_alone_fences_it_for_any_clock(
    world: World, uptime: Uptime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_table, "RESUME_SUSPECT_S", float("inf"))
    slept(world, uptime)


def test_without_both_guards_the_writer_accepts_a_row_that_no_reader_has(
    world: World, uptime: Uptime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "require_predecessor", lambda location, version: None)
    monkeypatch.setattr(log_table, "RESUME_SUSPECT_S", float("inf"))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        slept(world, uptime)


def slept(world: World, uptime: Uptime, *, stale: bool = False) -> None:
    """An old driver builds an epoch, and sleeps between its read of the log and its commit.

    `stale`: the commit stays there, below what anybody reads."""
    old, epoch = world.store.reopened().log, world.manifest()
    free = commit_file(world, old.state().lease_token + 1)

    def another_takes_over() -> None:
        uptime.s += 3600
        many_rows(world)
        assert not free.exists(), "the slot has to be free, or nothing is tested"

    at_commit_of(world, another_takes_over)
    with pytest.raises(Fenced):
        old.commit_epoch(epoch)
    assert world.store.reopened().log.state() == world.store.log.state() == old.state()
    assert free.exists() == stale


def test_a_reader_that_slept_sees_no_commit_of_a_writer_that_died_before_it_undid_it(
    world: World, uptime: Uptime, tmp_path: Path
) -> None:
    reader, stale = world.store.reopened().log, tmp_path / "stale.json"
    at = reader.state().lease_token + 1
    fork = shutil.copytree(tmp_path / "store", tmp_path / "fork")
    World(fork, world.clock).store.log.ask_handover(world.line.incarnation)
    shutil.copy(fork / "epochs/_delta_log" / commit_name(at), stale)
    many_rows(world)
    assert not commit_file(world, at).exists()
    shutil.copy(stale, commit_file(world, at))
    for path in (fork / "epochs").glob("*.parquet"):
        shutil.copy(path, tmp_path / "store/epochs" / path.name)
    uptime.s += 3600
    assert reader.state() == world.store.log.state()


def test_a_commit_counts_although_the_log_was_trimmed_up_to_it(
    world: World, uptime: Uptime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer sleeps after its commit; its own is the oldest commit that is left then."""
    old = world.store.reopened().log
    while (old.state().lease_token + 1) % 32:
        world.store.log.renew(world.line.incarnation, 30_000)
    at, require = old.state().lease_token + 1, delta_log.require_predecessor

    def trimmed_first(location: object, version: int) -> None:
        monkeypatch.setattr(delta_log, "require_predecessor", require)
        log = delta_log.open_table(world.store.location.child("epochs"))
        assert log is not None and log.version() == at
        delta_log.checkpoint(log, world.store.location.child("epochs"))
        for path in (world.store.location.local / "epochs/_delta_log").glob("*.json"):  # type: ignore[operator]
            path.unlink() if path.name < commit_name(at) else None
        uptime.s += 3600
        require(location, version)  # type: ignore[arg-type]

    monkeypatch.setattr(delta_log, "require_predecessor", trimmed_first)
    old.renew(world.line.incarnation, 40_000)
    assert delta_log.require_predecessor is require, "the log was trimmed meanwhile"
    assert old.state().lease_token == at
    assert world.store.log.state() == old.state() == world.store.reopened().log.state()


def test_a_re_created_folder_gets_no_commit(world: World, tmp_path: Path) -> None:
    log, at = world.store.reopened().log, world.store.log.state().lease_token + 1

    def unmounted() -> None:
        (tmp_path / "store/epochs").rename(tmp_path / "elsewhere")
        (tmp_path / "store/epochs/_delta_log").mkdir(parents=True)

    at_commit_of(world, unmounted)
    with pytest.raises(StoreOutage):
        log.renew(world.line.incarnation, 40_000)
    assert not commit_file(world, at).exists()
    assert not list((tmp_path / "store/epochs/_delta_log").iterdir())


def test_the_file_of_a_commit_under_way_stays_while_its_writer_sleeps(world: World, uptime: Uptime) -> None:
    """No other writer commits, so the sleeper's commit counts: its file must be there."""
    log = world.store.reopened().log
    log.state()

    def another_trims() -> None:
        uptime.s += 3600
        world.clock.ms += 3 * HORIZON_MS
        EpochLog.trim(world.store.reopened().log, world.clock.ms)

    at_commit_of(world, another_trims)
    log.add_savepoint("kept", 1)
    assert world.store.reopened().log.state().savepoints == {"kept": 1}


def test_on_a_file_system_commits_of_five_minutes_stay_and_older_ones_are_deleted(world: World) -> None:
    """The commits have real times, so the store's clock is set relative to the real one."""
    many_rows(world, at_ms=wall_ms())
    made = versions_of(world)
    assert made == list(range(made[-1] + 1))
    many_rows(world, at_ms=wall_ms() + LOCAL_HORIZON_MS)
    left = versions_of(world)
    assert made[-1] - ENOUGH // 2 < left[0] <= made[-1]
    assert len(left) > ENOUGH


def test_in_an_object_store_commits_of_an_hour_stay() -> None:
    assert old_before_ms(Location("s3://bucket/store"), HORIZON_MS + 5) == 5


def test_a_trim_deletes_the_oldest_commit_first(
    world: World,
) -> None:
    left = list[list[int]]()

    def step(what: str, path: str) -> None:
        if what == "delete" and path.startswith("_delta_log/"):
            left.append(versions_of(world))

    durable.on_step = step
    many_rows(world)
    durable.on_step = NO_STEP
    assert len(left) > ENOUGH // 2
    assert all(versions == list(range(versions[0], left[0][-1] + 1)) for versions in left)


def at_commit_of(world: World, meanwhile: Callable[[], None]) -> None:
    """The writer sleeps right before it writes the commit."""

    def step(what: str, path: str) -> None:
        if what == "commit" and path.startswith(world.store.location.child("epochs").uri + " "):
            durable.on_step = NO_STEP
            meanwhile()

    durable.on_step = step


def many_rows(world: World, at_ms: int = 4_000_000_000_000) -> None:
    """Another driver takes over, renews its lease for a while and trims the log, much later or at `at_ms`."""
    world.begin()
    for _ in range(ENOUGH):
        world.store.log.renew(world.line.incarnation, 30_000)
    world.clock.ms = at_ms
    world.store.retain(POLICY)


def versions_of(world: World) -> list[int]:
    """Return the versions of the log whose commits are there."""
    return sorted(int(path.stem) for path in commit_file(world, 0).parent.glob("*.json"))


def commit_file(world: World, version: int) -> Path:
    local = world.store.location.local
    assert local is not None
    return local / "epochs/_delta_log" / commit_name(version)
