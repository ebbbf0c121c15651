"""A rewind that cannot be applied is refused with recovery advice, before any checkpoint or table changes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rewind_kit import planned, synced

from integration_tests.campaign.rewinds import settings_for, startable
from integration_tests.rewind.small_lake import SmallLake, checkpoints, history
from spark_ckpt import failpoints
from spark_ckpt.errors import (
    CheckpointForeign,
    CheckpointUnreadable,
    CkptError,
    ConfigInvalid,
    FormatUnknown,
    RewindNotPermitted,
    RewindOutOfReach,
    RewindQueryRuns,
    RewindStale,
    RewindUnderWay,
    RewindUnsupported,
)
from spark_ckpt.failpoints import Failpoint, FailpointHit
from spark_rewind import applying, carrying, replacing
from spark_rewind.applying import apply, undo
from spark_rewind.journal import FOLDER, Journal, read_plan
from spark_rewind.plan import RewindPlan

SEED = 3
WITHOUT_QUERIES = json.dumps(
    {
        "made_at_ms": 0,
        "target": {"kind": "time", "text": "", "most": 0, "process": None},
        **{name: [] for name in ("queries", "tables", "public", "notes")},
    }
)


class Story:
    """A lake made once, and a plan for it. Each test has it in the same place, as logs and plan name absolute paths."""

    def __init__(self, root: Path) -> None:
        self.lake, good = history(root / "lake", SEED)
        self.plan = planned(checkpoints(self.lake), f"ingest@{good}", [self.lake.root])
        self.kept = root / "kept"
        shutil.copytree(self.lake.root, self.kept)

    def again(self) -> Story:
        shutil.rmtree(self.lake.root)
        shutil.copytree(self.kept, self.lake.root)
        self.lake = SmallLake(self.lake.root, broken=True)
        return self

    def content(self) -> dict[str, bytes]:
        files = [path for path in self.lake.root.rglob("*") if path.is_file() and FOLDER not in path.parts]
        return {str(path.relative_to(self.lake.root)): path.read_bytes() for path in files}

    def refused(
        self, kind: type[CkptError], message: str, plan: RewindPlan | None = None, **settings: object
    ) -> CkptError:
        before = self.content()
        with pytest.raises(kind, match=message) as raised:
            apply(plan or self.plan, replace(settings_for(self.plan), **settings))
        assert self.content() == before
        assert raised.value.hint
        return raised.value

    def table(self, name: str) -> Path:
        return self.lake.root / name


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("once"))


@pytest.fixture
def story(once: Story) -> Story:
    return once.again()


def test_a_query_that_has_continued_since_the_plan(story):
    story.lake.queries["dedup"].run(1)
    story.refused(RewindStale, "dedup is not as it was planned for")


def test_a_table_that_was_written_since_the_plan(story):
    story.lake.tables["bronze"].append([[1]])
    story.refused(RewindStale, "bronze is not as it was planned for; its newest version is now")


def test_a_batch_that_left_the_log_since_the_plan(story):
    (story.lake.queries["ingest"].folder / "offsets" / "0").unlink()
    story.refused(RewindStale, "ingest is not as it was planned for")


def test_a_query_that_writes_while_it_is_watched(story):
    def run() -> None:
        story.lake.queries["ingest"].folder.joinpath("offsets", ".9.tmp").write_text("")

    before = story.content()
    with pytest.raises(RewindQueryRuns, match="ingest is running"):
        apply(story.plan, replace(settings_for(story.plan), wait=run))
    assert story.content().keys() - before.keys() == {"checkpoints/ingest/offsets/.9.tmp"}


def test_a_folder_that_cannot_be_watched(story, monkeypatch):
    scandir = os.scandir

    def refusing(folder: str) -> object:
        if str(folder).endswith("dedup/state/0/0"):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    before = story.content()
    with monkeypatch.context() as watching, pytest.raises(CheckpointUnreadable, match="dedup: Permission denied"):
        settings = replace(settings_for(story.plan), wait=lambda: watching.setattr(os, "scandir", refusing))
        apply(story.plan, settings)
    assert story.content() == before


def test_a_query_that_begins_a_batch_just_before_its_fence(story, monkeypatch):
    fence = carrying.put_fences

    def late(paths: list[Path], identity: str) -> None:
        if paths[0].parts[-3] == "dedup":
            paths[0].write_text("v1\n{}\n-")
        fence(paths, identity)

    monkeypatch.setattr(carrying, "put_fences", late)
    before = story.content()
    with pytest.raises(RewindQueryRuns, match="was written just now"):
        apply(story.plan, settings_for(story.plan))
    assert len(story.content().keys() - before.keys()) == 1
    assert all(story.content()[name] == text for name, text in before.items())


@pytest.mark.parametrize(
    "point",
    [
        # in the gate: the last of them
        pytest.param(Failpoint.REWIND_COPIED, marks=pytest.mark.long),
        pytest.param(Failpoint.REWIND_DRAFTED, marks=pytest.mark.long),
        Failpoint.REWIND_DECIDED,
    ],
)
def test_a_table_that_is_written_while_it_is_rolled_back(story, monkeypatch, point):
    """Up to the rewind's first commit, the decision can be revoked."""
    written = []

    def hit(reached: Failpoint) -> None:
        if reached is point and not written:
            story.lake.tables["bronze"].append([[1]])
            written.append(1)

    monkeypatch.setattr(carrying, "hit", hit)
    before = story.content()
    with pytest.raises(RewindStale, match=r"bronze(: another writer wrote version| was written in the meantime)"):
        apply(story.plan, settings_for(story.plan))
    assert {name.partition("/")[0] for name in story.content().keys() - before.keys()} == {"bronze"}
    assert all(story.content()[name] == text for name, text in before.items())


def test_the_last_snapshots_of_stopped_queries_are_waited_for_after_the_fences(story):
    """Spark uploads them later, possibly after the query has stopped, and two histories give them the same names."""
    dedup = story.lake.queries["dedup"].folder / "state" / "0" / "0"
    newest = max(int(path.name.split(".")[0]) for path in dedup.glob("*.delta"))
    waited = []

    def settle() -> None:
        waited.append(newest)
        assert not any(name in startable(story.lake) for name in ("ingest", "dedup", "publish"))
        (dedup / f"{newest}.snapshot").write_text("[-1]")

    apply(story.plan, replace(settings_for(story.plan), settle=settle))
    assert waited
    assert not (dedup / f"{newest}.snapshot").exists()
    fixed = SmallLake(story.lake.root)
    fixed.settle()
    assert fixed.held() == fixed.wanted()


@pytest.mark.parametrize("late", ["bronze", "silver", "gold"])
def test_a_write_to_a_table_after_others_are_rolled_back_is_undone_too_with_a_note(story, monkeypatch, late):
    """The decision cannot be revoked then: the table gets later numbers, and so do its readers."""
    written = []

    def hit(reached: Failpoint) -> None:
        if reached is Failpoint.REWIND_TABLE_COMMITTED and not written:
            written.append(late)
            story.lake.tables[late].append([[77_777]])

    monkeypatch.setattr(carrying, "hit", hit)
    record = apply(story.plan, settings_for(story.plan))
    message = [each for each in record.notes if "that version is undone, too" in each]
    assert bool(message) == (late != "bronze")
    fixed = SmallLake(story.lake.root)
    if late != "bronze":
        fixed.settle()
        assert fixed.held() == fixed.wanted()


def test_a_power_failure_leaves_no_fence_without_the_record_of_its_rewind(story, monkeypatch):
    """Otherwise no command could remove the fence, and the query would never start again."""
    durable = synced(monkeypatch)
    apply(story.plan, settings_for(story.plan))
    record = story.lake.root / "checkpoints" / FOLDER / Journal(story.plan).id
    first_fence = next(at for at, path in enumerate(durable) if "/offsets/" in path)
    assert {str(folder) for folder in (record, *record.parents[:2])} <= set(durable[:first_fence])


def test_a_command_killed_while_it_renumbers_a_table_is_run_again(story, monkeypatch):
    """The record names the old commits until the new ones are drafted, and both are read again."""
    written = []

    def hit(reached: Failpoint) -> None:
        if reached is Failpoint.REWIND_TABLE_COMMITTED and not written:
            written.append(1)
            story.lake.tables["silver"].append([[77_777]])
        elif reached is Failpoint.REWIND_COPIED and written:
            raise FailpointHit

    with monkeypatch.context() as dying:
        dying.setattr(carrying, "hit", hit)
        with pytest.raises(FailpointHit):
            apply(story.plan, settings_for(story.plan))
    record = apply(story.plan, settings_for(story.plan))
    assert any("that version is undone, too" in each for each in record.notes)
    fixed = SmallLake(story.lake.root)
    fixed.settle()
    assert fixed.held() == fixed.wanted()


def test_a_table_that_a_program_keeps_writing_is_rolled_back_after_the_program_stopped(story, monkeypatch):
    written = []

    def hit(reached: Failpoint) -> None:
        # first between two tables, then before each new try
        if reached is (Failpoint.REWIND_COPIED if written else Failpoint.REWIND_TABLE_COMMITTED):
            written.append(1)
            story.lake.tables["silver"].append([[77_777]])
            assert len(written) < 50, "the command never ends"

    with monkeypatch.context() as writing:
        writing.setattr(carrying, "hit", hit)
        with pytest.raises(RewindUnderWay, match="silver: another writer wrote version") as raised:
            apply(story.plan, settings_for(story.plan))
    assert "stop the program that writes it" in raised.value.hint
    apply(story.plan, settings_for(story.plan))
    fixed = SmallLake(story.lake.root)
    fixed.settle()
    assert fixed.held() == fixed.wanted()


def test_an_error_after_the_first_commit_says_that_the_rewind_is_applied_in_part(story, monkeypatch):
    def refuse(*given: object) -> None:
        raise RewindUnsupported("table silver cannot be rolled back", hint="plan again; nothing was changed")

    def hit(reached: Failpoint) -> None:
        if reached is Failpoint.REWIND_TABLE_COMMITTED:
            monkeypatch.setattr(carrying, "table_draft", refuse)
            story.lake.tables["silver"].append([[77_777]])

    monkeypatch.setattr(carrying, "hit", hit)
    with pytest.raises(RewindUnsupported, match="silver cannot") as raised:
        apply(story.plan, settings_for(story.plan))
    assert raised.value.hint == "the rewind is carried out in part: remove the cause, and run the same command again"


def test_a_folder_that_may_not_be_written(story, monkeypatch):
    monkeypatch.setattr(applying.os, "access", lambda path, mode: Path(path).name != "_delta_log")
    story.refused(RewindNotPermitted, "_delta_log may not be written")


def test_a_file_system_that_cannot_exchange_names(story, monkeypatch):
    monkeypatch.setattr(replacing.ctypes, "CDLL", lambda name, **options: object())
    story.refused(RewindNotPermitted, "names cannot be exchanged in one step")


def test_a_checkpoint_that_is_the_root_of_a_mounted_volume(story, tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    place = str(story.table("checkpoints").resolve() / "dedup").replace(" ", "\\040")
    lines = f"36 35 98:0 / / rw - ext4 /dev/sda rw\n37 36 98:0 /volume {place} rw - ext4 /dev/sda rw\n"
    mounts.write_bytes(lines.encode() + b"38 36 0:9 / /mnt/\xff rw - nfs host:/ rw\n")
    monkeypatch.setattr(replacing, "MOUNTS", mounts)
    story.refused(RewindNotPermitted, "dedup is the root of a mounted volume")


def of_another_user(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the checkpoints be those of another user, in a folder such as /tmp."""
    folder = story.table("checkpoints")
    folder.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)


def test_a_checkpoint_of_another_user_in_a_sticky_folder(story, monkeypatch):
    of_another_user(story, monkeypatch)
    story.refused(RewindNotPermitted, "only its owner may rename")


def test_a_name_that_is_taken(story):
    journal = Journal(story.plan)
    taken = story.lake.root / "checkpoints" / f"dedup.before-rewind-{journal.id}"
    taken.mkdir()
    story.refused(RewindNotPermitted, "is there already")


def test_a_data_file_that_was_vacuumed(story):
    line = next(each.version for each in story.plan.tables if each.path.endswith("bronze"))
    (story.table("bronze") / story.lake.tables["bronze"].files(line)[0]).unlink()
    story.refused(RewindOutOfReach, "is missing")


def test_a_checkpoint_with_something_unknown_in_it(story):
    (story.lake.queries["dedup"].folder / "_schema_log_1").mkdir()
    story.refused(FormatUnknown, "_schema_log_1")


def test_a_query_that_restarts_without_a_known_start_needs_an_option(tmp_path):
    lake, _ = history(tmp_path / "lake", SEED)
    plan = planned(checkpoints(lake), "ingest@0", [lake.root])
    assert [each.name for each in plan.queries if each.batch == -1] == ["dedup", "publish"]
    with pytest.raises(RewindUnsupported, match="dedup begins from its start") as raised:
        apply(plan, replace(settings_for(plan), from_snapshot=()))
    assert "--from-snapshot dedup" in raised.value.hint
    apply(plan, settings_for(plan))
    fixed = SmallLake(lake.root)
    fixed.settle()
    assert fixed.held() == fixed.wanted()


def test_a_plan_that_rolls_nothing_back(story):
    lake = story.lake
    lake.settle()
    newest = max(int(path.name) for path in (lake.queries["ingest"].folder / "commits").iterdir())
    story.refused(RewindUnsupported, "rolls nothing back", planned(checkpoints(lake), f"ingest@{newest}", [lake.root]))


def test_two_calls_at_once(story):
    with Journal(story.plan).locked():
        story.refused(RewindUnderWay, "another process works on")


def test_a_mount_without_locks_is_no_other_process(story, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    story.refused(RewindNotPermitted, "cannot be locked: No locks available")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("[]", ConfigInvalid, "is no plan"),
        ('{"format": 1}', ConfigInvalid, "made_at_ms"),
        (WITHOUT_QUERIES, ConfigInvalid, "queries"),
        (None, ConfigInvalid, "there is no plan"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path, text, kind, message):
    file = tmp_path / "plan.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(kind, match=message):
        read_plan(file)


def test_a_plan_of_a_newer_format(story, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(json.loads(story.plan.model_dump_json()) | {"format": 9}))
    with pytest.raises(FormatUnknown, match="format 9"):
        read_plan(file)


# -- undo ----------------------------------------------------------------------------------------------------------------


def undone(story: Story, change: Callable[[], object], kind: type[CkptError], message: str) -> CkptError:
    apply(story.plan, settings_for(story.plan))
    change()
    before = story.content()
    with pytest.raises(kind, match=message) as raised:
        undo(story.plan, settings_for(story.plan))
    assert story.content() == before
    return raised.value


def test_an_undo_after_a_query_has_run(story):
    story.lake.drop(1)
    undone(
        story,
        lambda: story.lake.queries["ingest"].run(1),
        RewindStale,
        r"(ingest has run|was written) since the rewind",
    )


def test_an_undo_of_another_users_rewind_in_a_sticky_folder(story, monkeypatch):
    undone(story, lambda: of_another_user(story, monkeypatch), RewindNotPermitted, "only its owner may rename")


def test_an_undo_after_a_table_was_written(story):
    undone(story, lambda: story.lake.tables["gold"].append([[1]]), RewindStale, "gold was written since the rewind")


def test_a_table_on_a_file_system_without_hard_links_is_refused_before_the_decision(story, monkeypatch):
    real = os.link

    def link(source: Path, target: Path) -> None:
        if "_delta_log" in str(target):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    story.refused(RewindNotPermitted, "_delta_log takes no hard link: Operation not supported")


def newest_removed(checkpoint: Path) -> None:
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    for log in ("offsets", "commits"):
        (checkpoint / log / newest.name).unlink(missing_ok=True)


@pytest.mark.parametrize("lost", ["checkpoint", "newest batch", "data file"])
def test_an_undo_that_lacks_what_it_brings_back_does_not_advise_another_plan(story, lost):
    """The operator has deleted the kept checkpoint, or VACUUM the files of the undone versions."""

    def lose() -> None:
        if lost != "data file":
            kept = next(story.table("checkpoints").glob("*.before-rewind-*"))
            shutil.rmtree(kept) if lost == "checkpoint" else newest_removed(kept)
            return
        [plan] = [each for each in story.plan.tables if each.path.endswith("bronze")]
        bronze = story.lake.tables["bronze"]
        for name in {*bronze.files(plan.newest)} - {*bronze.files(plan.version)}:
            (bronze.root / name).unlink()

    kind, message = {
        "checkpoint": (CheckpointForeign, "is no folder"),
        "newest batch": (RewindOutOfReach, "lacks files"),
        "data file": (RewindOutOfReach, "is missing"),
    }[lost]
    error = undone(story, lose, kind, message)
    assert error.hint.startswith("keep the rewind; or bring back what is missing")


def test_an_undo_of_a_plan_that_was_not_applied(story):
    before = [*story.lake.root.rglob("*")]
    with pytest.raises(CheckpointForeign, match="was not carried out"):
        undo(story.plan, settings_for(story.plan))
    assert [*story.lake.root.rglob("*")] == before


def test_a_plan_that_was_undone_is_not_applied_again(story):
    apply(story.plan, settings_for(story.plan))
    undo(story.plan, settings_for(story.plan))
    story.refused(RewindStale, "was carried out and undone")


def stopped_at(story: Story, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the files of a process that dies at the point."""
    with monkeypatch.context() as patched, failpoints.armed(f"{point}:raise"):
        patched.setattr(carrying.Carrier, "clean_up", lambda carrier, record: None)
        with pytest.raises(FailpointHit):
            apply(story.plan, settings_for(story.plan))


def test_an_undo_of_a_prepared_rewind_removes_it(story, monkeypatch):
    before = story.content()
    stopped_at(story, "REWIND_DRAFTED", monkeypatch)
    assert story.content() != before
    assert undo(story.plan, settings_for(story.plan)) is None
    assert story.content() == before


def test_an_undo_of_a_partial_rewind_asks_to_complete_it(story, monkeypatch):
    stopped_at(story, "REWIND_TABLE_COMMITTED", monkeypatch)
    with pytest.raises(RewindUnderWay, match="carried out in part"):
        undo(story.plan, settings_for(story.plan))


def test_a_plan_for_queries_that_are_being_rolled_back(story, monkeypatch):
    stopped_at(story, "REWIND_TABLE_COMMITTED", monkeypatch)
    with pytest.raises(RewindUnderWay, match="a rewind has begun and is not over"):
        planned(checkpoints(story.lake), "ingest@1", [story.lake.root])


@pytest.mark.parametrize("verb", ["apply", "undo"])
def test_a_fence_names_its_command_and_a_copy_of_the_plan(story, monkeypatch, verb):
    """The user may have lost the file, and no command removes the fences without it."""
    if verb == "undo":
        apply(story.plan, settings_for(story.plan))
    before = story.content()
    with failpoints.armed("REWIND_DECIDED:raise"), pytest.raises(FailpointHit):
        (apply if verb == "apply" else undo)(story.plan, settings_for(story.plan))
    with pytest.raises(RewindUnderWay) as raised:
        planned(checkpoints(story.lake), "ingest@1", [story.lake.root])
    copy = story.lake.root / "checkpoints" / FOLDER / Journal(story.plan).id / "plan.json"
    assert f"`spark-ckpt rewind {verb}`" in raised.value.hint
    assert str(copy.relative_to(story.lake.root / "checkpoints")) in raised.value.hint
    (apply if verb == "apply" else undo)(read_plan(copy), settings_for(story.plan))
    assert story.content() != before
    assert startable(story.lake) == [path.name for path in checkpoints(story.lake)]


def test_a_dry_run_changes_no_file(story):
    before = story.content()
    record = apply(story.plan, settings_for(story.plan), dry=True)
    assert record.tables
    assert story.content() == before
    assert not (story.lake.root / "checkpoints" / FOLDER).exists()


def test_a_dry_run_says_how_far_its_plan_was_carried_out(story):
    with failpoints.armed("REWIND_DECIDED:raise"), pytest.raises(FailpointHit):
        apply(story.plan, settings_for(story.plan))
    with pytest.raises(RewindUnderWay, match="in part"):
        apply(story.plan, settings_for(story.plan), dry=True)
    apply(story.plan, settings_for(story.plan))
    with pytest.raises(RewindStale, match="carried out already"):
        apply(story.plan, settings_for(story.plan), dry=True)
    undo(story.plan, settings_for(story.plan))
    with pytest.raises(RewindStale, match="undone"):
        apply(story.plan, settings_for(story.plan), dry=True)


def test_an_undo_names_a_folder_that_it_cannot_look_into(story):
    unreachable = story.lake.root / ("x" * 300) / "q"
    queries = [each.model_copy(update={"folder": str(unreachable)}) for each in story.plan.queries]
    with pytest.raises(CheckpointUnreadable):
        undo(story.plan.model_copy(update={"queries": queries}), settings_for(story.plan))


def test_the_kept_checkpoints_have_all_their_files(story):
    before = {path.name: path for path in checkpoints(story.lake)}
    kept = {name: shutil.copytree(path, story.lake.root.parent / "kept" / name) for name, path in before.items()}
    record = apply(story.plan, settings_for(story.plan))
    assert any(query.changed for query in record.queries)
    for query in record.queries:
        if query.changed:
            found = {path.relative_to(query.kept) for path in Path(query.kept).rglob("*") if path.is_file()}
            assert found == {
                path.relative_to(kept[query.name]) for path in kept[query.name].rglob("*") if path.is_file()
            }
