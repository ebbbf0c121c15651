"""Materializing always makes state tables and staged tables equal to the log."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from store_world import JOB, OPERATOR, SINK, World, as_dict

from spark_ckpt.delta_files import commit_name
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, StateFile
from spark_ckpt.errors import EpochDamaged, EpochNotFound, StateSchemaChanged, StoreUnreachable
from spark_ckpt.store import data_table, delta_log
from spark_ckpt.store.delta_log import CommitLost
from spark_ckpt.store.state_table import newest_rows


def state_table(world: World, version: int | None = None) -> DeltaTable:
    return DeltaTable(world.store.state(OPERATOR).location.uri, version=version)


def outbox_table(world: World) -> DeltaTable:
    return DeltaTable(world.store.staged(SINK).location.uri)


def query(table: DeltaTable, sql: str) -> list[dict[str, object]]:
    return pa.table(QueryBuilder().register("t", table).execute(sql).read_all()).to_pylist()


def names(table: DeltaTable) -> set[str]:
    return {uri.rsplit("/", 1)[-1] for uri in table.file_uris()}


def chain_names(manifest: Manifest) -> set[str]:
    return {file.path for file in manifest.operators[OPERATOR].files}


def test_live_files_are_exactly_the_newest_manifests_chain(world: World) -> None:
    for number in range(1, 8):
        manifest = world.epoch({"a": number}, full=number == 4)
        assert names(state_table(world)) == chain_names(manifest)


def test_every_epochs_version_shows_that_epoch(world: World) -> None:
    manifests = [world.epoch({"a": number}, full=number % 3 == 0) for number in range(1, 10)]
    for manifest in manifests:
        version = world.store.state(OPERATOR).version(manifest.epoch)
        assert names(state_table(world, version)) == chain_names(manifest)


def test_materializing_again_changes_nothing(world: World) -> None:
    manifest = world.epoch({"a": 1})
    before = (state_table(world).version(), outbox_table(world).version())
    world.store.materialize(manifest)
    world.store.reopened().materialize(manifest)
    assert (state_table(world).version(), outbox_table(world).version()) == before


def test_a_later_materialization_includes_skipped_epochs(world: World) -> None:
    for number in range(1, 4):
        world.epoch({"a": number}, materialize=False)
    point = world.begin()
    world.store.materialize(point.manifest)
    assert names(state_table(world)) == chain_names(point.manifest)
    rows = query(outbox_table(world), "select value from t order by value")
    assert [row["value"] for row in rows] == ["row of 1", "row of 2", "row of 3"]
    assert world.store.state(OPERATOR).version(3) == state_table(world).version()
    with pytest.raises(EpochNotFound, match="no version"):
        world.store.state(OPERATOR).version(2)
    assert world.state_at(2) == {"a": 2}, "reading needs no version"


def test_a_driver_shows_the_kept_epochs_when_a_standby_has_dropped_others(world: World) -> None:
    """A standby that was paused in its turn drops epochs after the driver has the maintenance again."""
    world.epoch({"a": 1})
    for number in range(2, 6):
        newest = world.epoch({"a": number}, full=True, materialize=False)
    world.store.reopened().log.shorten(lambda log_state: {1, 4, 5})
    world.store.materialize(newest)
    assert names(state_table(world)) == chain_names(newest)
    rows = query(outbox_table(world), "select value from t order by value")
    assert [row["value"] for row in rows] == ["row of 1", "row of 4", "row of 5"]


def test_a_rollback_shows_the_old_epoch_and_the_rerun_is_not_skipped(world: World) -> None:
    for number in range(1, 5):
        world.epoch({"a": number})
    point = world.begin(2)
    world.store.materialize(point.manifest)
    assert names(state_table(world)) == chain_names(point.manifest)
    rerun = world.epoch({"a": 33})
    assert names(state_table(world)) == chain_names(rerun)
    assert world.state_at(rerun.epoch) == {"a": 33}
    assert names(state_table(world, world.store.state(OPERATOR).version(4))) >= chain_names(point.manifest)


def test_a_rollback_to_the_beginning_empties_the_table(world: World) -> None:
    world.epoch({"a": 1})
    world.store.materialize(world.begin(0).manifest)
    assert names(state_table(world)) == set()


def test_a_late_materialization_of_a_fenced_driver_changes_nothing(world: World, tmp_path: Path) -> None:
    world.epoch({"a": 1})
    late = world.epoch({"a": 2}, materialize=False)
    other = World(tmp_path / "store")
    other.expected, other.chains = world.expected, world.chains
    other.store.materialize(other.begin(1).manifest)
    newest = other.epoch({"a": 3})
    world.store.materialize(late)
    assert names(state_table(world)) == chain_names(newest)


@pytest.mark.parametrize(
    "sees_it", [True, pytest.param(False, id="planted: the remembered version survives a lost race")]
)
def test_a_fenced_driver_notices_a_newer_version_after_its_read(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sees_it: bool
) -> None:
    late = world.epoch({"a": 1}, materialize=False)
    world.store.materialize(late)
    late_epoch = world.epoch({"a": 2}, materialize=False)
    other = World(tmp_path / "store")
    other.expected, other.chains = world.expected, world.chains
    other.begin()
    newest = other.epoch({"b": 3}, materialize=False)
    commit, turns = delta_log.commit, iter([True])

    def materialize_first(*args: object, **kwargs: object) -> int:
        if next(turns, False):
            other.store.materialize(newest)
        return commit(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(delta_log, "commit", materialize_first)
    table = world.store.state(OPERATOR).table
    if not sees_it:
        monkeypatch.setattr(table, "forget", lambda: None)
        with pytest.raises(StoreUnreachable, match="other writers"):
            world.store.materialize(late_epoch)
        return
    world.store.materialize(late_epoch)
    assert names(state_table(world)) == {file.path for file in newest.operators[OPERATOR].files}


@pytest.mark.parametrize("reads", [True, pytest.param(False, id="planted: the remembered log is believed")])
def test_a_driver_that_missed_the_takeover_does_not_create_its_successors_table_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """By the log as this driver last read it, the table is ahead of every committed epoch."""
    late = world.epoch({"a": 1})
    other = World(tmp_path / "store")
    other.expected, other.chains = world.expected, world.chains
    other.begin()
    newest = other.epoch({"b": 3})
    for table in (world.store.state(OPERATOR), world.store.staged(SINK)):
        table.table.refreshed()
    if not reads:
        monkeypatch.setattr(world.store.log, "state", world.store.log.known)
    world.store.materialize(late)
    found = {OPERATOR: names(state_table(world)), SINK: names(outbox_table(world))}
    shown = {OPERATOR: chain_names(newest), SINK: {each.outputs[SINK].files[0].path for each in (late, newest)}}
    assert (found == shown) == reads


def test_two_concurrent_materializations_do_not_double_the_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.epoch({"a": 1})
    manifest = world.epoch({"a": 2}, full=True, materialize=False)
    commit = delta_log.commit

    def raced(*args: object, **kwargs: object) -> int:
        monkeypatch.setattr(delta_log, "commit", commit)
        world.store.reopened().materialize(manifest)
        return commit(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(delta_log, "commit", raced)
    world.store.materialize(manifest)
    assert delta_log.commit is commit, "both have written"
    assert names(state_table(world)) == chain_names(manifest)
    assert query(state_table(world), "select count(*) n from t") == [{"n": 1}]
    assert query(outbox_table(world), "select count(*) n from t") == [{"n": 2}]


def test_materializing_fails_while_another_writer_keeps_writing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = world.epoch({"a": 1}, materialize=False)

    def lost(*args: object, **kwargs: object) -> int:
        raise CommitLost("taken")

    monkeypatch.setattr(delta_log, "commit", lost)
    with pytest.raises(StoreUnreachable):
        world.store.materialize(manifest)


def test_the_protocol_stays_readable_by_every_delta_reader(world: World) -> None:
    for number in range(1, 4):
        world.epoch({"a": number}, full=number == 2)
    world.store.materialize(world.begin(1).manifest)
    tables = [state_table(world), outbox_table(world), DeltaTable(world.store.location.child("epochs").uri)]
    for table in tables:
        protocol = table.protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
        assert not protocol.reader_features
        assert not protocol.writer_features


def test_compaction_removes_no_row_and_a_rollback_does(world: World) -> None:
    world.epoch({"a": 1})
    world.epoch({"a": 2}, full=True)
    assert removals(world) == [False]
    world.store.materialize(world.begin(1).manifest)
    assert removals(world) == [True]


def removals(world: World) -> list[bool]:
    import json

    log = world.store.state(OPERATOR).location
    text = log.read_bytes(f"_delta_log/{commit_name(state_table(world).version())}").decode()
    return [action["remove"]["dataChange"] for line in text.splitlines() if "remove" in (action := json.loads(line))]


def test_files_carry_statistics_to_skip_by(world: World) -> None:
    world.epoch({"a": 1, "b": 2})
    actions = pa.table(state_table(world).get_add_actions(flatten=True)).to_pylist()[0]
    assert actions["num_records"] == 2
    assert (actions["min.ckpt_epoch"], actions["max.ckpt_epoch"], actions["min.ckpt_key_group"]) == (1, 1, 0)


def test_files_of_an_outbox_have_the_statistics_of_their_tasks(world: World) -> None:
    world.epoch({"a": 1})
    (action,) = pa.table(outbox_table(world).get_add_actions(flatten=True)).to_pylist()
    assert action["num_records"] == 1


def test_deleted_and_overwritten_keys_do_not_come_back(world: World) -> None:
    world.epoch({"a": 1, "b": 1, "c": 1}, full=True)
    world.epoch({"b": None, "c": 2})
    world.epoch({"b": 5, "a": None})
    assert world.state_at(1) == {"a": 1, "b": 1, "c": 1}
    assert world.state_at(2) == {"a": 1, "c": 2}
    assert world.state_at(3) == {"b": 5, "c": 2}


def test_keys_are_the_columns_of_the_key_schema() -> None:
    rows = pa.table({"total, amount": ["x", "x", "y"], "v": [1, 2, 3], "ckpt_op": ["put"] * 3})
    snapshot = OperatorSnapshot(
        operator="o", key_groups=1, key_schema="`total, amount` STRING NOT NULL", state_schema="v INT"
    )
    older, newer = rows.slice(0, 1), rows.slice(1, 2)
    assert newest_rows([older, newer], snapshot).column("v").to_pylist() == [2, 3]


def test_state_is_read_without_one_array_of_a_whole_column() -> None:
    """Such an array holds 2 GiB of text at most, and a state may have more."""
    snapshot = OperatorSnapshot(operator="o", key_groups=1, key_schema="k STRING", state_schema="v STRING")
    files = [pa.table({"k": [key], "v": [key * 2], "ckpt_op": ["put"]}) for key in "abc"]
    found = newest_rows(files, snapshot)
    assert found.column("v").num_chunks == 3
    assert found.column("k").to_pylist() == ["c", "b", "a"]


def test_a_missing_row_is_damage_not_a_smaller_state(world: World) -> None:
    world.epoch({"a": 1, "b": 2})
    file = world.line.chain[0]
    location = world.store.state(OPERATOR).location
    location.write_table(file.path, location.read_table(file.path).slice(0, 1))
    with pytest.raises(EpochDamaged):
        world.state_at(1)


def test_a_new_state_column_is_added_to_the_table(world: World) -> None:
    world.epoch({"a": 1})
    manifest = with_state_file(world, pa.table(widened(world)), "v BIGINT, extra STRING")
    world.store.materialize(manifest)
    rows = query(state_table(world), "select k, v, extra from t order by v")
    assert rows == [{"k": "a", "v": 1, "extra": None}, {"k": "a", "v": 7, "extra": "new"}]
    read = world.store.state(OPERATOR).read(2)
    assert as_dict(read) == {"a": 7}
    assert read.column("extra").to_pylist() == ["new"]


def test_a_state_column_of_another_type_is_refused(world: World) -> None:
    world.epoch({"a": 1})
    changed = {**widened(world), "v": pa.array(["text"])}
    manifest = with_state_file(world, pa.table(changed), "v STRING, extra STRING")
    with pytest.raises(StateSchemaChanged, match="'v'"):
        world.store.materialize(manifest)


def widened(world: World) -> dict[str, pa.Array]:
    table = world.store.state(OPERATOR).location.read_table(world.line.chain[0].path)
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    return {**columns, "v": pa.array([7], pa.int64()), "extra": pa.array(["new"])}


def with_state_file(world: World, rows: pa.Table, state_schema: str) -> Manifest:
    path = f"i1-e2-g0-{uuid.uuid4().hex}.parquet"
    size = world.store.state(OPERATOR).location.write_table(path, rows).size_bytes
    file = StateFile(
        path=path, size_bytes=size, ranges=((0, rows.num_rows, 0, size),), epoch=2, incarnation=1, kind="changes"
    )
    world.line.chain = (*world.line.chain, file)
    manifest = world.manifest()
    snapshot = manifest.operators[OPERATOR].model_copy(update={"state_schema": state_schema})
    manifest = manifest.model_copy(update={"operators": {OPERATOR: snapshot}})
    world.commit(manifest)
    return manifest


def test_uncommitted_rows_are_never_visible(world: World) -> None:
    world.epoch({"a": 1})
    world.snapshot({"a": 99})
    world.staged(["of an attempt that failed"])
    assert query(outbox_table(world), "select value from t") == [{"value": "row of 1"}]
    assert world.state_at(1) == {"a": 1}
    assert query(state_table(world), "select v from t") == [{"v": 1}]


def test_rows_staged_outside_of_the_store_are_left_to_their_sink(world: World, tmp_path: Path) -> None:
    world.snapshot({"a": 1})
    manifest = world.manifest()
    output = manifest.outputs[SINK].model_copy(update={"root": str(tmp_path / "elsewhere")})
    world.commit(manifest.model_copy(update={"outputs": {SINK: output}}))
    world.store.materialize(world.store.log.manifest(1))
    assert not (tmp_path / "store/edges" / SINK / "_delta_log").exists()


def test_checkpoints_bound_what_opening_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_table, "CHECKPOINT_EVERY", 4)
    for number in range(1, 10):
        world.epoch({"a": number}, full=True)
    log = Path(world.store.state(OPERATOR).location.uri) / "_delta_log"
    assert [path.name[:20] for path in sorted(log.glob("*.checkpoint.parquet"))] == [f"{4:020d}", f"{8:020d}"]


def test_the_store_is_named_in_its_tables(world: World) -> None:
    world.epoch({"a": 1})
    assert OPERATOR in str(state_table(world).metadata().description)
    assert JOB
