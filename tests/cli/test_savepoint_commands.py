"""Savepoints made from outside are those a job restores."""

from pathlib import Path


def test_a_savepoint_keeps_the_newest_epoch_unless_told_otherwise(command, world):
    store = world.store.location.uri
    command("savepoint", "add", store, "newest")
    command("savepoint", "add", store, "first", "--epoch", 1)

    assert world.store.log.state().savepoints == {"newest": 3, "first": 1}
    assert [each["name"] for each in command("savepoint", "list", store, "--json").json] == ["first", "newest"]
    assert world.begin(restore="first").manifest.epoch == 1


def test_a_dropped_savepoint_is_gone(command, world):
    store = world.store.location.uri
    command("savepoint", "add", store, "x")

    assert command("savepoint", "drop", store, "x", "--json").json == {"name": "x", "epoch": 3}
    assert world.store.log.state().savepoints == {}


def test_a_name_that_is_taken_stays_where_it_is(command, world):
    store = world.store.location.uri
    command("savepoint", "add", store, "x", "--epoch", 1)

    assert command("savepoint", "add", store, "x", "--epoch", 2).code == 2
    assert world.store.log.state().savepoints == {"x": 1}


def test_an_epoch_that_is_not_whole_gets_no_name(command, world):
    store = world.store.location.uri
    newest = world.store.log.manifest(3).operators["totals"].files[-1]
    (Path(world.store.state("totals").location.uri) / newest.path).unlink()

    refused = command("savepoint", "add", store, "x")

    assert (refused.code, world.store.log.state().savepoints) == (5, {})
    assert "CKPT_EPOCH_DAMAGED" in refused.err
    assert command("savepoint", "add", store, "x", "--epoch", 2).code == 0
