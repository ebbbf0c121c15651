"""A full, read-only, forbidden or failing disk is reported as such, and nothing is lost once it works again."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from store_world import JOB, OPERATOR, World

from integration_tests.small_disk import SmallDisk, small_disk
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import StoreDenied, StoreFull, StoreIoFailed, StoreOutage, StoreReadOnly
from spark_ckpt.store import delta_log, durable
from spark_ckpt.store.copied_log import keep, pull
from spark_ckpt.store.delta_log import create_table
from spark_ckpt.store.store import Store

NOBODY = 65534


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def world(disk: SmallDisk) -> World:
    world = World(disk.folder / "store")
    world.begin()
    world.epoch({"a": 1})
    return world


WRITES: dict[str, Callable[[World], object]] = {
    "renewal": lambda world: world.store.log.renew(1, 1000),
    "release": lambda world: world.store.log.release(1),
    "incarnation": lambda world: world.begin(),
    "state file": lambda world: world.snapshot({"b": 2}),
    "staged rows": lambda world: world.staged(["row"]),
    "large file": lambda world: world.store.location.write_bytes("large", bytes(1_000_000)),
    "table": lambda world: world.store.location.write_table("t", pa.table({"a": [1]})),
    "decision": lambda world: world.commit(world.manifest(stage=False)),
    "another store": lambda world: Store.open(f"{world.store.location.uri}-new", JOB),
    "another store further down": lambda world: Store.open(f"{world.store.location.uri}-new/a/b", JOB),
}


@pytest.mark.parametrize("write", WRITES)
def test_every_write_reports_a_full_disk_as_full(disk: SmallDisk, world: World, write: str) -> None:
    disk.fill()
    with pytest.raises(StoreFull) as caught:
        WRITES[write](world)
    error = caught.value
    assert (error.condition, error.retriable, error.exit_code) == ("CKPT_STORE_FULL", True, 3)
    assert str(disk.folder) in str(error.context["location"])
    assert "free space" in error.hint
    assert "credentials" not in str(error)


@pytest.mark.parametrize("write", WRITES)
def test_every_write_reports_a_read_only_file_system(disk: SmallDisk, world: World, write: str) -> None:
    disk.read_only()
    with pytest.raises(StoreReadOnly) as caught:
        WRITES[write](world)
    disk.writable()
    assert "mount it writable" in caught.value.hint
    assert "credentials" not in str(caught.value)


def test_materializing_on_a_full_disk_reports_no_conflict_with_writers(disk: SmallDisk, world: World) -> None:
    manifest = world.epoch({"b": 2}, materialize=False)
    disk.fill()
    with pytest.raises(StoreFull) as caught:
        world.store.materialize(manifest)
    assert "other writers" not in str(caught.value)


def test_a_store_continues_when_its_disk_has_space_again(disk: SmallDisk, world: World) -> None:
    disk.fill()
    for write in WRITES.values():
        with pytest.raises(StoreFull):
            write(world)
    assert world.store.log.state().latest == 1, "reading needs no space"
    disk.free()
    world.begin()
    world.epoch({"a": 3, "c": 4})
    again = Store.open(str(disk.folder / "store"), JOB)
    assert again.log.state().latest == 2
    again.verify(again.log.manifest(2), deep=True)
    assert world.state_at(2) == {"a": 3, "c": 4}


def test_a_store_can_be_created_where_the_disk_was_full_at_the_first_try(disk: SmallDisk) -> None:
    disk.fill()
    with pytest.raises(StoreFull):
        Store.open(str(disk.folder / "new"), JOB)
    disk.free()
    assert Store.open(str(disk.folder / "new"), JOB).log.state().job == JOB


# -- without an own file system --------------------------------------------------------------------------------------


@contextmanager
def without_rights() -> Iterator[None]:
    """Run as a user without any rights."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("operation", ["create", "open", "write"])
def test_a_forbidden_folder_is_reported_as_forbidden(tmp_path: Path, operation: str) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    store = Store.open(str(closed / "store"), JOB)
    operations: dict[str, Callable[[], object]] = {
        "create": lambda: Store.open(str(closed / "new"), JOB),
        "open": lambda: Store.open(str(closed / "store"), JOB),
        "write": lambda: store.location.write_bytes("x", b"1"),
    }
    closed.chmod(0)
    try:
        with without_rights(), pytest.raises(StoreDenied) as caught:
            operations[operation]()
    finally:
        closed.chmod(0o700)
    assert "the right to read and write" in caught.value.hint


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EIO, StoreIoFailed), (errno.EDQUOT, StoreFull), (errno.ENOSPC, StoreFull), (errno.ETIMEDOUT, StoreOutage)],
)
@pytest.mark.parametrize("write", ["renewal", "state file", "decision", "another store"])
def test_a_device_that_fails_at_the_end_of_a_write_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, number: int, kind: type[StoreOutage]
) -> None:
    world = World(tmp_path / "store")
    world.begin()

    def failing(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(kind):
        WRITES[write](world)


def test_retention_ends_with_an_outage_if_the_log_takes_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the commits belongs to another user. Retention wrote its two files again and again, and held the log."""
    world = World(tmp_path / "store")
    world.begin()
    for number in range(3):
        world.epoch({"a": number}, acked=number)
    refused = list[str]()

    def denied(uri: str, *_: object) -> bool:
        refused.append(uri)
        assert len(refused) == 1
        raise PermissionError(errno.EACCES, "Permission denied", uri)

    monkeypatch.setattr(delta_log, "create_file", denied)
    with pytest.raises(StoreDenied):
        world.store.retain(Retention(keep_last=1, slack=0))
    monkeypatch.undo()
    assert world.store.log.state().by_id.keys() == {1, 2, 3}
    assert world.store.retain(Retention(keep_last=1, slack=0)).epochs


def test_a_part_of_a_commit_that_a_full_temporary_disk_leaves_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a store in an object store the log is read from a copy on this disk. The job ended with a damaged log."""
    world, write = World(tmp_path / "store"), Path.write_bytes
    log = world.store.location.child("epochs")
    (tmp_path / "copy").mkdir()
    copy = SimpleNamespace(location=log, version=lambda: -1, folder=SimpleNamespace(path=tmp_path / "copy"))

    def full(path: Path, content: bytes) -> int:
        write(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        pull(copy)  # type: ignore[arg-type]
    keep(SimpleNamespace(log=tmp_path / "copy/_delta_log"), 1, b"an own commit, which counts")  # type: ignore[arg-type]
    monkeypatch.undo()
    pull(copy)  # type: ignore[arg-type]
    for name in ("00000000000000000000.json", "00000000000000000001.json"):
        assert (tmp_path / "copy/_delta_log" / name).read_bytes() == log.read_bytes(f"_delta_log/{name}")


def test_writing_into_a_removed_store_is_an_outage(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.begin()
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    for write in WRITES.keys() - {"another store", "another store further down"}:
        with pytest.raises(StoreOutage):
            WRITES[write](world)
    in_a_task = pickle.loads(pickle.dumps(world.store.state(OPERATOR).location))
    with pytest.raises(StoreOutage):
        create_table(in_a_task, pa.schema([("k", pa.string())]), "state")
    assert not (tmp_path / "store").exists(), "`mv` would put the store into it, and a new log would be accepted"
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    world.epoch({"a": 1})
    assert world.state_at(1) == {"a": 1}


def test_a_commit_written_while_the_store_is_removed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "store")
    world.begin()
    manifest = world.manifest(stage=False)

    def removed(what: str, path: str) -> None:
        if what == "commit":
            (tmp_path / "store").rename(tmp_path / "elsewhere")
            (tmp_path / "store" / "epochs" / "_delta_log").mkdir(parents=True)

    monkeypatch.setattr(durable, "on_step", removed)
    with pytest.raises(StoreOutage):
        world.commit(manifest)
    monkeypatch.undo()
    assert list((tmp_path / "store" / "epochs" / "_delta_log").glob("*.json")) == []
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    assert world.store.log.state().latest == 0
    world.commit(manifest)
    assert world.store.log.state().latest == 1
