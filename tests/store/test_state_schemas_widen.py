"""State stays under a schema that holds every old value; every other schema is refused with the difference."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType
from store_world import OPERATOR, World

from spark_ckpt.driver.query.state_check import check_state
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, StateFile
from spark_ckpt.errors import StateSchemaChanged
from spark_ckpt.plan.graph import ddl
from spark_ckpt.store.ddl import arrow_schema, column_names
from spark_ckpt.store.state_rows import keyed_to_compare
from spark_ckpt.store.widening import types_change, value_differences, widened

WIDENS = [
    ("tinyint", "smallint"), ("tinyint", "int"), ("tinyint", "bigint"), ("tinyint", "double"), ("smallint", "int"),
    ("smallint", "bigint"), ("smallint", "double"), ("int", "bigint"), ("int", "double"), ("float", "double"),
    ("date", "timestamp_ntz"), ("decimal(10,2)", "decimal(12,2)"), ("decimal(10,2)", "decimal(12,4)"),
    ("tinyint", "decimal(10,0)"), ("int", "decimal(12,2)"), ("bigint", "decimal(20,0)"), ("bigint", "decimal(22,2)"),
    ("array<int>", "array<bigint>"), ("map<string,int>", "map<string,bigint>"), ("map<int,date>", "map<bigint,date>"),
    ("struct<a:int>", "struct<a:bigint>"), ("struct<a:int>", "struct<a:int,b:string>"),
    ("array<struct<a:int,b:map<string,float>>>", "array<struct<a:double,b:map<string,double>,c:date>>"),
]  # fmt: skip
NO_MORE = "v was {}, is {}, which does not hold every {}"
REFUSED = [
    *(
        (before, now, NO_MORE.format(before, now, before))
        for before, now in [
            ("smallint", "tinyint"), ("int", "smallint"), ("bigint", "int"), ("double", "float"), ("bigint", "double"),
            ("double", "bigint"), ("int", "float"), ("float", "int"), ("decimal(12,2)", "decimal(10,2)"),
            ("decimal(10,2)", "decimal(10,4)"), ("decimal(10,4)", "decimal(12,2)"), ("decimal(10,2)", "int"),
            ("int", "decimal(9,0)"), ("int", "decimal(10,2)"), ("bigint", "decimal(19,0)"), ("decimal(10,2)", "double"),
        ]
    ),
    ("timestamp_ntz", "date", "v was timestamp_ntz, is date"),
    ("date", "timestamp", "v was date, is timestamp, whose midnight depends on a time zone; timestamp_ntz has none"),
    ("timestamp", "timestamp_ntz", "v was timestamp, is timestamp_ntz"),
    ("int", "string", "v was int, is string"),
    ("string", "binary", "v was string, is binary"),
    ("int", "array<int>", "v was int, is array<int>"),
    ("array<int>", "map<int,int>", "v was array<int>, is map<int,int>"),
    ("array<bigint>", "array<int>", NO_MORE.replace("v", "v.element", 1).format("bigint", "int", "bigint")),
    ("map<string,bigint>", "map<string,int>", NO_MORE.replace("v", "v.value", 1).format("bigint", "int", "bigint")),
    ("struct<a:struct<b:double>>", "struct<a:struct<b:float>>",
     NO_MORE.replace("v", "v.a.b", 1).format("double", "float", "double")),
    ("struct<a:int,b:int>", "struct<a:int>", "the fields of v were a, b, are a"),
    ("struct<a:int>", "struct<b:int,a:int>", "the fields of v were a, are b, a"),
]  # fmt: skip


def snapshot_of(state: str, key: str = "k string") -> OperatorSnapshot:
    return OperatorSnapshot(operator=OPERATOR, key_groups=1, key_schema=key, state_schema=state)


@pytest.mark.parametrize(("before", "now"), WIDENS)
def test_a_wider_type_replaces_a_narrower_one_and_not_the_reverse(before: str, now: str) -> None:
    check_state(snapshot_of(f"v {before}"), "k string", f"v {now}", 3)
    check_state(snapshot_of(f"n int, v {before}"), "k string", f"n int, v {now}, more string", 3)
    assert types_change(f"v {before}", f"v {now}")
    with pytest.raises(StateSchemaChanged):
        check_state(snapshot_of(f"v {now}"), "k string", f"v {before}", 3)


@pytest.mark.parametrize(("before", "now", "difference"), REFUSED)
def test_a_schema_that_may_not_hold_every_value_is_refused_with_the_difference(
    before: str, now: str, difference: str
) -> None:
    with pytest.raises(StateSchemaChanged) as refused:
        check_state(snapshot_of(f"n int, v {before}"), "k string", f"n int, v {now}", 3)
    assert refused.value.context["difference"] == f"state column {difference}"
    assert refused.value.context["epoch"] == 3
    assert "may widen" in refused.value.hint
    # A new name alone leaves the old state behind, for which the next start asks.
    assert f"accept_dropped_operator='{OPERATOR}'" in refused.value.hint


@pytest.mark.parametrize(
    ("declared", "difference"),
    [
        ("a int, b array<struct<x:int,y:string>>, c string", []),
        ("a int, b array<struct<x:int,y:int>>", ["b.element.y was string, is int"]),
        ("c int, b array<struct<x:int,y:string>>", ["a is gone"]),
        ("b array<struct<x:int,y:string>>, a int", ["the order was a, b, is b, a"]),
        ("c int, a int, b array<struct<x:int,y:string>>", ["the order was a, b, is c, a, b"]),
    ],
)
def test_the_difference_of_a_state_is_listed_by_column(declared: str, difference: list[str]) -> None:
    assert value_differences("a int, b array<struct<x:int,y:string>>", declared) == difference


@pytest.mark.parametrize(
    ("declared", "difference"),
    [
        ("k bigint", "k was int, is bigint: a key's type decides its key group"),
        ("k int, more int", "more is new"),
        ("other int", "k is gone; key column other is new"),
    ],
)
def test_keys_do_not_widen(declared: str, difference: str) -> None:
    with pytest.raises(StateSchemaChanged) as refused:
        check_state(snapshot_of("v int", "k int"), declared, "v int", 3)
    assert refused.value.context["difference"] == f"key column {difference}"


def test_a_key_in_another_case_is_refused_with_the_call_that_keeps_its_state() -> None:
    with pytest.raises(StateSchemaChanged) as refused:
        check_state(snapshot_of("v int", "at date, K string"), "at date, k string", "v int", 3)
    assert '.withColumnRenamed("k", "K");' in refused.value.hint
    check_state(snapshot_of("v int", "at date, K string"), "at date, K string", "v int", 3)


def test_an_added_column_changes_no_type() -> None:
    assert not types_change("v int", "v int, more string")


VALUES = {
    "tinyint": st.integers(-(2**7), 2**7 - 1), "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1), "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False), "date": st.dates(),
    "decimal(10,2)": st.decimals(allow_nan=False, places=2, min_value=-99_999_999, max_value=99_999_999),
}  # fmt: skip


@given(data=st.data(), pair=st.sampled_from([each for each in WIDENS if each[0] in VALUES]))
def test_every_value_is_the_same_in_the_wider_type(data: st.DataObject, pair: tuple[str, str]) -> None:
    values = data.draw(st.lists(st.none() | VALUES[pair[0]], min_size=1))
    table = pa.table([pa.array(values, arrow_schema(f"v {pair[0]}").field("v").type)], names=["v"])
    wide = widened(table, f"v {pair[0]}", f"v {pair[1]}, more string")
    assert wide.schema == arrow_schema(f"v {pair[1]}, more string")
    found = [each.date() if isinstance(each, dt.datetime) else each for each in wide.column("v").to_pylist()]
    assert found == values


# -- the state's table --------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.begin()
    return made


def rewritten(world: World, values: dict[str, object], type_: pa.DataType, declared: str) -> Manifest:
    """Commit the next epoch: the whole state, in one full file of the new type."""
    epoch = world.line.base + 1
    rows = pa.table(
        {
            "k": list(values),
            "v": pa.array(values.values(), type_),
            "ckpt_key_group": pa.array([0] * len(values), pa.int32()),
            "ckpt_key_hash": pa.array(range(len(values)), pa.int64()),
            "ckpt_epoch": pa.array([epoch] * len(values), pa.int64()),
            "ckpt_op": ["put"] * len(values),
            "ckpt_timeout_ms": pa.array([None] * len(values), pa.int64()),
        }
    )
    path = f"i1-e{epoch}-g0-{declared.replace(' ', '-')}.parquet"
    size = world.store.state(OPERATOR).location.write_table(path, rows).size_bytes
    ranges = ((0, len(values), 0, size),)
    file = StateFile(path=path, size_bytes=size, ranges=ranges, epoch=epoch, incarnation=1, kind="full")
    world.line.chain = (file,)
    manifest = world.manifest()
    snapshot = manifest.operators[OPERATOR].model_copy(update={"state_schema": declared})
    manifest = manifest.model_copy(update={"operators": {OPERATOR: snapshot}})
    world.commit(manifest)
    return manifest


def table_at(world: World, version: int | None = None) -> DeltaTable:
    return DeltaTable(world.store.state(OPERATOR).location.uri, version=version)


def types_of(table: DeltaTable) -> dict[str, str]:
    return {each.name: each.type.type for each in table.schema().fields}


def test_one_version_widens_the_table_and_older_versions_keep_their_types(
    world: World,
) -> None:
    world.epoch({"a": 1, "b": 2})
    state = world.store.state(OPERATOR)
    before = state.version(1)
    values = {"a": decimal.Decimal(1), "b": decimal.Decimal(2**70)}
    manifest = rewritten(world, values, pa.decimal128(30, 2), "v decimal(30,2)")
    world.store.materialize(manifest)
    assert state.version(2) == before + 1
    assert types_of(table_at(world))["v"] == "decimal(30,2)"
    assert [each.rsplit("/", 1)[-1] for each in table_at(world).file_uris()] == [world.line.chain[0].path]
    assert types_of(table_at(world, before))["v"] == "long"
    assert len(table_at(world, before).file_uris()) == 1
    assert state.read(1).column("v").type == pa.int64()
    assert sorted(state.read(2).column("v").to_pylist()) == [1, 2**70]
    world.store.materialize(manifest)
    assert table_at(world).version() == before + 1
    world.store.verify(manifest, deep=True)


def test_a_restore_returns_the_table_to_the_narrower_type(world: World) -> None:
    world.epoch({"a": 1})
    first = world.store.log.manifest(1)
    world.store.materialize(rewritten(world, {"a": 1.0}, pa.float64(), "v double"))
    assert types_of(table_at(world))["v"] == "double"
    point = world.begin(restore=1)
    world.store.materialize(first, point.incarnation)
    assert types_of(table_at(world))["v"] == "long"
    assert [each.rsplit("/", 1)[-1] for each in table_at(world).file_uris()] == [
        first.operators[OPERATOR].files[0].path
    ]


def test_epochs_of_both_sides_are_compared_by_value(world: World) -> None:
    world.epoch({"a": 1, "b": 2})
    rewritten(world, {"a": decimal.Decimal(1), "b": decimal.Decimal(3)}, pa.decimal128(30, 2), "v decimal(30,2)")
    old, new = keyed_to_compare(world.store, OPERATOR, 1, 2, {}), keyed_to_compare(world.store, OPERATOR, 2, 1, {})
    assert {key: values for key, (_, values) in old.items()} == {"['a']": {"v": "1.00"}, "['b']": {"v": "2.00"}}
    assert [key for key in new if old[key] != new[key]] == ["['b']"]


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


@given(st.lists(NAMES, min_size=1, max_size=4, unique=True))
def test_columns_of_any_name_are_read_as_they_are_written(names: list[str]) -> None:
    inside = StructType()
    for name in names:
        inside = inside.add(name, StringType())
    rows = StructType().add("n", LongType())
    for name in names:
        rows = rows.add(name, MapType(StringType(), ArrayType(inside)))
    text = ddl(rows)
    assert column_names(text) == ["n", *names]
    nested = pa.map_(pa.string(), pa.list_(pa.struct([(name, pa.string()) for name in names])))
    assert arrow_schema(text) == pa.schema([("n", pa.int64()), *((name, nested) for name in names)])
