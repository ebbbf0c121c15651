"""Commands that read a store report a Delta table that lacks published rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from cli_world import CommandLine
from deltalake import DeltaTable, Schema
from spark_ckpt_delta.log import identity_of
from spark_ckpt_delta.publisher import DeltalakePublisher

from spark_ckpt.epochs.records import SinkIdentity
from spark_ckpt.errors import PublishConflict
from tests.delta.delta_kit import context, output, stage
from tests.store.store_world import SINK, World


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    DeltaTable.create(str(path), schema=Schema.from_arrow(pa.schema([("id", pa.int64())])))
    return path


@pytest.fixture
def world(tmp_path: Path, table: Path) -> World:
    """Publish epochs 1 to 3 to the table, with acknowledgements in the log."""
    made = World(tmp_path / "store")
    made.begin()
    identity = SinkIdentity(parts=identity_of(str(table), DeltaTable(str(table))))
    publisher = DeltalakePublisher(str(table), {}, context(sink=SINK, store=made.store.id))
    for epoch in (1, 2, 3):
        made.snapshot({"a": epoch}, full=True)
        made.commit(made.manifest(made.acks(epoch - 1)).model_copy(update={"sink_identities": {SINK: identity}}))
        publisher.publish(output(table, epoch, [stage(table, {"id": [epoch]})]))
    made.store.log.record_acks(1, made.acks(3))
    return made


def lose_the_newest_commit(table: Path) -> None:
    (table / f"_delta_log/{DeltaTable(str(table)).version():020d}.json").unlink()


def test_a_table_that_has_everything_is_no_finding(command: CommandLine, world: World, tmp_path: Path) -> None:
    answer = command("verify", tmp_path / "store", "--json")

    assert (answer.code, answer.json["sinks_behind"], answer.json["sinks_unknown"]) == (0, [], {})


def test_verify_names_the_sink_and_the_epoch_to_restore(
    command: CommandLine, world: World, table: Path, tmp_path: Path
) -> None:
    lose_the_newest_commit(table)

    printed, shown = command("verify", tmp_path / "store", "--json"), command("verify", tmp_path / "store")

    assert printed.code == shown.code == PublishConflict.exit_code
    assert printed.json["sinks_behind"] == [{"sink": SINK, "has": 2, "published": 3}]
    assert "job.start(restore=3) publishes the missing epochs again" in shown.out


def test_staged_rows_are_checked_before_the_advice_promises_them(
    command: CommandLine, world: World, table: Path, tmp_path: Path
) -> None:
    world.snapshot({"a": 4}, full=True)
    made = world.manifest(world.acks(3))
    outputs = {SINK: made.outputs[SINK].model_copy(update={"root": str(table)})}
    identities = world.store.log.manifest(3).sink_identities
    world.commit(made.model_copy(update={"outputs": outputs, "sink_identities": identities}))
    world.store.log.record_acks(1, world.acks(4))

    answer = command("verify", tmp_path / "store")

    assert answer.code == PublishConflict.exit_code
    assert "job.start(restore=3) reads the rows after epoch 3" in answer.out


def test_the_doctor_fails_the_sink(command: CommandLine, world: World, table: Path, tmp_path: Path) -> None:
    lose_the_newest_commit(table)

    answer = command("doctor", "--store", tmp_path / "store", "--json")

    found = {each["check"]: each for each in answer.json["findings"]}
    assert found[f"sink {SINK}"]["status"] == "fail"
    assert "restore=3" in found[f"sink {SINK}"]["next"]


def test_a_dry_run_of_a_restore_counts_what_the_table_lacks(
    command: CommandLine, world: World, table: Path, tmp_path: Path
) -> None:
    whole = command("restore", tmp_path / "store", "3", "--dry-run", "--json").json["sinks"][0]
    lose_the_newest_commit(table)
    lacking = command("restore", tmp_path / "store", "3", "--dry-run", "--json").json["sinks"][0]
    back = command("restore", tmp_path / "store", "2", "--dry-run", "--json").json["sinks"][0]

    assert (whole["publish"], lacking["publish"]) == ([], [3])
    assert (back["publish"], back["again"], back["never"]) == ([], [], [3])
    # A start from "latest" is refused: only a named epoch decides about the rows.
    assert "To do it: job.start(restore=3)\n" in command("restore", tmp_path / "store", "latest").out


def test_another_table_at_the_place_is_reported_as_unknown(
    command: CommandLine, world: World, table: Path, tmp_path: Path
) -> None:
    (table / "_delta_log").rename(tmp_path / "aside")
    DeltaTable.create(str(table), schema=Schema.from_arrow(pa.schema([("id", pa.int64())])))

    answer = command("verify", tmp_path / "store", "--json")

    assert answer.json["sinks_behind"] == []
    assert "another table" in answer.json["sinks_unknown"][SINK]
