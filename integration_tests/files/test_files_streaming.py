"""A directory in real Spark queries: exact restarts, replays, bad records, and errors that reach the user."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta.spark_publisher import require_delta_spark
from spark_ckpt_files import FilesSource

from integration_tests.survival.process import wait_until
from spark_ckpt.connector import Cursor
from spark_ckpt.errors import EnvironmentUnfit, SourceInvalid

pytestmark = pytest.mark.spark
SCHEMA = "id long, name string, at timestamp"


def fill(folder: Path, first: int, last: int) -> None:
    folder.mkdir(exist_ok=True)
    for n in range(first, last):
        lines = "".join(f"{n * 10 + k},name {k % 3},2024-01-01T00:00:0{k}Z\n" for k in range(10))
        (folder / f"part-{n:04}.csv").write_text("id,name,at\n" + lines)


def run(frame: DataFrame, checkpoint: Path, handle: Callable[[DataFrame, int], None]) -> list[dict[str, Any]]:
    """Run over the present input; return Spark's logged offsets of the only source, batch by batch."""
    query = (
        frame.writeStream.foreachBatch(handle)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return offsets(checkpoint)


def offsets(checkpoint: Path) -> list[dict[str, Any]]:
    logs = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[2]) for path in logs]


def collected(frame: DataFrame, checkpoint: Path) -> list[int]:
    ids: list[int] = []
    run(frame, checkpoint, lambda batch, _: ids.extend(row.id for row in batch.select("id").collect()))
    return ids


def test_a_relative_path_is_the_drivers_though_java_was_started_elsewhere(spark, tmp_path, monkeypatch) -> None:
    fill(tmp_path / "in", 0, 1)
    monkeypatch.chdir(tmp_path)
    source = FilesSource("in", "csv", SCHEMA)

    assert len(collected(source.read(spark, source.start(spark)), tmp_path / "checkpoint")) == 10


def test_native_operations_see_every_row_once_in_bounded_batches(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "in", 0, 5)
    source = FilesSource(str(tmp_path / "in"), "csv", SCHEMA, maxFilesPerTrigger=2)
    source.check(spark)
    totals: list[tuple[str, int, int]] = []

    def handle(batch: DataFrame, _: int) -> None:
        grouped = batch.where("id % 2 = 0").groupBy("name").agg(F.count("*").alias("n"), F.sum("id").alias("s"))
        totals.extend((row.name, row.n, row.s) for row in grouped.collect())

    frame = source.read(spark, source.start(spark)).repartition(2)
    log = run(frame, tmp_path / "checkpoint", handle)

    assert [offset["count"] for offset in log] == [2, 4, 5]
    assert sum(n for _, n, _ in totals) == 25
    assert sum(s for _, _, s in totals) == sum(range(0, 50, 2))
    first = cursor = source.cursor(json.dumps(log[0]), source.start(spark))
    for each in log[1:]:
        cursor = source.cursor(json.dumps(each), cursor)
    assert source.reached(cursor, source.end(spark))
    assert not source.reached(first, source.end(spark))


def test_a_new_query_continues_exactly_at_every_cut(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "in", 0, 3)
    source = FilesSource(str(tmp_path / "in"), "csv", SCHEMA, maxFilesPerTrigger=1)
    whole = source.read(spark, source.start(spark))
    seen: list[list[int]] = []
    log = run(whole, tmp_path / "all", lambda batch, _: seen.append([row.id for row in batch.collect()]))
    fill(tmp_path / "in", 3, 4)
    for cut in range(len(log)):
        cursor: Cursor = source.start(spark)
        for each in log[: cut + 1]:
            cursor = json.loads(json.dumps(source.cursor(json.dumps(each), cursor)))

        rest = collected(source.read(spark, cursor), tmp_path / f"from-{cut}")

        assert sorted([each for batch in seen[: cut + 1] for each in batch] + rest) == list(range(40))


def test_a_batch_that_failed_is_replayed_with_the_same_files(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "in", 0, 2)
    source = FilesSource(str(tmp_path / "in"), "csv", SCHEMA, maxFilesPerTrigger=10)
    attempts: list[list[int]] = []

    def handle(batch: DataFrame, _: int) -> None:
        attempts.append(sorted(row.id for row in batch.collect()))
        if len(attempts) == 1:
            raise RuntimeError("planned failure")

    with pytest.raises(StreamingQueryException, match="planned failure"):
        run(source.read(spark, source.start(spark)), tmp_path / "checkpoint", handle)
    fill(tmp_path / "in", 2, 3)
    run(source.read(spark, source.start(spark)), tmp_path / "checkpoint", handle)

    assert attempts == [list(range(20)), list(range(20)), list(range(20, 30))]


def test_a_bad_record_fails_the_query_with_file_and_line(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "in", 0, 1)
    (tmp_path / "in" / "part-0001.csv").write_text("id,name,at\n1,x,\noops,y,\n")
    source = FilesSource(str(tmp_path / "in"), "csv", SCHEMA)

    with pytest.raises(StreamingQueryException, match=r"CKPT_BAD_RECORD\] part-0001\.csv, line 3"):
        collected(source.read(spark, source.start(spark)), tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("mode", "column", "expected"),
    [("keep", "_corrupt_record", "oops,y,"), ("drop", "ckpt_reject", '"line": 3')],
)
def test_bad_records_are_kept_with_the_good_ones(
    mode: Any, column: str, expected: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,name,at\n1,x,\noops,y,\n")
    source = FilesSource(str(tmp_path / "in"), "csv", SCHEMA, on_error=mode)
    rows: list[Any] = []

    run(source.read(spark, source.start(spark)), tmp_path / "c", lambda batch, _: rows.extend(batch.collect()))

    good = [row.id for row in rows if row[column] is None]
    bad = [row[column] for row in rows if row[column] is not None]
    assert (good, len(bad)) == ([1], 1)
    assert expected in bad[0]


def test_a_file_that_arrives_while_the_query_runs_is_read_with_any_name(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "in", 5, 6)
    source = FilesSource(str(tmp_path / "in"), "csv", SCHEMA)
    seen: list[int] = []

    def arrive_late(batch: DataFrame, number: int) -> None:
        seen.extend(row.id for row in batch.collect())
        if number < 3:
            fill(tmp_path / "in", 3 - number, 4 - number)

    query = (
        source.read(spark, source.start(spark))
        .writeStream.foreachBatch(arrive_late)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_until(lambda: len(seen) >= 40, "four files are read")
    finally:
        query.stop()

    assert sorted(seen) == [*range(10, 40), *range(50, 60)]


def test_a_file_too_old_to_be_known_ends_a_running_query_with_its_name(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "in", 5, 6)
    source = FilesSource(str(tmp_path / "in"), "csv", SCHEMA)

    def arrive_late(batch: DataFrame, number: int) -> None:
        batch.count()
        fill(tmp_path / "in", number, number + 1)
        os.utime(tmp_path / "in" / f"part-{number:04}.csv", (10**9, 10**9))

    query = (
        source.read(spark, source.start(spark))
        .writeStream.foreachBatch(arrive_late)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    with pytest.raises(StreamingQueryException, match=r"CKPT_SOURCE_INVALID\].*part-0000\.csv was modified 2001-09-09"):
        query.awaitTermination(120)


def test_json_and_parquet_give_the_rows_that_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    schema = "id long, tags array<string>, inner struct<x: double>, day date, price decimal(10,2)"
    lines = [
        {"id": n, "tags": ["a", None], "inner": {"x": n / 2}, "day": f"2024-02-0{n + 1}", "price": "1.25"}
        for n in range(5)
    ]
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "a.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    expected = sorted(map(str, spark.read.schema(schema).json(str(tmp_path / "json")).collect()))
    spark.read.schema(schema).json(str(tmp_path / "json")).coalesce(1).write.parquet(str(tmp_path / "parquet"))
    for format in ("json", "parquet"):
        source = FilesSource(str(tmp_path / format), format, schema)  # type: ignore[arg-type]
        source.check(spark)
        rows: list[str] = []

        run(
            source.read(spark, source.start(spark)),
            tmp_path / f"checkpoint-{format}",
            lambda batch, _, rows=rows: rows.extend(map(str, batch.collect())),  # type: ignore[misc]
        )

        assert sorted(rows) == expected


CSV_FIELDS = {
    "int": ["7", "-7", "007", "+7", "0x10", " 7", "7 ", "1.0", "1e2", '""', "", "NA", '"NA"', '"7"', "2147483648"],
    "boolean": ["true", "TRUE", "tRuE", "1", "0", "yes", " true", '""'],
    "double": [
        "1.5",
        " 1.5",
        "1e999",
        "nan",
        "NaN",
        "inf",
        "Inf",
        "-Inf",
        "+Inf",
        "Infinity",
        "+Infinity",
        "1.5d",
        "0x1",
    ],
    "decimal(10,2)": ["1.5", " 1.5", "1e2", "1.005", '"1,5"', '""'],
    "string": ["x", " x ", '""', "", "NA", '"NA"', "0x10", '"a ""b"""'],
    "date": ["2024-01-01", " 2024-01-01", "2024-1-1", "2024-01-01T00:00:00"],
    "timestamp_ntz": ["2024-01-01T00:00:00", "2024-01-01 00:00:00Z", "2024-01-01", "2024-01-01T00:00:00+01:00"],
}
JSON_VALUES = {
    "int": ["7", "7.0", "1e2", '"7"', "2147483648", "true"],
    "boolean": ["true", "1", '"true"'],
    "double": ["1.5", "1", '"1.5"', '"NaN"', "1e999"],
    "timestamp_ntz": ['"2024-01-01T00:00:00Z"', '"2024-01-01T00:00:00.1234567"', '"2024-01-01T00:00:00+01:00"', "1"],
    "date": ['"2024-01-01"', '"2024-01-01T00:00:00"', "19000"],
}


@pytest.mark.parametrize(
    ("format", "values", "null"),
    [("csv", CSV_FIELDS, ""), pytest.param("csv", CSV_FIELDS, "NA", marks=pytest.mark.long), ("json", JSON_VALUES, "")],
    ids=["csv", "csv with a null value", "json"],
)
def test_no_text_is_read_as_another_value_than_sparks(
    format: Any, values: dict[str, list[str]], null: str, spark: SparkSession, tmp_path: Path
) -> None:
    """A text that spark_ckpt refuses is a bad record, even if Spark can read it. Each record has text in one column."""
    columns = {f"v{number}": kind for number, kind in enumerate(values)}
    cells = [(column, text) for column, kind in columns.items() for text in values[kind]]
    if format == "csv":
        lines = (",".join(text if column == each else null for each in columns) for column, text in cells)
        text = "".join(f"{n},{line},.\n" for n, line in enumerate(lines))
    else:
        text = "".join(f'{{"n": {n}, "{column}": {text}}}\n' for n, (column, text) in enumerate(cells))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / f"a.{format}").write_text(text)
    typed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
    schema = f"n int, {typed}" + (", dot string" if format == "csv" else "")
    sparks = spark.read.schema(schema).options(nullValue=null, escape='"').format(format).load(str(folder))
    wanted = {row.n: repr(row[cells[row.n][0]]) for row in sparks.collect()}
    source = FilesSource(str(folder), format, schema, on_error="keep", header=False, nullValue=null)
    read: list[Any] = []
    run(source.read(spark, source.start(spark)), tmp_path / "checkpoint", lambda batch, _: read.extend(batch.collect()))
    found = {row.n: repr(row[cells[row.n][0]]) for row in read if row["_corrupt_record"] is None}
    assert {cells[n][0] for n in found} == set(columns), "some record of every kind is none of the bad ones"
    assert {cells[n]: value for n, value in found.items()} == {cells[n]: wanted[n] for n in found}


def test_files_written_by_arrow_keep_their_instants(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    at = pa.array([1_700_000_000_123], pa.timestamp("ms", "Europe/Berlin"))
    pq.write_table(pa.table({"id": [1], "name": ["x"], "at": at}), tmp_path / "in" / "a.parquet")
    source = FilesSource(str(tmp_path / "in"), "parquet", SCHEMA)
    found: list[Any] = []

    frame = source.read(spark, source.start(spark)).select(F.unix_micros("at").alias("us"))
    run(frame, tmp_path / "checkpoint", lambda batch, _: found.extend(row.us for row in batch.collect()))

    assert found == [1_700_000_000_123_000]


def test_a_schema_that_cannot_be_parsed_is_an_error_without_a_traceback(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match="cannot be parsed"):
        FilesSource(str(tmp_path), "csv", "id lnog").check(spark)


def test_the_error_of_a_session_without_delta_names_the_cure(spark: SparkSession) -> None:
    with pytest.raises(EnvironmentUnfit, match=r"spark\.sql\.extensions") as caught:
        require_delta_spark(spark)
    assert 'spark_ckpt.session(name, "delta")' in caught.value.hint


@contextmanager
def set_to(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def test_a_folder_of_sparks_file_sink_has_the_rows_that_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Batches, compactions and a partition column as Spark's sink writes them, and a file of a failed attempt."""
    fill(tmp_path / "in", 0, 7)
    read = spark.readStream.schema(SCHEMA).option("header", True).option("maxFilesPerTrigger", 1)
    sink = read.csv(str(tmp_path / "in")).writeStream.partitionBy("name").format("json")
    sink = sink.option("checkpointLocation", str(tmp_path / "sink")).trigger(availableNow=True)
    with set_to(spark, "spark.sql.streaming.fileSink.log.compactInterval", "3"):
        sink.start(str(tmp_path / "a lake")).awaitTermination()
    committed = next((tmp_path / "a lake").glob("name=*/part-*"))
    committed.with_name("part-00000-dead.json").write_bytes(committed.read_bytes())
    assert (tmp_path / "a lake" / "_spark_metadata" / "5.compact").exists()
    source = FilesSource(str(tmp_path / "a lake"), "json", "id long", recursiveFileLookup=True)

    ids = collected(source.read(spark, source.start(spark)), tmp_path / "checkpoint")

    by_spark = spark.read.schema("id long").json(str(tmp_path / "a lake"))
    assert sorted(ids) == sorted(row.id for row in by_spark.collect()) == list(range(70))


def test_lines_that_end_in_a_carriage_return_are_the_rows_that_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(b"id,name\r1,x\r2,y\r")
    source = FilesSource(str(tmp_path / "in"), "csv", "id long, name string")

    ids = collected(source.read(spark, source.start(spark)), tmp_path / "checkpoint")

    by_spark = spark.read.schema("id long, name string").csv(str(tmp_path / "in"), header=True)
    assert ids == [row.id for row in by_spark.collect()] == [1, 2]


def test_int96_times_of_any_year_are_the_ones_that_spark_wrote(spark: SparkSession, tmp_path: Path) -> None:
    query = "select timestamp'9999-12-31 23:59:59.999999' at union all select timestamp'1900-01-01 00:00:00'"
    with set_to(spark, "spark.sql.parquet.outputTimestampType", "INT96"):
        spark.sql(query).write.parquet(str(tmp_path / "in"))
    source = FilesSource(str(tmp_path / "in"), "parquet", "at timestamp")
    rows: list[Any] = []

    run(source.read(spark, source.start(spark)), tmp_path / "c", lambda batch, _: rows.extend(batch.collect()))

    assert sorted(rows) == sorted(spark.read.parquet(str(tmp_path / "in")).collect())
