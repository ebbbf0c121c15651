import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.conversion import ArrowBatchTransformer

from spark_ckpt.tasks.operators import pandas_rows
from spark_ckpt.tasks.operators.pandas_rows import FrameSlices, PandasOptions, key_tuples, to_frame

BERLIN = PandasOptions(timezone="Europe/Berlin")
MOMENT = dt.datetime(2024, 3, 31, 0, 30, tzinfo=dt.UTC)
VALUES = {
    "i": (pa.int64(), [2**60 + 1, -1, None]),
    "h": (pa.int16(), [1, 2, None]),
    "b": (pa.bool_(), [True, False, None]),
    "x": (pa.float64(), [0.5, float("nan"), None]),
    "s": (pa.string(), ["", "é", None]),
    "t": (pa.timestamp("us", tz="Europe/Berlin"), [MOMENT, None]),
    "n": (pa.timestamp("us"), [MOMENT.replace(tzinfo=None), None]),
    "d": (pa.date32(), [dt.date(2024, 1, 1), dt.date(1, 1, 1), None]),
    "m": (pa.decimal128(10, 2), [Decimal("1.50"), None]),
    "y": (pa.binary(), [b"\0", None]),
    "a": (pa.list_(pa.int64()), [[1, 2], [], [3, None], None]),
    "r": (
        pa.struct([("p", pa.int64()), ("q", pa.string())]),
        [{"p": 1, "q": "z"}, {"p": None, "q": None}, None],
    ),
}


def sparks_frame(table, options):
    """Return the frame that Spark's serializer passes to the function for one group."""
    series = ArrowBatchTransformer.to_pandas(
        table,
        timezone=options.timezone,
        struct_in_pandas="dict",
        prefer_int_ext_dtype=options.prefer_int_ext_dtype,
    )
    return pd.concat(series, axis=1)


def tables(columns):
    cells = st.tuples(*(st.sampled_from(VALUES[name][1]) for name in columns))
    keys = st.lists(st.lists(cells, min_size=1, max_size=4), min_size=1, max_size=6)
    return keys.map(lambda keys: (keys, table_of([row for rows in keys for row in rows], columns)))


def table_of(rows, columns):
    types = [VALUES[name][0] for name in columns]
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(types)]
    return pa.table(arrays, list(columns))


COLUMNS = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5, unique=True)


@given(COLUMNS.flatmap(tables), st.booleans())
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_each_keys_frame_is_the_one_spark_would_make(keyed, extension_types):
    keys, table = keyed
    options = PandasOptions("Europe/Berlin", prefer_int_ext_dtype=extension_types)
    counts = np.array([len(rows) for rows in keys])
    ends = np.cumsum(counts)
    slices = FrameSlices(table, ends - counts, ends, options)
    for key, end in enumerate(ends):
        ours = slices.frame(key)
        theirs = sparks_frame(table.slice(end - counts[key], counts[key]), options)
        pd.testing.assert_frame_equal(ours, theirs, check_index_type="exact")
        for name in set(table.column_names) & {"a", "r"}:  # pandas' comparison is blind to types inside cells
            assert list(map(repr, ours[name])) == list(map(repr, theirs[name]))


def test_one_keys_null_does_not_turn_anothers_integers_into_floats():
    table = pa.table({"v": pa.array([2**53 + 1, None])})
    slices = FrameSlices(table, np.array([0, 1]), np.array([1, 2]), PandasOptions())
    assert slices.frame(0)["v"].tolist() == [2**53 + 1]
    assert slices.frame(0)["v"].dtype == np.int64
    assert slices.frame(1)["v"].dtype == np.float64


def test_each_row_is_converted_once_although_every_key_has_other_nulls(monkeypatch):
    """One conversion of all rows for each of up to two to the number of columns patterns would exhaust the memory."""
    converted = []

    def counted(table, options):
        converted.append(table.num_rows)
        return to_frame(table, options)

    monkeypatch.setattr(pandas_rows, "to_frame", counted)
    columns, keys = 5, 32
    table = pa.table({
        str(at): pa.array([key if row or not key >> at & 1 else None for key in range(keys) for row in range(2)])
        for at in range(columns)
    })  # fmt: skip
    ends = np.arange(2, 2 * keys + 2, 2)
    slices = FrameSlices(table, ends - 2, ends, BERLIN)
    frames = [slices.frame(key) for key in range(keys)]
    assert sum(converted) == table.num_rows
    for key, frame in enumerate(frames):
        assert frame.iloc[1].tolist() == [key] * columns
        assert [kind == np.float64 for kind in frame.dtypes] == [bool(key >> at & 1) for at in range(columns)]


def test_a_frame_may_be_changed_without_touching_anothers():
    table = pa.table({"v": [1, 2, 3, 4]})
    slices = FrameSlices(table, np.array([0, 2]), np.array([2, 4]), PandasOptions())
    with pd.option_context("mode.chained_assignment", None):
        first = slices.frame(0)
        first["w"] = first["v"] * 2
        first.loc[1, "v"] = 99
    assert slices.frame(1)["v"].tolist() == [3, 4]
    assert slices.frame(1).columns.tolist() == ["v"]


@given(COLUMNS.filter(lambda names: not set(names) & {"a", "r"}).flatmap(tables))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_key_tuples_are_those_spark_makes_from_a_groups_first_row(keyed):
    _, table = keyed
    for row, ours in enumerate(key_tuples(table, BERLIN)):
        frame = sparks_frame(table.slice(row, 1), BERLIN)
        theirs = tuple(frame[name][0] for name in frame.columns)
        assert [type(each) for each in ours] == [type(each) for each in theirs]
        assert repr(ours) == repr(theirs)


def test_stored_utc_timestamps_become_naive_in_the_sessions_zone():
    table = pa.table({"t": pa.array([MOMENT], pa.timestamp("us", tz="UTC"))})
    assert to_frame(table, BERLIN)["t"][0] == pd.Timestamp("2024-03-31 01:30:00")


@pytest.mark.parametrize("rows", [0, 3])
def test_a_table_without_columns_is_a_frame_without_columns(rows):
    assert to_frame(pa.table({"v": range(rows)}).select([]), BERLIN).shape[1] == 0
