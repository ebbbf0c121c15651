"""Reads a table's Parquet file into Arrow batches of the table's schema, including partition values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from spark_ckpt.connector_parts.old_calendar import OldCalendar
from spark_ckpt.errors import RowsLost, SourceInvalid, SourceSilent
from spark_ckpt.storage_errors import one_line, refusal_in
from spark_ckpt_delta.log import BOUNDED, TableFile

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Column: TypeAlias = "pa.Array[Any]"

_ROWS_PER_BATCH = 65_536
_CHAR = re.compile(r"char\((\d+)\)")


def read_file(
    system: pafs.FileSystem, table: str, file: TableFile, schema: pa.Schema, zone: str
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a file. A column that the file lacks is null: it was added to the table later.

    `zone`: of partition values that are timestamps without a zone.

    Raises `RowsLost` if the file is missing, `SourceSilent` if it cannot be read, and `SourceInvalid` for a null that `schema`
    forbids, or a date or time in the calendar of Spark before 3.0.
    """
    try:
        with system.open_input_file(file.path) as opened:
            # Spark may write times as INT96, which Arrow reads as nanoseconds: years after 2262 would overflow.
            parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
            present = [name for name in schema.names if name in parquet.schema_arrow.names]
            calendar = OldCalendar.of(parquet)
            for batch in parquet.iter_batches(_ROWS_PER_BATCH, columns=present):
                if misread := calendar.misread(batch):
                    raise _in_old_calendar(table, file, misread)
                fitted = _fitted(batch, dict(file.partition), schema, zone)
                _check_nulls(table, file, fitted)
                yield fitted
    except FileNotFoundError as error:
        raise RowsLost(
            f"{table}: {file.path} is gone, but the job still has to read it",
            hint="raise delta.deletedFileRetentionDuration and vacuum less",
        ) from error
    except (OSError, ValueError, pa.ArrowException) as error:
        # A disk or a mount that fails, by the error's number: the job waits for it.
        if refusal_in(error) is not None:
            raise
        # An object store's error may pass, and nothing tells it from that of a damaged file.
        raise SourceSilent(
            f"{table}: {file.path} cannot be read: {one_line(error)}",
            hint="if the file is damaged, bring it back from a backup and start the job again",
        ) from error


def char_widths(schema: StructType) -> dict[str, int]:
    """Return the lengths, in characters, of the columns that the table declares as CHAR(n)."""
    kinds = {field.name: _CHAR.fullmatch(field.metadata.get(BOUNDED, "")) for field in schema.fields}
    return {name: int(kind[1]) for name, kind in kinds.items() if kind is not None}


def padded(rows: pa.RecordBatch, widths: Mapping[str, int]) -> pa.RecordBatch:
    """Return the rows with CHAR(n) columns padded with spaces: Spark stores them as they are, and pads what it reads, and
    each text that it compares with such a column.
    """
    for name, width in widths.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pc.utf8_rpad(rows.column(at), width))
    return rows


def _fitted(batch: pa.RecordBatch, partition: dict[str, str | None], schema: pa.Schema, zone: str) -> pa.RecordBatch:
    columns = []
    for field in schema:
        # Delta takes partition values from the log, also if the file has a column of that name.
        if field.name in partition:
            columns.append(_constant(partition[field.name], field.type, len(batch), zone))
        elif field.name in batch.schema.names:
            columns.append(_cast(batch.column(field.name), field.type))
        else:
            columns.append(pa.nulls(len(batch), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _in_old_calendar(table: str, file: TableFile, columns: list[str]) -> SourceInvalid:
    return SourceInvalid(
        f"{table}: {file.path} has dates or times in the calendar of Spark before 3.0: {', '.join(columns)}",
        hint="read the table by Spark's own source, which converts them: ckpt.SparkSource('delta', {'path': ...}), in a new store",
    )


def _check_nulls(table: str, file: TableFile, rows: pa.RecordBatch) -> None:
    # Spark does not look for a null in such a column, and would read any value.
    found = [field.name for field in rows.schema if not field.nullable and rows.column(field.name).null_count]
    if found:
        raise SourceInvalid(
            f"{table}: {file.path} has null in {', '.join(found)}, NOT NULL when the job started",
            hint="start the job again: it then reads the columns that the table has now",
        )


def _cast(column: Column, kind: pa.DataType) -> Column:
    return column if column.type == kind else column.cast(kind)


def _constant(text: str | None, kind: pa.DataType, rows: int, zone: str) -> Column:
    value: Column = pa.array([text], pa.string())
    if pa.types.is_timestamp(kind) and not (text or "").endswith("Z"):
        value = value.cast(pa.timestamp("us"))
        if kind.tz is not None:
            # Like Spark: delta-spark wrote local times before it wrote instants.
            value = pc.assume_timezone(value, zone, ambiguous="earliest", nonexistent="latest")
    return value.cast(kind).take([0] * rows)
