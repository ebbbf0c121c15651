import math
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from group_kit import SCHEMA, due, put, removed_above_another_level, values_in
from operator_fixtures import OPENED, MemoryStore, cache_of, group_of, snapshot
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from spark_ckpt.api.foreach_batch import ForeachBatchSink
from spark_ckpt.epochs.records import StateRange
from spark_ckpt.errors import EpochDamaged, FormatUnknown, GraphInvalid, StateSchemaChanged
from spark_ckpt.program_edges.sink import EdgeSink
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.rows import StateSchema, state_schema
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.tasks.state.levels import LevelCache, RangeRef, from_stored


@pytest.fixture(autouse=True)
def nothing_open():
    OPENED.clear()


def test_a_snapshot_holds_the_changed_rows_sorted_by_hash_in_the_stored_columns(tmp_path):
    group, store = group_of(SCHEMA, tmp_path, key_group=3), MemoryStore()
    put(group, {"a": 1, "b": 2, "c": 3})
    snapshot(group, store, 1)
    put(group, {"b": 5, "c": 6}, removed={"c"}, timeouts={"b": 77})
    capture = group.capture(2)
    assert capture.kind == "changes"
    assert capture.table.schema.equals(SCHEMA.stored)
    rows = {row["k"]: row for row in capture.table.to_pylist()}
    assert rows["b"] | {"ckpt_key_hash": 0} == {
        "k": "b", "v": 5, "s": "s5", "ckpt_key_group": 3, "ckpt_key_hash": 0,
        "ckpt_epoch": 2, "ckpt_op": "put", "ckpt_timeout_ms": 77,
    }  # fmt: skip
    assert rows["c"]["ckpt_op"] == "delete"
    assert rows["c"]["v"] is None
    hashes = capture.table.column("ckpt_key_hash").to_pylist()
    assert hashes == sorted(hashes)


def test_nothing_changed_means_nothing_to_capture(tmp_path):
    group = group_of(SCHEMA, tmp_path)
    assert group.capture(4) is None
    assert group.epoch == 4


def test_a_captured_delta_is_gone_and_an_aborted_one_is_not(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    put(group, {"a": 1})
    group.capture(1)
    assert group.changed_rows == 1
    snapshot(group, store, 2)
    assert group.changed_rows == 0
    assert [ref.epoch for ref in group.files] == [2]


def test_spark_state_does_not_grow_with_the_state(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    put(group, {f"k{i}": i for i in range(20_000)})
    grown = len(group.encode())
    snapshot(group, store, 1)
    put(group, {"k7": 0})
    assert len(group.encode()) < 2000 < grown


def test_a_full_file_holds_live_rows_only_and_ends_the_chain(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    put(group, {"a": 1, "b": 2, "c": 3})
    snapshot(group, store, 1)
    put(group, {"b": 0, "c": 0}, removed={"b", "c"}, timeouts={"c": 50})
    capture = group.capture_full(2)
    live = {row["k"]: (row["ckpt_op"], row["ckpt_timeout_ms"]) for row in capture.table.to_pylist()}
    assert live == {"a": ("put", None), "c": ("delete", 50)}, "a timeout outlives its key's state"
    group.captured("full", StateRange(0, 2, 4, 1))
    assert [ref.path for ref in group.files] == ["full"]


def test_levels_stay_logarithmic(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    put(group, {f"k{i}": i for i in range(2000)})
    snapshot(group, store, 1)
    for epoch in range(2, 60):
        put(group, {f"k{(epoch * 7 + i) % 2000}": epoch for i in range(5)})
        snapshot(group, store, epoch)
        assert len(list(tmp_path.iterdir())) <= 2 + math.log2(2000), "a file for each level"


def test_superseded_local_files_are_removed(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    for epoch in range(1, 40):
        put(group, {f"k{i}": epoch for i in range(epoch)})
        snapshot(group, store, epoch)
    assert len(list(tmp_path.iterdir())) <= 2 + math.log2(40)


def test_a_snapshot_writes_one_local_level_however_many_it_joins(tmp_path, monkeypatch):
    written = []
    put_level = LevelCache.put
    monkeypatch.setattr(LevelCache, "put", lambda *level: (written.append(level), put_level(*level))[1])
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    for epoch, keys in enumerate((9, 4, 5), start=1):
        put(group, {f"k{i}": epoch for i in range(keys)})
        snapshot(group, store, epoch)
    assert len(list(tmp_path.iterdir())) == 1
    assert len(written) == 3


def levelled(folder, store):
    group = group_of(SCHEMA, folder, store)
    put(group, {"a": 1, "b": 2})
    snapshot(group, store, 1)
    return group


def test_a_warm_cache_needs_no_read_of_the_store(tmp_path):
    store = MemoryStore()
    group = levelled(tmp_path, store)
    OPENED.clear()
    assert values_in(group, ["a", "b"]) == {"a": 1, "b": 2}
    assert store.reads == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_bytes(path.read_bytes()[:300] + b"\xff" + path.read_bytes()[301:]),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.write_bytes(b"ckptlvl\0" + b"\x63" + path.read_bytes()[9:]),
    ],
    ids=["gone", "empty", "short", "bit rot", "zeros", "another format"],
)
def test_a_damaged_local_level_is_rebuilt_from_the_store(tmp_path, damage):
    store = MemoryStore()
    group = levelled(tmp_path, store)
    OPENED.clear()
    (path,) = tmp_path.iterdir()
    damage(path)
    assert values_in(group, ["a", "b"]) == {"a": 1, "b": 2}
    assert len(store.reads) == 1
    OPENED.clear()
    assert values_in(group, ["a"]) == {"a": 1}
    assert len(store.reads) == 1, "the rebuilt level is kept"


def test_a_folder_that_cannot_be_written_costs_only_speed(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    store = MemoryStore()
    group = levelled(blocked / "cache", store)
    assert values_in(group, ["a", "b"]) == {"a": 1, "b": 2}


def test_a_state_file_with_other_rows_than_committed_is_damage(tmp_path):
    store = MemoryStore()
    levelled(tmp_path / "one", store)
    (table,) = store.files.values()
    location = Location(str(tmp_path / "store"))
    size, sha256 = location.write_table("f", table.slice(0, 1))
    ref = RangeRef("f", 0, size, 2, "full", 1, sha256)
    moved = KeyGroupState.restored(SCHEMA, LevelCache(tmp_path / "two", location, SCHEMA, "totals"), 0, [ref])
    with pytest.raises(EpochDamaged, match="1 row, 2 were committed") as caught:
        values_in(moved, ["a"])
    assert caught.value.context["operator"] == "totals"


def test_a_state_file_that_has_a_key_twice_is_damage(tmp_path):
    store = MemoryStore()
    levelled(tmp_path / "one", store)
    (table,) = store.files.values()
    location = Location(str(tmp_path / "store"))
    size, sha256 = location.write_table("f", pa.concat_tables([table, table.slice(0, 1)]))
    ref = RangeRef("f", 0, size, 3, "full", 1, sha256)
    moved = KeyGroupState.restored(SCHEMA, LevelCache(tmp_path / "two", location, SCHEMA, "totals"), 0, [ref])
    with pytest.raises(EpochDamaged, match="f has a key twice") as caught:
        values_in(moved, ["a"])
    assert (caught.value.damaged_file, caught.value.context["operator"]) == ("f", "totals")


def test_workers_that_build_one_level_at_once_all_see_it_whole(tmp_path):
    store = MemoryStore()
    group = group_of(SCHEMA, tmp_path / "one", store)
    put(group, {f"k{i}": i for i in range(5000)})
    snapshot(group, store, 1)

    def read(_):
        OPENED.clear()
        return values_in(
            KeyGroupState.restored(SCHEMA, cache_of(SCHEMA, tmp_path / "two", store), 0, group.files),
            ["k1", "k4999"],
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(found == {"k1": 1, "k4999": 4999} for found in pool.map(read, range(40)))
    assert len(list((tmp_path / "two").iterdir())) == 1, "no partial file remains"


def following(folder, store, files, nearby=None):
    """Return the group as a standby that follows the log would take it over. `nearby`: levels of a driver on the same host."""
    group = KeyGroupState.restored(SCHEMA, cache_of(SCHEMA, folder, store, nearby), 0, files)
    group.have_levels()
    return group


def test_a_standby_on_the_same_host_takes_the_drivers_levels_without_reading_the_store(tmp_path):
    store = MemoryStore()
    group = levelled(tmp_path / "one", store)
    moved = following(tmp_path / "two", store, group.files, tmp_path / "one")
    (ours,), (theirs,) = (tmp_path / "two").iterdir(), (tmp_path / "one").iterdir()
    assert ours.samefile(theirs)
    cache_of(SCHEMA, tmp_path / "one", store).keep_only([])
    assert values_in(moved, ["a", "b"]) == {"a": 1, "b": 2}
    assert store.reads == []


def test_a_level_that_the_driver_on_the_same_host_lacks_is_built(tmp_path):
    store = MemoryStore()
    group = levelled(tmp_path / "one", store)
    cache_of(SCHEMA, tmp_path / "one", store).keep_only([])
    moved = following(tmp_path / "two", store, group.files, tmp_path / "one")
    OPENED.clear()
    assert values_in(moved, ["a", "b"]) == {"a": 1, "b": 2}
    assert len(store.reads) == 1


def test_a_damaged_level_of_the_driver_on_the_same_host_is_rebuilt_when_opened(tmp_path):
    store = MemoryStore()
    group = levelled(tmp_path / "one", store)
    (path,) = (tmp_path / "one").iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    moved = following(tmp_path / "two", store, group.files, tmp_path / "one")
    OPENED.clear()
    assert values_in(moved, ["a", "b"]) == {"a": 1, "b": 2}


LIFE = (16, 7, 3, 2, 5, 1, 3, 30)
"""Number of keys written in each epoch: levels that stay, that join the one above, and that join several."""


def snapshots_of(folder, store):
    """Yield a group after each of its snapshots, and a function that reads its values."""
    group, names = group_of(SCHEMA, folder, store), [f"k{i}" for i in range(max(LIFE))]
    for epoch, keys in enumerate(LIFE, start=1):
        put(group, dict.fromkeys(names[:keys], epoch), removed=set(names[: keys // 2]))
        snapshot(group, store, epoch)
        OPENED.clear()
        yield group, lambda moved: values_in(moved, names)


def test_a_standby_takes_every_level_of_the_driver_on_the_same_host(tmp_path):
    store = MemoryStore()
    for group, shown in snapshots_of(tmp_path / "one", store):
        assert shown(following(tmp_path / "two", store, group.files, tmp_path / "one")) == shown(group)
    assert store.reads == []


def test_a_standby_on_another_host_reads_only_new_files_and_joins_its_levels(tmp_path):
    store, read, joined = MemoryStore(), [], set()
    for group, shown in snapshots_of(tmp_path / "one", store):
        moved = following(tmp_path / "two", store, group.files)
        read.append(len(store.reads))
        OPENED.clear()
        assert shown(moved) == shown(group)
        joined |= {len(level) for level in moved.have_levels()}
    assert (read, joined) == (list(range(1, len(LIFE) + 1)), {1, 3, 4, 8})


def test_unsorted_state_files_are_read_right(tmp_path):
    store = MemoryStore()
    group = levelled(tmp_path, store)
    (path,) = store.files
    store.files[path] = store.files[path].take([1, 0])
    moved = KeyGroupState.restored(SCHEMA, cache_of(SCHEMA, tmp_path / "x", store), 0, group.files)
    assert values_in(moved, ["a", "b"]) == {"a": 1, "b": 2}


def test_a_state_column_added_later_is_null_and_a_dropped_one_ignored(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    put(group, {"a": 1})
    evolved = StateSchema(SCHEMA.key, pa.schema([("v", pa.int64()), ("new", pa.float64())]))
    rows = from_stored(group.capture(1).table, evolved).table
    assert rows.select(["k", "v", "new"]).to_pylist() == [{"k": "a", "v": 1, "new": None}]
    assert not store.reads


def test_a_state_column_of_another_type_is_refused(tmp_path):
    group = group_of(SCHEMA, tmp_path)
    put(group, {"a": 1})
    table = group.capture(1).table
    with pytest.raises(StateSchemaChanged, match="'s'"):
        from_stored(table, StateSchema(SCHEMA.key, pa.schema([("s", pa.int64())])))


def test_another_key_column_is_refused(tmp_path):
    group = group_of(SCHEMA, tmp_path)
    put(group, {"a": 1})
    with pytest.raises(StateSchemaChanged, match="'other'"):
        from_stored(group.capture(1).table, StateSchema(pa.schema([("other", pa.string())]), SCHEMA.state))


@pytest.mark.parametrize("data", [b"", b"nonsense", b"ckgs\xff\xff\0\0\0\0"])
def test_an_unknown_state_value_is_a_typed_error(tmp_path, data):
    with pytest.raises(FormatUnknown):
        KeyGroupState.decode(data, SCHEMA, cache_of(SCHEMA, tmp_path), 0)


def test_a_state_value_of_another_schema_is_refused(tmp_path):
    group = group_of(SCHEMA, tmp_path)
    put(group, {"a": 1})
    other = StateSchema(SCHEMA.key, pa.schema([("v", pa.float64())]))
    with pytest.raises(StateSchemaChanged):
        KeyGroupState.decode(group.encode(), other, cache_of(other, tmp_path), 0)


WIDER = StateSchema(SCHEMA.key, pa.schema([("v", pa.float64()), ("s", pa.string()), ("more", pa.int32())]))


def outgrown_group(tmp_path, store, files):
    return KeyGroupState.restored(WIDER, cache_of(WIDER, tmp_path, store), 0, files, 1, outgrown=True)


def narrow_files(tmp_path, store):
    narrow = StateSchema(SCHEMA.key, pa.schema([("v", pa.int32()), ("s", pa.string())]))
    group = group_of(narrow, tmp_path, store)
    put(group, {"a": 1, "b": 2})
    snapshot(group, store, 1)
    return group.files


def test_the_first_snapshot_rewrites_unchanged_state_in_the_wider_type(tmp_path):
    store = MemoryStore()
    files = narrow_files(tmp_path, store)
    group = outgrown_group(tmp_path, store, files)
    assert values_in(group, ["a", "b"]) == {"a": 1.0, "b": 2.0}
    group = KeyGroupState.decode(group.encode(), WIDER, cache_of(WIDER, tmp_path, store), 0)
    assert not group.is_captured
    assert snapshot(group, store, 2)
    assert [(ref.kind, ref.rows) for ref in group.files] == [("full", 2)]
    assert store.files[group.files[0].path].schema.field("v").type == pa.float64()
    group = KeyGroupState.decode(group.encode(), WIDER, cache_of(WIDER, tmp_path, store), 0)
    assert group.is_captured
    assert not snapshot(group, store, 3)


def test_without_the_first_snapshot_the_next_incarnation_rewrites_the_state(tmp_path):
    store = MemoryStore()
    files = narrow_files(tmp_path, store)
    assert values_in(outgrown_group(tmp_path, store, files), ["a"]) == {"a": 1.0}  # leaves a local level
    again = outgrown_group(tmp_path, store, files)
    assert snapshot(again, store, 2)
    assert values_in(again, ["a", "b"]) == {"a": 1.0, "b": 2.0}


def test_a_group_without_files_has_nothing_to_rewrite(tmp_path):
    store = MemoryStore()
    assert not snapshot(outgrown_group(tmp_path, store, ()), store, 2)


def test_header_survives_encoding(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    put(group, {"a": 1})
    snapshot(group, store, 6)
    again = KeyGroupState.decode(group.encode(), SCHEMA, cache_of(SCHEMA, tmp_path, store), 0)
    assert (again.epoch, again.files) == (6, group.files)


def test_a_timeout_in_an_old_level_fires_once_although_the_level_stays(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    put(group, {"a": 1, "b": 2, "c": 3}, timeouts={"a": 10, "b": 20})
    snapshot(group, store, 1)
    assert due(group, 10) == [], "a timeout is due strictly after its time"
    assert due(group, 11) == ["a"]
    put(group, {"a": 1}, removed={"a"})
    snapshot(group, store, 2)
    assert due(group, 12) == []
    assert due(group, 21) == ["b"]


def test_a_timeout_cleared_since_the_snapshot_does_not_fire(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    put(group, {"a": 1, "b": 2}, timeouts={"a": 10, "b": 10})
    snapshot(group, store, 1)
    put(group, {"a": 1})
    assert due(group, 11) == ["b"]


def test_a_timeout_cleared_in_a_newer_level_does_not_fire(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    put(group, {f"k{i}": i for i in range(50)} | {"a": 1}, timeouts={"a": 10})
    snapshot(group, store, 1)
    put(group, {"a": 2})
    snapshot(group, store, 2)
    assert len(list(tmp_path.iterdir())) == 2
    assert due(group, 11) == []


def test_a_removed_key_stays_removed_when_newer_levels_are_merged(tmp_path):
    group = removed_above_another_level(tmp_path)
    assert values_in(group, ["k5", "k6", "k7"]) == {"k6": 60, "k7": 7}


def test_a_timeout_set_under_a_clock_that_went_back_fires_in_time(tmp_path):
    group = group_of(SCHEMA, tmp_path)
    assert due(group, 1000) == []
    put(group, {"a": 1}, timeouts={"a": 500})
    assert due(group, 600) == ["a"]


def test_a_clock_that_ran_ahead_does_not_swallow_later_timeouts(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    assert due(group, 1000) == []
    put(group, {"a": 1}, timeouts={"a": 500})
    snapshot(group, store, 1)
    assert due(group, 600) == ["a"]


def test_a_timeout_before_1970_fires_before_and_after_a_snapshot_and_a_restart(tmp_path):
    group, store = group_of(SCHEMA, tmp_path), MemoryStore()
    put(group, {"a": 1, "b": 2}, timeouts={"a": -5, "b": -1})
    assert due(group, -1) == ["a"]
    put(group, {"a": 1}, timeouts={"a": -5})
    snapshot(group, store, 1)
    restored = KeyGroupState.restored(SCHEMA, cache_of(SCHEMA, tmp_path / "new", store), 0, group.files, 1)
    assert restored.earliest_timeout_ms == -5
    assert due(restored, 1) == ["a", "b"]


def test_names_that_clash_are_refused():
    def struct(name, kind=None):
        return StructType([StructField(name, kind or StringType())])

    with pytest.raises(GraphInvalid, match="reserved"):
        state_schema(struct("ckpt_k"), struct("v"))
    with pytest.raises(GraphInvalid, match="k, K have one name"):
        state_schema(struct("k"), struct("K"))
    with pytest.raises(GraphInvalid, match="list"):
        state_schema(struct("k", ArrayType(LongType())), struct("v"))


@pytest.mark.parametrize("kind", [StructType(), ArrayType(StructType()), MapType(StringType(), StructType())])
def test_a_struct_without_fields_is_refused_in_state_edges_and_foreach_batch(kind):
    schema = StructType([StructField("s", kind)])
    for check in (
        lambda: state_schema(StructType([StructField("k", StringType())]), schema),
        lambda: EdgeSink("rows").check(None, schema),
        lambda: ForeachBatchSink(lambda frame, epoch: None).check(None, schema),
    ):
        with pytest.raises(GraphInvalid, match="struct without fields"):
            check()


@pytest.mark.parametrize("names", [["v", "v"], ["v", "V"]])
def test_columns_of_one_name_are_refused_in_edges_and_foreach_batch(names):
    schema = StructType([StructField(name, LongType()) for name in names])
    for sink in (EdgeSink("rows"), ForeachBatchSink(lambda frame, epoch: None)):
        with pytest.raises(GraphInvalid, match="have one name"):
            sink.check(None, schema)
