"""A job can restore savepoints that a command has made."""

import shutil
from pathlib import Path

from spark_ckpt.epochs.records import SinkIdentity
from tests.store.store_world import SINK, World


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


def test_commands_find_the_rows_of_a_table_that_was_moved(command, tmp_path):
    world, table = World(tmp_path / "store"), tmp_path / "table"
    world.begin()
    for number, place in enumerate((table, tmp_path / "moved"), 1):
        world.snapshot({"a": number})
        manifest = world.manifest()
        output = manifest.outputs[SINK].model_copy(update={"root": str(place)})
        endpoint = SinkIdentity(parts={"kind": "delta", "path": str(place), "table id": "1"})
        world.commit(manifest.model_copy(update={"outputs": {SINK: output}, "sink_identities": {SINK: endpoint}}))
    shutil.move(world.store.staged(SINK).location.uri, tmp_path / "moved")

    assert command("savepoint", "add", world.store.location.uri, "before", "--epoch", 1).code == 0
    assert command("verify", world.store.location.uri, "--json").json["whole"]
