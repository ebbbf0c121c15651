"""Merging of sorted tables of a key group, against a dictionary."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.tasks.rows import DELETE, NO_TIMEOUT, OP, PUT, TIMEOUT, StateSchema
from spark_ckpt.tasks.state.key_index import KeyTable
from spark_ckpt.tasks.state.merging import merged, sorted_table

SCHEMA = StateSchema(pa.schema([("k", pa.string()), ("f", pa.float64())]), pa.schema([("v", pa.int64())]))
Key = tuple[str | None, float | None]
Row = tuple[int | None, int, int]
"""Value, operation, timeout."""
KEYS: list[Key] = [(name, number) for name in ("a", "b", None) for number in (0.0, 1.5, math.nan, None)]
ROWS = st.tuples(st.just(1), st.sampled_from([PUT, DELETE]), st.sampled_from([NO_TIMEOUT, 5]))
TABLES = st.lists(st.dictionaries(st.integers(0, len(KEYS) - 1), ROWS, max_size=8), min_size=1, max_size=5)


def _hash(number: int) -> int:
    """Return a hash; many different keys have the same."""
    return number % 3 - 1


def _table(rows: dict[int, Row], value: int) -> KeyTable:
    """`rows` by number of their key; every value is `value`, to know the table that a row is from."""
    keys = [KEYS[number] for number in rows]
    columns = [
        pa.array([_hash(number) for number in rows], pa.int64()),
        pa.array([key[0] for key in keys], pa.string()),
        pa.array([key[1] for key in keys], pa.float64()),
        pa.array([value] * len(rows), pa.int64()),
        pa.array([row[1] for row in rows.values()], pa.int8()),
        pa.array([row[2] for row in rows.values()], pa.int64()),
    ]
    return sorted_table(pa.table(columns, schema=SCHEMA.table), SCHEMA)


def _rows(keys: KeyTable) -> dict[int, tuple[int, int, int]]:
    found = {}
    for row in keys.table.to_pylist():
        key = ("nan" if row["f"] is not None and math.isnan(row["f"]) else row["f"], row["k"])
        number = next(
            n for n, (name, f) in enumerate(KEYS) if key == ("nan" if f is not None and math.isnan(f) else f, name)
        )
        assert number not in found, f"key {number} is there twice"
        found[number] = (row["v"], row[OP], row[TIMEOUT])
    return found


@pytest.mark.parametrize("drop_deletes", [False, True])
@given(tables=TABLES)
def test_the_newest_row_of_every_key_is_left(tables: list[dict[int, Row]], drop_deletes: bool) -> None:
    expected: dict[int, tuple[int, int, int]] = {}
    for age, rows in reversed(list(enumerate(tables))):
        expected |= {number: (age, op, timeout) for number, (_, op, timeout) in rows.items()}
    if drop_deletes:
        expected = {n: row for n, row in expected.items() if row[1:] != (DELETE, NO_TIMEOUT)}

    found = merged([_table(rows, age) for age, rows in enumerate(tables)], SCHEMA, drop_deletes=drop_deletes)

    assert _rows(found) == expected
    assert (np.diff(found.hashes) >= 0).all(), "the merged table is sorted by hash"


@given(rows=st.dictionaries(st.integers(0, len(KEYS) - 1), ROWS, min_size=1), twice=st.data())
def test_a_duplicate_key_is_found_and_equal_hashes_are_not_duplicates(
    rows: dict[int, Row], twice: st.DataObject
) -> None:
    once = _table(rows, 0)
    again = twice.draw(st.sampled_from(list(rows)))
    both = pa.concat_tables([once.table, _table({again: rows[again]}, 1).table])

    assert not once.has_a_key_twice()
    assert sorted_table(both, SCHEMA).has_a_key_twice()


@given(tables=TABLES)
def test_a_merged_table_finds_what_it_holds(tables: list[dict[int, Row]]) -> None:
    found = merged([_table(rows, age) for age, rows in enumerate(tables)], SCHEMA, drop_deletes=False)
    assert found.find(found.hashes, found.table.select(["k", "f"])).tolist() == list(range(len(found)))


def test_a_key_group_beyond_arrows_offsets_names_the_way_to_more_groups():
    """Arrays of nulls take no memory; of texts, the limit is 2 GiB."""
    schema = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("rows", pa.list_(pa.null()))]))
    tables = []
    for key in (0, 1):
        column, many = pa.array([key]), 1_100_000_000
        rows = pa.ListArray.from_arrays(pa.array([0, many], pa.int32()), pa.nulls(many))
        columns = [column, column, rows, pa.array([PUT], pa.int8()), pa.array([NO_TIMEOUT])]
        tables.append(sorted_table(pa.table(columns, schema=schema.table), schema))

    with pytest.raises(ConfigInvalid, match="operator with key k is too large") as refused:
        merged(tables, schema, drop_deletes=True)
    assert "spark-ckpt rescale" in refused.value.hint
