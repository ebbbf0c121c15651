"""Consumed files are cleaned when no kept epoch needs them, and no others, to the configured place."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from spark_ckpt_files import FilesSource
from spark_ckpt_files.cleaning import Cleaning
from spark_ckpt_files.ledger import Consumed, FileLedger
from spark_ckpt_files.listing import DataFile, Directory
from spark_ckpt_files.offsets import Offset

from spark_ckpt.connector import Cursor, Remembers
from spark_ckpt.errors import ConfigInvalid, SourceInvalid
from spark_ckpt.store.location import Location

SPARK: Any = None


class World:
    """An inbox, a ledger, and a job that consumes file by file: `cuts` are its cursors."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.inbox = folder / "in"
        self.inbox.mkdir(exist_ok=True)
        self.settings = settings
        self.source = self.next_incarnation()
        self.cuts: list[Cursor] = [self.source.start(SPARK)]

    def next_incarnation(self, **settings: Any) -> FilesSource:
        source = FilesSource(str(self.inbox), "csv", "id long", header=False, **(self.settings | settings))
        source.remember_in(Location(str(self.folder / "store")).child("sources", "in"))
        return source

    def write(self, name: str, text: str = "1\n", modified_s: int = 0) -> None:
        path = self.inbox / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if modified_s:
            os.utime(path, (modified_s, modified_s))

    def consume(self, *names: str) -> Cursor:
        before = Consumed.of(self.cuts[-1])
        files = list(Directory(str(self.inbox)).stat(names).values())
        offset = Offset(before.count, before.newest_ms).after(files)
        self.cuts.append(self.source.cursor(json.dumps(offset.json()), self.cuts[-1]))
        return self.cuts[-1]

    def release(self, kept: Sequence[Cursor], source: FilesSource | None = None) -> None:
        (source or self.source).release(kept)
        for thread in threading.enumerate():
            if thread.name == "ckpt-clean-source":
                thread.join(60)
                assert not thread.is_alive()

    @property
    def there(self) -> set[str]:
        return {str(path.relative_to(self.inbox)) for path in self.inbox.rglob("*") if path.is_file()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, cleanSource="delete")
    for name in ("a", "b", "c"):
        made.write(name)
        made.consume(name)
    return made


def test_the_source_keeps_state(world: World) -> None:
    assert isinstance(world.source, Remembers)


def test_files_before_every_kept_cursor_are_deleted_and_no_others(world: World) -> None:
    world.write("new")

    world.release(world.cuts[2:])

    assert world.there == {"c", "new"}


def test_no_file_is_cleaned_while_the_beginning_is_kept(world: World) -> None:
    world.release(world.cuts)

    assert world.there == {"a", "b", "c"}


def test_a_later_incarnation_cleans_files_of_an_earlier_one(world: World) -> None:
    world.release(world.cuts[3:], world.next_incarnation())

    assert world.there == set()


def test_a_file_read_on_this_branch_is_kept_for_another_branch(world: World) -> None:
    trunk = list(world.cuts)
    world.cuts.append(trunk[1])  # restored to after "a"
    world.write("d")
    branch = world.consume("d")

    world.release([trunk[3], branch])

    assert world.there == {"b", "c", "d"}


def test_no_file_is_cleaned_while_an_epoch_of_another_directory_is_kept(world: World) -> None:
    elsewhere = dict(world.cuts[3]) | {"path": "/elsewhere"}
    world.release([elsewhere, world.cuts[3]])

    assert world.there == {"a", "b", "c"}


def test_off_cleans_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write("a")
    world.release([world.consume("a")])

    assert world.there == {"a"}


def test_a_file_that_was_replaced_since_it_was_read_stays(world: World) -> None:
    world.write("a", "2\n2\n")

    world.release(world.cuts[3:])

    assert world.there == {"a"}


def test_files_that_a_job_skipped_at_its_start_stay(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "old").write_text("1\n")
    world = World(tmp_path, cleanSource="delete", start="latest")
    world.write("a")
    world.release([world.consume("a")])

    assert world.there == {"old"}


def test_archived_files_keep_their_whole_path_below_the_archive(tmp_path: Path) -> None:
    world = World(tmp_path, cleanSource="archive", sourceArchiveDir=str(tmp_path / "archive"), recursiveFileLookup=True)
    world.write("day=1/a", "7\n")
    world.release([world.consume("day=1/a")])

    assert world.there == set()
    assert Path(f"{tmp_path}/archive{world.inbox}/day=1/a").read_text() == "7\n"


def test_a_file_that_cannot_be_cleaned_is_logged_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, cleanSource="archive", sourceArchiveDir=str(tmp_path / "archive"))
    (tmp_path / "archive").write_text("a file where the folder should be")
    world.write("a")

    world.release([world.consume("a")])

    assert world.there == {"a"}
    assert "a could not be cleaned" in caplog.text


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"cleanSource": "move"}, "'off', 'archive' or 'delete'"),
        ({"cleanSource": "archive"}, "given together"),
        ({"cleanSource": "delete", "sourceArchiveDir": "/x"}, "given together"),
        ({"maxFileAge": "old"}, "maxFileAge"),
        ({"maxFileAge": "-1 days"}, "maxFileAge"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=complaint):
        World(tmp_path, **settings)


def test_an_archive_inside_the_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="could be read again"):
        Cleaning(Directory(str(tmp_path / "in")), "archive", str(tmp_path / "in" / "done")).check()


@pytest.mark.parametrize("linked", ["in", "archive"])
def test_an_archive_that_is_inside_the_directory_by_a_link_is_refused(linked: str, tmp_path: Path) -> None:
    """Each archived file would be read again, and archived again."""
    (tmp_path / "real/done").mkdir(parents=True)
    link = tmp_path / linked
    link.symlink_to(tmp_path / ("real" if linked == "in" else "real/done"))
    source, archive = (link, tmp_path / "real/done") if linked == "in" else (tmp_path / "real", link)

    with pytest.raises(ConfigInvalid, match="could be read again"):
        Cleaning(Directory(str(source), recursive=True), "archive", str(archive)).check()


def test_an_archive_on_another_file_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="not on the file system"):
        Cleaning(Directory(str(tmp_path / "in")), "archive", "/proc/archive").check()


def test_a_start_checks_the_next_file_when_the_first_one_is_cleaned_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("b", "PAR1")
    schema = StructType([StructField("id", LongType())])  # DDL would take a JVM
    source = FilesSource(str(world.inbox), "csv", schema, header=False, cleanSource="delete")
    opened = Directory.open

    def clean_first(directory: Directory, file: DataFile) -> pa.NativeFile:
        (world.inbox / "a").unlink(missing_ok=True)
        return opened(directory, file)

    monkeypatch.setattr(Directory, "open", clean_first)

    with pytest.raises(SourceInvalid, match=r"b .*it is a Parquet file"):
        source.check(SPARK)


# -- restores ---------------------------------------------------------------------------------------------------------


def test_a_restore_of_a_kept_epoch_finds_its_files(world: World) -> None:
    world.release(world.cuts[1:])

    world.next_incarnation().check_cursor(world.cuts[1], world.cuts[3])


def test_a_restore_that_needs_missing_files_is_refused_with_their_names(world: World) -> None:
    (world.inbox / "b").unlink()

    world.source.check_cursor(world.cuts[2], world.cuts[3])
    with pytest.raises(SourceInvalid, match="1 of the files that this epoch would read again are gone") as caught:
        world.next_incarnation().check_cursor(world.cuts[1], world.cuts[3])
    assert caught.value.context["files"] == "b"


def test_a_restore_of_the_beginning_is_refused_when_files_were_cleaned(world: World) -> None:
    world.release(world.cuts[3:])

    with pytest.raises(SourceInvalid, match="3 of the files"):
        world.next_incarnation().check_cursor(None, world.cuts[3])


def test_the_error_names_the_place_of_archived_files(tmp_path: Path) -> None:
    world = World(tmp_path, cleanSource="archive", sourceArchiveDir=str(tmp_path / "archive"))
    world.write("a")
    world.release([world.consume("a")])

    with pytest.raises(SourceInvalid) as caught:
        world.next_incarnation().check_cursor(world.cuts[0], world.cuts[1])
    assert f"{tmp_path}/archive{world.inbox}" in caught.value.hint


def test_the_user_may_choose_a_restore_without_the_missing_files(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (world.inbox / "b").unlink()

    world.next_incarnation(ignoreMissingFiles=True).check_cursor(world.cuts[1], world.cuts[3])

    assert "1 of the files" in caplog.text


# -- deletions in the ledger ------------------------------------------------------------------------------------------


def test_deleted_files_too_old_to_come_back_leave_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ckpt_files.source.FORGETTING_PAYS", 2)
    world = World(tmp_path, maxFileAge="100 seconds")
    for name, modified_s in [("gone-old", 1000), ("here-old", 1000), ("gone-young", 1950)]:
        world.write(name, modified_s=modified_s)
    world.consume("gone-old", "here-old", "gone-young")
    for name in ("gone-old", "gone-young"):
        (world.inbox / name).unlink()
    for name in "pqrs":
        world.write(name, modified_s=2000)

    last = world.consume("p", "q", "r", "s")

    known = FileLedger(Location(str(tmp_path / "store")).child("sources", "in")).files(Consumed.of(last))
    assert set(known) == {"here-old", "gone-young", "p", "q", "r", "s"}
