"""A table rolls back with a reader that has not read an OPTIMIZE yet, whose old files VACUUM has deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from outbox_world import settings
from rewind_kit import WrittenQuery, WrittenTable, planned

from spark_ckpt.errors import RewindOutOfReach
from spark_rewind.applying import apply, undo
from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.plan import RewindPlan
from spark_rewind.positions import DeltaPosition
from spark_rewind.table_content import content_at
from spark_rewind.tables import read_table


class Lake:
    """Version 2 is an OPTIMIZE of a file, which is gone; version 4 is wrong. The reader has read version 0."""

    def __init__(self, root: Path, optimized: str) -> None:
        self.writer, self.reader = (WrittenQuery(root / "checkpoints" / name) for name in ("writer", "reader"))
        self.table = WrittenTable(root / "table")
        for number in range(4):
            batch = self.writer.batch({"logOffset": number})
            self.table.version((self.writer.query, batch))
            if number == 1:
                self.table.version(removed=[optimized])
        self.reader.batch(self.table.at(1))
        (self.table.root / optimized).unlink()

    def plan(self, *queries: WrittenQuery, to: str = "writer@2") -> RewindPlan:
        return planned([each.folder for each in queries], to, [self.table.root])

    def files(self, version: int) -> set[str]:
        return {path for path, _ in content_at(self.table.root, version).files}

    def newest(self) -> int:
        return read_table(self.table.root).newest

    def unread(self) -> list[str]:
        """Files that the reader reads next, in their order."""
        [at] = read_checkpoint(self.reader.folder, "reader").batches[-1].ends.values()
        assert isinstance(at, DeltaPosition)
        versions = read_table(self.table.root).versions
        return [path for each in versions if each.number >= at.version for path in each.added]


def test_a_file_that_the_reader_has_read_is_not_needed(tmp_path: Path) -> None:
    lake = Lake(tmp_path, optimized="part-0.parquet")
    before, wrong, unread = lake.files(3), lake.files(4), lake.unread()
    plan = lake.plan(lake.writer, lake.reader)
    apply(plan, settings())
    assert lake.files(lake.newest()) == before
    assert lake.unread() == unread[:-1]
    undo(plan, settings())
    assert lake.files(lake.newest()) == wrong
    assert lake.unread() == unread


def test_a_plan_names_a_reader_whose_unread_file_is_gone(tmp_path: Path) -> None:
    lake = Lake(tmp_path, optimized="part-1.parquet")
    with pytest.raises(RewindOutOfReach, match="version 1") as refused:
        lake.plan(lake.writer, lake.reader)
    assert "leave reader out of the plan" in refused.value.hint
    before = lake.files(3)
    apply(lake.plan(lake.writer), settings())
    assert lake.files(lake.newest()) == before


@pytest.mark.parametrize("lost", ["part-0.parquet", "part-1.parquet"], ids=["a file", "the file that follows it"])
def test_a_plan_names_a_reader_whose_unfinished_snapshot_has_lost(lost: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path, optimized=lost)
    lake.reader.batch(lake.table.at(0, 0, snapshot=True))
    with pytest.raises(RewindOutOfReach):
        lake.plan(lake.writer, lake.reader)


def test_what_only_an_optimize_added_is_not_needed(tmp_path: Path) -> None:
    """The reader has read version 0. Each OPTIMIZE replaces the file before it."""
    writer, reader = (WrittenQuery(tmp_path / "checkpoints" / name) for name in ("writer", "reader"))
    table = WrittenTable(tmp_path / "table")
    for number in range(2):
        table.version((writer.query, writer.batch({"logOffset": number})))
        table.version(removed=[f"part-{number}.parquet"], changes=False)
    table.version((writer.query, writer.batch({"logOffset": 2})))
    reader.batch(table.at(1))
    for number in range(2):
        (table.root / f"part-{number}.parquet").unlink()
    before = content_at(table.root, 3).files
    apply(planned([writer.folder, reader.folder], "writer@1", [table.root]), settings())
    assert content_at(table.root, read_table(table.root).newest).files == before


def test_a_reader_before_an_earlier_rewind_rolls_back_with_the_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path, optimized="part-0.parquet")
    apply(lake.plan(lake.writer), settings())
    lake.writer.batches, lake.table.versions = 3, lake.newest() + 1
    good, _ = (lake.table.version((lake.writer.query, lake.writer.batch({"logOffset": number}))) for number in (3, 4))
    unread, before = lake.unread(), lake.files(good)
    apply(lake.plan(lake.writer, lake.reader, to="writer@3"), settings())
    assert lake.files(lake.newest()) == before
    assert lake.unread() == ["part-1.parquet", "part-2.parquet", "part-3.parquet", "part-4.parquet", *unread[:-1]]
