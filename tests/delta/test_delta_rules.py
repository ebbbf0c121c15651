"""A table that staged files would break, or that does not match the rows, is refused before the job starts."""

from __future__ import annotations

import ast
import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)
from spark_ckpt_delta import DeltaSink
from spark_ckpt_delta.rules import check_zone

from spark_ckpt.connector import Sink
from spark_ckpt.errors import ConfigInvalid, SinkInvalid

NO_SPARK: Any = None
ROWS = StructType([StructField("id", LongType())])


def add_actions(table: Path, *actions: dict[str, Any]) -> None:
    """Write the next commit by hand."""
    version = DeltaTable(str(table)).version() + 1
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (table / f"_delta_log/{version:020d}.json").write_text(text)


def with_feature(table: Path, feature: str, reader: bool = False) -> None:
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    if reader:
        protocol |= {"minReaderVersion": 3, "readerFeatures": [feature]}
    add_actions(table, {"protocol": protocol})


def with_metadata(table: Path, configuration: dict[str, str], column: dict[str, Any] | None = None) -> None:
    field = {"name": "id", "type": "long", "nullable": True, "metadata": {}} | (column or {})
    schema = json.dumps({"type": "struct", "fields": [field]})
    body = {
        "id": str(DeltaTable(str(table)).metadata().id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": configuration,
    }
    add_actions(table, {"metaData": body})


def test_it_is_a_sink_of_the_core(table: Path) -> None:
    assert isinstance(DeltaSink(str(table)), Sink)


def test_a_plain_table_is_accepted(table: Path) -> None:
    DeltaSink(str(table)).check(NO_SPARK, ROWS)


@pytest.mark.parametrize(
    "feature",
    [
        "identityColumns",
        "rowTracking",
        "domainMetadata",
        "clustering",
        "icebergCompatV2",
        "inCommitTimestamp",
        "checkpointProtection",
        "allowColumnDefaults",
        "materializePartitionColumns",
    ],
)
def test_a_feature_that_deltalake_cannot_write_is_named(table: Path, feature: str) -> None:
    with_feature(table, feature)

    with pytest.raises(SinkInvalid, match=f"table feature {feature}") as caught:
        DeltaSink(str(table)).check(NO_SPARK, ROWS)
    assert 'engine="spark"' in caught.value.hint


@pytest.mark.parametrize("feature", ["appendOnly", "invariants", "changeDataFeed"])
def test_a_table_with_an_unused_feature_is_accepted(table: Path, feature: str) -> None:
    with_feature(table, feature)

    DeltaSink(str(table)).check(NO_SPARK, ROWS)


@pytest.mark.parametrize(
    ("configuration", "column", "complaint"),
    [
        ({"delta.constraints.positive": "id > 0"}, {}, "check constraint positive"),
        ({"delta.columnMapping.mode": "name"}, {}, r"column mapping \(name\)"),
        ({}, {"metadata": {"delta.invariants": "{}"}}, "an invariant on column id"),
        ({}, {"metadata": {"delta.generationExpression": "1"}}, "a generation expression on column id"),
    ],
)
def test_a_rule_that_staged_files_would_bypass_is_refused(
    table: Path, configuration: dict[str, str], column: dict[str, Any], complaint: str
) -> None:
    with_metadata(table, configuration, column)

    with pytest.raises(SinkInvalid, match=complaint):
        DeltaSink(str(table)).check(NO_SPARK, ROWS)


def test_identity_columns_of_the_old_protocol_are_refused(table: Path) -> None:
    add_actions(table, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 6}})

    with pytest.raises(SinkInvalid, match="identity columns"):
        DeltaSink(str(table)).check(NO_SPARK, ROWS)


def test_a_schema_that_does_not_fit_is_shown_as_a_difference(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("total", pa.decimal128(10, 2)), ("note", pa.string())])
    DeltaTable.create(str(tmp_path / "t"), schema=Schema.from_arrow(columns))
    rows = StructType([StructField("id", LongType()), StructField("total", DoubleType()), StructField("n", LongType())])

    with pytest.raises(SinkInvalid) as caught:
        DeltaSink(str(tmp_path / "t")).check(NO_SPARK, rows)

    assert caught.value.what.splitlines()[1:] == [
        "    column  job     table",
        "    total   double  decimal(10,2)",
        "    n       bigint  -",
        "    note    -       string",
    ]


def test_a_column_that_must_not_be_null_needs_one_that_cannot_be(table: Path) -> None:
    with_metadata(table, {}, {"nullable": False})

    with pytest.raises(SinkInvalid, match="bigint, may be null"):
        DeltaSink(str(table)).check(NO_SPARK, ROWS)
    DeltaSink(str(table)).check(NO_SPARK, StructType([StructField("id", LongType(), nullable=False)]))


def test_a_merge_by_a_char_column_is_refused(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-spark fails at each merge with an internal error."""
    monkeypatch.setattr("spark_ckpt_delta.sink.require_delta_spark", lambda _: None)
    with_metadata(table, {}, {"type": "string", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}})
    rows = StructType([StructField("id", StringType())])

    with pytest.raises(SinkInvalid, match=r"key id is char\(5\)"):
        DeltaSink(str(table), engine="spark", keys=["id"]).check(NO_SPARK, rows)
    DeltaSink(str(table), engine="spark").check(NO_SPARK, rows)


@pytest.mark.parametrize("engine", ["deltalake", "spark"])
def test_text_with_a_collation_is_refused_before_a_table_has_it(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ckpt_delta.sink.require_delta_spark", lambda _: None)
    rows = StructType([StructField("names", ArrayType(StructType([StructField("name", StringType("UTF8_LCASE"))])))])
    with pytest.raises(SinkInvalid, match="column names is array<struct<name:string collate UTF8_LCASE>>") as refused:
        DeltaSink(str(tmp_path / "t"), engine=engine).check(NO_SPARK, rows)
    assert "cast(`names` as array<struct<name:string>>)" in refused.value.hint
    assert not (tmp_path / "t").exists()


def test_the_advice_for_a_collation_is_python_for_any_name(tmp_path: Path) -> None:
    name = """a`b"c'd"""
    with pytest.raises(SinkInvalid, match="without a collation") as refused:
        DeltaSink(str(tmp_path / "t")).check(NO_SPARK, StructType([StructField(name, StringType("UTF8_LCASE"))]))
    call = ast.parse(refused.value.hint.removeprefix("write plain text: "), mode="eval").body
    assert isinstance(call, ast.Call)
    column, expression = call.args
    assert isinstance(expression, ast.Call)
    assert ast.literal_eval(column) == name
    assert ast.literal_eval(expression.args[0]) == """cast(`a``b"c'd` as string)"""


@pytest.mark.parametrize(
    "kind", [StructType([]), ArrayType(StructType([StructField("gone", StructType([]))]))], ids=str
)
def test_a_struct_without_fields_is_refused_at_the_check(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(SinkInvalid, match="Parquet has no struct without fields") as refused:
        DeltaSink(str(tmp_path / "t")).check(NO_SPARK, StructType([*ROWS.fields, StructField("made", kind)]))
    assert "drop('made')" in refused.value.hint


def test_a_type_that_no_task_can_stage_is_refused_at_the_check(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="interval year to month has no Arrow type"):
        DeltaSink(str(tmp_path / "t")).check(NO_SPARK, StructType([StructField("y", YearMonthIntervalType())]))


def test_a_missing_table_is_created_when_staging_starts(tmp_path: Path) -> None:
    rows = StructType([*ROWS.fields, StructField("day", DateType()), StructField("at", TimestampType())])
    sink = DeltaSink(str(tmp_path / "new"), partition_by=["day"])
    sink.check(NO_SPARK, rows)
    assert not (tmp_path / "new").exists()

    plan, again = sink.stage(rows), sink.stage(rows)

    created = DeltaTable(str(tmp_path / "new"))
    assert (plan.root, plan.partition_by) == (str(tmp_path / "new"), ("day",))
    assert plan.schema is not None
    assert plan.schema.names == ["id", "day", "at"]
    assert again == plan
    assert created.protocol()[:2] == (1, 2)
    assert json.loads(created.schema().to_json()) == json.loads(rows.json())


def test_a_column_without_a_time_zone_needs_a_table_feature(tmp_path: Path) -> None:
    DeltaSink(str(tmp_path / "new")).stage(StructType([StructField("at", TimestampNTZType())]))

    assert DeltaTable(str(tmp_path / "new")).protocol().writer_features == ["timestampNtz"]


def test_create_false_refuses_a_missing_table(tmp_path: Path) -> None:
    with pytest.raises(SinkInvalid, match="not a Delta table"):
        DeltaSink(str(tmp_path / "new"), create=False).check(NO_SPARK, ROWS)


def test_staging_follows_the_partitioning_of_an_existing_table(tmp_path: Path) -> None:
    columns = Schema.from_arrow(pa.schema([("id", pa.int64()), ("city", pa.string())]))
    DeltaTable.create(str(tmp_path / "t"), schema=columns, partition_by=["city"])
    rows = StructType([*ROWS.fields, StructField("city", StringType())])

    assert DeltaSink(str(tmp_path / "t")).stage(rows).partition_by == ("city",)
    with pytest.raises(SinkInvalid, match="partitioned by city, the sink says id"):
        DeltaSink(str(tmp_path / "t"), partition_by=["id"]).check(NO_SPARK, rows)


def test_partition_columns_that_writers_spell_differently_are_refused(tmp_path: Path) -> None:
    rows = StructType([*ROWS.fields, StructField("at", TimestampType())])

    with pytest.raises(SinkInvalid, match="partitioned by at, a timestamp"):
        DeltaSink(str(tmp_path / "t"), partition_by=["at"]).check(NO_SPARK, rows)


def test_a_table_of_partition_columns_only_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkInvalid, match="every column"):
        DeltaSink(str(tmp_path / "t"), partition_by=["id"]).check(NO_SPARK, ROWS)


def test_keys_need_the_engine_that_can_merge(table: Path) -> None:
    with pytest.raises(ConfigInvalid, match="keys"):
        DeltaSink(str(table), keys=["id"])


@pytest.mark.parametrize("rule", [{"newest_by": "id"}, {"delete_when": "id = 1"}, {"null_keys": "match"}])
def test_rules_of_a_merge_need_keys(table: Path, rule: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        DeltaSink(str(table), engine="spark", **rule)
    assert "keys=" in caught.value.hint


def test_null_keys_are_refused_or_matched(table: Path) -> None:
    with pytest.raises(ConfigInvalid, match="'insert'"):
        DeltaSink(str(table), engine="spark", keys=["id"], null_keys="insert")  # type: ignore[arg-type]


def test_tasks_refuse_the_first_row_with_a_null_in_its_key(table: Path) -> None:
    rows = StructType([*ROWS.fields, StructField("a.b", StringType())])
    refuses = DeltaSink(str(table), engine="spark", keys=["id", "a.b"]).stage(rows).refuses
    assert refuses is not None
    assert refuses(pa.table({"id": [1, 2], "a.b": ["x", ""], "n": [None, None]})) is None
    refused = refuses(pa.table({"id": [1, None, None], "a.b": ["x", "y", None], "n": [1, 2, 3]}))
    assert refused is not None
    assert (refused.row, refused.column) == (1, "id")
    assert 'null_keys="match"' in refused.hint


@pytest.mark.parametrize("rule", [{}, {"keys": ["id"], "null_keys": "match"}])
def test_rows_with_a_null_are_staged_without_keys_and_where_nulls_match(table: Path, rule: dict[str, Any]) -> None:
    assert DeltaSink(str(table), engine="spark", **rule).stage(ROWS).refuses is None


def test_the_spark_engine_stages_in_the_stores_outbox(table: Path) -> None:
    plan = DeltaSink(str(table), engine="spark", keys=["id"]).stage(ROWS)

    assert (plan.root, plan.partition_by) == (None, ())


def test_credentials_are_staged_but_never_described(table: Path) -> None:
    sink = DeltaSink(str(table), storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"})

    assert "hidden" not in str(sink.describe())


@pytest.mark.parametrize("names", [("k", "K"), ("a b", "A B"), ("",)])
@pytest.mark.parametrize("engine", ["deltalake", "spark"])
def test_columns_that_no_table_can_have_are_refused_before_it_is_made(
    tmp_path: Path, names: tuple[str, ...], engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ckpt_delta.sink.require_delta_spark", lambda _: None)
    with pytest.raises(SinkInvalid) as refused:
        DeltaSink(str(tmp_path / "t"), engine=engine).check(NO_SPARK, columns(*names))
    assert refused.value.context == {"table": str(tmp_path / "t")}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["total amount", "a,b", "a;b", "{a}", "(a)", "a=b", "a\tb"])
def test_columns_that_delta_spark_makes_no_table_with_are_refused_until_the_table_is_there(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ckpt_delta.sink.require_delta_spark", lambda _: None)
    sink, rows = DeltaSink(str(tmp_path / "t"), engine="spark"), columns("id", name)
    with pytest.raises(SinkInvalid) as refused:
        sink.check(NO_SPARK, rows)
    assert "delta.columnMapping.mode" in refused.value.hint
    DeltaTable.create(str(tmp_path / "t"), Schema.from_json(rows.json()))
    sink.check(NO_SPARK, rows)


@pytest.mark.parametrize(
    ("zone", "fixed"),
    [
        ("UTC", True), ("Etc/UTC", True), ("Z", True), ("+05:45", True), ("-03:00", True), ("GMT+2", True), ("Etc/GMT-5", True),
        ("America/New_York", False), ("Europe/Berlin", False), ("Asia/Kathmandu", False), ("EST5EDT", False),
    ],
)  # fmt: skip
def test_a_partition_by_time_needs_a_zone_in_which_no_hour_occurs_twice(zone: str, fixed: bool) -> None:
    rows = StructType([StructField("at", TimestampType()), StructField("id", LongType())])
    check_zone("t", ["id"], rows, zone)
    with contextlib.nullcontext() if fixed else pytest.raises(SinkInvalid) as refused:
        check_zone("t", ["at"], rows, zone)
    assert fixed or refused.value.context == {"table": "t", "zone": zone}


def columns(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def test_a_table_that_deltalake_cannot_write_any_more_is_refused_with_advice_for_a_sink_that_has_published(
    table: Path,
) -> None:
    DeltaTable(str(table)).alter.add_constraint({"positive": "id >= 0"})

    with pytest.raises(SinkInvalid) as refused:
        DeltaSink(str(table)).check(NO_SPARK, ROWS)

    assert "undo that change of the table" in refused.value.hint
