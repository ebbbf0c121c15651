"""A file sink's folder rolls back with its query: log as of the batch, later files set aside. An undo returns them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rewind_kit import planned, query_of

from integration_tests.campaign.rewinds import settings_for
from integration_tests.rewind.small_lake import ExportingLake, checkpoints, history
from spark_ckpt import failpoints
from spark_ckpt.errors import CheckpointDamaged, ConfigInvalid, RewindOutOfReach, RewindStale, RewindUnsupported
from spark_ckpt.failpoints import FailpointHit
from spark_rewind import carrying, folders, sink_logs
from spark_rewind.applying import apply, undo
from spark_rewind.plan import RewindPlan
from spark_rewind.reading import file_of
from spark_rewind.sink_logs import read_sink_log

SEEDS = [2, 7, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 40))]
SEED = 3
"""Of a history with files to set aside."""


def made(root: Path, seed: int) -> tuple[ExportingLake, RewindPlan]:
    lake, good = history(root / "lake", seed, steps=24, kind=ExportingLake)
    assert isinstance(lake, ExportingLake)
    return lake, plan_of(lake, f"ingest@{good}")


def plan_of(lake: ExportingLake, to: str) -> RewindPlan:
    return planned(checkpoints(lake), to, [lake.root], declared=lake.declared())


@dataclass
class Story:
    """A history made once and copied to the same place for each test, as logs name files by absolute paths."""

    root: Path
    plan: RewindPlan
    place: Path = field(init=False)

    def __post_init__(self) -> None:
        self.place = self.root / "lake"
        shutil.copytree(self.place, self.root / "kept")

    def again(self) -> tuple[ExportingLake, RewindPlan]:
        shutil.rmtree(self.place)
        shutil.copytree(self.root / "kept", self.place)
        return ExportingLake(self.place), self.plan


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("once")
    return Story(root, made(root, SEED)[1])


@pytest.fixture
def story(once: Story) -> tuple[ExportingLake, RewindPlan]:
    return once.again()


def judged(lake: ExportingLake) -> None:
    fixed = ExportingLake(lake.root)
    fixed.settle()
    assert fixed.held() == fixed.wanted()


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_rewind_files_and_their_readers_lose_and_repeat_no_rows(tmp_path, seed):
    lake, plan = made(tmp_path, seed)
    apply(plan, settings_for(plan))
    judged(lake)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_an_undo_the_folder_is_as_before_the_rewind(tmp_path, seed):
    lake, plan = made(tmp_path, seed)
    before = {path: path.read_bytes() for path in lake.exports.root.rglob("*") if path.is_file()}
    apply(plan, settings_for(plan))
    undo(plan, settings_for(plan))
    after = {path for path in before if not path.exists() or path.read_bytes() != before[path]}
    assert after == set()
    assert not list(lake.exports.root.glob(".before-rewind-*"))
    ran = read_sink_log(lake.exports.log.folder).newest if lake.exports.log.folder.is_dir() else -1
    lake.drop(1)
    lake.settle()
    assert lake.exports.newest() >= ran
    assert lake.held()["exported"] == lake.held()["listed"] == lake.held()["silver"] == lake.held()["mirrored"]


def test_the_histories_have_files_to_set_aside_and_compacted_logs(tmp_path, story):
    seen = set()
    for plan in (story[1], made(tmp_path, 2)[1]):
        for folder in plan.folders:
            log = read_sink_log(Path(folder.path, "_spark_metadata"))
            seen |= {"files go"} if folder.files_gone else set()
            seen |= {"stays"} if folder.stays else set()
            seen |= (
                {"after a compaction"}
                if not folder.stays and any(0 <= each <= folder.batch for each in log.folded)
                else set()
            )
            seen |= {"has readers"} if folder.read_by == ["mirror"] else set()
    assert seen >= {"files go", "after a compaction", "has readers"}


def test_files_set_aside_are_kept_and_readers_of_the_log_never_miss_one(story, monkeypatch):
    lake, plan = story
    [folder] = plan.folders
    before = set(lake.exports.ids_without_log())
    looked = []

    def hit(point) -> None:
        lake.exports.ids()
        looked.append(point)

    for module in (carrying, folders):
        monkeypatch.setattr(module, "hit", hit)
    [change] = apply(plan, settings_for(plan)).folders
    assert len(change.files) == folder.files_gone > 0
    kept = {each for name in change.files for each in json.loads(Path(change.aside, name).read_text())}
    assert kept | set(lake.exports.ids_without_log()) == before
    undo(plan, settings_for(plan))
    assert len(looked) > 2 * len(change.files)


def harmed(lake: ExportingLake, plan: RewindPlan, kind: type[Exception], message: str) -> None:
    before = {path: path.read_bytes() for path in lake.root.rglob("*") if path.is_file()}
    with pytest.raises(kind, match=message):
        apply(plan, settings_for(plan))
    left = {path: path.read_bytes() for path in lake.root.rglob("*") if path.is_file() and path.name != "lock"}
    assert left == before


def test_a_folder_that_was_written_since_the_plan_is_refused(story):
    lake, plan = story
    lake.exports.append([[1]], ("export", lake.exports.newest() + 1))
    harmed(lake, plan, RewindStale, "the log of files in .* is not as it was planned for")


def test_a_copied_folder_is_refused_as_its_log_names_the_original_files(story, tmp_path):
    original, plan = story
    lake = ExportingLake(shutil.copytree(original.root, tmp_path / "elsewhere"))
    with pytest.raises(ConfigInvalid, match=r"mirror reads files of .*/lake/exports, which a file sink writes"):
        plan_of(lake, plan.target.text)
    declared = lake.declared() | {"other_folders": [str(original.exports.root)]}
    moved = planned(checkpoints(lake), plan.target.text, [lake.root], declared)
    harmed(lake, moved, RewindUnsupported, "the folder was moved or copied")


def test_a_deleted_file_is_reported_before_any_change(story):
    lake, plan = story
    newest = lake.exports.log.all(lake.exports.newest())[-1]["path"]
    file_of(newest).unlink()
    harmed(lake, plan, RewindUnsupported, "is missing: an undo could not restore it")


def test_an_undo_without_a_file_that_was_set_aside_is_refused(story):
    _, plan = story
    [change] = apply(plan, settings_for(plan)).folders
    Path(change.aside, change.files[0]).unlink()
    with pytest.raises(RewindOutOfReach, match=r"is gone from .*\.before-rewind-"):
        undo(plan, settings_for(plan))


@pytest.mark.parametrize("lost", ["all", "newest"])
def test_an_undo_without_the_log_that_was_kept_is_refused(story, lost):
    _, plan = story
    [change] = apply(plan, settings_for(plan)).folders
    for path in [*Path(change.kept).iterdir()] if lost == "all" else [Path(change.kept, str(change.newest))]:
        path.unlink()
    with pytest.raises(RewindOutOfReach, match=r"_spark_metadata\.before-rewind-\S+ lacks files"):
        undo(plan, settings_for(plan))


def test_the_log_of_another_query_is_refused(story):
    lake, _ = story
    declared = {"folders": [{"path": str(lake.exports.root), "written_by": "ingest"}]}
    with pytest.raises(CheckpointDamaged, match="and ingest has committed batch"):
        planned(checkpoints(lake), "ingest@1", [lake.root], declared=declared)


def of_seven_days(root: Path) -> tuple[ExportingLake, int]:
    """A lake, and the batch of `export` at which its log was first compacted."""
    lake = ExportingLake(root)
    for _ in range(7):
        lake.drop(1)
        lake.settle()
    return lake, min(int(path.stem) for path in lake.exports.log.folder.glob("*.compact"))


def test_a_log_rolls_back_before_its_compaction(tmp_path):
    lake, folded = of_seven_days(tmp_path / "lake")
    plan = plan_of(lake, f"export@{folded - 1}")
    assert query_of(plan, "export").batch == folded - 1
    apply(plan, settings_for(plan))
    judged(lake)


def test_batches_whose_files_were_compacted_away_are_no_points(tmp_path):
    lake, folded = of_seven_days(tmp_path / "lake")
    log = lake.exports.log
    for number in range(folded):
        (log.folder / str(number)).unlink()
    back = query_of(plan_of(lake, f"export@{folded - 1}"), "export")
    assert back.batch == -1
    assert {each.point for each in back.passed_over} == set(range(folded))
    assert "later ones were folded over it" in back.passed_over[0].why
    assert query_of(plan_of(lake, f"export@{folded}"), "export").batch == folded


def test_a_log_that_is_compacted_while_it_is_read_is_reported(story, monkeypatch):
    lake, _ = story
    listed = sink_logs.ordered

    def late(folder: Path) -> list[tuple[int, bool, Path]]:
        found = listed(folder)
        found[0][2].unlink()
        return found

    monkeypatch.setattr(sink_logs, "ordered", late)
    with pytest.raises(CheckpointDamaged, match="went away while it was read"):
        read_sink_log(lake.exports.log.folder)


def no_cut(log: Path, batch: int, target: Path) -> None:
    copied(log, 10**9, target)


copied = folders.copy_sink_log


def test_a_log_that_is_not_cut_is_found_before_the_decision(story, monkeypatch):
    lake, plan = story
    monkeypatch.setattr(folders, "copy_sink_log", no_cut)
    harmed(lake, plan, CheckpointDamaged, "is incomplete")


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the log stays": lambda patch: patch.setattr(folders, "change_logs", lambda change, identity: None),
    "files stay": lambda patch: patch.setattr(folders, "move", lambda files, source, target: None),
    "the folder stays": lambda patch: patch.setattr(folders, "publish", lambda change, identity: None),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_shows_in_the_files(story, monkeypatch, bug):
    lake, plan = story
    PLANTED[bug](monkeypatch)
    apply(plan, settings_for(plan))
    with pytest.raises((AssertionError, FileNotFoundError)):
        judged(lake)


@pytest.mark.parametrize("verb", [apply, undo])
@pytest.mark.parametrize("point", ["REWIND_LOG_SWAPPED", "REWIND_FILE_MOVED"])
def test_a_rewind_killed_among_the_files_is_finished_by_the_same_command(story, verb, point):
    lake, plan = story
    if verb is undo:
        apply(plan, settings_for(plan))
    with failpoints.armed(f"{point}:raise"), pytest.raises(FailpointHit):
        verb(plan, settings_for(plan))
    verb(plan, settings_for(plan))
    if verb is apply:
        judged(lake)
    else:
        assert lake.held()["exported"] == lake.held()["listed"]
