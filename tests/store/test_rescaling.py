"""A repartition to another number of key groups keeps the same state, or changes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from store_world import ELSEWHERE, JOB, OPERATOR, World, key_hash, opened, two_epochs

from spark_ckpt.driver.maintenance import dealing
from spark_ckpt.driver.maintenance.rescale import rescale
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, StateFile
from spark_ckpt.errors import CkptError, ConfigInvalid, EpochDamaged, EpochNotFound, StoreInUse
from spark_ckpt.store.ddl import arrow_schema
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.rows import StateSchema
from spark_ckpt.tasks.state.key_index import KeyTable
from spark_ckpt.tasks.state.levels import from_stored, range_ref

KEYS = [f"key{number}" for number in range(60)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return two_epochs(tmp_path / "store", KEYS)


def newest(store: Store) -> Manifest:
    return store.log.manifest(store.log.state().latest)


def keys_by_group(store: Store) -> dict[int, list[str]]:
    """Return the keys per group in the newest epoch's files."""
    found: dict[int, list[str]] = {}
    for file in newest(store).operators[OPERATOR].files:
        location = store.state(OPERATOR).location
        assert location.read_committed(file, file.rows).num_rows == file.rows
        for group in file.key_groups:
            part = range_ref(file, group)
            table = location.read_range(part, part.rows)
            assert set(table.column("ckpt_key_group").to_pylist()) == {group}
            hashes = table.column("ckpt_key_hash").to_pylist()
            assert hashes == sorted(hashes)
            found.setdefault(group, []).extend(table.column("k").to_pylist())
    return found


@pytest.mark.parametrize("path", [(4,), (16, 4), (4, 6, 9, 2), (32, 1), (7, 5)])
def test_the_state_is_the_same_and_every_key_is_in_its_group(world: World, path: tuple[int, ...]) -> None:
    store = opened(world)
    for key_groups in path:
        rescale(store, OPERATOR, key_groups)
        for group, keys in keys_by_group(store).items():
            assert {key_hash(key) % key_groups for key in keys} == {group}
    assert newest(store).operators[OPERATOR].key_groups == path[-1]
    assert {
        row["k"]: row["v"] for row in store.state(OPERATOR).read(store.log.state().latest).to_pylist()
    } == world.line.state


def test_no_more_rows_are_merged_at_a_time_than_a_new_group_has(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old group may be too large for Arrow to merge, and only a repartition makes it smaller."""
    sizes: list[int] = []
    merge = dealing.merged

    def counted(tables: Sequence[KeyTable], schema: StateSchema, *, drop_deletes: bool) -> KeyTable:
        sizes.append(sum(map(len, tables)))
        return merge(tables, schema, drop_deletes=drop_deletes)

    monkeypatch.setattr(dealing, "merged", counted)
    rescale(opened(world), OPERATOR, 7)

    # Of 60 keys and of 30 that changed since.
    assert sum(sizes) == 90 and max(sizes) < 45


def test_everything_else_of_the_epoch_stays(world: World) -> None:
    store = opened(world)
    before = newest(store)
    done = rescale(store, OPERATOR, 8)
    after = newest(store)
    assert (done.before, done.after, done.epoch, done.rows) == (1, 8, 3, 50)
    assert (after.base, after.previous, after.reason, after.outputs) == (2, 2, "rescaled", {})
    assert (after.cursors, after.edges, after.watermark_ms) == (before.cursors, before.edges, before.watermark_ms)
    assert store.log.manifest(2) == before


def test_unpublished_epochs_stay_unpublished(world: World) -> None:
    store = opened(world)
    rescale(store, OPERATOR, 8)
    point = store.log.begin_incarnation(ELSEWHERE, "latest")
    assert [manifest.epoch for manifest in point.unpublished["out"]] == [2]
    assert point.manifest.epoch == 3


def test_an_epoch_before_the_repartition_can_be_restored(world: World) -> None:
    store = opened(world)
    rescale(store, OPERATOR, 8)
    point = store.log.begin_incarnation(ELSEWHERE, 2)
    assert point.manifest.operators[OPERATOR].key_groups == 1


def test_a_deleted_key_with_a_timeout_keeps_it(world: World) -> None:
    """Spark calls the function for it once the timeout is due, although there is no state."""
    store = opened(world)
    manifest = newest(store)
    rows = pa.table(
        {
            "k": ["late"], "v": pa.array([None], pa.int64()), "ckpt_key_group": pa.array([0], pa.int32()),
            "ckpt_key_hash": [key_hash("late")], "ckpt_epoch": [3], "ckpt_op": ["delete"], "ckpt_timeout_ms": [77],
        }
    )  # fmt: skip
    size, sha256 = store.state(OPERATOR).location.write_table("i9-e9-g0-x.parquet", rows)
    file = StateFile(
        path="i9-e9-g0-x.parquet",
        size_bytes=size,
        ranges=((0, 1, 0, size, sha256),),
        epoch=2,
        incarnation=1,
        kind="changes",
        sha256=sha256,
    )
    snapshot = manifest.operators[OPERATOR]
    world.begin()
    world.commit(
        world.manifest().model_copy(
            update={"operators": {OPERATOR: snapshot.model_copy(update={"files": (*snapshot.files, file)})}}
        )
    )
    world.store.log.release(world.line.incarnation)
    store = opened(world)
    rescale(store, OPERATOR, 8)
    found = [
        row
        for each in newest(store).operators[OPERATOR].files
        for row in store.state(OPERATOR).location.read_committed(each, each.rows).to_pylist()
        if row["k"] == "late"
    ]
    assert [(row["ckpt_op"], row["ckpt_timeout_ms"]) for row in found] == [("delete", 77)]


def test_a_driver_that_runs_is_not_disturbed(world: World) -> None:
    world.begin()
    with pytest.raises(StoreInUse):
        rescale(opened(world), OPERATOR, 8)
    world.epoch({"a": 1})


def test_damage_is_found_before_any_change(world: World) -> None:
    store = opened(world)
    (first, *_) = newest(store).operators[OPERATOR].files
    path = Path(store.state(OPERATOR).location.uri) / first.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(EpochDamaged, match="does not hold the bytes"):
        rescale(store, OPERATOR, 8)
    assert store.log.state().latest == 2
    assert opened(world).log.begin_incarnation(ELSEWHERE, "latest").manifest.operators[OPERATOR].key_groups == 1


def test_a_driver_that_takes_over_in_between_wins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(world)
    opens = type(store.state(OPERATOR).location).open_output
    taken: list[int] = []

    def taking_over(self: object, path: str) -> object:
        if "-t" in path and not taken:
            taken.append(1)
            opened(world).log.begin_incarnation(ELSEWHERE, "latest", takeover=True)
        return opens(self, path)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store.state(OPERATOR).location), "open_output", taking_over)
    with pytest.raises(CkptError, match="FENCED"):
        rescale(store, OPERATOR, 8)
    assert opened(world).log.state().latest == 2


def test_the_lease_is_renewed_while_a_class_of_groups_is_dealt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1 group to 8 all state is one class, and may take longer than a lease."""
    store = opened(world)
    opens = type(store.state(OPERATOR).location).open_output
    renewals: list[int] = []

    def slow(self: object, path: str) -> object:
        if "-t" in path and not renewals:
            log, deadline_s = opened(world).log, time.monotonic() + 60
            before = log.state().lease_token
            while log.state().lease_token < before + 2 and time.monotonic() < deadline_s:
                time.sleep(0.01)
            renewals.append(log.state().lease_token - before)
        return opens(self, path)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store.state(OPERATOR).location), "open_output", slow)
    monkeypatch.setattr(dealing, "LEASE_MS", 150)
    assert rescale(store, OPERATOR, 8).epoch == 3
    assert renewals >= [2], "a third renewal may come before the number is read"


@pytest.mark.parametrize(
    ("operator", "key_groups", "says"), [("nobody", 8, "operators: totals"), (OPERATOR, 1, "already")]
)
def test_impossible_repartitions_are_refused(world: World, operator: str, key_groups: int, says: str) -> None:
    with pytest.raises(ConfigInvalid, match=says):
        rescale(opened(world), operator, key_groups)
    assert opened(world).log.state().incarnation == 1


def test_a_job_without_an_epoch_cannot_be_repartitioned(tmp_path: Path) -> None:
    with pytest.raises(EpochNotFound, match="no epoch yet"):
        rescale(Store.open(str(tmp_path / "store"), JOB), OPERATOR, 8)


def test_operators_read_the_repartitioned_files(world: World) -> None:
    store = opened(world)
    rescale(store, OPERATOR, 8)
    snapshot: OperatorSnapshot = newest(store).operators[OPERATOR]
    schema = StateSchema(arrow_schema(snapshot.key_schema), arrow_schema(snapshot.state_schema))
    tables = [
        from_stored(store.state(OPERATOR).location.read_committed(each, each.rows), schema) for each in snapshot.files
    ]
    assert sum(map(len, tables)) == 50
    assert all(np.all(np.diff(each.table.column("ckpt_key_hash").to_numpy()) >= 0) for each in tables)
