"""What tasks do around an operator: pack rows before it, explode its output behind it, stage what sinks get.

Made on the driver, run in Python workers, which load nothing of the driver for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from spark_ckpt.coordination.reports import staged_file
from spark_ckpt.tasks.packing import explode_blobs, pack
from spark_ckpt.tasks.rows import REJECT, arrow_schema, conform
from spark_ckpt.tasks.staging import ROWS_PER_WRITE, SinkStage, running_batch, staging
from spark_ckpt.tasks.worker_process import prepare_worker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_ckpt.store.location import Location
    from spark_ckpt.tasks.rejects import Diverter
    from spark_ckpt.tasks.reports import Reports

Step: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""For `DataFrame.mapInArrow`."""
Tables: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.Table]]


def packer(diverter: Diverter | None, shuffle_keys: Sequence[int]) -> Step:
    """Rows to one blob per key group, of which each has its shuffle key. `diverter`: takes rejected rows out before."""

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        good = diverter.divert(batches) if diverter else batches
        return pack(good, partition_id, shuffle_keys)

    return packed


def exploder(schema: StructType, tap: Step | None = None) -> Step:
    """An operator's blobs to rows of its output. `tap`: what they go through before they leave the task."""

    def exploded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = explode_blobs(batches, schema)
        return rows if tap is None else tap(rows)

    return exploded


def stager(tables: Tables, stages: Sequence[SinkStage], reports: Reports) -> Step:
    """Rows, as `tables` reads them, to the files of the sinks; nothing comes out."""

    def staged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with staging(stages, running_batch(), reports) as write:
            for table in tables(batches):
                write(table)
        return iter(())

    return staged


def tapper(stages: Sequence[SinkStage], reports: Reports) -> Step:
    """Rows go on as they come, and to the files of the sinks on the way: what cannot be parsed goes on only."""

    def tapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with staging(stages, running_batch(), reports) as write:
            passed: list[pa.RecordBatch] = []
            rows = 0
            for batch in batches:
                passed.append(_good(batch))
                rows += batch.num_rows
                if rows >= ROWS_PER_WRITE:
                    write(pa.Table.from_batches(passed))
                    passed, rows = [], 0
                yield batch
            if passed:
                write(pa.Table.from_batches(passed))

    return tapped


def _good(batch: pa.RecordBatch) -> pa.RecordBatch:
    if REJECT not in batch.schema.names:
        return batch
    return batch.filter(pc.is_null(batch.column(REJECT))).drop_columns([REJECT])


def segment_reader(edge: str, location: Location, schema: StructType) -> Step:
    """Names of an edge's segments to the rows in them, verified. `schema` holds every row of a segment that an older program wrote
    (`check_in_flight`): its types are wider, and a column that is new is null."""
    wanted = arrow_schema(schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            for text in batch.column(0).to_pylist():
                file = staged_file(json.loads(text))
                table = location.read_committed(file, file.rows, edge=edge).replace_schema_metadata()
                yield from conform(table, wanted).to_batches(max_chunksize=ROWS_PER_WRITE)

    return read


def partition_id() -> int:
    """Number of the running task's partition; 0 outside of Spark."""
    task = TaskContext.get()
    return task.partitionId() if task else 0


def large_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Fewer, larger tables: each becomes a row group, and Spark's batches of ten thousand rows would be small ones."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
        if rows >= ROWS_PER_WRITE:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def first_met(diverter: Diverter | None) -> Tables:
    """Rows that meet Python for the first time: rejected ones are taken out."""

    def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        return large_tables(diverter.divert(batches) if diverter else batches)

    return tables
