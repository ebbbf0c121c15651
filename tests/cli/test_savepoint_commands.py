"""A job can restore savepoints that a command has made."""

from pathlib import Path


def test_a_savepoint_keeps_the_newest_epoch_by_default(command, world):
    store = world.store.location.uri
    command("savepoint", "add", store, "newest")
    command("savepoint", "add", store, "first", "--epoch", 1)

    assert world.store.log.state().savepoints == {"newest": 3, "first": 1}
    assert [each["name"] for each in command("savepoint", "list", store, "--json").json] == ["first", "newest"]
    assert world.begin(restore="first").manifest.epoch == 1


def test_a_dropped_savepoint_leaves_the_log(command, world):
    store = world.store.location.uri
    command("savepoint", "add", store, "x")

    assert command("savepoint", "drop", store, "x", "--json").json == {"name": "x", "epoch": 3}
    assert world.store.log.state().savepoints == {}


def test_a_savepoint_name_in_use_keeps_its_epoch(command, world):
    store = world.store.location.uri
    command("savepoint", "add", store, "x", "--epoch", 1)

    assert command("savepoint", "add", store, "x", "--epoch", 2).code == 2
    assert world.store.log.state().savepoints == {"x": 1}


def test_a_damaged_epoch_gets_no_savepoint(command, world):
    store = world.store.location.uri
    newest = world.store.log.manifest(3).operators["totals"].files[-1]
    (Path(world.store.state("totals").location.uri) / newest.path).unlink()

    refused = command("savepoint", "add", store, "x")

    assert (refused.code, world.store.log.state().savepoints) == (5, {})
    assert "CKPT_EPOCH_DAMAGED" in refused.err
    assert command("savepoint", "add", store, "x", "--epoch", 2).code == 0
