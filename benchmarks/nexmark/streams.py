"""The topic as spark_ckpt's jobs read it, and the record that they write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.systems import job_module

if TYPE_CHECKING:
    import spark_ckpt as ckpt

NUMBERS = {"person": 0, "auction": 1, "bid": 2}
FAIL = {"mode": "FAILFAST"}


def of(records: ckpt.Stream, **kinds: str) -> ckpt.Stream:
    """Events of some kinds, each a struct with the given fields (`bid="auction LONG, price LONG"`), null for an event of another
    kind. A record that cannot be parsed fails the job.

    The record begins with its kind, so that the others need not be parsed.
    """
    from pyspark.sql import functions as F

    text = F.col("value").cast("string")
    wanted = None
    for kind in kinds:
        one = text.startswith(f'{{"event_type":{NUMBERS[kind]},')
        wanted = one if wanted is None else wanted | one
    schema = ", ".join(f"{kind} STRUCT<{fields}>" for kind, fields in kinds.items())
    return records.filter(wanted).select(F.from_json(text, schema, FAIL).alias("event")).select("event.*")


def as_records(rows: ckpt.Stream, job: str) -> ckpt.Stream:
    """Every row as a JSON object; the Kafka key of a running answer is what it is the answer for."""
    from pyspark.sql import functions as F

    value = F.to_json(F.struct(*rows.columns)).alias("value")
    key = getattr(job_module(job), "KEY", None)
    return rows.select(value) if key is None else rows.select(F.col(key).cast("string").alias("key"), value)
