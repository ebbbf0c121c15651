import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_ckpt.tasks.failures import OutputInvalid
from spark_ckpt.tasks.rows import arrow_schema
from spark_ckpt.tasks.state.python_values import fraction_finder, to_arrow, to_python

POINT = StructType([StructField("x", LongType()), StructField("at", TimestampType())])
AT = dt.datetime(2024, 3, 31, 12, 30, 15, 123456)


def through(kind, values):
    field = StructField("v", kind)
    return to_python(to_arrow(values, field, arrow_schema(StructType([field])).field(0).type), kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (LongType(), -(2**63)),
        (DoubleType(), 0.1),
        (BooleanType(), False),
        (StringType(), "é"),
        (BinaryType(), b"\0\1"),
        (DateType(), dt.date(1, 1, 1)),
        (DecimalType(20, 3), Decimal("12.345")),
        (TimestampType(), AT),
        (TimestampNTZType(), AT),
        (ArrayType(TimestampType()), [AT, None]),
        (MapType(StringType(), ArrayType(LongType())), {"a": [1, None], "b": None}),
        (POINT, Row(3, AT)),
        (ArrayType(POINT), [Row(1, AT), None]),
    ],
)
def test_a_state_value_comes_back_as_it_was_put(kind, value):
    assert through(kind, [value, None]) == [value, None]


def test_a_struct_comes_back_as_a_row_with_field_names():
    (row,) = through(POINT, [{"x": 1, "at": AT}])
    assert (row.x, row.at, row) == (1, AT, Row(1, AT))


def test_timestamps_are_those_of_sparks_own_conversion():
    internal = TimestampType().toInternal(AT)
    (back,) = through(TimestampType(), [TimestampType().fromInternal(internal)])
    assert TimestampType().toInternal(back) == internal


@pytest.mark.parametrize("kind", [TimestampType(), TimestampNTZType(), DateType()])
@pytest.mark.parametrize("value", [pd.Timestamp(AT), pd.Timestamp(AT, tz="Asia/Tokyo")])
def test_pandas_times_inside_of_a_list_are_those_of_sparks_own_conversion(kind, value):
    ((back,),) = through(ArrayType(kind), [[value]])
    assert kind.toInternal(back) == kind.toInternal(value)


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_numpys_times_are_taken_as_times_without_a_zone(unit):
    times = np.array([AT, AT.replace(year=1969)], f"datetime64[{unit}]")
    assert through(ArrayType(TimestampNTZType()), [times]) == [[AT, AT.replace(year=1969)]]
    assert through(TimestampNTZType(), [times[0]]) == [AT]


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False)), max_size=20))
def test_doubles_keep_every_bit(values):
    assert through(DoubleType(), values) == values


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (LongType(), "seven"),
        (LongType(), 2**63),
        (StringType(), 5),
        (TimestampType(), "noon"),
        (POINT, (1,)),
        (LongType(), 1.5),
        (ArrayType(LongType()), [1.5]),
        (LongType(), Decimal("1.5")),
        (ArrayType(LongType()), [Decimal("1.5")]),
        (DateType(), pd.NaT),
        (TimestampNTZType(), pd.NaT),
        (TimestampNTZType(), np.datetime64("NaT", "us")),
        (ArrayType(TimestampType()), [pd.NaT]),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_column(kind, value):
    with pytest.raises(OutputInvalid, match="state column 'v'") as failure:
        through(kind, [None, value])
    assert repr(value) in str(failure.value)


class Whole(np.ndarray):
    """Numbers that are not looked at one by one."""

    def __iter__(self):
        raise AssertionError


def test_fractions_are_looked_for_by_the_type_of_an_array():
    found = fraction_finder(ArrayType(LongType()))
    assert found is not None
    assert not found(np.arange(3).view(Whole))
    assert found(np.array([1, 2.5])) and found([1, None, np.float32(0.5)])
    assert not found([1, None, 2.0, float("nan")])
