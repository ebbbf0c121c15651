"""Task functions around an operator: pack rows before it, explode its output after it, stage rows for sinks.

They are made on the driver and run in Python workers, which load no driver code for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from spark_ckpt.coordination.reports import staged_file
from spark_ckpt.tasks.packing import explode_blobs, large_tables, pack
from spark_ckpt.tasks.rows import REJECT, ROWS_PER_WRITE, arrow_schema, conform
from spark_ckpt.tasks.staging import SinkStage, running_batch, staging
from spark_ckpt.tasks.worker_process import prepare_worker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_ckpt.store.location import Location
    from spark_ckpt.tasks.rejects import Diverter
    from spark_ckpt.tasks.reports import Reports

Step: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Function for `DataFrame.mapInArrow`."""
Tables: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.Table]]


def packer(diverter: Diverter | None, shuffle_keys: Sequence[int]) -> Step:
    """Return a step from rows to one blob per key group, each with its shuffle key.

    `diverter` removes rejected rows first.
    """

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        good = diverter.divert(batches) if diverter else batches
        return pack(good, partition_id, shuffle_keys)

    return packed


def exploder(schema: StructType, tap: Step | None = None) -> Step:
    """Return a step from an operator's blobs to rows of its output.

    `tap` is a step that these rows pass in the same task.
    """

    def exploded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = explode_blobs(batches, schema)
        return rows if tap is None else tap(rows)

    return exploded


def stager(tables: Tables, stages: Sequence[SinkStage], reports: Reports) -> Step:
    """Return a step that writes rows, as `tables` reads them, to the files of the sinks. It yields nothing."""

    def staged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with staging(stages, running_batch(), reports) as write:
            for table in tables(batches):
                write(table)
        # The files are the result. A row to Spark would travel through Java for nothing.
        return iter(())

    return staged


def tapper(stages: Sequence[SinkStage], reports: Reports) -> Step:
    """Return a step that passes rows through and also writes them to the files of the sinks.

    Rejected rows only pass through.
    """

    def tapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with staging(stages, running_batch(), reports) as write:
            passed: list[pa.RecordBatch] = []
            rows = 0
            for batch in batches:
                # Gathered to row groups of a useful size: Spark's batches have ten thousand rows.
                passed.append(_good(batch))
                rows += batch.num_rows
                if rows >= ROWS_PER_WRITE:
                    write(pa.Table.from_batches(passed))
                    passed, rows = [], 0
                # unchanged: rejected rows still travel in the hidden column to the step that diverts them
                yield batch
            if passed:
                write(pa.Table.from_batches(passed))

    return tapped


def _good(batch: pa.RecordBatch) -> pa.RecordBatch:
    if REJECT not in batch.schema.names:
        return batch
    return batch.filter(pc.is_null(batch.column(REJECT))).drop_columns([REJECT])


def segment_reader(edge: str, location: Location, schema: StructType) -> Step:
    """Return a step from the names of an edge's segments to the rows in them, verified.

    `schema` fits every row of a segment that an older program version wrote (`check_in_flight`): its types are equal or
    wider, and a new column is null.
    """
    wanted = arrow_schema(schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            for text in batch.column(0).to_pylist():
                file = staged_file(json.loads(text))
                # Compared with the digest of the report: rows on an edge are part of the epoch.
                table = location.read_committed(file, file.rows, edge=edge).replace_schema_metadata()
                yield from conform(table, wanted).to_batches(max_chunksize=ROWS_PER_WRITE)

    return read


def partition_id() -> int:
    """Return the partition number of the running task; 0 outside of Spark."""
    task = TaskContext.get()
    return task.partitionId() if task else 0


def first_met(diverter: Diverter | None) -> Tables:
    """Return a reader for rows that reach Python for the first time: `diverter` removes the rejected ones."""

    def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        # each table becomes a Parquet row group, and Spark's batches of 10,000 rows would be small ones
        return large_tables(diverter.divert(batches) if diverter else batches, ROWS_PER_WRITE)

    return tables
