"""Statistics say what is in a file, exactly or not at all: readers drop files by them."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.transaction import AddAction

from spark_ckpt.tasks.file_statistics import delta_statistics, footer_statistics

NAN, INF = float("nan"), float("inf")
TYPES = {
    "id": pa.int64(),
    "x": pa.float64(),
    "s": pa.string(),
    "d": pa.date32(),
    "m": pa.decimal128(38, 2),
    "t": pa.timestamp("us", tz="UTC"),
    "b": pa.bool_(),
    "l": pa.list_(pa.int32()),
    "p": pa.struct([("q", pa.int32())]),
}
SCHEMA = pa.schema(list(TYPES.items()))


def stats_of(table, row_group_size=None):
    file = io.BytesIO()
    with pq.ParquetWriter(file, table.schema) as writer:
        writer.write_table(table, row_group_size=row_group_size)
    return json.loads(delta_statistics(writer, table.num_rows))


def bounds(values, type_=None, row_group_size=None):
    stats = stats_of(pa.table({"v": pa.array(values, type_)}), row_group_size)
    return stats["minValues"].get("v"), stats["maxValues"].get("v")


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        ([3, 1, None], pa.int64(), (1, 3)),
        ([2**63 - 1], pa.int64(), (2**63 - 1, 2**63 - 1)),
        (["b", "a"], pa.string(), ("a", "b")),
        ([dt.date(2024, 1, 2), dt.date(1970, 1, 1)], pa.date32(), ("1970-01-01", "2024-01-02")),
        ([Decimal("1.50"), Decimal("-2.25")], pa.decimal128(9, 2), (-2.25, 1.5)),
        ([True, False], pa.bool_(), (False, True)),
    ],
)
def test_bounds_are_the_least_and_greatest_value(values, type_, expected):
    assert bounds(values, type_) == expected


def test_a_number_column_has_no_upper_bound_for_nan_is_above_every_number():
    assert bounds([1.0, NAN, 3.0]) == (1.0, None)


def test_infinity_never_reaches_the_json():
    assert bounds([-INF, INF]) == (None, None)


def test_a_decimal_that_a_double_would_round_has_no_bounds():
    assert bounds([Decimal("12345678901234567.89")], pa.decimal128(38, 2)) == (None, None)


def test_a_long_text_has_no_bounds_rather_than_a_shortened_one():
    assert bounds(["a", "x" * 33]) == ("a", None)
    assert bounds(["x" * 33]) == (None, None)


@pytest.mark.parametrize(
    "old",
    [
        pa.array([-(10**6)], pa.int32()).cast(pa.date32()),
        pa.array([-(10**17)], pa.int64()).cast(pa.timestamp("us", "UTC")),
    ],
)
def test_a_time_that_python_cannot_hold_does_not_stop_the_job(old):
    assert stats_of(pa.table({"v": old})) == {"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {"v": 0}}


def test_timestamps_have_no_bounds():
    assert bounds([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", tz="UTC")) == (None, None)


def test_a_row_group_of_nulls_hides_no_bound_of_the_others():
    assert bounds([None, None, 5, 9], pa.int64(), row_group_size=2) == (5, 9)


def test_nulls_are_counted_over_all_row_groups():
    table = pa.table({"v": pa.array([None, 1, None, None], pa.int64())})
    assert stats_of(table, row_group_size=2)["nullCount"] == {"v": 3}


def test_columns_inside_of_columns_are_left_out():
    table = pa.table({"p": pa.array([{"x": 1}]), "l": pa.array([[1, 2]])})
    assert stats_of(table) == {"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {}}


def test_a_file_without_rows_has_no_bounds():
    assert stats_of(pa.table({"v": pa.array([], pa.int64())}))["minValues"] == {}


# -- what readers make of it ---------------------------------------------------------------------------------------

DAY, LAST_DAY = dt.date(2024, 1, 1), dt.date(9999, 12, 31)
AT = dt.datetime(2024, 1, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
LATER = AT + dt.timedelta(microseconds=1)
LONG = "z" * 40
FILES = [
    [(1, 1.0, "a", DAY, Decimal("1.10"), AT, True, [1], {"q": 1})],
    [(2, NAN, LONG, LAST_DAY, Decimal("12345678901234567.89"), AT, False, [], {"q": 2})],
    [(3, INF, "é", None, Decimal("-0.01"), LATER, None, None, None)],
    [(4, *[None] * 8), (5, -INF, "", None, Decimal("0.3"), *[None] * 4)],
]
QUESTIONS = [
    "x > 100", "x = 'NaN'", "x < 0", "x >= 1", "x = 1", "id > 2 and x < 100",
    "s > 'y'", "s = 'é'", "s = ''", f"s = '{LONG}'", "s is null",
    "d = '9999-12-31'", "d is null", "d < '2024-01-02'",
    "m = 12345678901234567.89", "m > 12345678901234567.88", "m < 0", "m = 0.3",
    f"t = '{AT.isoformat()}'", f"t > '{AT.isoformat()}'", "b", "not b", "b is null",
]  # fmt: skip


def files(folder, with_statistics):
    """A Delta table of one file per list of rows, committed as a sink does it."""
    path = str(folder / f"table-{with_statistics}")
    write_deltalake(path, pa.Table.from_pylist([], SCHEMA))
    adds = []
    for number, rows in enumerate(FILES):
        name = f"{number}.parquet"
        columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
        pq.write_table(pa.table(columns, schema=SCHEMA), f"{path}/{name}")
        metadata = pq.read_metadata(f"{path}/{name}")
        stats = footer_statistics(metadata, len(rows)) if with_statistics else json.dumps({"numRecords": len(rows)})
        adds.append(AddAction(name, (folder / path / name).stat().st_size, {}, 0, True, stats))
    table = DeltaTable(path)
    table.create_write_transaction(adds, "append", table.schema(), [])
    return DeltaTable(path)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("statistics")
    return files(folder, with_statistics=True), files(folder, with_statistics=False)


def answer(table, question):
    found = QueryBuilder().register("t", table).execute(f"select id from t where {question}").read_all()
    return sorted(found.column("id").to_pylist())


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_reader_that_skips_files_finds_what_a_reader_that_reads_all_finds(tables, question):
    skipping, reading = tables
    assert answer(skipping, question) == answer(reading, question)


def test_a_reader_does_skip_by_them(tables):
    added = pa.table(tables[0].get_add_actions(flatten=True)).to_pydict()
    assert sorted(zip(added["min.id"], added["max.id"], strict=True)) == [(1, 1), (2, 2), (3, 3), (4, 5)]
