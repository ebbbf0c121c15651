"""A point is pinned completely, within a budget, while queries run, and is reachable after the queries deleted its batches."""

from __future__ import annotations

import errno
import os
import shutil

import pytest
from pin_kit import BATCHES, Chain, batches_of, lines_of, points_in, redone, replaced, state
from rewind_kit import NOW_MS, WrittenQuery, content_of, query_of, synced

from spark_ckpt.errors import (
    CheckpointDamaged,
    ConfigInvalid,
    PinNotFound,
    PinsForeign,
    PinsInUse,
    PinsOverBudget,
    RewindOutOfReach,
)
from spark_rewind import checkpoint_copy, pinning, state_copy
from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.pinning import PinRequest, take_pin
from spark_rewind.pins import held, unpin
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind
from spark_rewind.point_reports import report_points

LAST = BATCHES - 1


@pytest.fixture
def chain(tmp_path):
    return Chain(tmp_path)


def test_the_newest_committed_batches_are_pinned_and_the_checkpoints_are_not_touched(chain):
    chain.queries[0].batch({"logOffset": BATCHES}, state=True, commit=False)
    before = [content_of(each.folder) for each in chain.queries]
    taken = chain.pin("release-7")
    assert batches_of(taken) == [LAST, LAST, LAST]
    assert [each.version for each in taken.kept.point.tables] == [LAST, LAST, LAST]
    assert [content_of(each.folder) for each in chain.queries] == before


def test_a_query_that_read_an_uncommitted_batch_is_pinned_at_an_older_one(chain):
    """The table holds an uncommitted batch, and the next query has read it."""
    number = chain.queries[0].batch({"logOffset": BATCHES}, state=True, commit=False)
    chain.tables[0].version((chain.queries[0].query, number))
    chain.queries[1].batch(chain.tables[0].at(number + 1), state=True)
    assert batches_of(chain.pin()) == [LAST, LAST, LAST]


def test_state_is_linked_and_logs_are_copied(chain):
    kept = chain.pin().kept.folder / "queries" / "0"
    assert state(chain.queries[0], LAST).samefile(kept / "state" / "0" / "0" / f"{BATCHES}.delta")
    commit = kept / "commits" / str(LAST)
    assert commit.stat().st_nlink == 1
    assert commit.stat().st_mtime_ns == (chain.queries[0].folder / "commits" / str(LAST)).stat().st_mtime_ns


def test_only_files_that_the_batch_needs_are_pinned(chain):
    chain.clean_up(5)
    kept = chain.pin().kept.folder / "queries" / "0"
    assert sorted(path.name for path in (kept / "offsets").iterdir()) == [str(LAST - 1), str(LAST)]
    assert sorted(path.name for path in (kept / "state/0/0").iterdir()) == [
        "6.delta",
        "6.snapshot",
        "7.delta",
        "8.delta",
    ]


def test_a_pinned_point_is_a_complete_checkpoint(chain):
    chain.clean_up(5)
    copy = read_checkpoint(chain.pin().kept.folder / "queries" / "1", "copy")
    assert [each.number for each in copy.batches] == [LAST - 1, LAST]
    assert copy.state_gone(copy.batches[-1]) is None


def test_a_pinned_batch_is_reachable_after_its_query_deleted_it(chain):
    chain.pin("before")
    chain.run(10)
    chain.clean_up(BATCHES + 5)
    with pytest.raises(RewindOutOfReach):
        chain.plan(f"first@{LAST}", pins=False)
    plan = chain.plan(f"first@{LAST + 2}")
    assert lines_of(plan) == [LAST, LAST, LAST]
    first = query_of(plan, "first")
    assert first.undone == list(range(BATCHES, BATCHES + 10))
    assert (first.point, first.state_version) == ("before", BATCHES)
    assert read_checkpoint(chain.pins.parent / first.kept_in, "first").batches[-1].number == LAST
    assert [each.kept_in for each in chain.plan(f"first@{BATCHES + 7}").queries] == [None, None, None]


def test_a_point_is_a_target_by_its_name(chain):
    chain.pin("before")
    chain.run(3)
    plan = chain.plan("before")
    assert (plan.target.kind, lines_of(plan)) == ("point", [LAST, LAST, LAST])


def test_a_plan_from_before_pins_can_be_read(chain):
    chain.pin()
    text = chain.plan("first@2", pins=False).model_dump_json(exclude={"queries": {"__all__": {"kept_in", "point"}}})
    assert RewindPlan.model_validate_json(text).queries[0].kept_in is None


def test_a_query_that_was_pinned_before_its_first_batch_can_restart_from_its_start(tmp_path):
    late = WrittenQuery(tmp_path / "checkpoints" / "late")
    plan = RewindRequest([str(late.folder)], "", ())
    take_pin(PinRequest(plan, tmp_path / "late-pins", "empty"), NOW_MS)
    for number in range(4):
        late.batch({"logOffset": number})
    for number in range(2):
        for log in ("offsets", "commits"):
            (late.folder / log / str(number)).unlink()
    with pytest.raises(RewindOutOfReach):
        plan_rewind(RewindRequest([str(late.folder)], "late@1", ()), NOW_MS)
    again = plan_rewind(RewindRequest([str(late.folder)], "empty", (), pins=tmp_path / "late-pins"), NOW_MS)
    assert [each.batch for each in again.queries] == [-1]


# -- damage ----------------------------------------------------------------------------------------------------------------


def changed(path):
    path.write_bytes(b"x" * path.stat().st_size)


def shortened(path):
    path.write_bytes(b"x")


def missing(path):
    path.unlink()


@pytest.mark.parametrize("file", ["state/0/0/8.delta", "offsets/7", "commits/6", "metadata"])
@pytest.mark.parametrize("harm", [changed, shortened, missing])
def test_a_damaged_pinned_file_is_reported_and_never_used(chain, harm, file):
    kept = chain.pin("before").kept
    chain.pin("whole", now_ms=NOW_MS + 1)
    chain.run(10)
    chain.clean_up(BATCHES + 5)
    own = kept.folder / "queries" / "0" / file
    shutil.copy(own, own.with_suffix(".tmp"))
    own.with_suffix(".tmp").replace(own)  # a link would harm the other point, too
    harm(own)
    report = report_points(chain.pins)
    assert [bool(each.gone) for each in report.points] == [True, False]
    assert f"queries/0/{file}" in report.points[0].gone[0]
    assert query_of(chain.plan(f"first@{LAST}"), "first").point == "whole"
    unpin(chain.pins, "whole")
    with pytest.raises(RewindOutOfReach):
        chain.plan(f"first@{LAST}")


def test_a_damaged_pinned_state_is_skipped_with_its_reason(chain):
    chain.pin("old")
    chain.run(1)
    kept = chain.pin("new", now_ms=NOW_MS + 1).kept
    chain.run(10)
    chain.clean_up(BATCHES + 5)
    (kept.folder / "queries" / "2" / "state" / "0" / "0" / f"{BATCHES + 1}.delta").unlink()
    plan = chain.plan(f"first@{BATCHES}")
    assert (lines_of(plan), query_of(plan, "last").point) == ([BATCHES, BATCHES, LAST], "old")
    [passed] = query_of(plan, "last").passed_over
    assert (passed.point, "is missing" in passed.why) == (BATCHES, True)


def test_a_damaged_manifest_is_reported_and_left_out(chain):
    kept = chain.pin("before").kept
    (kept.folder / "point.json").write_text('{"format": 1}')
    [report] = report_points(chain.pins).points
    assert "its point.json is damaged" in report.gone[0]
    assert any("is left out: its point.json is damaged" in note for note in chain.plan("first@2").notes)


def test_a_version_that_its_table_has_lost_is_reported(chain):
    chain.pin("before")
    log = chain.tables[0].root / "_delta_log"
    chain.run(1)
    (log / f"{BATCHES:020d}.json").write_text(
        (log / f"{BATCHES:020d}.json").read_text() + '{"remove": {"path": "part-3.parquet", "dataChange": true}}\n'
    )
    (chain.tables[0].root / "part-3.parquet").unlink()
    shutil.rmtree(chain.tables[1].root)
    [report] = report_points(chain.pins).points
    assert "data file part-3.parquet of version 7 is missing (VACUUM)" in report.gone[0]
    assert "silver" in report.gone[1]


# -- the history of a query ------------------------------------------------------------------------------------------------


def test_a_repeated_batch_is_not_the_pinned_one(chain):
    chain.pin("before")
    redone(chain.queries[2], 5)
    chain.queries[2].batch(chain.tables[1].at(6), state=True, at_ms=NOW_MS - 1000)
    chain.queries[2].batch(chain.tables[1].at(7), state=True, at_ms=NOW_MS - 900)
    plan = chain.plan("last@5")
    assert any("its newest batch is 6, not 7" in note for note in plan.notes)
    chain.queries[2].batch(chain.tables[1].at(8), state=True, at_ms=NOW_MS - 800)
    assert any("its batch 7 is another one now" in note for note in chain.plan("last@5").notes)
    with pytest.raises(RewindOutOfReach, match="is not of the past of last"):
        chain.plan("before")


def test_a_pin_of_a_deleted_batch_is_not_used_for_another_folder(chain):
    chain.pin("before")
    chain.run(10)
    chain.clean_up(BATCHES + 5)
    replaced(chain.queries[0])
    with pytest.raises(RewindOutOfReach):
        chain.plan(f"first@{LAST}")


# -- the budget ------------------------------------------------------------------------------------------------------------


def test_bytes_of_a_file_in_several_points_are_counted_once(chain):
    one = chain.pin("a").kept
    first = report_points(chain.pins).held_bytes
    chain.pin("b", now_ms=NOW_MS + 1)
    linked = sum(path.stat().st_size for path in one.folder.rglob("*.delta"))
    assert linked > 0
    assert report_points(chain.pins).held_bytes < 2 * first - linked + 1000


def test_over_the_budget_the_oldest_unnamed_points_are_dropped_first(chain):
    kept = [chain.pin(), chain.pin("named", now_ms=NOW_MS + 1), chain.pin(now_ms=NOW_MS + 2)]
    chain.run(1)
    slack = (
        3 * state(chain.queries[0], BATCHES).stat().st_size + 500
    )  # the new state; logs are as large as those that go
    budget = report_points(chain.pins).held_bytes + slack
    taken = chain.pin(budget_bytes=budget, now_ms=NOW_MS + 3)
    assert [each.folder for each in taken.dropped] == [kept[0].kept.folder]
    assert points_in(chain.pins) == sorted(each.kept.folder.name for each in [*kept[1:], taken])
    assert report_points(chain.pins).held_bytes <= budget


def test_a_named_point_is_never_dropped_for_another(chain):
    chain.pin("named")
    chain.pin(now_ms=NOW_MS + 1)
    before = content_of(chain.pins / "points")
    with pytest.raises(PinsOverBudget, match="the new point and the named ones hold"):
        chain.pin(budget_bytes=1000, now_ms=NOW_MS + 2)
    assert content_of(chain.pins / "points") == before


@pytest.mark.parametrize(
    "content", ["{", '{"format": 99, "id": "x", "name": "named"}', None], ids=["torn", "newer", "gone"]
)
def test_an_unreadable_point_is_never_dropped_for_another(chain, content):
    broken = chain.pin("named").kept.folder
    (broken / "point.json").unlink() if content is None else (broken / "point.json").write_text(content)
    unnamed = chain.pin(now_ms=NOW_MS + 1).kept.folder
    with pytest.raises(PinsOverBudget, match=f"the unreadable {broken.name} hold"):
        chain.pin(budget_bytes=1000, now_ms=NOW_MS + 2)
    assert points_in(chain.pins) == [broken.name, unnamed.name]
    unpin(chain.pins, broken.name)
    assert points_in(chain.pins) == [unnamed.name]


def test_a_point_is_unpinned_by_its_name_or_id(chain):
    named, other = chain.pin("a"), chain.pin(now_ms=NOW_MS + 1)
    unpin(chain.pins, "a")
    assert points_in(chain.pins) == [other.kept.folder.name]
    with pytest.raises(PinNotFound, match="holds no point 'a'"):
        unpin(chain.pins, "a")
    unpin(chain.pins, other.kept.folder.name)
    assert points_in(chain.pins) == []
    assert not named.kept.folder.exists()


def test_wrong_names_and_folders_are_refused(chain, tmp_path):
    chain.pin("a")
    with pytest.raises(ConfigInvalid, match="holds a point 'a' already"):
        chain.pin("a")
    with pytest.raises(ConfigInvalid, match="is no name for a point"):
        chain.pin("a/b")
    with pytest.raises(PinsForeign):
        report_points(tmp_path / "lake")
    with held(chain.pins), pytest.raises(PinsInUse):
        chain.pin("b")


def test_a_power_failure_loses_no_folder_that_leads_to_a_point(chain, tmp_path, monkeypatch):
    chain.pins = tmp_path / "backup" / "today" / "pins"
    durable = synced(monkeypatch)
    chain.pin()
    assert {str(chain.pins / "points"), *(str(each) for each in (chain.pins, *chain.pins.parents[:3]))} <= set(durable)


# -- while queries run -----------------------------------------------------------------------------------------------------


def test_points_are_kept_on_a_mount_without_hard_links(chain, monkeypatch):
    def refuses(source, target, **options):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source), None, str(target))

    with monkeypatch.context() as mount:
        mount.setattr(os, "link", refuses)
        taken = chain.pin("release-7")
    assert batches_of(taken) == [LAST, LAST, LAST]
    assert report_points(chain.pins).points[0].gone == []


def test_a_file_that_vanishes_during_the_pin_makes_it_retry_on_a_newer_line(chain, monkeypatch):
    """The query's clean-up runs between the search for the line and the links."""
    real, tries = state_copy.copy_state, []

    def copy_state(*given, **options):
        if not tries:
            chain.run(6)
            chain.clean_up(BATCHES + 3)
        tries.append(1)
        return real(*given, **options)

    monkeypatch.setattr(checkpoint_copy, "copy_state", copy_state)
    assert batches_of(chain.pin()) == [BATCHES + 5] * 3
    assert len(tries) == 4  # the first was in vain
    assert len(points_in(chain.pins)) == 1


def test_a_pin_that_fails_raises_an_error_and_leaves_no_point(chain, monkeypatch):
    def copy_state(query, *given, **options):
        raise FileNotFoundError(2, "No such file", str(query.folder / "state" / "0" / "0" / "1.delta"))

    monkeypatch.setattr(checkpoint_copy, "copy_state", copy_state)
    with pytest.raises(CheckpointDamaged, match="went away while it was pinned"):
        chain.pin()
    assert points_in(chain.pins) == []


def test_a_newest_state_that_is_damaged_is_not_pinned(chain):
    state(chain.queries[2], LAST).unlink()
    assert batches_of(chain.pin()) == [LAST, LAST, LAST - 1]


def test_a_pin_without_a_check_of_the_newest_state_is_caught(chain, monkeypatch):
    """Planted bug for the test above: the copy fails, and no point is pinned."""
    state(chain.queries[2], LAST).unlink()
    real = pinning.find_line
    monkeypatch.setattr(pinning, "find_line", lambda intervals, allowed, **_: real(intervals, allowed))
    with pytest.raises(CheckpointDamaged):
        chain.pin()
