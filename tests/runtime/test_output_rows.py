import datetime as dt
import json
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_ckpt.tasks.failures import OutputInvalid
from spark_ckpt.tasks.operators.output_rows import Frames, OutputRows, to_table
from spark_ckpt.tasks.operators.pandas_rows import PandasOptions

SCHEMA = StructType([StructField("k", StringType()), StructField("v", LongType())])
BERLIN = PandasOptions(timezone="Europe/Berlin")


def rows_of(items, schema=SCHEMA):
    output = OutputRows(schema, BERLIN)
    for item in items:
        output.add(item)
    tables = output.tables()
    assert all(table.schema.equals(output.arrow) for table in tables)
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def test_frames_tuples_rows_and_dicts_mix_in_the_order_they_were_yielded():
    items = [
        ("a", 1),
        pd.DataFrame({"k": ["b", "c"], "v": [2, 3]}),
        Row("d", 4),
        {"v": 5, "k": "e"},
        pd.DataFrame(),
    ]
    items.append(pd.DataFrame({"v": [6], "k": ["f"]}))
    assert rows_of(items) == [(name, i) for i, name in enumerate("abcdef", 1)]


SHAPES = (
    lambda v: pd.DataFrame({"k": ["a"], "v": [v]}),
    lambda v: pd.DataFrame({"v": [v, v + 1], "k": ["b", None]}),
    lambda v: pd.DataFrame({"k": ["c"], "v": [float(v)]}),
    lambda v: pd.DataFrame({"k": ["d", "e"], "v": [float(v), None]}),
    lambda v: pd.DataFrame({"k": ["f"], "v": pd.array([v], "Int64")}),
    lambda v: pd.DataFrame({"k": pd.Categorical(["g"]), "v": [v]}),
    lambda v: pd.DataFrame([["h", v]]),
    lambda v: pd.DataFrame({"k": ["i", "j"], "v": [v, v]}, index=[7, 7]),
)


@given(st.lists(st.tuples(st.sampled_from(SHAPES), st.integers(0, 99)), min_size=1, max_size=12))
def test_frames_are_joined_as_pandas_joins_them(chosen):
    frames = [shape(value) for shape, value in chosen]
    joined = Frames()
    for frame in frames:
        joined.add(frame)
    expected = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    (found,) = joined.joined()
    pd.testing.assert_frame_equal(found.reset_index(drop=True), expected.reset_index(drop=True))


@pytest.mark.parametrize("kind", ["int64", "Int64"])
def test_a_null_of_one_key_rounds_no_large_number_of_another(kind):
    large = 2**53 + 1
    frames = [pd.DataFrame({"k": ["a"], "v": pd.array([large], kind)}), pd.DataFrame({"k": ["b", "c"], "v": [1, None]})]
    assert rows_of([*frames, frames[0]]) == [("a", large), ("b", 1), ("c", None), ("a", large)]


def test_the_error_names_the_key_of_a_frame_that_was_converted_apart():
    output = OutputRows(SCHEMA, BERLIN)
    for key, values in (("a", [2**53 + 1, 2]), ("b", [1.0, None]), ("c", [0.5])):
        output.begins((key,))
        output.add(pd.DataFrame({"k": [key] * len(values), "v": values}))
    with pytest.raises(OutputInvalid, match="cannot hold") as refused:
        output.tables()
    assert refused.value.context["key"] == "('c',)"


def test_missing_dict_keys_are_null():
    assert rows_of([{"k": "a"}]) == [("a", None)]


def test_numpy_scalars_and_pandas_nulls_are_taken_as_they_are_meant():
    assert rows_of([("a", np.int32(4)), (None, np.nan), ("b", pd.NA)]) == [
        ("a", 4),
        (None, None),
        ("b", None),
    ]
    assert rows_of([("a", 4.0), ("b", np.float32(5))]) == [("a", 4), ("b", 5)]


def test_a_fraction_is_never_cut_off_even_after_a_nan():
    with pytest.raises(OutputInvalid, match=r"cannot hold 1\.5"):
        rows_of([("a", np.nan), ("a", 1.5)])


def test_a_fraction_of_a_decimal_is_never_cut_off():
    many = Decimal("4.000000000000000000000000000000000000")  # more digits than Python's context has
    assert rows_of([("a", Decimal(3)), ("b", many), ("c", Decimal("NaN"))]) == [("a", 3), ("b", 4), ("c", None)]
    with pytest.raises(OutputInvalid, match=r"cannot hold Decimal\('1\.5'\)"):
        rows_of([("a", Decimal(3)), ("a", Decimal("1.5"))])


def test_a_text_that_is_no_unicode_names_its_column():
    with pytest.raises(OutputInvalid, match="output column 'k'") as refused:
        rows_of([("a", 1), (json.loads('"\\ud83d"'), 1)])
    assert refused.value.row == 1


WHOLE = StructType([StructField("n", LongType())])


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (ArrayType(LongType()), [1, 2.0, None, math.nan], [1, 1.5]),
        (ArrayType(ArrayType(LongType())), [[1], None], [[], [np.float32(-0.5)]]),
        (ArrayType(LongType()), [Decimal(2)], [1, Decimal("1.5")]),
        (MapType(StringType(), LongType()), {"a": 1.0}, {"a": 1, "b": 0.5}),
        (MapType(LongType(), StringType()), {1.0: "a"}, {1: "a", 0.5: "b"}),
        (WHOLE, {"n": 2.0}, {"n": 2.5}), (WHOLE, Row(n=3), Row(n=3.5)), (WHOLE, (4,), (4.5,)),
    ],
)  # fmt: skip
def test_a_fraction_inside_a_yielded_value_is_never_cut_off(kind, good, bad):
    schema = StructType([StructField("x", kind)])
    assert len(rows_of([(good,), (None,)], schema)) == 2
    with pytest.raises(OutputInvalid, match="output column 'x'") as refused:
        rows_of([(good,), (bad,)], schema)
    assert refused.value.row == 1


def test_nan_stays_a_number_in_a_double_column_of_a_tuple():
    schema = StructType([StructField("x", DoubleType())])
    ((nan,), (null,)) = rows_of([(float("nan"),), (None,)], schema)
    assert nan != nan
    assert null is None


def test_naive_timestamps_are_in_the_sessions_zone_in_tuples_as_in_frames():
    schema = StructType([StructField("t", TimestampType())])
    naive = dt.datetime(2024, 7, 1, 12)
    expected = [(dt.datetime(2024, 7, 1, 10, tzinfo=dt.UTC),)]
    assert rows_of([(naive,)], schema) == rows_of([pd.DataFrame({"t": [naive]})], schema) == expected
    assert rows_of([(None,)], schema) == [(None,)]


def test_every_simple_type_and_nested_ones_pass_as_tuples():
    schema = StructType(
        [
            StructField("d", DateType()),
            StructField("m", DecimalType(10, 2)),
            StructField("a", ArrayType(LongType())),
            StructField("p", SCHEMA),
        ]
    )
    row = (dt.date(2024, 1, 1), Decimal("1.50"), [1, 2], {"k": "x", "v": 1})
    assert rows_of([row, (None,) * 4], schema) == [row, (None,) * 4]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (("a", "b"), "'v'.*cannot hold 'b'"),
        (("a", 1.5), "'v'.*cannot hold 1.5"),
        ((5, 1), "'k'.*cannot hold 5"),
        (("a",), r"1 value \(str\), the output schema has 2"),
        ({"k": "a", "w": 1}, "'w'"),
    ],
)
def test_rows_that_do_not_fit_the_schema_say_what_and_where(item, message):
    with pytest.raises(OutputInvalid, match=message):
        rows_of([("ok", 1), item])


@pytest.mark.parametrize("item", [5, "text", ["a", 1], None])
def test_anything_else_is_refused(item):
    with pytest.raises(OutputInvalid, match="no row and no frame"):
        rows_of([item])


def test_a_frame_with_other_columns_names_the_missing_one():
    with pytest.raises(OutputInvalid, match="lacks") as refused:
        rows_of([pd.DataFrame({"k": ["a"]})])
    assert refused.value.context["column"] == "v"


def test_a_row_keeps_what_its_lists_and_dicts_held_when_it_was_yielded():
    nested = StructType([StructField("n", ArrayType(LongType())), StructField("m", MapType(StringType(), LongType()))])
    schema = StructType([*nested, StructField("s", nested), StructField("a", ArrayType(ArrayType(LongType())))])

    def running():
        n, m, a = [], {}, []
        for value in (1, 2):
            n.append(value)
            m[str(value)] = value
            a.append([value])
            a[0].append(value)
            yield n, m, {"n": n, "m": m}, a

    n, m, s, a = zip(*rows_of(running(), schema), strict=True)
    assert [list(map(len, each)) for each in (n, m, a)] == [[1, 2]] * 3
    assert [len(each["n"]) for each in s] == [1, 2] and [len(each["m"]) for each in s] == [1, 2]
    assert [len(each[0]) for each in a] == [2, 3]


def test_many_tuples_are_flushed_in_pieces_and_in_order():
    assert [v for _, v in rows_of(("k", i) for i in range(120_000))] == list(range(120_000))


@pytest.mark.parametrize(
    "rows", [pa.table({"v": pa.array([1], pa.int32()), "k": ["a"]}), pd.DataFrame({"v": [1], "k": ["a"]})]
)
def test_whole_tables_are_matched_by_name_and_cast(rows):
    assert to_table(rows, SCHEMA, BERLIN, "op").to_pylist() == [{"k": "a", "v": 1}]


def test_a_whole_frame_is_matched_by_name_where_a_session_takes_columns_by_position():
    schema = StructType([StructField(name, LongType()) for name in "ab"])
    rows = pd.DataFrame({"b": [2], "a": [1]})
    options = PandasOptions(assign_cols_by_name=False)
    assert to_table(rows, schema, options, "op").to_pylist() == [{"a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (pa.table({"k": ["a"]}), r"has columns \['k'\]"),
        (pa.table({"k": ["a"], "v": [1], "w": [1]}), "'w'"),
        (pa.table({"k": ["a"], "v": ["x"]}), "'v' of type string"),
    ],
)
def test_whole_tables_that_do_not_fit_say_so(rows, message):
    with pytest.raises(OutputInvalid, match=message):
        to_table(rows, SCHEMA, BERLIN, "op")
