"""A point that holds its tables' data files is reachable after VACUUM has deleted them from the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from rewind_kit import WrittenTable

from integration_tests.campaign.rewinds import settings_for
from integration_tests.rewind.small_lake import SmallLake, checkpoints
from spark_ckpt import failpoints
from spark_ckpt.errors import RewindOutOfReach
from spark_ckpt.failpoints import Failpoint, FailpointHit
from spark_rewind import carrying
from spark_rewind.applying import apply
from spark_rewind.journal import Journal
from spark_rewind.pinning import PinRequest, take_pin
from spark_rewind.pins import KeptPoint
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind
from spark_rewind.point_reports import report_points
from spark_rewind.positions import DeltaPosition
from spark_rewind.records import RewindRecord
from spark_rewind.table_holding import hold
from spark_rewind.tables import read_table

NAME = "before-the-bug"


class Story:
    """A pinned lake; then a bug writes wrong rows, old rows are deleted, and VACUUM deletes their files."""

    def __init__(self, root: Path, *, table_files: bool = True) -> None:
        self.pins = root / "pins"
        self.lake = SmallLake(root / "lake")
        self.lake.drop(3)
        self.lake.settle()
        self.lake.drop(1)
        self.lake.queries["ingest"].run()  # a version that `dedup` has not read yet
        folders = [str(each) for each in checkpoints(self.lake)]
        self.request = RewindRequest(folders, NAME, [str(self.lake.root)], pins=self.pins)
        self.point = take_pin(PinRequest(self.request, self.pins, NAME, None, table_files), 0).kept
        broken = SmallLake(self.lake.root, broken=True)
        broken.drop(2)
        broken.settle()
        for name in ("bronze", "gold"):
            self._delete_old_rows(name)

    def _delete_old_rows(self, name: str) -> None:
        table = self.lake.tables[name]
        pinned = next(each.version for each in self.point.point.tables if Path(each.path).name == name)
        gone = table.files(pinned)
        table.append([], removed=tuple(gone))
        for path in gone:
            (table.root / path).unlink()

    def plan(self) -> RewindPlan:
        return plan_rewind(self.request, 0)

    def lost(self) -> list[Path]:
        """Data files that only the point has."""
        kept = [(self.lake.root / Path(each.path).name, each.files) for each in self.point.point.tables]
        return [root / file.path for root, files in kept for file in files if not (root / file.path).exists()]


FROM_THE_BEGINNING = {"ingest": -1, "dedup": -1, "publish": -1}


def reached(plan: RewindPlan) -> dict[str, int | None]:
    return {each.name: each.batch for each in plan.queries}


def held(point: KeptPoint) -> list[Path]:
    return sorted((point.folder / "tables").rglob("*.parquet"))


def test_after_a_rewind_to_the_point_no_row_is_lost_or_repeated(tmp_path):
    story = Story(tmp_path)
    plan = story.plan()
    assert reached(plan) == {each.name: each.batch for each in story.point.point.queries}
    assert [[Path(folder).parent.name for folder in each.kept_in] for each in plan.tables if each.kept_in] == [
        ["tables"],
        ["tables"],
    ]
    apply(plan, settings_for(plan))
    fixed = SmallLake(story.lake.root)
    fixed.settle()
    assert fixed.held() == fixed.wanted()


def test_without_table_files_the_point_is_out_of_reach(tmp_path):
    story = Story(tmp_path, table_files=False)
    assert reached(story.plan()) == FROM_THE_BEGINNING
    [report] = report_points(story.pins).points
    assert any("VACUUM" in each for each in report.gone)


def test_a_point_with_table_files_is_reported_complete(tmp_path):
    [report] = report_points(Story(tmp_path).pins).points
    assert report.gone == []


def test_files_up_to_the_version_are_linked_with_those_that_a_reader_still_needs(tmp_path):
    story = Story(tmp_path)
    names = {path.name for path in held(story.point)}
    silver = story.lake.tables["silver"]
    assert {path for path in silver.files(silver.newest()) if (silver.root / path).stat().st_nlink == 2} <= names
    pinned = {Path(each.path).name: each for each in story.point.point.tables}
    bronze = story.lake.tables["bronze"]
    assert {each.path for each in pinned["bronze"].files} == set(bronze.files(pinned["bronze"].version))


def test_a_truncated_held_file_is_not_used(tmp_path):
    story = Story(tmp_path)
    for path in held(story.point):
        if path.stat().st_nlink == 1:
            path.write_bytes(path.read_bytes()[:-1])
    assert reached(story.plan()) == FROM_THE_BEGINNING


def test_a_point_that_vanishes_after_the_plan_is_reported_before_any_change(tmp_path):
    story = Story(tmp_path)
    plan = story.plan()
    for path in held(story.point):
        path.unlink()
    versions = {name: table.newest() for name, table in story.lake.tables.items()}
    with pytest.raises(RewindOutOfReach, match="VACUUM"):
        apply(plan, settings_for(plan))
    assert {name: table.newest() for name, table in story.lake.tables.items()} == versions


def test_a_command_killed_after_it_returned_files_is_run_again(tmp_path):
    story = Story(tmp_path)
    plan = story.plan()
    with failpoints.armed("REWIND_DRAFTED:raise:1"), pytest.raises(FailpointHit):
        apply(plan, settings_for(plan))
    assert min(story.lake.held()["gold"]) < 0, "a file that no version names is none of the table's"
    apply(plan, settings_for(plan))
    fixed = SmallLake(story.lake.root)
    fixed.settle()
    assert fixed.held() == fixed.wanted()


def test_files_vacuumed_between_the_decision_and_the_commit_are_returned_again(tmp_path):
    story = Story(tmp_path)
    plan, lost = story.plan(), story.lost()
    with failpoints.armed("REWIND_DECIDED:raise:1"), pytest.raises(FailpointHit):
        apply(plan, settings_for(plan))
    for path in lost:
        path.unlink()
    apply(plan, settings_for(plan))
    fixed = SmallLake(story.lake.root)
    fixed.settle()
    assert lost
    assert fixed.held() == fixed.wanted()


def test_vacuumed_files_are_returned_for_a_table_with_later_numbers_too(tmp_path, monkeypatch):
    """The command is killed after the record names the new commits."""
    story = Story(tmp_path)
    plan, lost = story.plan(), story.lost()
    late: list[Failpoint] = []

    def hit(reached: Failpoint) -> None:
        if reached is Failpoint.REWIND_TABLE_COMMITTED and not late:
            late.append(reached)
            story.lake.tables["gold"].append([])

    def write(journal: Journal, record: RewindRecord) -> RewindRecord:
        written = real(journal, record)
        if late:
            raise FailpointHit
        return written

    real = Journal.write
    with monkeypatch.context() as dying, pytest.raises(FailpointHit):
        dying.setattr(carrying, "hit", hit)
        dying.setattr(Journal, "write", write)
        apply(plan, settings_for(plan))
    gold = [path for path in lost if path.parent.name == "gold"]
    assert gold
    for path in gold:
        path.unlink()
    apply(plan, settings_for(plan))
    fixed = SmallLake(story.lake.root)
    fixed.settle()
    assert fixed.held() == fixed.wanted()
    assert all(path.exists() for path in gold)


def test_held_files_count_in_the_budget(tmp_path):
    story = Story(tmp_path)
    point = sum(each.stat().st_size for each in held(story.point))
    assert point > 0
    assert report_points(story.pins).held_bytes >= point


def test_a_file_removed_before_the_version_is_held_for_a_reader_that_has_not_read_it(tmp_path):
    table = WrittenTable(tmp_path / "bronze")
    for removed in ((), (), ("part-1.parquet",)):
        table.version(removed=removed)
    slow_reader = DeltaPosition(table.id, 1, -1, False)
    files = hold(read_table(table.root), 2, [slow_reader], tmp_path / "held")
    assert [each.path for each in files] == ["part-0.parquet", "part-1.parquet", "part-2.parquet"]
    assert [each.path for each in hold(read_table(table.root), 2, [], tmp_path / "other")] == [
        "part-0.parquet",
        "part-2.parquet",
    ]
