"""delta-spark and deltalake: exact sources, idempotent merges, and tables that each engine reads from the other."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
import json
import re
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType
from spark_ckpt_delta import DeltaSink, DeltaSource
from spark_ckpt_delta.merging import MergePatience

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt import failpoints
from spark_ckpt.connector import EpochOutput, Publisher, SinkContext, StagedFile
from spark_ckpt.errors import EpochDamaged, IdentityChanged, PublishConflict, PublishFailed, RowsRefused, SinkInvalid
from spark_ckpt.failpoints import FailpointHit
from spark_ckpt.spark_internals.jvm import java_frame
from tests.protocol.scenario import scenarios

pytestmark = pytest.mark.spark
ROWS = StructType([StructField("key", StringType()), StructField("total", LongType())])


def context(incarnation: int = 1, sink: str = "out") -> SinkContext:
    return SinkContext("job", sink, "0f1e2d3c", Incarnation(incarnation))


def stage(root: Path, rows: list[tuple[Any, ...]], names: tuple[str, ...] = ("key", "total"), **at: str) -> StagedFile:
    """Stage a file below `root`, as a task does."""
    folder = "".join(f"{name}={quote(value, safe='')}/" for name, value in at.items())
    path = f"{folder}ckpt-out-i1-b0-t0-0-{uuid.uuid4().hex}.parquet"
    (root / folder).mkdir(parents=True, exist_ok=True)
    table = pa.table({name: [row[n] for row in rows] for n, name in enumerate(names)})
    pq.write_table(table, root / path, write_page_checksum=True)
    content = (root / path).read_bytes()
    digest, stats = hashlib.sha256(content).hexdigest(), json.dumps({"numRecords": len(rows)})
    return StagedFile(path, len(content), len(rows), 0, 0, 0, 0, at, stats, digest)


def output(root: Path, epoch: int, files: list[StagedFile], incarnation: int = 1) -> EpochOutput:
    return EpochOutput(Epoch(epoch), Incarnation(incarnation), Epoch(epoch - 1), str(root), {}, files)


def rows_of(spark: SparkSession, table: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.read.format("delta").load(str(table)).collect())


def versions(table: Path) -> int:
    return DeltaTable(str(table)).version() + 1


def publisher(spark: SparkSession, table: Path, incarnation: int = 1, **options: Any) -> Publisher:
    return DeltaSink(str(table), engine="spark", **options).publisher(spark, context(incarnation))


def concurrent_appends(
    side: Any, monkeypatch: pytest.MonkeyPatch, table: Path, flags: Path, row: tuple[Any, ...], times: int
) -> list[float]:
    """Let another writer append `row` after the start of each of the first `times` merges; return the pauses taken."""
    paused: list[float] = []
    attempts = itertools.count()
    real = side.newest_per_key
    names = DeltaTable(str(table)).schema().to_arrow().names

    def with_append(decided: EpochOutput) -> DataFrame:
        attempt = next(attempts)
        flag = flags / f"attempt-{attempt}"

        def meanwhile(_: str) -> bool:
            if attempt < times:
                with contextlib.suppress(FileExistsError):
                    flag.mkdir(parents=True)
                    write_deltalake(
                        str(table), pa.table({n: [v] for n, v in zip(names, row, strict=True)}), mode="append"
                    )
            return True

        return real(decided).where(F.udf(meanwhile, "boolean", useArrow=False)(F.col("key")))

    monkeypatch.setattr(side, "newest_per_key", with_append)
    monkeypatch.setattr(side, "patience", MergePatience(attempts=4, sleep=paused.append))
    return paused


@pytest.mark.long
def test_a_merge_waits_for_another_writer_longer_each_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=["key"])
    side.publish(output(outbox, 1, [stage(outbox, [("a", 1)])]))
    paused = concurrent_appends(side, monkeypatch, table, tmp_path / "flags", ("other", 0), times=2)

    receipt = side.publish(output(outbox, 2, [stage(outbox, [("a", 2)])]))

    assert (receipt.replayed, len(paused)) == (False, 2)
    assert rows_of(spark, table) == [("a", 2), ("other", 0), ("other", 0)]


@pytest.mark.long
def test_a_merge_that_always_conflicts_raises_and_stays_unpublished(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=["key"])
    side.publish(output(outbox, 1, [stage(outbox, [("a", 1)])]))
    second = output(outbox, 2, [stage(outbox, [("a", 2)])])
    concurrent_appends(side, monkeypatch, table, tmp_path / "flags", ("other", 0), times=4)

    with pytest.raises(
        PublishFailed, match=r"during each of 4 attempts \((DELTA_CONCURRENT|ConcurrentAppend)"
    ) as caught:
        side.publish(second)

    assert "partition" in caught.value.hint
    assert ("a", 1) in rows_of(spark, table)
    assert not publisher(spark, table, keys=["key"]).publish(second).replayed
    assert ("a", 2) in rows_of(spark, table)


@pytest.mark.long
def test_a_writer_of_other_partitions_does_not_disturb_a_merge(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=["total", "key"], partition_by=["total"])
    side.publish(output(outbox, 1, [stage(outbox, [("a", 1), ("b", 1)])]))
    paused = concurrent_appends(side, monkeypatch, table, tmp_path / "flags", ("other", 7), times=4)

    side.publish(output(outbox, 2, [stage(outbox, [("a", 1), (None, 1)])]))

    assert paused == []
    found = {tuple(row) for row in spark.read.format("delta").load(str(table)).select("key", "total").collect()}
    assert found == {("a", 1), ("b", 1), (None, 1), ("other", 7)}


def test_a_first_epoch_without_rows_makes_the_table_and_leaves_its_marker(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    sink = DeltaSink(str(table), engine="spark", partition_by=["key"])
    sink.stage(ROWS)
    side = sink.publisher(spark, context())

    receipts = [side.publish(output(outbox, epoch, [])) for epoch in (1, 1, 2)]
    third = replace(output(outbox, 3, [stage(outbox, [("a", 1)])]), acked=Epoch(2))
    side.publish(third)

    assert [receipt.replayed for receipt in receipts] == [False, True, False]
    assert (rows_of(spark, table), versions(table)) == ([("a", 1)], 2)
    assert DeltaTable(str(table)).metadata().partition_columns == ["key"]
    assert sink.newest_published(context()) is not None


def test_another_decision_is_noticed_by_the_spark_engine_below_commits_of_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    lost = replace(output(outbox, 1, [stage(outbox, [("a", 1)])]), decision="a" * 32)
    publisher(spark, table).publish(lost)
    for n in range(60):
        write_deltalake(str(table), pa.table({"key": ["other"], "total": [n]}), mode="append")

    assert publisher(spark, table, 2).publish(lost).replayed
    with pytest.raises(PublishConflict, match="another commit of that number"):
        publisher(spark, table, 2).publish(replace(lost, decision="b" * 32))


def collect_ids(frame: DataFrame, checkpoint: Path) -> tuple[list[list[int]], list[str]]:
    """Ids of every batch, and Spark's logged offsets."""
    batches: list[list[int]] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: batches.append([row.id for row in batch.collect()]))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    logs = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return batches, [path.read_text().splitlines()[2] for path in logs]


@pytest.mark.long  # in the gate: tests/delta/test_delta_source.py
def test_a_source_over_a_table_of_delta_spark_restarts_exactly_at_every_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    for first in (0, 6):
        frame = spark.range(first, first + 6, numPartitions=2).selectExpr(
            "id", "timestamp_micros(id) AS at", "concat('a b/', id % 2) AS part"
        )
        frame.write.format("delta").mode("append").partitionBy("part").save(str(table))
    source = DeltaSource(str(table), start=0, maxFilesPerTrigger=2)
    source.check(spark)
    begin = source.start(spark)
    batches, log = collect_ids(source.read(spark, begin), tmp_path / "all")
    assert sorted(each for batch in batches for each in batch) == list(range(12))
    assert len(log) > 3

    for cut, offset in enumerate(log):
        cursor = json.loads(json.dumps(source.cursor(offset, begin)))
        rest, _ = collect_ids(source.read(spark, cursor), tmp_path / f"from-{cut}")

        assert [batch for batch in rest if batch] == batches[cut + 1 :]
    assert source.reached(source.cursor(log[-1], begin), source.end(spark))


@pytest.mark.long  # in the gate: the same place in integration_tests/files/test_files_streaming.py; tests/test_place.py
def test_a_relative_path_is_the_drivers_though_java_was_started_elsewhere(spark, tmp_path, monkeypatch) -> None:
    spark.range(3).write.format("delta").save(str(tmp_path / "table"))
    monkeypatch.chdir(tmp_path)
    source = DeltaSource("table")

    batches, _ = collect_ids(source.read(spark, source.start(spark)), tmp_path / "checkpoint")

    assert sorted(each for batch in batches for each in batch) == [0, 1, 2]


def test_values_of_a_table_of_delta_spark_arrive_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    frame = spark.range(4).selectExpr(
        "id",
        "timestamp '2024-03-31 01:30:00' AS at",
        "timestamp '1900-01-01 00:00:00.123456' AS old",
        "cast(id / 3 AS decimal(20, 4)) AS price",
        "array(struct(id AS x, cast(null AS string) AS y)) AS nested",
        "map('k', id) AS map",
        "date '2024-02-29' AS day",
        "cast(null AS binary) AS raw",
    )
    frame.write.format("delta").partitionBy("day").save(str(table))
    found: list[str] = []
    source = DeltaSource(str(table))

    query = (
        source.read(spark, source.start(spark))
        .writeStream.foreachBatch(lambda batch, _: found.extend(map(str, batch.collect())))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert sorted(found) == sorted(map(str, spark.read.format("delta").load(str(table)).collect()))


def test_credentials_never_show_in_a_plan(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.format("delta").save(str(tmp_path / "table"))
    source = DeltaSource(str(tmp_path / "table"), storage_options={"AWS_SECRET_ACCESS_KEY": "hidden-value"})
    frame = source.read(spark, source.start(spark))

    plans = java_frame(frame).queryExecution().toString()

    assert "redacted" in plans
    assert "hidden-value" not in plans + repr(frame)


def test_delta_spark_reads_the_rows_that_deltalake_published(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    rows = StructType([*ROWS.fields, StructField("city", StringType())])
    sink = DeltaSink(str(table), partition_by=["city"])
    sink.check(spark, rows)
    plan = sink.stage(rows)
    side = sink.publisher(spark, context())
    for epoch, city in enumerate(["New York", "a/b=c%d", "Zürich"], start=1):
        side.publish(output(Path(str(plan.root)), epoch, [stage(table, [(city, epoch)], city=city)]))

    assert rows_of(spark, table) == sorted(
        (city, n, city) for n, city in enumerate(["New York", "a/b=c%d", "Zürich"], 1)
    )
    before = spark.read.format("delta").option("versionAsOf", 1).load(str(table))
    assert [tuple(row) for row in before.collect()] == [("New York", 1, "New York")]
    only = spark.read.format("delta").load(str(table)).where("city = 'a/b=c%d'")
    assert [row.total for row in only.collect()] == [2]


def test_the_spark_engine_appends_an_epoch_once(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    epoch = output(outbox, 1, [stage(outbox, [("a", 1)]), stage(outbox, [("a", 2)])])

    first = publisher(spark, table).publish(epoch)
    again = publisher(spark, table, incarnation=2).publish(epoch)

    assert (first.replayed, first.rows, again.replayed) == (False, 2, True)
    assert (rows_of(spark, table), versions(table)) == ([("a", 1), ("a", 2)], 1)


def flipped(path: Path, place: int) -> bytes:
    """Flip a bit of the file; return its earlier content."""
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    return whole


@pytest.mark.parametrize("again", [True, False], ids=["re-created", "dropped"])
def test_the_spark_engine_adds_no_rows_to_a_table_that_became_another_one(
    spark: SparkSession, tmp_path: Path, again: bool
) -> None:
    table, root = tmp_path / "t", tmp_path / "outbox"
    writer = publisher(spark, table)
    writer.publish(output(root, 1, [stage(root, [("a", 1)])]))
    columns = DeltaTable(str(table)).schema()
    shutil.rmtree(table)
    if again:
        DeltaTable.create(str(table), schema=columns)

    with pytest.raises(IdentityChanged) as caught:
        writer.publish(output(root, 2, [stage(root, [("a", 2)])]))

    assert caught.value.context["sink"] == "out"
    assert not again or DeltaTable(str(table)).version() == 0


@pytest.mark.parametrize("keys", [pytest.param([], marks=pytest.mark.long), ["key"]], ids=["append", "merge"])
def test_the_spark_engine_writes_nothing_of_an_epoch_with_a_damaged_file(
    spark: SparkSession, tmp_path: Path, keys: list[str]
) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=keys)
    side.publish(output(outbox, 1, [stage(outbox, [("a", 1)])]))
    files = [stage(outbox, [("b", 1)]), stage(outbox, [("c", 1)])]
    path = outbox / files[1].path
    for place in range(4, files[1].size_bytes, files[1].size_bytes // 20):
        whole = flipped(path, place)
        with pytest.raises(EpochDamaged, match=files[1].path):
            side.publish(output(outbox, 2, files))
        path.write_bytes(whole)
    path.unlink()
    with pytest.raises(EpochDamaged, match="is missing"):
        side.publish(output(outbox, 2, files))
    assert (rows_of(spark, table), versions(table)) == ([("a", 1)], 1)
    path.write_bytes(whole)
    side.publish(output(outbox, 2, files))
    assert rows_of(spark, table) == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.long  # in the gate: the merge of rows with a greatest value, which is also published again
def test_a_merge_keeps_the_newest_row_of_every_key_and_repeats_safely(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=["key"])
    side.publish(output(outbox, 1, [stage(outbox, [("a", 1), ("b", 1), ("a", 2)])]))
    second = output(outbox, 2, [stage(outbox, [("a", 3), (None, 1)]), stage(outbox, [("c", 1), ("a", 1), (None, 2)])])

    receipts = [side.publish(second), side.publish(second), publisher(spark, table, 2, keys=["key"]).publish(second)]

    assert [receipt.replayed for receipt in receipts] == [False, True, True]
    assert versions(table) == 2
    merged = {row.key: row.total for row in spark.read.format("delta").load(str(table)).collect()}
    assert merged == {"a": 1, "b": 1, "c": 1, None: 2}


def test_the_row_with_the_greatest_value_wins_in_an_epoch_and_against_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    rule = {"keys": ["key"], "newest_by": "at"}
    names = ("key", "total", "at")
    side = publisher(spark, table, **rule)
    first = [("a", 1, 10), ("a", 2, 9), ("b", 1, None), ("c", 1, 5), ("d", 1, 5), ("e", 1, 5), ("e", 2, None)]
    side.publish(output(outbox, 1, [stage(outbox, first, names)]))
    assert rows_of(spark, table) == [("a", 1, 10), ("b", 1, None), ("c", 1, 5), ("d", 1, 5), ("e", 1, 5)]

    files = [
        stage(outbox, [("b", 2, 1), ("d", 2, 5)], names),
        stage(outbox, [("a", 3, 9), ("c", 2, None), ("d", 3, 5), ("e", 3, 6)], names),
    ]
    second = output(outbox, 2, files)
    receipts = [side.publish(second), side.publish(second), publisher(spark, table, 2, **rule).publish(second)]
    assert [receipt.replayed for receipt in receipts] == [False, True, True]
    merged = [("a", 1, 10), ("b", 2, 1), ("c", 1, 5), ("d", 3, 5), ("e", 3, 6)]
    assert (rows_of(spark, table), versions(table)) == (merged, 2)


@pytest.mark.long  # in the gate: the merge of rows with a greatest value, above
def test_an_epoch_of_older_rows_only_leaves_its_marker(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=["key"], newest_by="total", delete_when="total < 3")
    side.publish(output(outbox, 1, [stage(outbox, [("a", 5)])]))
    second = output(outbox, 2, [stage(outbox, [("a", 4), ("b", 1)])])

    assert [side.publish(second).replayed for _ in range(2)] == [False, True]
    assert rows_of(spark, table) == [("a", 5)]


def test_a_row_that_deletes_its_key_leaves_nothing_of_it(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=["key"], delete_when="total < 0")
    side.publish(output(outbox, 1, [stage(outbox, [("a", 1), ("b", 1), ("b", -1), ("c", -1), ("c", 2), ("d", None)])]))
    assert rows_of(spark, table) == [("a", 1), ("c", 2), ("d", None)]

    second = output(outbox, 2, [stage(outbox, [("a", -1), ("c", 3), ("e", -1)])])
    assert [side.publish(second).replayed for _ in range(2)] == [False, True]
    assert rows_of(spark, table) == [("c", 3), ("d", None)]
    side.publish(output(outbox, 3, [stage(outbox, [("a", 4)])]))
    assert rows_of(spark, table) == [("a", 4), ("c", 3), ("d", None)]


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ({"newest_by": "nothing"}, "nothing"),
        ({"newest_by": "map"}, "newest_by='map'"),
        ({"delete_when": "nothing = 1"}, "nothing = 1"),
        ({"delete_when": "total +"}, "total +"),
        ({"delete_when": "total"}, "delete_when='total'"),
        ({"delete_when": "count(*) > 1"}, "count"),
        ({"delete_when": ""}, "delete_when=''"),
    ],
)
def test_a_rule_that_does_not_fit_the_rows_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path, rule: dict[str, str], named: str
) -> None:
    rows = StructType.fromDDL("key string, total long, map map<string, long>")
    with pytest.raises(SinkInvalid) as caught:
        DeltaSink(str(tmp_path / "t"), engine="spark", keys=["key"], **rule).check(spark, rows)
    assert named in caught.value.what
    DeltaSink(
        str(tmp_path / "t"), engine="spark", keys=["key"], newest_by="total", delete_when="map['x'] = total"
    ).check(spark, rows)


# in the gate: the merge, whose statement also names the path
@pytest.mark.parametrize("keys", [pytest.param([], marks=pytest.mark.long), ["key"]], ids=["append", "merge"])
def test_the_spark_engine_publishes_at_any_path_that_deltalake_opens(
    spark: SparkSession, tmp_path: Path, keys: list[str]
) -> None:
    odd = tmp_path / "[x]{y}*?" / "50% #1, it's `x`: ü"
    outbox, table = odd / "outbox", odd / "table"
    side = publisher(spark, table, keys=keys)
    for epoch in (1, 2):
        side.publish(output(outbox, epoch, [stage(outbox, [(str(epoch), epoch)])]))
    assert rows_of(spark, table) == [("1", 1), ("2", 2)]


@pytest.mark.long  # in the gate: tests/delta/test_delta_merging.py
def test_a_merge_keeps_one_row_of_a_key_whose_partition_is_any_text(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=["key"], partition_by=["key"])
    texts = ["", " ", "  ", "%41", "it's", "back\\slash", "a/b=c", "ü\t"]
    for epoch in (1, 2):
        side.publish(output(outbox, epoch, [stage(outbox, [(text, epoch) for text in texts])]))
    assert DeltaTable(str(table)).to_pyarrow_table().sort_by("key").to_pylist() == [
        *({"key": text, "total": 2} for text in sorted(texts[1:])), {"key": None, "total": 2}
    ]  # fmt: skip


@pytest.mark.long  # in the gate: tests/delta/test_delta_merging.py
def test_an_empty_text_and_a_null_in_a_merges_partition_are_one_key(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=["key"], partition_by=["key"])
    side.publish(output(outbox, 1, [stage(outbox, [(None, 1), ("", 2)])]))
    side.publish(output(outbox, 2, [stage(outbox, [("__HIVE_DEFAULT_PARTITION__", 3)])]))
    side.publish(output(outbox, 3, [stage(outbox, [("", 4), (None, 5)])]))
    assert rows_of(spark, table) == [(None, 5)]


class Hostile:
    """A session whose new sessions have settings that could change rows on their way into the table."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def newSession(self) -> SparkSession:
        made = self._spark.newSession()
        for key, value in {
            "spark.sql.session.timeZone": "+05:45",
            "spark.sql.parquet.binaryAsString": "true",
            "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
            "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
            "spark.sql.parser.escapedStringLiterals": "true",
            "spark.sql.ansi.doubleQuotedIdentifiers": "true",
            "spark.sql.ansi.enforceReservedKeywords": "true",
            "spark.sql.caseSensitive": "true",
            "spark.sql.files.ignoreMissingFiles": "true",
            "spark.sql.runSQLOnFiles": "false",
            "spark.databricks.delta.write.utcTimestampPartitionValues": "false",
        }.items():
            made.conf.set(key, value)
        return made


@pytest.mark.long  # in the gate: tests/delta/test_delta_merging.py
def test_a_merge_keeps_one_row_of_every_instant_with_any_settings_of_the_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    hostile: Any = Hostile(spark)
    side = publisher(hostile, table, keys=["at", "name"], partition_by=["at", "name"])
    instants = [dt.datetime(2024, 11, 3, hour, 30, tzinfo=dt.UTC) for hour in (5, 6)]
    others = (b"\xff", dt.datetime(1500, 1, 1, 12), dt.date(1500, 1, 1))
    for epoch in (1, 2):
        rows = [(at, "back\\slash", epoch, *others) for at in instants]
        side.publish(output(outbox, epoch, [stage(outbox, rows, ("at", "name", "n", "raw", "local", "day"))]))
    found = DeltaTable(str(table)).to_pyarrow_table().sort_by("at").to_pylist()
    names = ("name", "n", "raw", "local", "day")
    assert [row["at"] for row in found] == instants
    assert [tuple(row[name] for name in names) for row in found] == [("back\\slash", 2, *others)] * 2


def test_an_epoch_without_rows_marks_an_existing_table_once(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    spark.createDataFrame([("a", 1)], ROWS).write.format("delta").save(str(table))
    side = publisher(spark, table, keys=["key"])

    receipts = [side.publish(output(outbox, epoch, [])) for epoch in (1, 1, 2)]

    assert [receipt.replayed for receipt in receipts] == [False, True, False]
    assert (rows_of(spark, table), versions(table)) == ([("a", 1)], 2)


def test_a_whole_result_without_rows_empties_the_table(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = DeltaSink(str(table), engine="spark")
    side.stage(ROWS)
    writer = side.publisher(spark, context())
    writer.publish(replace(output(outbox, 1, [stage(outbox, [("a", 1)])]), replaces=True))
    empty = replace(output(outbox, 2, []), replaces=True)

    assert [writer.publish(empty).replayed for _ in range(2)] == [False, True]
    assert (rows_of(spark, table), versions(table)) == ([], 2)


def test_a_merge_killed_after_its_commit_is_a_replay(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=["key"])
    side.publish(output(outbox, 1, [stage(outbox, [("a", 1)])]))
    epoch = output(outbox, 2, [stage(outbox, [("a", 5)])])
    with failpoints.armed("PUBLISH_COMMITTED:raise"), pytest.raises(FailpointHit):
        side.publish(epoch)

    assert publisher(spark, table, 2, keys=["key"]).publish(epoch).replayed
    assert (rows_of(spark, table), versions(table)) == ([("a", 5)], 2)


class RestoredTable:
    """Steps of scenario T16: one table, one sink, epochs published one after the other."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._outbox, self._table = spark, folder / "outbox", folder / "table"

    def perform(self, line: str) -> None:
        """Perform one line of the scenario."""
        if found := re.fullmatch(r"epoch (\d+) publishes (\w+)=(\d+)", line):
            self._publish(int(found[1]), found[2], int(found[3]))
        elif found := re.fullmatch(r"the table is restored to version (\d+)", line):
            self._spark.sql(f"RESTORE TABLE delta.`{self._table}` TO VERSION AS OF {found[1]}")
        else:
            (rows,) = re.fullmatch(r"the table has (.*)", line).groups()  # type: ignore[union-attr]
            assert [f"{key}={value}" for key, value in rows_of(self._spark, self._table)] == rows.split()

    def _publish(self, epoch: int, key: str, value: int) -> None:
        staged = [stage(self._outbox, [(key, value)])]
        publisher(self._spark, self._table).publish(output(self._outbox, epoch, staged))


# The literal rule loses a row, so this library never writes a row by it.
@pytest.mark.long  # in the gate: the planted bugs of tests/simulator/test_unkind_surroundings.py
@pytest.mark.parametrize("after", ["corrected", "literal"])
def test_t16_an_epoch_of_a_restored_table_is_written_only_under_a_number_of_its_own(
    spark: SparkSession, tmp_path: Path, after: str
) -> None:
    (scenario,) = scenarios("delta-spark")
    table = RestoredTable(spark, tmp_path)

    for line in [*scenario.sections["steps"], *scenario.sections[after]]:
        table.perform(line)


@pytest.mark.long
def test_our_transaction_settings_do_not_skip_the_users_own_writes(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side = publisher(spark, table, keys=["key"])
    for n in (1, 2):
        side.publish(output(outbox, n, [stage(outbox, [("a", n)])]))
        mine = spark.createDataFrame([("mine", n)], ROWS)
        mine.write.format("delta").mode("append").save(str(table))

    assert rows_of(spark, table) == [("a", 2), ("mine", 1), ("mine", 2)]
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None


@pytest.mark.long  # in the gate: tests/delta/test_delta_crash.py
def test_a_failing_statement_is_retriable_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    side: Any = publisher(spark, table, keys=["key"])
    side.publish(output(outbox, 1, [stage(outbox, [("a", 1)])]))
    real = side.newest_per_key
    monkeypatch.setattr(side, "newest_per_key", lambda decided: real(decided).where("raise_error(key) IS NULL"))

    with pytest.raises(PublishFailed) as caught:
        side.publish(output(outbox, 2, [stage(outbox, [("a", 2)])]))

    assert caught.value.retriable
    assert rows_of(spark, table) == [("a", 1)]


@pytest.mark.long  # in the gate: tests/delta/test_delta_rules.py
def test_a_constraint_that_deltalake_refuses_is_kept_by_the_spark_engine(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    spark.createDataFrame([("a", 1)], ROWS).write.format("delta").save(str(table))
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT positive CHECK (total > 0)")
    with pytest.raises(SinkInvalid, match="check constraint positive"):
        DeltaSink(str(table)).check(spark, ROWS)
    sink = DeltaSink(str(table), engine="spark")
    sink.check(spark, ROWS)

    with pytest.raises(RowsRefused, match="CHECK constraint"):
        sink.publisher(spark, context()).publish(output(outbox, 1, [stage(outbox, [("b", -1)])]))
    assert rows_of(spark, table) == [("a", 1)]


@pytest.mark.parametrize("keys", [[], pytest.param(["key"], marks=pytest.mark.long)])
def test_a_table_that_gives_values_itself_gets_rows_without_these_columns(
    spark: SparkSession, tmp_path: Path, keys: list[str]
) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    columns = (
        "key STRING, total BIGINT, twice BIGINT GENERATED ALWAYS AS (total * 2), n BIGINT GENERATED ALWAYS AS IDENTITY"
    )
    spark.sql(f"CREATE TABLE delta.`{table}` ({columns}) USING delta")
    sink = DeltaSink(str(table), engine="spark", keys=keys)
    sink.check(spark, ROWS)

    sink.publisher(spark, context()).publish(output(outbox, 1, [stage(outbox, [("a", 1), ("b", 2)])]))

    found = rows_of(spark, table)
    assert [row[:3] for row in found] == [("a", 1, 2), ("b", 2, 4)]
    assert len({row[3] for row in found}) == 2
    with pytest.raises(SinkInvalid, match="only the table gives values to n"):
        DeltaSink(str(table), engine="spark").check(spark, StructType([*ROWS, StructField("n", LongType())]))


def test_one_engine_owns_a_table(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    publisher(spark, table).publish(output(outbox, 1, [stage(outbox, [("a", 1)])]))

    with pytest.raises(SinkInvalid, match="engine 'spark'; one engine owns a table"):
        DeltaSink(str(table)).publisher(spark, context())


def test_the_spark_engine_checks_columns_before_the_job_starts(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    spark.createDataFrame([("a", 1)], ROWS).write.format("delta").save(str(table))
    other = StructType([StructField("key", StringType())])

    with pytest.raises(SinkInvalid, match="total"):
        DeltaSink(str(table), engine="spark").check(spark, other)
    with pytest.raises(SinkInvalid, match="columns nokey are not in the job's rows"):
        DeltaSink(str(table), engine="spark", keys=["nokey"]).check(spark, ROWS)


@pytest.mark.long  # in the gate: tests/delta/test_delta_source.py
def test_deletion_vectors_of_delta_spark_are_refused_not_read_as_live_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id long) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    spark.range(100).coalesce(1).write.format("delta").mode("append").save(str(table))
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 5")

    from spark_ckpt.errors import SourceInvalid

    with pytest.raises(SourceInvalid, match="deletion vector"):
        DeltaSource(str(table)).start(spark)
    with pytest.raises(SourceInvalid, match=r"version 2 \(DELETE\)"):
        cursor = DeltaSource(str(table), start=2).start(spark)
        DeltaSource(str(table), start=2).read(spark, cursor)


def test_time_of_a_publish_is_recorded_for_history(spark: SparkSession, tmp_path: Path) -> None:
    outbox, table = tmp_path / "outbox", tmp_path / "table"
    publisher(spark, table).publish(output(outbox, 1, [stage(outbox, [("a", 1)])]))

    row = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()[0]

    assert row.userMetadata.startswith("spark-ckpt job=job sink=out epoch=1 incarnation=1 engine=spark decision=")
    assert abs(row.timestamp - dt.datetime.now()) < dt.timedelta(days=2)
