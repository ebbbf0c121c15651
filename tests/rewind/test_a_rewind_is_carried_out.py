"""A plan is carried out, the mended queries run again, and the tables are those of a run that never went wrong."""

from __future__ import annotations

import pytest
from pin_kit import BATCHES, Chain
from rewind_kit import planned, query_of

from integration_tests.rewind.small_lake import SmallLake, checkpoints, history
from spark_ckpt.rewind.applying import Settings, apply, undo
from spark_ckpt.rewind.checkpoint import read_checkpoint
from spark_ckpt.rewind.plan import Plan

SEEDS = range(10)


def plan_of(lake: SmallLake, good: int) -> Plan:
    return planned(checkpoints(lake), f"ingest@{good}", [lake.root])


def settings_for(plan: Plan) -> Settings:
    """The small queries begin tables as they are."""
    return Settings(lambda: None, 1_700_000_000_000, "spark-ckpt/test", [each.name for each in plan.queries])


def mended(lake: SmallLake) -> SmallLake:
    return SmallLake(lake.root)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_rewind_mended_queries_lose_nothing_and_repeat_nothing(tmp_path, seed):
    lake, good = history(tmp_path / "lake", seed)
    plan = plan_of(lake, good)
    apply(plan, settings_for(plan))
    mended(lake).settle()
    assert mended(lake).held() == mended(lake).wanted()


@pytest.mark.parametrize("seed", SEEDS)
def test_after_an_undo_the_queries_go_on_as_if_nothing_had_been(tmp_path, seed):
    lake, good = history(tmp_path / "lake", seed)
    never = lake.moved_to(tmp_path / "never", broken=True)
    plan = plan_of(lake, good)
    apply(plan, settings_for(plan))
    undo(plan, settings_for(plan))
    for each in (lake, never):
        each.settle()
    assert lake.held() == never.held()


def test_a_pinned_batch_that_the_query_has_let_go_of_is_gone_back_to(tmp_path):
    chain = Chain(tmp_path)
    chain.pin("release-7")
    chain.run(4)
    chain.let_go(10)
    plan = chain.plan("release-7")
    apply(plan, settings_for(plan))
    for query in chain.queries:
        found = read_checkpoint(query.folder, query.folder.name)
        assert (found.committed, found.unfinished) == (BATCHES - 1, None)
        assert found.state_gone(found.batches[-1]) is None
        assert query_of(plan, query.folder.name).kept_in is not None
