"""While a running driver drops epochs, `verify`, `list` and reads of state report no damage of them."""

import pytest

from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import EpochNotFound
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.location import Location
from spark_ckpt.store.store import Store
from tests.store.store_world import OPERATOR, World


@pytest.fixture
def world(tmp_path):
    """Three published epochs that share no state file."""
    world = World(tmp_path / "store")
    world.begin()
    for number in (1, 2, 3):
        world.epoch({"a": number}, full=True)
    world.store.log.record_acks(world.line.incarnation, world.acks(3))
    return world


@pytest.fixture
def retention(world, monkeypatch):
    """Return a function that has the driver's retention run before the `nth` call of a method."""

    def before(cls, name, nth=1):
        real, calls = getattr(cls, name), []

        def call(self, *arguments, **options):
            calls.append(name)
            if len(calls) == nth:
                world.store.retain(Retention(keep_last=1, slack=0))
            return real(self, *arguments, **options)

        monkeypatch.setattr(cls, name, call)

    return before


def test_list_calls_no_epoch_damaged_that_retention_drops_meanwhile(world, command, retention):
    retention(EpochLog, "readable")

    answer = command("list", world.store.location.uri, "--json")
    assert [(each["epoch"], each["damage"]) for each in answer.json["epochs"]] == [(1, None), (2, None), (3, None)]
    assert all(each["state_bytes"] for each in answer.json["epochs"])


@pytest.mark.parametrize("deep", [[], ["--deep"]], ids=["sizes", "deep"])
@pytest.mark.parametrize("nth", [1, 2])
def test_an_epoch_that_retention_drops_meanwhile_is_not_damaged(world, command, retention, deep, nth):
    retention(Store, "verify", nth)

    answer = command("verify", world.store.location.uri, *deep, "--json")
    assert answer.code == 0
    assert [each["epoch"] for each in answer.json["epochs"]] == [3]


def test_an_epoch_that_is_asked_for_and_gone_is_an_error(world, command, retention):
    retention(Store, "verify")

    answer = command("verify", world.store.location.uri, 2)
    assert answer.code == 5
    assert "CKPT_EPOCH_NOT_FOUND" in answer.err


def test_state_whose_files_retention_deletes_meanwhile_is_not_damaged(world, retention):
    retention(Location, "read_committed")

    with pytest.raises(EpochNotFound):
        world.store.state(OPERATOR).read(2)
