"""Programs that keep Delta tables: MERGE in `foreachBatch`, layers of tables, several tables of one stream."""

from __future__ import annotations

import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.ported.input_files import Row, of_one_input, stamp
from integration_tests.ported.program import Ported

CHANGE = "id string, at timestamp, op string, amount long"


def change(draw: random.Random, at: float) -> Row:
    """A change of one of six rows. Every change has a different fraction of a second, so two changes of a row differ in time."""
    time = stamp(at).replace(".000Z", f".{draw.randrange(1000):03}Z")
    return {"id": draw.choice("abcdef"), "at": time, "op": draw.choice("uuud"), "amount": draw.randrange(100)}


def plain_changes(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """After `docs/source/delta-update.md` of delta-io/delta, change data and upserts from streaming queries.

    With the condition on the time, so that a late change does not replace a newer one.
    """
    table = f"{outputs}/current"
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{table}` ({CHANGE}) USING delta")

    def merge(batch, number):
        newest = batch.groupBy("id").agg(F.max(F.struct("at", "op", "amount")).alias("latest"))
        newest.select("id", "latest.*").createOrReplaceTempView("changes")
        batch.sparkSession.sql(
            f"""
            MERGE INTO delta.`{table}` AS t USING changes AS s ON s.id = t.id
            WHEN MATCHED AND s.at >= t.at AND s.op = 'd' THEN DELETE
            WHEN MATCHED AND s.at >= t.at THEN UPDATE SET *
            WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT *
            """
        )

    changes = spark.readStream.schema(CHANGE).json(f"{inputs}/changes")
    writer = changes.writeStream.foreachBatch(merge).option("checkpointLocation", state)
    writer.trigger(availableNow=True).start().awaitTermination()


def job_changes(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """The rule of the merge is declared."""
    table = f"{outputs}/current"
    job = ckpt.Job(spark, "changes", store=state)
    changes = job.source("changes", FilesSource(f"{inputs}/changes", "json", CHANGE))
    changes.to(DeltaSink(table, engine="spark", keys=["id"], newest_by="at", delete_when="op = 'd'"))
    job.start(availableNow=True).awaitTermination()


PROGRAMS = (
    Ported(
        "change data by MERGE",
        plain_changes,
        job_changes,
        of_one_input("changes", change),
        ("current",),
        "the function with the MERGE becomes arguments of `DeltaSink`",
    ),
)
