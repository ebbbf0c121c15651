"""A table that another writer alters while a job runs gets no files that do not match it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_kit import context, ids, output, stage
from deltalake import DeltaTable, Schema, TableFeatures, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType
from spark_ckpt_delta import DeltaSink
from spark_ckpt_delta.publisher import DeltalakePublisher

from spark_ckpt.errors import CkptError, PublishFailed, RowsRefused, SinkInvalid
from spark_ckpt.spark_internals.arrow_types import spark_schema_of

NO_SPARK: Any = None
Change = Callable[[str], object]
ROW = {"id": [100], "city": ["x"]}


def replaced(columns: pa.Schema, **partitioned: Any) -> Change:
    """Let the table's owner overwrite it with other columns."""

    def change(table: str) -> None:
        values = {"id": 100, "city": 7 if pa.types.is_integer(columns.field(-1).type) else "x"}
        rows = pa.table([[values.get(name, "x")] for name in columns.names], schema=columns)
        write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", **partitioned)

    return change


def metadata(table: str, **changed: Any) -> None:
    """Alter the table's metadata action, as ALTER TABLE of another engine does."""
    opened = DeltaTable(table)
    body: dict[str, Any] = {
        "id": str(opened.metadata().id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": opened.schema().to_json(),
        "partitionColumns": opened.metadata().partition_columns,
        "configuration": opened.metadata().configuration,
    }
    entry = Path(table) / f"_delta_log/{opened.version() + 1:020d}.json"
    entry.write_text(json.dumps({"metaData": body | changed}) + "\n")


COLUMNS = [pa.field("id", pa.int64()), pa.field("city", pa.string())]
CHANGES: dict[str, Change] = {
    "type": replaced(pa.schema([COLUMNS[0], ("city", pa.int64())])),
    "rename": replaced(pa.schema([COLUMNS[0], ("town", pa.string())])),
    "drop": replaced(pa.schema(COLUMNS[:1])),
    "partitioning": replaced(pa.schema(COLUMNS), partition_by=["city"]),
    "not null": replaced(pa.schema([pa.field("id", pa.int64(), nullable=False), COLUMNS[1]])),
    "new column that must not be null": replaced(pa.schema([*COLUMNS, pa.field("n", pa.string(), nullable=False)])),
    "constraint": lambda table: DeltaTable(table).alter.add_constraint({"positive": "id > 0"}),
    "column mapping": lambda table: metadata(table, configuration={"delta.columnMapping.mode": "name"}),
    "expiring transactions": lambda table: metadata(
        table, configuration={"delta.setTransactionRetentionDuration": "interval 5 seconds"}
    ),
    "unknown feature": lambda table: DeltaTable(table).alter.add_feature(
        TableFeatures.DomainMetadata, allow_protocol_versions_increase=True
    ),
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    DeltaTable.create(str(path), schema=Schema.from_arrow(pa.schema(COLUMNS)))
    return path


def rows(number: int) -> dict[str, list[Any]]:
    return {"id": [number], "city": ["x"]}


def opened(table: Path) -> DeltalakePublisher:
    return DeltalakePublisher(str(table), {}, context())


def in_between(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Let the change land after the publisher's read of the table, before its first commit."""
    real, pending = DeltaTable.create_write_transaction, [change]

    def interleaved(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        if pending:
            pending.pop()()
        real(self, *arguments, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", interleaved)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_rows_that_do_not_fit_a_table_that_was_altered_are_not_published(table: Path, change: Change) -> None:
    publisher = opened(table)
    publisher.publish(output(table, 1, [stage(table, rows(1))]))
    change(str(table))
    before = DeltaTable(str(table)).version()

    with pytest.raises(RowsRefused) as caught:
        publisher.publish(output(table, 2, [stage(table, rows(2))]))

    assert {"epoch": 2, "sink": "out", "table": str(table)}.items() <= caught.value.context.items()
    assert not caught.value.retriable
    assert DeltaTable(str(table)).version() == before


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_between_the_comparison_and_the_commit_is_a_conflict(
    table: Path, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = opened(table)
    versions: list[int] = []

    def altered() -> None:
        change(str(table))
        versions.append(DeltaTable(str(table)).version())

    staged = output(table, 1, [stage(table, rows(1))])
    in_between(monkeypatch, altered)

    with pytest.raises(RowsRefused):
        publisher.publish(staged)
    assert [DeltaTable(str(table)).version()] == versions


@pytest.mark.parametrize(
    "harmless",
    [
        lambda table: DeltaTable(table).alter.add_columns(Schema.from_arrow(pa.schema([("note", pa.string())])).fields),
        lambda table: DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"}),
        lambda table: write_deltalake(table, pa.table({"id": [100], "city": ["y"]}), mode="append"),
    ],
    ids=["nullable column added", "property set", "rows appended"],
)
def test_a_change_that_does_not_affect_the_rows_is_no_conflict(
    table: Path, harmless: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = opened(table)
    publisher.publish(output(table, 1, [stage(table, rows(1))]))
    harmless(str(table))
    publisher.publish(output(table, 2, [stage(table, rows(2))]))
    staged = output(table, 3, [stage(table, rows(3))])
    in_between(monkeypatch, lambda: DeltaTable(str(table)).alter.set_table_properties({"delta.appendOnly": "true"}))

    publisher.publish(staged)

    assert [each for each in ids(table) if each < 100] == [1, 2, 3]


@pytest.mark.parametrize(
    "inner",
    [
        lambda null: pa.struct([pa.field("n", pa.int64(), nullable=null)]),
        lambda null: pa.list_(pa.struct([pa.field("n", pa.int64(), nullable=null)])),
        lambda null: pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=null)),
    ],
    ids=["struct", "array of structs", "map"],
)
def test_values_inside_a_column_that_must_not_be_null_are_compared(
    tmp_path: Path, inner: Callable[[bool], pa.DataType]
) -> None:
    """Readers cannot open a file with a null there: one such epoch would make the table unreadable."""
    table = tmp_path / "table"
    DeltaTable.create(str(table), schema=Schema.from_arrow(pa.schema([("n", inner(False))])))
    file = stage(table, {"n": pa.array([None], inner(True))})

    with pytest.raises(RowsRefused, match="values inside column n must not be null"):
        opened(table).publish(output(table, 1, [file]))
    with pytest.raises(SinkInvalid, match="NOT NULL inside"):
        DeltaSink(str(table)).check(NO_SPARK, spark_schema_of(pa.schema([("n", inner(True))])))
    DeltaSink(str(table)).check(NO_SPARK, spark_schema_of(pa.schema([("n", inner(False))])))


@pytest.mark.parametrize("rewritten", [False, True], ids=["as they were", "compacted"])
def test_a_whole_result_replaces_rows_that_another_writer_compacts_or_adds_meanwhile(
    table: Path, monkeypatch: pytest.MonkeyPatch, rewritten: bool
) -> None:
    for number in (1, 2):
        write_deltalake(str(table), pa.table(rows(number)), mode="append")

    def change() -> None:
        opened = DeltaTable(str(table))
        if rewritten:
            opened.optimize.compact()
        else:
            write_deltalake(opened, pa.table(rows(3)), mode="append")

    publisher = opened(table)
    in_between(monkeypatch, change)

    publisher.publish(replace(output(table, 1, [stage(table, rows(9))]), replaces=True))

    assert ids(table) == [9]


def test_a_table_of_the_sink_takes_nulls_inside_columns(tmp_path: Path) -> None:
    table, columns = tmp_path / "table", pa.schema([("n", pa.list_(pa.field("element", pa.int64(), nullable=False)))])
    DeltaSink(str(table)).stage(spark_schema_of(columns))

    DeltaSink(str(table)).check(NO_SPARK, spark_schema_of(pa.schema([("n", pa.list_(pa.int64()))])))


@pytest.mark.parametrize("true", ["true", "TRUE"])
def test_a_table_that_only_takes_appends_is_refused_by_name(
    table: Path, monkeypatch: pytest.MonkeyPatch, true: str
) -> None:
    monkeypatch.setattr("spark_ckpt_delta.sink.require_delta_spark", lambda spark: None)
    publisher = opened(table)
    publisher.publish(output(table, 1, [stage(table, rows(1))]))
    metadata(str(table), configuration={"delta.appendOnly": true})
    job = StructType([StructField("id", LongType()), StructField("city", StringType())])

    with pytest.raises(RowsRefused, match=r"delta\.appendOnly = true forbids to replace rows"):
        publisher.publish(replace(output(table, 2, [stage(table, rows(2))]), replaces=True))
    with pytest.raises(SinkInvalid, match=r"delta\.appendOnly = true forbids to replace rows, and a merge") as caught:
        DeltaSink(str(table), engine="spark", keys=["id"]).check(NO_SPARK, job)
    assert "'delta.appendOnly' = 'false'" in caught.value.hint
    publisher.publish(output(table, 2, [stage(table, rows(2))]))
    assert ids(table) == [1, 2]


def test_a_feature_that_deltalake_does_not_know_is_named_with_the_statement_that_drops_it(table: Path) -> None:
    publisher = opened(table)
    publisher.publish(output(table, 1, [stage(table, rows(1))]))
    features = {"readerFeatures": ["collations-preview"], "writerFeatures": ["collations-preview"]}
    entry = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    (table / f"_delta_log/{2:020d}.json").write_text(json.dumps(entry) + "\n")
    job = StructType([StructField("id", LongType()), StructField("city", StringType())])

    with pytest.raises(PublishFailed) as running:
        publisher.publish(output(table, 2, [stage(table, rows(2))]))
    with pytest.raises(SinkInvalid) as starting:
        DeltaSink(str(table)).check(NO_SPARK, job)

    for caught in (running, starting):
        assert f"ALTER TABLE delta.`{table}` DROP FEATURE `collations-preview`" in caught.value.hint


def test_the_type_of_a_partition_column_is_compared_though_files_lack_it(tmp_path: Path) -> None:
    table, both = tmp_path / "table", pa.schema(COLUMNS)
    DeltaTable.create(str(table), schema=Schema.from_arrow(both), partition_by=["city"])
    sink = DeltaSink(str(table))
    sink.stage(StructType([StructField("id", LongType()), StructField("city", StringType())]))
    publisher = sink.publisher(NO_SPARK, context())
    publisher.publish(output(table, 1, [stage(table, {"id": [1]}, city="x")]))
    replaced(pa.schema([COLUMNS[0], ("city", pa.int64())]), partition_by=["city"])(str(table))

    with pytest.raises(RowsRefused, match="column city is string in the rows, bigint in the table"):
        publisher.publish(output(table, 2, [stage(table, {"id": [2]}, city="y")]))


def test_once_the_change_is_undone_the_next_start_publishes_the_staged_rows(table: Path) -> None:
    DeltaTable(str(table)).alter.add_constraint({"positive": "id > 0"})
    staged = output(table, 1, [stage(table, rows(1))])
    with pytest.raises(RowsRefused) as caught:
        opened(table).publish(staged)
    assert "undo that change" in caught.value.hint

    DeltaTable(str(table)).alter.drop_constraint("positive")

    assert not opened(table).publish(staged).replayed
    assert ids(table) == [1]


@pytest.mark.parametrize("engine", ["deltalake", "spark"])
def test_a_table_that_deletes_markers_is_refused_with_the_command_that_prevents_it(
    table: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ckpt_delta.sink.require_delta_spark", lambda spark: None)
    metadata(str(table), configuration={"delta.setTransactionRetentionDuration": "interval 5 seconds"})
    job = StructType([StructField("id", LongType()), StructField("city", StringType())])

    with pytest.raises(SinkInvalid) as caught:
        DeltaSink(str(table), engine=engine).check(NO_SPARK, job)

    unset = "UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')"
    assert caught.value.hint == f"ALTER TABLE delta.`{table}` {unset}"
    metadata(str(table), configuration={})
    DeltaSink(str(table), engine=engine).check(NO_SPARK, job)


def test_a_refusal_is_final_and_typed() -> None:
    assert issubclass(RowsRefused, SinkInvalid)
    assert issubclass(RowsRefused, CkptError)
    assert (RowsRefused.condition, RowsRefused.retriable) == ("CKPT_ROWS_REFUSED", False)
