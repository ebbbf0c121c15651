"""Reads one file into Arrow batches: data columns, position columns, and bad records."""

from __future__ import annotations

import csv
import json
from bz2 import BZ2Decompressor
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_ckpt.connector_parts.old_calendar import OldCalendar
from spark_ckpt.content import Readable
from spark_ckpt.errors import BadRecord, SourceInvalid
from spark_ckpt_files.listing import DataFile, Directory
from spark_ckpt_files.records import Positions, Records, cut
from spark_ckpt_files.settings import (
    CORRUPT_COLUMN,
    FILE_COLUMN,
    LINE_COLUMN,
    REJECT_COLUMN,
    RESERVED_COLUMNS,
    FilesSettings,
)
from spark_ckpt_files.text import Bad, Parser, Rows, csv_header, csv_parser, json_parser, parse_tolerant

_ROWS_PER_BATCH = 65_536
_SHOWN_CHARS = 200
_PARQUET_MAGIC = b"PAR1"
_PACKED_BYTES = 1 << 20
_COMPRESSIONS: dict[str, Literal["gzip", "zstd", "lz4"]] = {"gz": "gzip", "zst": "zstd", "lz4": "lz4"}
_NOT_UNPACKED = frozenset({"deflate", "snappy", "lzo", "xz", "zip"})


def read_file(
    directory: Directory, file: DataFile, settings: FilesSettings, output: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a file, in file order, as batches of schema `output`.

    Raises `BadRecord` for the first bad record if `on_error` is "fail". Raises `SourceInvalid` for a file of another
    format, without the declared columns, damaged, or changed since the listing.
    """
    data = pa.schema([field for field in output if field.name not in RESERVED_COLUMNS])
    with directory.open(file) as opened, directory.reading(file):
        if settings.format == "parquet":
            tables = _parquet_tables(opened, file, settings, data, output)
        else:
            tables = _text_tables(opened, file, settings, data, output)
        for table in tables:
            yield from table.to_batches(max_chunksize=_ROWS_PER_BATCH)


def check_file(directory: Directory, file: DataFile, settings: FilesSettings, data: pa.Schema) -> None:
    """Raise `SourceInvalid` if the file is clearly of another format or lacks columns."""
    with directory.open(file) as opened, directory.reading(file):
        if settings.format == "parquet":
            _parquet_columns(_parquet(opened, file, settings), file, settings, data)
            return
        # Any bytes are CSV of some kind: a Parquet file would be read as bad records, or as rows of one column.
        if opened.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC:
            raise _not_of_format(settings, file, "it is a Parquet file")
        opened.seek(0)
        # The first block only, since this runs at each start.
        records = next(_records(opened, file, settings), None)
    if records is None:
        return
    if settings.format == "csv" and settings.header:
        _header(records, file, settings, data)
    if settings.format == "json" and not records.text(0).lstrip().startswith("{"):
        raise _not_of_format(settings, file, f"line {records.lines[0]} is not a JSON object: {_shown(records.text(0))}")


def _text_tables(
    opened: pa.NativeFile, file: DataFile, settings: FilesSettings, data: pa.Schema, output: pa.Schema
) -> Iterator[pa.Table]:
    parser: Parser | None = json_parser(data, settings.time_zone) if settings.format == "json" else None
    for records in _records(opened, file, settings):
        if parser is None:
            columns = _header(records, file, settings, data) if settings.header else list(data.names)
            parser = csv_parser(
                columns, data, settings.delimiter, settings.quote, settings.null_value, settings.time_zone
            )
            # Only the first block has the header; later blocks come to the parser as they are.
            records = records.part(1 if settings.header else 0, len(records))
        if len(records):
            pieces = parse_tolerant(records, parser)
            yield pa.concat_tables([_finish(piece, file, settings, output) for piece in pieces])


def _records(opened: pa.NativeFile, file: DataFile, settings: FilesSettings) -> Iterator[Records]:
    quote = settings.quote if settings.format == "csv" else None
    ending = file.name.rpartition(".")[2].lower()
    # As CSV, its bytes would be rows.
    if ending in _NOT_UNPACKED:
        raise SourceInvalid(
            f"{settings.path}/{file.name} is compressed as .{ending}, which the source does not unpack",
            hint="write it again as plain text, .gz, .bz2, .zst or .lz4, move this one out of the directory, and start the "
            "job again",
            file=file.name,
        )
    return cut(_unpacked(opened, ending), quote, settings.multiline, settings.delimiter)


def _unpacked(opened: pa.NativeFile, ending: str) -> Readable:
    if ending == "bz2":
        return _Bz2(opened)
    readable: Readable = pa.CompressedInputStream(opened, _COMPRESSIONS[ending]) if ending in _COMPRESSIONS else opened
    return readable


class _Bz2:
    """Unpacks bz2 streams that follow each other in a file: Arrow fails at one that is empty."""

    def __init__(self, packed: Readable) -> None:
        self._packed = packed
        self._stream = BZ2Decompressor()
        self._between_streams = True

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end. Raises OSError for a file that is cut off, or not bz2."""
        while True:
            packed = b""
            if self._stream.eof or self._stream.needs_input:
                packed = self._stream.unused_data or self._packed.read(_PACKED_BYTES)
                if not packed and self._between_streams:
                    return b""
                if not packed:
                    raise OSError("Truncated compressed stream")
            if self._stream.eof:
                self._stream = BZ2Decompressor()
            found = self._stream.decompress(packed, size)
            self._between_streams = self._stream.eof
            if found:
                return found


def _header(records: Records, file: DataFile, settings: FilesSettings, data: pa.Schema) -> list[str]:
    try:
        columns = csv_header(records, settings.delimiter, settings.quote)
    except csv.Error as error:
        raise _not_of_format(settings, file, f"its header is no CSV record: {error}") from error
    missing = [name for name in data.names if name not in columns]
    if missing:
        raise _not_of_format(
            settings, file, f"its header has no column {', '.join(missing)}; it has {', '.join(columns)}"
        )
    twice = [name for name in data.names if columns.count(name) > 1]
    if twice:
        raise _not_of_format(settings, file, f"its header has column {', '.join(twice)} more than once")
    return columns


def _finish(piece: Rows | Bad, file: DataFile, settings: FilesSettings, output: pa.Schema) -> pa.Table:
    """Add the columns that the settings request; a bad record becomes a row of nulls with its reason."""
    if isinstance(piece, Rows):
        return _widen(piece.table, file, piece.lines, output)
    if settings.on_error == "fail":
        raise BadRecord(
            f"{file.name}, line {piece.line}: {piece.reason}",
            hint="correct the file before a restart, or choose on_error='drop' or on_error='keep'",
            file=file.name,
            line=piece.line,
            record=_shown(piece.text),
        )
    row = dict.fromkeys(output.names) | {
        FILE_COLUMN: file.name,
        LINE_COLUMN: piece.line,
        CORRUPT_COLUMN: piece.text,
    }
    reject = {"reason": piece.reason, "file": file.name, "line": piece.line, "record": _shown(piece.text)}
    row[REJECT_COLUMN] = json.dumps(reject)
    return pa.Table.from_pylist([{name: row[name] for name in output.names}], output)


def _widen(table: pa.Table, file: DataFile, lines: Positions, output: pa.Schema) -> pa.Table:
    columns: dict[str, Any] = {name: table.column(name) for name in table.column_names}
    for name in output.names:
        if name == FILE_COLUMN:
            columns[name] = np.full(table.num_rows, file.name)
        elif name == LINE_COLUMN:
            columns[name] = lines
        # A good row is neither corrupt nor rejected.
        elif name in RESERVED_COLUMNS:
            columns[name] = pa.nulls(table.num_rows, pa.string())
    return pa.table({name: columns[name] for name in output.names}, schema=output)


def _parquet_tables(
    opened: pa.NativeFile, file: DataFile, settings: FilesSettings, data: pa.Schema, output: pa.Schema
) -> Iterator[pa.Table]:
    parquet = _parquet(opened, file, settings)
    _parquet_columns(parquet, file, settings, data)
    row, calendar = 1, OldCalendar.of(parquet)
    for batch in parquet.iter_batches(_ROWS_PER_BATCH, columns=data.names):
        if misread := calendar.misread(batch):
            raise SourceInvalid(
                f"{settings.path}/{file.name} has dates or times in the calendar of Spark before 3.0: {', '.join(misread)}",
                # Times of the type INT96 follow the second one.
                hint="write the file again with Spark 3 or later, with spark.sql.parquet.datetimeRebaseModeInWrite and "
                "spark.sql.parquet.int96RebaseModeInWrite set to CORRECTED",
                file=file.name,
            )
        table = pa.Table.from_batches([batch]).select(data.names)
        yield _widen(
            _fitted(table, file, settings, data),
            file,
            np.arange(row, row + len(batch)),
            output,
        )
        row += len(batch)


def _parquet(opened: pa.NativeFile, file: DataFile, settings: FilesSettings) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(
            opened, coerce_int96_timestamp_unit="us"
        )  # Spark's INT96 times exceed the range of nanoseconds
    except pa.ArrowInvalid as error:
        raise _not_of_format(settings, file, str(error).splitlines()[0]) from error


def _parquet_columns(parquet: pq.ParquetFile, file: DataFile, settings: FilesSettings, data: pa.Schema) -> None:
    found = parquet.schema_arrow
    wrong = []
    for field in data:
        if field.name not in found.names:
            wrong.append(f"column {field.name} is missing")
        elif not _fits(found.field(field.name).type, field.type):
            wrong.append(f"column {field.name} is {found.field(field.name).type}, not {field.type}")
    if wrong:
        raise _not_of_format(settings, file, "; ".join(wrong))


def _fitted(table: pa.Table, file: DataFile, settings: FilesSettings, data: pa.Schema) -> pa.Table:
    try:
        return table.cast(data)
    except pa.ArrowException as error:
        raise _not_of_format(settings, file, f"a value does not fit the schema: {error}") from error


_FAMILIES: tuple[Callable[[pa.DataType], bool], ...] = (
    lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind),
    pa.types.is_timestamp,
    pa.types.is_decimal,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind),
)


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if values may be cast: within one family of types, never between text and numbers."""
    if found == wanted or pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return _fits(found.value_type, wanted)
    # A cast checks the range of other numbers. A double in a float only loses digits, so the types decide.
    if pa.types.is_floating(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    if pa.types.is_map(found) or pa.types.is_map(wanted):
        return bool(pa.types.is_map(found) and pa.types.is_map(wanted) and _parts_fit(found, wanted))
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        names = {field.name: field.type for field in found}
        absent = {field.name.lower() for field in wanted if field.name not in names}
        # Spark finds a field by its name in any case; here the declared one would be null.
        if absent & {name.lower() for name in names}:
            return False
        return all(_fits(names[field.name], field.type) for field in wanted if field.name in names)
    if _is_list(found) and _is_list(wanted):
        return _fits(found.value_type, wanted.value_type)
    return any(family(found) and family(wanted) for family in _FAMILIES)


def _parts_fit(found: pa.DataType, wanted: pa.DataType) -> bool:
    return _fits(found.key_type, wanted.key_type) and _fits(found.item_type, wanted.item_type)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _not_of_format(settings: FilesSettings, file: DataFile, what: str) -> SourceInvalid:
    return SourceInvalid(
        f"{settings.path}/{file.name} cannot be read as {settings.format} with the declared schema: {what}",
        hint="correct format= or schema=, or move the file out of the directory",
        file=file.name,
    )


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
