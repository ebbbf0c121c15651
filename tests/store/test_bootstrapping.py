"""A new operator of a job gets the state of another operator at some epoch, or no state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from store_world import ELSEWHERE, OPERATOR, World, opened, two_epochs

from spark_ckpt.driver.maintenance.bootstrap import Origin, bootstrap
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import ConfigInvalid, EpochDamaged, EpochNotFound, StoreInUse
from spark_ckpt.store.location import Location
from spark_ckpt.store.store import Store

KEYS = [f"key{number}" for number in range(30)]


def state(store: Store, operator: str) -> dict[str, int]:
    rows = store.state(operator).read(store.log.state().latest).to_pylist()
    return {row["k"]: row["v"] for row in rows}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return two_epochs(tmp_path / "store", KEYS)


@pytest.mark.parametrize(("epoch", "value", "keys"), [(1, 1, KEYS), (2, 2, KEYS[:20])])
def test_an_operator_begins_with_the_state_of_another_one_at_an_epoch(
    world: World, epoch: int, value: int, keys: list[str]
) -> None:
    store = opened(world)
    done = bootstrap(store, "new", Origin(store, epoch, OPERATOR))
    assert (done.epoch, done.rows) == (3, len(keys))
    assert state(store, "new") == dict.fromkeys(keys, value)
    assert state(store, OPERATOR) == world.line.state, "the other operator keeps its state"
    store.verify(store.log.manifest(3), deep=True)


def test_the_rest_of_the_epoch_and_its_unpublished_epochs_stay(world: World) -> None:
    store = opened(world)
    before = store.log.manifest(2)
    bootstrap(store, "new", Origin(store, 1, OPERATOR))
    after = store.log.manifest(3)
    assert (after.base, after.reason, after.outputs, after.cursors) == (2, "bootstrap", {}, before.cursors)
    assert after.operators[OPERATOR] == before.operators[OPERATOR]
    point = store.log.begin_incarnation(ELSEWHERE, "latest")
    assert [manifest.epoch for manifest in point.unpublished["out"]] == [2]


def test_the_state_may_come_from_another_jobs_store(world: World, tmp_path: Path) -> None:
    other = opened(two_epochs(tmp_path / "other", KEYS))
    store = opened(world)
    bootstrap(store, "new", Origin(other, 1, OPERATOR))
    assert state(store, "new") == dict.fromkeys(KEYS, 1)
    assert other.log.state().latest == 2, "nothing is written there"


def test_an_operator_that_has_state_keeps_it(world: World) -> None:
    store = opened(world)
    with pytest.raises(ConfigInvalid, match=f"operator '{OPERATOR}' has state in epoch 2"):
        bootstrap(store, OPERATOR, Origin(store, 1, OPERATOR))
    assert store.log.state().latest == 2


def test_a_missing_operator_or_epoch_is_named(world: World) -> None:
    store = opened(world)
    with pytest.raises(EpochNotFound, match="no state of operator 'nobody'"):
        bootstrap(store, "new", Origin(store, 1, "nobody"))
    with pytest.raises(EpochNotFound, match="epoch 7 is not in the log"):
        bootstrap(store, "new", Origin(store, 7, OPERATOR))


def test_bootstrapping_is_refused_while_a_driver_runs_and_leaves_no_file(world: World) -> None:
    world.begin()
    store = opened(world)
    with pytest.raises(StoreInUse):
        bootstrap(store, "new", Origin(store, 1, OPERATOR))
    assert (store.log.state().latest, list(store.state("new").location.list())) == (2, [])


def test_damaged_state_is_found_before_a_commit(world: World) -> None:
    store = opened(world)
    (file, *_) = store.log.manifest(1).operators[OPERATOR].files
    store.state(OPERATOR).location.write_bytes(file.path, b"x" * file.size_bytes)
    with pytest.raises(EpochDamaged):
        bootstrap(store, "new", Origin(store, 1, OPERATOR))
    assert store.log.state().latest == 2
    assert "new" not in store.log.manifest(2).operators


def test_an_epoch_that_the_other_jobs_retention_drops_meanwhile_is_not_damaged(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = World(tmp_path / "other")
    other.begin()
    for value in (1, 2):
        other.epoch({"a": value}, full=True)
    other.store.log.record_acks(other.line.incarnation, other.acks(2))
    origin, read_range = opened(other), Location.read_range

    def after_retention(self: Location, *arguments: Any, **options: Any) -> Any:
        other.store.retain(Retention(keep_last=1, slack=0))
        return read_range(self, *arguments, **options)

    monkeypatch.setattr(Location, "read_range", after_retention)
    with pytest.raises(EpochNotFound):
        bootstrap(opened(world), "new", Origin(origin, 1, OPERATOR))
