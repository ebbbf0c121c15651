"""Values of Spark 4.2's `xxhash64` (integration_tests/runtime/test_chains.py compares many more with a running Spark)."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from spark_ckpt.tasks.key_hash import can_hash, key_hash


def hashes(**columns):
    return key_hash(pa.table(columns), list(columns)).tolist()


def test_the_vectors_of_the_specification():
    assert hashes(k=pa.array([b""], pa.binary())) == [np.uint64(0x98B1582B0977E704).astype(np.int64)]


def test_a_null_leaves_the_hash_of_the_columns_before():
    assert hashes(a=pa.array([1, 2]), b=pa.array([None, None], pa.string())) == hashes(a=pa.array([1, 2]))


def test_zeros_are_one_key_and_so_are_nans():
    one, other = hashes(k=pa.array([0.0, -0.0]))
    assert one == other
    first, second = hashes(k=pa.array(np.array([0x7FF8000000000000, 0xFFF8000000000001], "u8").view("f8")))
    assert first == second


def test_a_slice_is_hashed_as_its_rows():
    whole = pa.table({"k": ["", "a", "bc", "d" * 40, None, "é" * 33]})
    assert key_hash(whole.slice(2, 3), ["k"]).tolist() == key_hash(whole, ["k"]).tolist()[2:5]


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=20))
def test_neighbouring_values_do_not_change_a_hash(values):
    together = hashes(k=pa.array(values, pa.binary()))
    assert together == [hashes(k=pa.array([each], pa.binary()))[0] for each in values]


@pytest.mark.parametrize(
    "kind", [T.DecimalType(10, 2), T.StringType("UNICODE_CI"), T.ArrayType(T.LongType()), T.StructType()], ids=str
)
def test_other_types_are_refused(kind):
    assert not can_hash(kind)


def test_days_and_moments_are_hashed_as_their_numbers():
    assert hashes(k=pa.array([dt.date(1970, 1, 3)])) == hashes(k=pa.array([2], pa.int32()))
    assert hashes(k=pa.array([7], pa.timestamp("us", "UTC"))) == hashes(k=pa.array([7]))
