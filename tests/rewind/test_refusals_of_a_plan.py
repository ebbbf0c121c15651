"""Damaged, foreign and unreadable folders raise a typed error, and no file changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from rewind_kit import WrittenQuery, WrittenTable, content_of, planned

from spark_ckpt.errors import (
    CheckpointDamaged,
    CheckpointForeign,
    CheckpointUnreadable,
    CkptError,
    ConfigInvalid,
    FormatUnknown,
    LogDamaged,
)


class World:
    """A query that writes a table, and one that reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.a, self.b = WrittenQuery(folder / "a"), WrittenQuery(folder / "b")
        self.table = WrittenTable(folder / "t")
        for number in range(3):
            self.a.batch({"logOffset": number}, state=True)
            self.table.version((self.a.query, number))
            self.b.batch(self.table.at(number + 1))
        self.folders = [self.a.folder, self.b.folder]
        self.tables = [self.table.root]

    def plan(self):
        return planned(self.folders, "a@1", self.tables)


def cut_off(world: World) -> None:
    path = world.a.folder / "offsets" / "2"
    path.write_text(path.read_text()[:60])


def emptied(world: World) -> None:
    (world.a.folder / "offsets" / "2").write_text("")


def not_text(world: World) -> None:
    (world.a.folder / "commits" / "1").write_bytes(b"\xff\xfe\x00")


def committed_without_offsets(world: World) -> None:
    (world.a.folder / "offsets" / "2").unlink()


def an_old_batch_not_committed(world: World) -> None:
    (world.a.folder / "commits" / "1").unlink()


def a_source_log_that_is_none(world: World) -> None:
    folder = world.a.folder / "sources" / "0"
    folder.mkdir(parents=True)
    (folder / "0").write_text('v1\n{"no":"path"}')


def goes_backwards(world: World) -> None:
    world.b.batch(world.table.at(1))


def no_metadata(world: World) -> None:
    (world.a.folder / "metadata").unlink()


def other_metadata(world: World) -> None:
    (world.a.folder / "metadata").write_text('{"format": 2}')


def a_file(world: World) -> None:
    world.folders[0] = world.folders[0] / "metadata"


def no_folder(world: World) -> None:
    world.folders[0] = world.folder / "nowhere"


def a_table_as_a_checkpoint(world: World) -> None:
    world.folders.append(world.table.root)


def a_folder_without_tables(world: World) -> None:
    (world.folder / "empty").mkdir()
    world.tables = [world.folder / "empty"]


def twice(world: World) -> None:
    world.folders.append(world.folder / "b" / ".." / "a")


def twice_by_a_link(world: World) -> None:
    (world.folder / "link").symlink_to(world.a.folder)
    world.folders.append(world.folder / "link")


def a_copy(world: World) -> None:
    shutil.copytree(world.a.folder, world.folder / "copy")
    world.folders.append(world.folder / "copy")


def a_copied_table(world: World) -> None:
    shutil.copytree(world.table.root, world.folder / "t2")
    world.tables.append(world.folder / "t2")


def a_table_not_named(world: World) -> None:
    world.tables = []


def a_newer_log(world: World) -> None:
    path = world.b.folder / "offsets" / "1"
    path.write_text(path.read_text().replace("v1", "v3", 1))


def a_torn_commit_of_the_table(world: World) -> None:
    path = world.table.root / "_delta_log" / f"{1:020d}.json"
    path.write_text(path.read_text()[:30])


def a_log_without_a_beginning(world: World) -> None:
    (world.table.root / "_delta_log" / f"{0:020d}.json").unlink()


def a_time_that_is_none(world: World) -> None:
    path = world.a.folder / "offsets" / "1"
    path.write_text(path.read_text().replace("17000000", "17000000000000000000"))


def a_version_that_is_none(world: World) -> None:
    path = world.b.folder / "offsets" / "2"
    path.write_text(path.read_text().replace('"reservoirVersion": 3', '"reservoirVersion": 9223372036854775808000'))


def a_transaction_that_is_none(world: World) -> None:
    path = world.table.root / "_delta_log" / f"{1:020d}.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 9223372036854775808000'))


CASES = {
    a_time_that_is_none: (CheckpointDamaged, "a/offsets/1: the batch does not say when it began"),
    a_version_that_is_none: (CheckpointDamaged, "b/offsets/2: a Delta source's offset is incomplete"),
    a_transaction_that_is_none: (LogDamaged, "has an action that lacks a field"),
    cut_off: (CheckpointDamaged, "a/offsets/2: it is not JSON"),
    emptied: (CheckpointDamaged, "a/offsets/2: it is empty"),
    not_text: (CheckpointDamaged, "a/commits/1 is not text"),
    committed_without_offsets: (CheckpointDamaged, "batch 2 is committed, and its file in `offsets` is missing"),
    an_old_batch_not_committed: (CheckpointDamaged, "batch 1 is not committed, and later ones were begun"),
    a_source_log_that_is_none: (CheckpointDamaged, "a/sources/0/0: an entry names no file"),
    goes_backwards: (CheckpointDamaged, "b goes backwards in"),
    no_metadata: (CheckpointForeign, "it holds no file `metadata`"),
    other_metadata: (CheckpointForeign, "it names no query"),
    a_file: (CheckpointForeign, "metadata is not the checkpoint of a query: it is no folder"),
    no_folder: (CheckpointForeign, "nowhere is not the checkpoint of a query: it is no folder"),
    a_table_as_a_checkpoint: (CheckpointForeign, "is not the checkpoint of a query"),
    a_folder_without_tables: (CheckpointForeign, "empty holds no Delta table"),
    twice: (ConfigInvalid, "a was named twice"),
    twice_by_a_link: (ConfigInvalid, "a was named twice"),
    a_copy: (ConfigInvalid, "are of one query"),
    a_copied_table: (ConfigInvalid, "are one table"),
    a_table_not_named: (ConfigInvalid, "b reads a Delta table that was not named"),
    a_newer_log: (FormatUnknown, "b/offsets/1: format 'v3'"),
    a_torn_commit_of_the_table: (LogDamaged, "is not JSON"),
    a_log_without_a_beginning: (LogDamaged, "has no checkpoint to begin with"),
}


@pytest.mark.parametrize("damage", CASES, ids=lambda damage: damage.__name__)
def test_each_kind_of_damage_raises_its_error_and_changes_no_file(tmp_path, damage):
    world = World(tmp_path)
    damage(world)
    before = content_of(tmp_path)
    kind, message = CASES[damage]
    with pytest.raises(CkptError) as raised:
        world.plan()
    assert type(raised.value) is kind
    assert message in raised.value.what
    assert raised.value.hint
    assert content_of(tmp_path) == before


def test_an_undamaged_world_is_planned_and_no_file_changes(tmp_path):
    world = World(tmp_path)
    before = content_of(tmp_path)
    assert [each.batch for each in world.plan().queries] == [1, 1]
    assert content_of(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_missing_permissions_are_reported(tmp_path):
    world = World(tmp_path)
    (world.a.folder / "offsets").chmod(0)
    try:
        with pytest.raises(CheckpointUnreadable, match="offsets: Permission denied"):
            world.plan()
    finally:
        (world.a.folder / "offsets").chmod(0o755)


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (PermissionError(13, "Permission denied"), "the right to read"),
        (OSError(5, "Input/output error"), "the disk"),
    ],
)
def test_a_file_system_that_refuses_is_reported(tmp_path, monkeypatch, error, step):
    """For every user, as root may read files without permissions."""
    world = World(tmp_path)
    refused = str(world.a.folder / "offsets")
    scan = os.scandir

    def scandir(path):
        if str(path) == refused:
            raise error
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(CheckpointUnreadable, match=f"a/offsets: {error.strerror}") as caught:
        world.plan()
    assert step in caught.value.hint


def test_a_gap_in_an_old_part_of_the_log_is_skipped(tmp_path):
    world = World(tmp_path)
    (world.a.folder / "offsets" / "0").unlink()
    (world.a.folder / "commits" / "0").unlink()
    (world.a.folder / "offsets" / "-1").write_text("")
    (world.a.folder / "offsets" / "1.tmp").write_text("")
    assert [each.batch for each in world.plan().queries] == [1, 1]


def test_a_store_in_an_object_store_is_refused_by_its_scheme(tmp_path):
    with pytest.raises(ConfigInvalid, match="s3:// cannot be read"):
        planned_uri("s3://bucket/ckpt")


def planned_uri(uri: str) -> None:
    from spark_rewind.declared import Declared
    from spark_rewind.inputs import read_inputs

    read_inputs([uri], (), Declared())
