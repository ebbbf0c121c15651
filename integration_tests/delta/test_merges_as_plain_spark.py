"""A job's merge by `newest_by` and `delete_when` leaves the table of a plain query with `foreachBatch` and MERGE."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt

pytestmark = pytest.mark.spark
SCHEMA = "k string, at timestamp, op string, n int"
COLUMNS = ("k", "at", "op", "n")
ENOUGH_S = 120.0
RULE = {"engine": "spark", "keys": ["k"], "newest_by": "at", "delete_when": "op = 'd'"}
PLAIN = """
    MERGE INTO delta.`{table}` AS t USING newest AS s ON t.k = s.k
    WHEN MATCHED AND (s.at >= t.at OR t.at IS NULL) AND s.op = 'd' THEN DELETE
    WHEN MATCHED AND (s.at >= t.at OR t.at IS NULL) THEN UPDATE SET *
    WHEN NOT MATCHED AND NOT (s.op <=> 'd') THEN INSERT *
"""


def put(folder: Path, number: int, rows: list[dict[str, object]]) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"{number:03}.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_700_000_000 + number,) * 2)


def drawn(folder: Path, files: int) -> None:
    """Changes of six keys out of order, some without a time, some deletions; no two changes of a key at one time."""
    draw = random.Random(98)
    seconds = draw.sample(range(1000), files * 8)
    for number in range(files):
        rows = []
        for n in range(number * 8, number * 8 + 8):
            at = dt.datetime.fromtimestamp(1_700_000_000 + seconds[n], dt.UTC).isoformat()
            op = draw.choice(["i", "u", "d", None])
            rows.append({"k": draw.choice("abcdef"), "at": at if draw.random() < 0.9 else None, "op": op, "n": n})
        put(folder, number, rows)


def found(table: Path) -> list[tuple[object, ...]]:
    rows = DeltaTable(str(table)).to_pyarrow_table().select(COLUMNS).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def files(inbox: Path) -> FilesSource:
    return FilesSource(str(inbox), "json", SCHEMA, maxFilesPerTrigger=1)


def job(spark: SparkSession, folder: Path, inbox: Path, **rule: object) -> ckpt.Job:
    made = ckpt.Job(spark, "merges", str(folder / "store"), interval="every batch", max_failed_epochs=1)
    sink = DeltaSink(str(folder / "job"), **{**RULE, **rule})
    made.source("in", files(inbox)).to(sink, name="out", publish_every="0 seconds")
    return made


def drain(made: ckpt.Job, **options: object) -> ckpt.Run:
    run = made.start(availableNow=True, **options)
    assert run.awaitTermination(ENOUGH_S)
    return run


def plain(spark: SparkSession, inbox: Path, table: Path, checkpoint: Path) -> None:
    spark.createDataFrame([], SCHEMA).write.format("delta").save(str(table))
    newest = Window.partitionBy("k").orderBy(F.desc_nulls_last("at"), F.desc("n"))

    def merge(batch: DataFrame, _: int) -> None:
        chosen = batch.withColumn("r", F.row_number().over(newest)).where("r = 1").drop("r")
        chosen.createOrReplaceTempView("newest")
        chosen.sparkSession.sql(PLAIN.format(table=table))

    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(inbox))
    query = rows.writeStream.foreachBatch(merge).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


# test_delta_spark judges one merge of each kind, and a repeated one.
@pytest.mark.long
def test_a_job_and_an_outbox_merge_as_plain_spark_also_after_a_restore(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    drawn(inbox, 5)
    plain(spark, inbox, tmp_path / "plain", tmp_path / "checkpoint")
    expected = found(tmp_path / "plain")
    assert 0 < len(expected) < 6  # a key is deleted

    epochs = [each.epoch for each in drain(job(spark, tmp_path, inbox)).epochs()]
    assert found(tmp_path / "job") == expected

    drain(job(spark, tmp_path, inbox), restore=epochs[len(epochs) // 2])
    assert found(tmp_path / "job") == expected

    out = ckpt.Outbox(
        str(tmp_path / "outbox"),
        name="merges",
        checkpoint=str(tmp_path / "query"),
        sinks={"out": DeltaSink(str(tmp_path / "out"), **RULE)},
    )
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(inbox))
    out.start(rows.writeStream.trigger(availableNow=True)).awaitTermination()
    assert found(tmp_path / "out") == expected


@pytest.mark.long  # in the gate: tests/delta/test_delta_rules.py
def test_a_null_in_a_key_is_refused_before_its_epoch_is_committed(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    put(inbox, 0, [{"k": "a", "n": 1}])
    drain(job(spark, tmp_path, inbox))
    put(inbox, 1, [{"k": "b", "n": 2}, {"k": None, "n": 3}])
    with pytest.raises(ckpt.CkptError) as refused:
        drain(job(spark, tmp_path, inbox))
    assert refused.value.condition == "CKPT_OUTPUT_INVALID"
    assert (refused.value.context["sink"], refused.value.context["column"]) == ("out", "k")
    assert 'null_keys="match"' in refused.value.hint
    assert [row[0] for row in found(tmp_path / "job")] == ["a"]

    drain(job(spark, tmp_path, inbox, null_keys="match"))
    assert sorted(map(str, (row[0] for row in found(tmp_path / "job")))) == ["None", "a", "b"]
