"""Rows in flight stay under a schema that holds every old value; any other schema is refused with the difference."""

from __future__ import annotations

import json
from dataclasses import asdict

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from store_world import EDGE, World

from spark_ckpt.driver.query.state_check import check_in_flight
from spark_ckpt.epochs.records import EdgeCut, Manifest, StagedFileRecord
from spark_ckpt.errors import GraphInvalid, StateSchemaChanged
from spark_ckpt.spark_internals.arrow_types import spark_schema_of
from spark_ckpt.store.ddl import arrow_schema
from spark_ckpt.tasks.stage_tasks import segment_reader

NARROW, WIDE = (
    "k string, v int, inner struct<a:int>",
    "k string, v bigint, inner struct<a:bigint,b:string>, note string",
)


def segment(world: World, columns: str, *rows: dict[str, object]) -> StagedFileRecord:
    """Write a segment as a task does."""
    table = pa.Table.from_pylist(list(rows), schema=arrow_schema(columns))
    path = f"ckpt-{EDGE}-i{world.line.incarnation}-b0-t0-0-{len(columns)}.parquet"
    size, sha256 = world.store.edge(EDGE).location.write_table(path, table)
    return StagedFileRecord(
        path=path, size_bytes=size, rows=len(rows), lane=0, batch=0, task=0, part=0, stats="{}", sha256=sha256
    )


def cut(columns: str, *files: StagedFileRecord) -> EdgeCut:
    return EdgeCut(
        edge=EDGE, row_schema=columns, consumed=3, produced=3 + sum(each.rows for each in files), files=files
    )


def base(columns: str, *files: StagedFileRecord) -> Manifest:
    edges = {EDGE: cut(columns, *files)}
    return Manifest(job="j", epoch=7, incarnation=1, attempt="a", created_ms=0, edges=edges)


FILE = StagedFileRecord(path="s", size_bytes=1, rows=2, lane=0, batch=0, task=0, part=0)


@pytest.mark.parametrize("declared", [NARROW, WIDE, "k string, v decimal(10,0), inner struct<a:int>"])
def test_an_edge_may_have_columns_that_hold_the_rows_in_flight(declared: str) -> None:
    check_in_flight({EDGE: declared}, base(NARROW, FILE))


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (NARROW, "column v was bigint, is int, which does not hold every bigint; "
         "the fields of inner were a, b, are a; column note is gone"),
        (WIDE.replace("v bigint", "v string"), "column v was bigint, is string"),
        ("note string, " + WIDE.removesuffix(", note string"),
         "column the order was k, v, inner, note, is note, k, v, inner"),
    ],
)  # fmt: skip
def test_an_edge_whose_columns_do_not_hold_the_rows_in_flight_is_refused_with_the_difference(
    declared: str, said: str
) -> None:
    with pytest.raises(StateSchemaChanged, match="2 rows in flight on edge 'loop' with k string, v bigint") as refused:
        check_in_flight({EDGE: declared}, base(WIDE, FILE))
    assert set(refused.value.context["difference"].split("; ")) == {
        each if each.startswith("column") else f"column {each}" for each in said.split("; ")
    }


def test_an_edge_without_rows_may_change_its_columns_or_be_removed() -> None:
    check_in_flight({EDGE: "other int"}, base(WIDE))
    check_in_flight({}, base(WIDE))
    with pytest.raises(GraphInvalid, match="which the job no longer has"):
        check_in_flight({}, base(WIDE, FILE))


def test_tasks_read_segments_of_an_older_program_in_the_columns_of_this_one(world: World) -> None:
    old = segment(world, NARROW, {"k": "a", "v": 1, "inner": {"a": 2}}, {"k": "b", "v": None, "inner": None})
    new = segment(world, WIDE, {"k": "a", "v": 2**40, "inner": {"a": 2**40, "b": "x"}, "note": "n"})
    read = segment_reader(EDGE, world.store.edge(EDGE).location, spark_schema_of(arrow_schema(WIDE)))
    names = pa.RecordBatch.from_pylist([{"name": json.dumps(asdict(each))} for each in (old, new)])

    found = list(read(iter([names])))

    assert {each.schema for each in found} == {arrow_schema(WIDE)}
    assert [row for each in found for row in each.to_pylist()] == [
        {"k": "a", "v": 1, "inner": {"a": 2, "b": None}, "note": None},
        {"k": "b", "v": None, "inner": None, "note": None},
        {"k": "a", "v": 2**40, "inner": {"a": 2**40, "b": "x"}, "note": "n"},
    ]


def test_an_epochs_rows_of_both_programs_are_read_in_the_columns_of_the_newer(world: World) -> None:
    old = segment(world, "k string, v int", {"k": "a", "v": 1})
    new = segment(world, "k string, v bigint, note string", {"k": "b", "v": 2**40, "note": "n"})
    manifest = world.manifest()
    world.commit(manifest.model_copy(update={"edges": {EDGE: cut("k string, v bigint, note string", old, new)}}))
    both = [{"k": "a", "v": 1, "note": None}, {"k": "b", "v": 2**40, "note": "n"}]

    assert world.store.edge(EDGE).read(manifest.epoch).to_pylist() == both


def test_the_edges_table_has_the_wider_columns_and_rows_of_both_programs(world: World) -> None:
    old = segment(world, "k string, v int", {"k": "a", "v": 1})
    new = segment(world, "k string, v bigint, note string", {"k": "b", "v": 2**40, "note": "n"})
    for columns, files in (("k string, v int", [old]), ("k string, v bigint, note string", [old, new])):
        manifest = world.manifest().model_copy(update={"edges": {EDGE: cut(columns, *files)}})
        world.commit(manifest)
        world.store.materialize(manifest)

    table = DeltaTable(world.store.edge(EDGE).location.uri)
    rows = pa.table(QueryBuilder().register("t", table).execute("select * from t order by k").read_all()).to_pylist()
    assert rows == [{"k": "a", "v": 1, "note": None}, {"k": "b", "v": 2**40, "note": "n"}]
