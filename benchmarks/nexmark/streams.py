"""Read the topic and write the records of answers, in spark_ckpt's jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.systems import job_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import pyarrow as pa

    import spark_ckpt as ckpt

NUMBERS = {"person": 0, "auction": 1, "bid": 2}
FAIL = {"mode": "FAILFAST"}


def of(records: ckpt.Stream, **kinds: str) -> ckpt.Stream:
    """Events of some kinds, each a struct with the given fields (`bid="auction LONG, price LONG"`), null for an event of another
    kind. A record that cannot be parsed fails the job.

    A record begins with its kind, so records of other kinds need no parsing. Spark evaluates an expression that later filters share
    before any of the filters, so the parser itself gets null for these records.
    """
    from pyspark.sql import functions as F

    text = F.col("value").cast("string")
    wanted = None
    for kind in kinds:
        one = text.startswith(f'{{"event_type":{NUMBERS[kind]},')
        wanted = one if wanted is None else wanted | one
    schema = ", ".join(f"{kind} STRUCT<{fields}>" for kind, fields in kinds.items())
    return (
        records.filter(wanted).select(F.from_json(F.when(wanted, text), schema, FAIL).alias("event")).select("event.*")
    )


def vectorised(records: ckpt.Stream, kind: str, fields: str) -> ckpt.Stream:
    """Events of one kind, a column for each field, as `of` returns them, but parsed by Arrow in a Python worker, many at once.

    Spark's parser allocates a buffer of 8 KiB for every record.
    """
    from spark_ckpt.store.ddl import arrow_schema

    schema = arrow_schema(fields)

    def parsed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (rows for batch in batches for rows in read(batch["value"], kind, schema))

    return records.select("value").mapInArrow(parsed, fields)


def read(values: pa.BinaryArray, kind: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Events of one kind among the records, parsed by Arrow; no batch if there are none."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import json

    wanted = values.filter(pc.starts_with(values, f'{{"event_type":{NUMBERS[kind]},'.encode()))
    if len(wanted) == 0:
        return
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(wanted)], pa.int32()), wanted), b"\n")
    text = lines[0].as_buffer()
    asked = pa.schema([(kind, pa.struct(list(schema)))])
    options = json.ParseOptions(explicit_schema=asked, unexpected_field_behavior="ignore")
    table = json.read_json(
        pa.BufferReader(text), json.ReadOptions(use_threads=False, block_size=text.size + 1), options
    )
    if len(table) != len(wanted):
        raise ValueError(f"{len(wanted)} records hold {len(table)} events")
    yield pa.RecordBatch.from_arrays(table[kind].combine_chunks().flatten(), schema=schema)


def all_of(batches: Iterator[pa.RecordBatch], kind: str, schema: pa.Schema) -> pa.Table:
    """All events of one kind in the records of a task."""
    import pyarrow as pa

    return pa.Table.from_batches((rows for batch in batches for rows in read(batch["value"], kind, schema)), schema)


def lists(values: pa.Array, key: np.ndarray, keys: int) -> pa.ListArray:
    """A list for each of `keys` keys, of values that are sorted by `key`."""
    import numpy as np
    import pyarrow as pa

    return pa.ListArray.from_arrays(np.searchsorted(key, np.arange(keys + 1)).astype(np.int32), values)


def as_records(rows: ckpt.Stream, job: str) -> ckpt.Stream:
    """Every row as a JSON object; the Kafka key of a running answer is the answer's key."""
    from pyspark.sql import functions as F

    value = F.to_json(F.struct(*rows.columns)).alias("value")
    key = getattr(job_module(job), "KEY", None)
    return rows.select(value) if key is None else rows.select(F.concat_ws(",", *key).alias("key"), value)
