import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_fixtures import colliding, hashes_of, spread, with_hash

from spark_ckpt.tasks.rows import KEY_HASH, TIMEOUT
from spark_ckpt.tasks.state.key_index import KeyTable, distinct_keys

TYPES = {"a": pa.string(), "b": pa.float64(), "c": pa.int64()}
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["", "x", "y", None]),
        st.sampled_from([0.0, -0.0, 1.5, math.nan, None]),
        st.sampled_from([1, 2, None]),
    ),
    max_size=40,
)
HASHERS = st.sampled_from([spread, colliding, lambda key: 7])


def table_of(rows):
    columns = list(zip(*rows, strict=True)) or [()] * 3
    return pa.table(
        [pa.array(list(each), kind) for each, kind in zip(columns, TYPES.values(), strict=True)], list(TYPES)
    )


def identity(row):
    """Spark's equality of grouping keys: null equals null, NaN equals NaN, -0.0 equals 0.0."""
    return tuple("nan" if isinstance(each, float) and math.isnan(each) else each for each in row)


@given(ROWS, HASHERS)
def test_distinct_keys_are_those_of_a_dict_in_order_of_first_appearance(rows, hasher):
    keys = distinct_keys(with_hash(table_of(rows), list(TYPES), hasher), list(TYPES))
    first: dict[tuple, int] = {}
    expected = [first.setdefault(identity(row), len(first)) for row in rows]
    assert keys.row_key.tolist() == expected
    assert [identity(row) for row in zip(*(c.to_pylist() for c in keys.table.columns), strict=True)] == list(first)


@given(ROWS, ROWS, HASHERS)
def test_find_gives_the_place_of_exactly_the_keys_that_are_there(indexed, asked, hasher):
    known = distinct_keys(with_hash(table_of(indexed), list(TYPES), hasher), list(TYPES))
    order = np.argsort(known.hashes, kind="stable")
    rows = known.table.append_column(KEY_HASH, pa.array(known.hashes)).append_column(TIMEOUT, pa.array(known.hashes))
    table = KeyTable(rows.take(pa.array(order)), list(TYPES), TIMEOUT)
    places = {
        identity(row): i for i, row in enumerate(zip(*(c.to_pylist() for c in table.table.columns[:3]), strict=True))
    }
    wanted = table_of(asked)
    found = table.find(hashes_of(wanted, hasher), wanted)
    assert found.tolist() == [places.get(identity(row), -1) for row in asked]


def test_keys_have_no_minus_zero_and_one_nan():
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64).tolist()
    rows = table_of([("", each, 1) for each in (-0.0, 0.0, *nans, None)])
    keys = distinct_keys(with_hash(rows, list(TYPES), lambda key: 7), list(TYPES))
    zero, nan, null = keys.table.column("b").to_pylist()
    assert (math.copysign(1, zero), math.isnan(nan), null) == (1.0, True, None)


def test_two_keys_of_one_hash_are_distinguished_at_any_place_in_the_run():
    keys = pa.table({"a": [f"k{i}" for i in range(100)]})
    same = np.full(100, 5, np.int64)
    rows = keys.append_column(KEY_HASH, pa.array(same)).append_column(TIMEOUT, pa.array(same))
    table = KeyTable(rows, ["a"], TIMEOUT)
    assert table.find(same, keys).tolist() == list(range(100))
    assert table.find(same[:1], pa.table({"a": ["absent"]})).tolist() == [-1]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.date32(), [dt.date(2024, 1, 1), dt.date(1, 1, 1), None]),
        (
            pa.timestamp("us", tz="UTC"),
            [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(1970, 1, 1, tzinfo=dt.UTC), None],
        ),
        (pa.decimal128(10, 2), [Decimal("1.00"), Decimal("-1.00"), None]),
        (pa.bool_(), [True, False, None]),
        (pa.binary(), [b"a", b"", None]),
        (pa.int8(), [1, -1, None]),
    ],
)
def test_keys_of_every_simple_type_are_found(kind, values):
    keys = pa.table({"k": pa.array(values, kind)})
    same = np.zeros(3, np.int64)
    rows = keys.append_column(KEY_HASH, pa.array(same)).append_column(TIMEOUT, pa.array(same))
    assert KeyTable(rows, ["k"], TIMEOUT).find(same, keys).tolist() == [0, 1, 2]
    assert distinct_keys(keys.append_column(KEY_HASH, pa.array(same)), ["k"]).row_key.tolist() == [0, 1, 2]
