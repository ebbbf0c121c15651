import datetime as dt
import math
import re
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_fixtures import MemoryStore, cache_of, colliding, group_of, snapshot, spread, with_hash
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import spark_ckpt.tasks.operators.aggregations as agg
from spark_ckpt.errors import GraphInvalid
from spark_ckpt.store.widening import value_differences
from spark_ckpt.tasks.failures import ArithmeticOverflow
from spark_ckpt.tasks.operators.decimals import decimals
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.rows import arrow_schema
from spark_ckpt.tasks.state.group_state import KeyGroupState

NOON = dt.datetime(2024, 3, 31, 12, tzinfo=dt.UTC)
ROW = StructType(
    [
        StructField("who", StringType()),
        StructField("kind", LongType()),
        StructField("i", ShortType()),
        StructField("x", DoubleType()),
        StructField("d", DecimalType(12, 2)),
        StructField("s", StringType()),
        StructField("t", TimestampType()),
    ]
)
SPECS = {
    "n": agg.count(),
    "n_x": agg.count("x"),
    "sum_i": agg.sum("i"),
    "sum_x": agg.sum("x"),
    "sum_d": agg.sum("d"),
    "mean_i": agg.mean("i"),
    "mean_x": agg.mean("x"),
    "mean_d": agg.mean("d"),
    "min_i": agg.min("i"),
    "min_x": agg.min("x"),
    "max_x": agg.max("x"),
    "max_d": agg.max("d"),
    "min_s": agg.min("s"),
    "max_t": agg.max("t"),
    "last_s": agg.last("s"),
    "last_some_s": agg.last("s", ignore_nulls=True),
    "first_s": agg.first("s"),
    "sd_x": agg.stddev("x"),
    "first_some_i": agg.first("i", ignore_nulls=True),
}
FLOATS = st.sampled_from([0.1, -2.5, 1e17, -1e17, 3.0, math.nan, math.inf, None])
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None, ""]),
        st.sampled_from([1, 2, None]),
        st.sampled_from([-32768, 0, 7, 32767, None]),
        FLOATS,
        st.sampled_from([Decimal("0.01"), Decimal("-9999999999.99"), Decimal("5.50"), None]),
        st.sampled_from(["", "x", "é", "xy", None]),
        st.sampled_from([NOON, NOON - dt.timedelta(days=9000), NOON + dt.timedelta(microseconds=1), None]),
    ),
    max_size=25,
)


def greatest_first(value):
    """Spark's order of doubles: NaN is the greatest."""
    return (1, 0.0) if isinstance(value, float) and math.isnan(value) else (0, value)


class Naive:
    """The aggregates of one key, one row at a time, from the definitions."""

    def __init__(self):
        self.rows = []

    def after(self, row):
        self.rows.append(dict(zip(ROW.names, row, strict=True)))
        return {name: self.value(spec) for name, spec in SPECS.items() if spec.kind != "stddev"}

    def value(self, spec):
        every = [row[spec.column] for row in self.rows] if spec.column else self.rows
        some = [each for each in every if each is not None]
        if spec.kind == "count":
            return len(some)
        if spec.kind in ("last", "first"):
            chosen = some if spec.skip_nulls else every
            return None if not chosen else chosen[-1 if spec.kind == "last" else 0]
        if not some:
            return None
        if spec.kind in ("min", "max"):
            return (min if spec.kind == "min" else max)(some, key=greatest_first)
        return self.summed(spec, some)

    @staticmethod
    def summed(spec, some):
        total = 0.0 if isinstance(some[0], float) or (spec.kind == "mean" and isinstance(some[0], int)) else 0
        for each in some:
            total += each
        if spec.kind == "sum":
            return total
        if isinstance(some[0], Decimal):
            return (total / len(some)).quantize(Decimal("0.000001"), ROUND_HALF_UP)
        return total / len(some)


def canonical(value):
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def table_of(rows, struct=ROW):
    schema = arrow_schema(struct)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(list(each), field.type) for each, field in zip(columns, schema, strict=True)], schema=schema
    )


def run(operator, group, rows, struct, keys, hasher=spread):
    tables = list(operator.process(with_hash(table_of(rows, struct), keys, hasher), group, Clock(0)))
    return [row for table in tables for row in table.to_pylist()]


@given(
    st.lists(ROWS, max_size=4),
    st.sampled_from([spread, colliding]),
    st.sampled_from([["who"], ["who", "kind"]]),
)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_running_values_are_those_of_a_loop_over_the_rows(tmp_path_factory, batches, hasher, keys):
    folder, store = tmp_path_factory.mktemp("levels"), MemoryStore()
    operator = agg.RunningAggregates(SPECS, ROW, keys, "each row")
    cache, model = cache_of(operator.schema, folder, store), {}
    group = KeyGroupState(operator.schema, cache, 0)
    for epoch, rows in enumerate(batches, 1):
        output = run(operator, group, rows, ROW, keys, hasher)
        assert len(output) == len(rows)
        for row, shown in zip(rows, output, strict=True):
            key = tuple(row[ROW.names.index(name)] for name in keys)
            shown.pop("sd_x")
            expected = dict(zip(ROW.names, row, strict=True)) | model.setdefault(key, Naive()).after(row)
            assert {k: canonical(v) for k, v in shown.items()} == {k: canonical(v) for k, v in expected.items()}
        if epoch % 2:
            snapshot(group, store, epoch)
        group = KeyGroupState.decode(group.encode(), operator.schema, cache, 0)


@given(st.lists(ROWS, max_size=3))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_update_shows_each_changed_key_once_with_its_latest_values(tmp_path_factory, batches):
    operators = {shape: agg.RunningAggregates(SPECS, ROW, ["who"], shape) for shape in ("each row", "update")}
    groups = {shape: group_of(each.schema, tmp_path_factory.mktemp(shape)) for shape, each in operators.items()}
    for rows in batches:
        shown = {shape: run(each, groups[shape], rows, ROW, ["who"]) for shape, each in operators.items()}
        latest = {row["who"]: row for row in shown["each row"]}
        assert [row["who"] for row in shown["update"]] == list(dict.fromkeys(row["who"] for row in shown["each row"]))
        for row in shown["update"]:
            assert {k: canonical(v) for k, v in row.items()} == {k: canonical(latest[row["who"]][k]) for k in row}


def one(kind, spec, *batches):
    """The last running value of one aggregate over one key."""
    struct = StructType([StructField("k", LongType()), StructField("v", kind)])
    operator = agg.RunningAggregates({"r": spec}, struct, ["k"], "each row")
    group, shown = group_of(operator.schema, FOLDER), []
    for values in batches:
        shown += [row["r"] for row in run(operator, group, [(1, value) for value in values], struct, ["k"])]
    return shown


@pytest.fixture(autouse=True)
def folder(tmp_path):
    global FOLDER
    FOLDER = tmp_path


def test_stddev_is_that_of_the_statistics_module_even_far_from_zero():
    import statistics

    values = [1e9 + each for each in (4.0, 7.0, 13.0, 16.0, 4.5, -3.0)]
    shown = one(DoubleType(), agg.stddev("v"), values[:2], [None, *values[2:4]], values[4:])
    expected = [None, statistics.stdev(values[:2]), statistics.stdev(values[:2])]
    expected += [statistics.stdev(values[:n]) for n in range(3, 7)]
    assert shown == [None if each is None else pytest.approx(each, rel=1e-9) for each in expected]


def test_a_sum_beyond_a_long_is_an_error_and_the_greatest_long_is_not():
    greatest = 2**63 - 1
    assert one(LongType(), agg.sum("v"), [greatest - 1, 1])[-1] == greatest
    assert one(LongType(), agg.sum("v"), [greatest], [-greatest, -greatest])[-1] == -greatest
    with pytest.raises(ArithmeticOverflow):
        one(LongType(), agg.sum("v"), [greatest], [1])


@pytest.mark.parametrize("spec", [agg.first("at"), agg.last("at"), agg.last("at", ignore_nulls=True)])
@pytest.mark.parametrize(
    ("kind", "held"),
    [
        (ArrayType(TimestampType()), lambda moment: [moment]),
        (StructType().add("at", TimestampType()), lambda moment: {"at": moment}),
        (MapType(StringType(), TimestampType()), lambda moment: [("a", moment)]),
    ],
)
def test_a_nested_time_in_a_session_of_another_zone_is_the_instant_of_the_state(spec, kind, held):
    struct = StructType([StructField("k", LongType()), StructField("at", kind)])
    operator = agg.RunningAggregates({"r": spec}, struct, ["k"])
    group, moment = group_of(operator.schema, FOLDER), dt.datetime(2024, 11, 3, 6, 30, tzinfo=dt.UTC)
    shown = []
    for zone in ("UTC", "America/New_York"):
        rows = pa.Table.from_pylist([{"k": 1, "at": held(moment)}], arrow_schema(struct, zone))
        for table in operator.process(with_hash(rows, ["k"], spread), group, Clock(0)):
            shown += table["r"].to_pylist()
    assert shown == [held(moment)] * 2


@pytest.mark.parametrize("mode", ["update", "each row"])
@pytest.mark.parametrize("kind", [LongType(), DecimalType(38, 0)])
def test_an_overflow_names_operator_key_and_column(tmp_path, kind, mode):
    big = Decimal("9" * 38) if isinstance(kind, DecimalType) else 2**63 - 1
    schema = StructType([StructField("who", StringType()), StructField("v", kind)])
    operator = agg.RunningAggregates({"total": agg.sum("v")}, schema, ["who"], mode).bind(Binding("totals"))
    rows = with_hash(
        pa.Table.from_pylist(
            [{"who": who, "v": v} for who, v in [("a", big), ("b", big), ("b", 1)]], arrow_schema(schema)
        ),
        ["who"],
    )
    with pytest.raises(ArithmeticOverflow) as refused:
        list(operator.process(rows, group_of(operator.schema, tmp_path), Clock(0)))
    assert refused.value.context == {"operator": "totals", "key": "('b',)", "column": "total"}


def test_wide_decimals_add_up_exactly():
    big = Decimal("9" * 26 + ".99")
    assert one(DecimalType(28, 2), agg.sum("v"), [big, big], [None, -big, Decimal("0.01")])[-1] == big + Decimal("0.01")


def test_a_decimal_sum_beyond_its_precision_is_an_error():
    with pytest.raises(ArithmeticOverflow, match="decimal128"):
        one(DecimalType(38, 0), agg.sum("v"), [Decimal("9" * 38), Decimal(1)])


@pytest.mark.parametrize("column", [pa.int64(), pa.int16(), pa.decimal128(4, 2), pa.decimal128(20, 0)])
def test_a_column_of_the_advised_type_keeps_the_state_of_a_sum_that_overflowed(column):
    def sum_of(kind):
        return agg.fold_of(agg.sum("v"), pa.schema([("v", kind)]))

    def overflow(kind):
        if pa.types.is_decimal(kind):
            decimals(np.array([10**kind.precision], object), np.array([False]), kind)
        one(LongType(), agg.sum("v"), [2**63 - 1, 1])

    def ddl(kind):
        return f"v decimal({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else "v bigint"

    with pytest.raises(ArithmeticOverflow) as refused:
        overflow(sum_of(column).shown())

    digits, scale = map(int, re.findall(r"decimal\((\d+), (\d+)\)", refused.value.hint)[0])
    advised = sum_of(pa.decimal128(digits, scale)).shown()
    assert ddl(advised) != ddl(sum_of(column).shown())
    assert value_differences(ddl(sum_of(column).shown()), ddl(advised)) == []


def test_a_decimal_mean_rounds_half_up_on_both_sides_of_zero():
    assert one(DecimalType(5, 0), agg.mean("v"), [Decimal(1), Decimal(0), Decimal(0)])[-1] == Decimal("0.3333")
    assert one(DecimalType(5, 0), agg.mean("v"), [Decimal(-1), *[Decimal(0)] * 31])[-1] == Decimal("-0.0313")


@pytest.mark.parametrize(
    ("kind", "values", "low", "high"),
    [
        (BooleanType(), [True, None, False], False, True),
        (DateType(), [dt.date(2024, 1, 1), dt.date(1, 1, 1)], dt.date(1, 1, 1), dt.date(2024, 1, 1)),
        (BinaryType(), [b"b", b"ab", None], b"ab", b"b"),
        (FloatType(), [1.5, math.inf, -math.inf], -math.inf, math.inf),
        (LongType(), [2**62 + 1, 2**62], 2**62, 2**62 + 1),
    ],
)
def test_every_ordered_type_has_extremes(kind, values, low, high):
    assert one(kind, agg.min("v"), values)[-1] == low
    assert one(kind, agg.max("v"), values)[-1] == high


@pytest.mark.parametrize(
    "spec", [agg.max("at"), agg.min("at"), agg.last("at"), agg.first("at")], ids=lambda spec: spec.kind
)
def test_a_time_in_a_session_of_another_zone_is_the_instant_of_the_state(spec):
    struct = StructType([StructField("k", LongType()), StructField("at", TimestampType())])
    operator = agg.RunningAggregates({"r": spec}, struct, ["k"], "each row")
    group, moment = group_of(operator.schema, FOLDER), dt.datetime(2024, 11, 3, 6, 30, tzinfo=dt.UTC)
    shown = []
    for zone in ("UTC", "America/New_York", "Asia/Kathmandu"):
        rows = table_of([(1, moment)], struct)
        zoned = rows.set_column(1, "at", rows["at"].cast(pa.timestamp("us", zone)))
        for table in operator.process(with_hash(zoned, ["k"], spread), group, Clock(0)):
            shown += table["r"].to_pylist()
    assert shown == [moment] * 3


@pytest.mark.parametrize("mode", ["update", "each row"])
@pytest.mark.parametrize("kind", [DoubleType(), FloatType()], ids=["double", "float"])
def test_a_key_of_minus_zero_goes_out_as_zero_and_every_nan_as_one(mode, kind):
    struct = StructType([StructField("k", kind), StructField("v", DoubleType())])
    operator = agg.RunningAggregates({"n": agg.count()}, struct, ["k"], mode)
    group, shown = group_of(operator.schema, FOLDER), []
    other_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    for keys in ([-0.0, None], [0.0], [-0.0, math.nan], [other_nan]):
        shown += run(operator, group, [(key, -0.0) for key in keys], struct, ["k"])
    assert [(repr(row["k"]), row["n"]) for row in shown] == [
        *(("0.0", 1), ("None", 1), ("0.0", 2), ("0.0", 3), ("nan", 1), ("nan", 2))
    ]
    assert {repr(row.get("v", -0.0)) for row in shown} == {"-0.0"}, "only keys are normalised"


def test_nan_is_greater_than_everything():
    assert one(DoubleType(), agg.min("v"), [math.nan, 1.0]) == [pytest.approx(math.nan, nan_ok=True), 1.0]
    assert all(math.isnan(each) for each in one(DoubleType(), agg.max("v"), [math.nan], [math.inf]))
    assert math.isnan(one(DoubleType(), agg.min("v"), [None, math.nan])[-1])


def test_output_types_are_sparks():
    operator = agg.RunningAggregates(SPECS, ROW, ["who"], "update")
    types = {field.name: field.dataType.simpleString() for field in operator.output.fields}
    assert types["who"] == "string"
    assert types["n"] == types["sum_i"] == "bigint"
    assert types["mean_i"] == types["sum_x"] == "double"
    assert types["sum_d"] == "decimal(22,2)"
    assert types["mean_d"] == "decimal(16,6)"
    assert types["min_i"] == "smallint"
    assert types["max_t"] == "timestamp"


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        (agg.sum("who"), "cannot take type string"),
        (agg.sum("absent"), "no column 'absent'"),
        (agg.min("list"), "cannot take type list"),
    ],
)
def test_aggregates_that_cannot_be_are_refused_when_declared(spec, hint):
    struct = StructType([*ROW.fields, StructField("list", ArrayType(LongType()))])
    with pytest.raises(GraphInvalid, match=hint):
        agg.RunningAggregates({"r": spec}, struct, ["who"])


def test_an_aggregate_with_the_name_of_a_column_of_its_rows_is_refused_in_any_case():
    with pytest.raises(GraphInvalid, match="'KIND' occurs twice"):
        agg.RunningAggregates({"KIND": agg.count()}, ROW, ["who"], "each row")


def test_text_with_a_collation_is_refused_where_bytes_would_be_compared():
    collated = StructType([*ROW.fields, StructField("name", StringType("UTF8_LCASE"))])
    with pytest.raises(GraphInvalid, match="key column 'name' is string collate UTF8_LCASE") as key:
        agg.RunningAggregates({"n": agg.count()}, collated, ["name"])
    assert "transform" in key.value.hint
    with pytest.raises(GraphInvalid, match=r"max\('name'\) cannot take type string collate") as greatest:
        agg.RunningAggregates({"r": agg.max("name")}, collated, ["who"])
    assert "transform" in greatest.value.hint
    agg.RunningAggregates({"n": agg.count("name"), "newest": agg.last("name")}, collated, ["who"])


def test_a_type_that_the_states_table_cannot_have_is_refused_before_an_epoch_has_it():
    rows = StructType([*ROW.fields, StructField("took", DayTimeIntervalType())])
    with pytest.raises(GraphInvalid, match="column 'took' is interval day to second") as key:
        agg.RunningAggregates({"n": agg.count()}, rows, ["took"])
    assert "as long" in key.value.hint
    with pytest.raises(GraphInvalid, match="'r' is interval day to second"):
        agg.RunningAggregates({"r": agg.last("took")}, rows, ["who"])


def test_an_aggregate_named_like_a_column_is_refused():
    with pytest.raises(GraphInvalid, match="'x'"):
        agg.RunningAggregates({"x": agg.sum("x")}, ROW, ["who"], "each row")
    with pytest.raises(GraphInvalid, match="columns who, who"):
        agg.RunningAggregates({"who": agg.count()}, ROW, ["who"], "update")


def test_no_rows_is_no_output(tmp_path):
    operator = agg.RunningAggregates({"n": agg.count()}, ROW, ["who"])
    group = group_of(operator.schema, tmp_path)
    assert list(operator.process(None, group, Clock(0))) == []
    assert run(operator, group, [], ROW, ["who"]) == []
