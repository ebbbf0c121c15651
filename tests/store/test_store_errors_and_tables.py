"""Errors of the store name their context, and re-created tables keep their settings."""

from __future__ import annotations

import errno
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from store_world import EDGE, ELSEWHERE, OPERATOR, SINK, Clock, World

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import Holder
from spark_ckpt.epochs.restore import resolve
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import (
    ConfigInvalid,
    EpochDamaged,
    EpochNotFound,
    Fenced,
    FormatUnknown,
    LogDamaged,
    StateSchemaChanged,
    StoreOutage,
    StoreUnreachable,
)
from spark_ckpt.store import delta_log, proposals
from spark_ckpt.store.existing import existing_store, job_of
from spark_ckpt.store.location import SEAL, Location
from spark_ckpt.store.log_content import LogFile, refuse_if_lacking
from spark_ckpt.store.log_rows import manifest_of
from spark_ckpt.store.log_table import SCHEMA, LogTable, NewRow
from spark_ckpt.store.schemas import committed_schema
from spark_ckpt.store.state_rows import snapshot_of
from spark_ckpt.store.store import Store
from spark_ckpt.store.turns import Turns

FULL = OSError(errno.EIO, "the device fails")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "store")
    world.begin()
    world.epoch({"a": 1})
    return world


def test_an_operator_without_state_is_refused_with_those_that_have_some(world: World) -> None:
    with pytest.raises(EpochNotFound) as refused:
        snapshot_of(world.store.log.manifest(1), "another")

    assert refused.value.context["operators"] == OPERATOR


def test_times_in_errors_are_utc_in_any_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        with pytest.raises(Fenced) as fenced:
            proposals.fence(LogState(incarnation=2, since_ms=0), 1)
    time.tzset()

    assert fenced.value.context["since"] == "1970-01-01 00:00:00 UTC"


def test_a_holder_is_printed_with_name_process_and_host() -> None:
    holder = Holder(host="h", boot_id="b", pid=7, pid_start=1, name="job")

    assert str(holder) == "job (process 7 on h)"
    assert str(holder.model_copy(update={"name": ""})) == "(process 7 on h)"


def test_the_log_has_the_holder_of_each_incarnation(world: World) -> None:
    (begun,) = world.store.log.state().incarnations

    assert begun.holder == str(ELSEWHERE)


def test_a_handover_request_names_its_incarnation() -> None:
    row = proposals.handover(LogState(incarnation=3), 3)

    assert row is not None
    assert row.incarnation == 3


def test_damage_that_a_check_finds_is_reported_with_its_epoch(world: World) -> None:
    location, file = world.store.state(OPERATOR).location, world.line.chain[0]
    (Path(location.uri) / file.path).write_bytes(b"")

    with pytest.raises(EpochDamaged) as found:
        location.verify(file, epoch=1, operator=OPERATOR)

    assert {"epoch": 1, "operator": OPERATOR}.items() <= found.value.context.items()


def test_a_device_that_fails_while_a_file_is_read_is_an_outage_of_that_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def size(self) -> int:
            return 1

        def read(self, size: int) -> bytes:
            raise FULL

    location = world.store.state(OPERATOR).location
    monkeypatch.setattr(Location, "opened", lambda self, path: Failing())

    with pytest.raises(StoreOutage) as failed:
        location.read_table("a.parquet", expected=world.line.chain[0])

    assert failed.value.context["location"] == location.uri


def test_a_table_whose_columns_cannot_be_changed_is_an_outage_of_that_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise FULL

    table = world.store.staged(SINK).table
    monkeypatch.setattr(delta_log, "recreate_table", fails)

    with pytest.raises(StoreOutage) as failed:
        table.ensure(pa.schema({"value": pa.int64()}), replace=True)

    assert failed.value.context["location"] == table.location.uri


def test_a_re_created_table_keeps_its_partitions(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "table"))
    columns = {"part": pa.string(), "value": pa.string()}
    delta_log.create_table(location, pa.schema(columns), "a table", ["part"])

    delta_log.recreate_table(location, pa.schema({**columns, "value": pa.int64()}), "a table", ["part"])

    assert DeltaTable(location.uri).metadata().partition_columns == ["part"]


def test_an_epoch_without_rows_of_a_sink_reads_as_an_empty_table(world: World) -> None:
    world.commit(world.manifest(stage=False))

    assert world.store.staged(SINK).read(2).num_rows == 0


def test_files_deleted_in_parallel_are_all_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an object store, where each file needs a request."""
    names = [f"{number}.txt" for number in range(5)]
    for name in names:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(Location, "local", None)

    Location(str(tmp_path)).delete(names[1:])

    assert [path.name for path in tmp_path.iterdir()] == names[:1]


def test_a_store_is_inspected_with_the_given_options(world: World) -> None:
    options = {"allow_unsafe_rename": "true"}

    assert existing_store(world.store.location.uri, options).location.storage_options == options


def test_a_store_is_opened_with_the_given_options(tmp_path: Path) -> None:
    options = {"allow_unsafe_rename": "true"}

    assert Store.open(str(tmp_path / "store"), "job", options).location.storage_options == options


def test_a_table_is_created_with_the_properties_that_keep_its_history(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "table"))
    delta_log.create_table(location, pa.schema({"value": pa.string()}), "a table")

    assert delta_log.CONFIGURATION.items() <= DeltaTable(location.uri).metadata().configuration.items()


def test_a_file_carries_a_seal_of_its_columns(tmp_path: Path) -> None:
    location = Location(str(tmp_path))
    location.write_table("a.parquet", pa.table({"value": ["a"]}))

    assert SEAL in (pq.read_schema(tmp_path / "a.parquet").metadata or {})


def test_a_bit_that_flips_in_the_rows_is_found_without_a_digest(tmp_path: Path) -> None:
    location, path = Location(str(tmp_path)), tmp_path / "a.parquet"
    location.write_table("a.parquet", pa.table({"value": list(range(1000))}), compression="none")
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)

    with pytest.raises(EpochDamaged):
        location.read_table("a.parquet")


def test_a_part_of_a_committed_file_is_read_only_if_the_whole_file_is_intact(world: World) -> None:
    location, file = world.store.state(OPERATOR).location, world.line.chain[0]
    location.write_table(file.path, pa.table({"value": ["another"]}))

    with pytest.raises(EpochDamaged):
        location.read_table(file.path, row_groups=[0], expected=file)


def test_damage_found_while_reading_a_schema_names_the_committed_size(world: World) -> None:
    location, file = world.store.state(OPERATOR).location, world.line.chain[0]
    (Path(location.uri) / file.path).write_bytes(b"")

    with pytest.raises(EpochDamaged) as found:
        committed_schema(location, file, epoch=1, operator=OPERATOR)

    assert found.value.context["expected"] == f"{file.size_bytes} bytes"


def test_damage_to_state_is_reported_with_its_operator(world: World) -> None:
    location, file = world.store.state(OPERATOR).location, world.line.chain[0]
    (Path(location.uri) / file.path).unlink()

    with pytest.raises(EpochDamaged) as found:
        world.store.verify(world.store.log.manifest(1), deep=True)

    assert found.value.context["operator"] == OPERATOR


def test_a_table_ahead_of_the_log_is_named(world: World, tmp_path: Path) -> None:
    table, log = world.store.staged(SINK).table, World(tmp_path / "empty").store.log

    with pytest.raises(LogDamaged) as found:
        table.redo(lambda: None, log, world.line.incarnation, lambda: None)

    assert found.value.context["table"] == table.location.uri


def test_a_table_whose_columns_have_other_types_is_named(world: World) -> None:
    table = world.store.staged(SINK).table

    with pytest.raises(StateSchemaChanged) as refused:
        table.ensure(pa.schema({"value": pa.int64()}))

    assert refused.value.context["table"] == table.location.uri


def test_files_of_an_edge_have_the_statistics_of_their_tasks(world: World) -> None:
    table = DeltaTable(world.store.edge(EDGE).location.uri)

    assert pa.table(table.get_add_actions(flatten=True)).column("num_records").to_pylist() == [1]


def test_a_log_with_another_row_than_the_one_that_was_acknowledged_is_damaged(world: World) -> None:
    """The log has as many rows, and no gap."""
    table = LogTable.open(world.store.location.child("epochs"), world.clock, create=False)
    assert table is not None
    table.refresh()
    newest = table.rows[-1]
    files = [LogFile(0, list(table.rows))]
    refuse_if_lacking(files, newest.seq, newest.acknowledged, "log")

    with pytest.raises(EpochDamaged, match="another row"):
        refuse_if_lacking(files, newest.seq, replace(newest.acknowledged, seal="0" * 32), "log")


def test_a_field_of_another_version_is_named(world: World) -> None:
    body = world.store.log.manifest(1).model_dump(mode="json")
    body["operators"][OPERATOR]["novel"] = 1
    table = LogTable.open(world.store.location.child("epochs"), world.clock, create=False)
    assert table is not None
    table.refresh()
    newest = table.rows[-1]

    with pytest.raises(EpochDamaged) as refused:
        manifest_of(newest, json.dumps(body))

    assert refused.value.context["field"] == f"operators.{OPERATOR}.novel"


def test_a_first_row_with_a_field_of_another_version_names_it(world: World) -> None:
    table = LogTable.open(world.store.location.child("epochs"), world.clock, create=False)
    assert table is not None
    table.refresh()
    text = json.dumps({**json.loads(table.rows[0].brief), "novel": 1})
    table.append(NewRow("created", 0, 0, "attempt", text, text))

    with pytest.raises(EpochDamaged) as refused:
        job_of(world.store.location)

    assert refused.value.context["field"] == "novel"


def test_a_log_with_columns_of_another_version_is_refused_with_them(tmp_path: Path) -> None:
    location, clock = Location(str(tmp_path / "epochs")), Clock()
    columns = [*SCHEMA.names, "novel"]
    delta_log.create_table(location, pa.schema([*SCHEMA, pa.field("novel", pa.string())]), "a newer log")

    with pytest.raises(FormatUnknown) as refused:
        LogTable.open(location, clock, create=False)

    assert refused.value.context["columns"] == ", ".join(columns)


def test_errors_of_a_log_without_epochs_say_none() -> None:
    with pytest.raises(EpochNotFound) as restored:
        resolve(LogState(incarnation=1), 7)
    with pytest.raises(EpochNotFound) as named:
        proposals.savepoint(LogState(incarnation=1), "friday", 7)

    assert restored.value.context["kept"] == named.value.context["kept"] == "none"


def test_the_error_of_a_partly_created_store_says_how_to_complete_it(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "store"))
    LogTable.open(location.child("epochs"), Clock(), create=True)

    with pytest.raises(EpochDamaged) as refused:
        Store(location, None)

    assert "start the job" in str(refused.value.hint)


def test_an_invalid_job_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="job name"):
        Store(Location(str(tmp_path / "store")), "../x")


def test_a_timed_out_wait_names_its_lock() -> None:
    turns, taken, over = Turns("the job's log", wait_s=0.01), threading.Event(), threading.Event()

    def never_comes_back() -> None:
        with turns:
            taken.set()
            over.wait(60)

    other = threading.Thread(target=never_comes_back)
    other.start()
    taken.wait(60)
    with pytest.raises(StoreUnreachable, match="the job's log has not answered"), turns:
        pass
    over.set()
    other.join(60)


def test_a_folder_that_cannot_be_listed_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Location) -> None:
        raise FULL

    monkeypatch.setattr(Location, "handler", fails)

    with pytest.raises(StoreOutage) as failed:
        world.store.location.list("epochs")

    assert failed.value.context["path"] == "epochs"


def test_the_error_of_a_file_with_too_few_rows_has_both_numbers(world: World) -> None:
    with pytest.raises(EpochDamaged, match="has 1 row, 2 were committed"):
        world.store.state(OPERATOR).location.read_committed(world.line.chain[0], 2)


def test_logs_of_every_kind_of_table_are_trimmed_once_in_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[str] = []
    monkeypatch.setattr("spark_ckpt.store.store.trim", lambda location, *_: trimmed.append(location.uri))
    store = world.store.reopened()

    for value in range(2):
        store.retain(Retention(keep_last=1, slack=0))
        world.epoch({"a": value})

    assert trimmed == [each.location.uri for each in (store.staged(SINK), store.edge(EDGE), store.state(OPERATOR))]


def test_re_creating_a_table_writes_no_checkpoint(tmp_path: Path) -> None:
    """The store writes checkpoints, durably and outside of commits."""
    location, columns = Location(str(tmp_path / "table")), pa.schema({"value": pa.string()})
    delta_log.create_table(location, columns, "a table")

    for _ in range(int(delta_log.CONFIGURATION["delta.checkpointInterval"])):
        delta_log.recreate_table(location, columns, "a table", [])

    assert not list(tmp_path.rglob("*checkpoint*"))
