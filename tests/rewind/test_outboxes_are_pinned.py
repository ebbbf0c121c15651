"""A pinned point keeps the epoch of its batch in the outbox, as a savepoint, until it is unpinned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from outbox_world import World, settings, wanted

from spark_ckpt import failpoints
from spark_ckpt.errors import EpochDamaged, FormatUnknown, RewindOutOfReach, StoreUnreachable
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.store import Store
from spark_rewind import outboxes, pins
from spark_rewind.applying import apply
from spark_rewind.pinning import PinRequest, take_pin
from spark_rewind.pins import unpin
from spark_rewind.point_reports import report_points

MANY = 24
"""Enough batches for a retention to drop some."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Four correct batches of a query whose outbox keeps two."""
    made = World(tmp_path, keep_epochs=2)
    made.run(4)
    return made


def pin(world: World, name: str | None = "good", budget_bytes: int | None = None, now_ms: int = 1) -> None:
    take_pin(PinRequest(world.request(""), world.pins, name, budget_bytes), now_ms)


def run_many(world: World) -> None:
    """Wrong batches of two runs: retention keeps the first epoch of a run."""
    world.run(1, wrong=1000)
    world.run(MANY, wrong=1000)


def test_a_pinned_batch_is_reachable_after_retention_dropped_its_neighbours(world: World) -> None:
    pin(world)
    run_many(world)
    assert 4 in world.log().state().by_id
    assert 6 not in world.log().state().by_id
    record = apply(world.planned("good", pins=world.pins), settings())
    [outbox] = record.outboxes
    assert outbox.base == 4
    assert outbox.dropped > 4
    world.run(6)
    assert world.table() == wanted(10)


def test_without_a_pin_the_batch_is_out_of_reach(world: World) -> None:
    """Planted bug for the test above: the point keeps no epoch."""
    take_pin(PinRequest(world.request("", outboxes=[]), world.pins, "good"), 1)
    run_many(world)
    with pytest.raises(RewindOutOfReach, match="outbox 'orders'") as refused:
        world.planned("good", pins=world.pins)
    # A point has no later ones, but lines after its time can be reached.
    world.planned(refused.value.hint.partition("--to ")[2], pins=world.pins)


def test_an_unpinned_epoch_is_dropped_by_the_next_retention(world: World) -> None:
    pin(world)
    run_many(world)
    unpin(world.pins, "good")
    assert world.log().state().savepoints == {}
    run_many(world)
    assert 4 not in world.log().state().by_id


def test_a_point_that_the_budget_drops_releases_its_epoch(world: World) -> None:
    pin(world, None)
    [first] = world.log().state().savepoints
    world.run(1)
    size = report_points(world.pins).held_bytes
    pin(world, None, budget_bytes=size + size // 3, now_ms=2)
    assert [*world.log().state().savepoints] != [first]
    assert len(world.log().state().savepoints) == 1


def test_a_pin_that_dies_leaves_no_savepoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    add = EpochLog.add_savepoint
    with monkeypatch.context() as dying:
        dying.setattr(EpochLog, "add_savepoint", lambda *given: (add(*given), _die())[0])
        dying.setattr(pins, "remove_tree", lambda folder: None)
        with pytest.raises(failpoints.FailpointHit):
            pin(world)
    pin(world)
    assert len(world.log().state().savepoints) == 1
    assert report_points(world.pins).points[0].gone == []


def _die() -> None:
    raise failpoints.FailpointHit


def test_an_unreachable_store_blocks_no_pin_of_other_queries(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pin(world, None)
    old = world.pins / "points" / report_points(world.pins).points[0].id
    old.rename(old.with_name(".gone-dead"))
    with monkeypatch.context() as away:
        away.setattr(outboxes, "existing_store", _is_away)
        take_pin(PinRequest(world.request("", outboxes=[]), world.pins, "other"), 2)
    assert len(world.log().state().savepoints) == 1
    pin(world, "next", now_ms=3)
    assert len(world.log().state().savepoints) == 1, "the dead point's savepoint is dropped once its store answers"


def _is_away(uri: str) -> Store:
    raise StoreUnreachable(f"{uri} cannot be read")


def _is_newer(uri: str) -> Store:
    raise FormatUnknown.of("the store", 9, 1)


def _has_new_fields(uri: str) -> Store:
    raise EpochDamaged("row 3 (epoch) of the epoch log has fields this version does not know")


@pytest.mark.parametrize("opens", [_is_away, _is_newer, _has_new_fields])
def test_a_new_point_is_pinned_while_the_store_of_the_dropped_one_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch, opens: Callable[[str], Store]
) -> None:
    pin(world, None)
    size = report_points(world.pins).held_bytes
    with monkeypatch.context() as away:
        away.setattr(outboxes, "existing_store", opens)
        request = PinRequest(world.request("", outboxes=[]), world.pins, "other", size + size // 3)
        assert len(take_pin(request, 2).dropped) == 1
    assert [each.name for each in report_points(world.pins).points] == ["other"]


def test_a_point_is_unpinned_in_another_folder_than_it_was_pinned_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.root)
    take_pin(PinRequest(world.request("", outboxes=["store"]), world.pins, "good"), 1)
    monkeypatch.chdir("/")
    assert report_points(world.pins).points[0].gone == []
    unpin(world.pins, "good")
    assert world.log().state().savepoints == {}


def test_a_point_of_a_query_that_became_a_job_lets_its_epoch_go(world: World) -> None:
    pin(world)
    log = existing_store(world.store).log
    log.change_owner(log.state().incarnation, "orders", "job")
    unpin(world.pins, "good")
    assert log.state().savepoints == {}


def test_the_report_names_a_missing_epoch_of_a_point(world: World) -> None:
    pin(world)
    log = world.log()
    [name] = log.state().savepoints
    log.drop_savepoint(name)
    [point] = report_points(world.pins).points
    assert any("outbox orders epoch 4" in gone for gone in point.gone)


def test_a_point_is_unpinned_though_its_store_is_gone(world: World) -> None:
    pin(world)
    Path(world.store).rename(world.root / "elsewhere")
    unpin(world.pins, "good")
    assert report_points(world.pins).points == []
