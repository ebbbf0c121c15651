"""Savepoints made from outside are those a job restores."""


def test_a_savepoint_keeps_the_newest_epoch_unless_told_otherwise(command, world):
    store = world.store.location.uri
    command("savepoint", "add", store, "newest")
    command("savepoint", "add", store, "first", "--epoch", 1)

    assert world.store.log.tail().savepoints == {"newest": 3, "first": 1}
    assert [each["name"] for each in command("savepoint", "list", store, "--json").json] == ["first", "newest"]
    assert world.begin(restore="first").manifest.epoch == 1


def test_a_dropped_savepoint_is_gone(command, world):
    store = world.store.location.uri
    command("savepoint", "add", store, "x")

    assert command("savepoint", "drop", store, "x", "--json").json == {"name": "x", "epoch": 3}
    assert world.store.log.tail().savepoints == {}


def test_a_name_that_is_taken_stays_where_it_is(command, world):
    store = world.store.location.uri
    command("savepoint", "add", store, "x", "--epoch", 1)

    assert command("savepoint", "add", store, "x", "--epoch", 2).code == 2
    assert world.store.log.tail().savepoints == {"x": 1}
