"""After an applied plan the fixed queries run again, and the tables equal those of a run without the bug."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pin_kit import BATCHES, Chain
from rewind_kit import planned, query_of

from integration_tests.rewind.small_lake import SmallLake, checkpoints, history, run_some_steps
from spark_ckpt.errors import PinsForeign, RewindOutOfReach
from spark_rewind.applying import ApplySettings, apply, undo
from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.pinning import PinRequest, take_pin
from spark_rewind.pins import unpin
from spark_rewind.places import find_places
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind

SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 10))]


def plan_of(lake: SmallLake, good: int) -> RewindPlan:
    return planned(checkpoints(lake), f"ingest@{good}", [lake.root])


def settings_for(plan: RewindPlan) -> ApplySettings:
    """Settings that let every query restart from its table's current snapshot."""
    return ApplySettings(lambda: None, 1_700_000_000_000, "spark-ckpt/test", [each.name for each in plan.queries])


def fixed(lake: SmallLake) -> SmallLake:
    return SmallLake(lake.root)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_rewind_fixed_queries_lose_and_repeat_no_rows(tmp_path, seed):
    lake, good = history(tmp_path / "lake", seed)
    plan = plan_of(lake, good)
    apply(plan, settings_for(plan))
    fixed(lake).settle()
    assert fixed(lake).held() == fixed(lake).wanted()


@pytest.mark.parametrize("seed", SEEDS)
def test_after_an_undo_the_queries_continue_as_without_the_rewind(tmp_path, seed):
    lake, good = history(tmp_path / "lake", seed)
    never = lake.moved_to(tmp_path / "never", broken=True)
    plan = plan_of(lake, good)
    apply(plan, settings_for(plan))
    undo(plan, settings_for(plan))
    for each in (lake, never):
        each.settle()
    assert lake.held() == never.held()


def test_a_query_rolls_back_to_a_pinned_batch_that_left_its_log(tmp_path):
    chain = Chain(tmp_path)
    chain.pin("release-7")
    chain.run(4)
    chain.clean_up(10)
    plan = chain.plan("release-7")
    apply(plan, settings_for(plan))
    for query in chain.queries:
        found = read_checkpoint(query.folder, query.folder.name)
        assert (found.committed, found.unfinished) == (BATCHES - 1, None)
        assert found.state_gone(found.batches[-1]) is None
        assert query_of(plan, query.folder.name).kept_in is not None


def clean_up(lake: SmallLake) -> None:
    """Delete all but the two newest batches from the logs."""
    for query in lake.queries.values():
        for log in ("offsets", "commits"):
            for path in sorted((query.folder / log).glob("[0-9]*"), key=lambda each: int(each.name))[:-2]:
                path.unlink()


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_rewind_to_a_pin_before_the_bug_no_row_is_lost_or_repeated(tmp_path, seed):
    draw, lake = Random(seed), SmallLake(tmp_path / "lake")
    lake.drop(2)
    lake.settle()
    run_some_steps(lake, draw, 8)
    folders = [str(each) for each in checkpoints(lake)]
    take_pin(PinRequest(RewindRequest(folders, "", [str(lake.root)]), tmp_path / "pins", "before-the-bug"), 0)
    broken = SmallLake(lake.root, broken=True)
    run_some_steps(broken, draw, 8)
    broken.settle()
    clean_up(broken)
    everybody = [str(each) for each in checkpoints(broken)]
    plan = plan_rewind(RewindRequest(everybody, "before-the-bug", [str(lake.root)], pins=tmp_path / "pins"), 0)
    apply(plan, settings_for(plan))
    fixed(lake).settle()
    assert fixed(lake).held() == fixed(lake).wanted()


@pytest.mark.parametrize("kept_in", ["copy", "/copy", "points/id/queries/0"])
def test_a_plan_that_names_a_folder_outside_of_points_is_refused(tmp_path, kept_in):
    chain = Chain(tmp_path)
    chain.run(1)
    plan = chain.plan("first@2", pins=False)
    queries = [each.model_copy(update={"kept_in": kept_in}) for each in plan.queries]
    edited = plan.model_copy(update={"queries": queries})
    with pytest.raises((RewindOutOfReach, PinsForeign)):
        apply(edited, settings_for(edited))


@pytest.mark.parametrize("harm", ["damaged", "taken away"])
def test_a_pinned_point_that_is_damaged_after_the_plan_is_not_used(tmp_path, harm):
    chain = Chain(tmp_path)
    kept = chain.pin("release-7").kept
    chain.run(4)
    chain.clean_up(10)
    plan = chain.plan("release-7")
    if harm == "damaged":
        path = kept.folder / "queries" / "0" / "state" / "0" / "0" / f"{BATCHES}.delta"
        path.unlink()
        path.write_bytes(b"x" * 1200)
    else:
        unpin(chain.pins, "release-7")
    before = {path: path.read_bytes() for path in (chain.folder / "checkpoints").rglob("*") if path.is_file()}
    with pytest.raises(RewindOutOfReach, match=r"pinned (file|point)"):
        apply(plan, settings_for(plan))
    assert {path: path.read_bytes() for path in before} == before


def test_a_checkpoint_that_a_rewind_set_aside_is_left_out_of_the_next_plan_with_a_note(tmp_path):
    """As with `checkpoints/*`. Named alone, the folder is a checkpoint like any other."""
    lake, good = history(tmp_path / "lake", 3)
    plan = plan_of(lake, good)
    kept = [Path(each.kept) for each in apply(plan, settings_for(plan)).queries if each.changed]
    again = planned([*checkpoints(lake), *kept], f"ingest@{good}", [lake.root])
    assert [each.name for each in again.queries] == [path.name for path in checkpoints(lake)]
    assert [note for note in again.notes if "set aside" in note] == [
        f"{path} was set aside by a rewind: it is left out" for path in kept
    ]
    assert list(find_places([kept[0]]).named) == [kept[0].name]
