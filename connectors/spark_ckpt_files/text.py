"""Parses CSV and JSON lines into Arrow: whole blocks at Arrow's speed, split until a bad record is isolated.

A parser takes records and returns exactly one row per record, or raises `pa.ArrowInvalid`. A record may affect its
neighbours: an open quote swallows lines, a line has two objects. That shows as a wrong number of rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from spark_ckpt.wording import counted
from spark_ckpt_files.records import Positions, Records

INSTANT = pa.timestamp("us", tz="UTC")
_LOCAL = pa.timestamp("us")
_NOT_IN_UTC_TEXT = r"(Z|[+-]\d{2}:?\d{2}|:\d{2}(\.\d+)?[+-]\d{2})$"
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"

Values: TypeAlias = "pa.Array[Any]"


def instants_of_texts(texts: Values, zone: str) -> Values:
    """Return ISO 8601 texts as instants; a text without an offset is local to `zone`. Raises `pa.ArrowInvalid`.

    Digits beyond microseconds are cut off, as in Spark.
    """
    trimmed = pc.replace_substring_regex(pc.utf8_trim_whitespace(texts), _BEYOND_MICROSECONDS, r"\1")
    with_offset = pc.match_substring_regex(trimmed, _NOT_IN_UTC_TEXT)
    absent = pa.scalar(None, pa.string())
    zoned = pc.if_else(with_offset, trimmed, absent).cast(INSTANT)
    local = pc.if_else(with_offset, absent, trimmed).cast(_LOCAL)
    return pc.coalesce(zoned, instants(local, zone))


def instants(local: Values, zone: str) -> Values:
    """Return local times (timestamp[us] without a zone) as instants, like Spark and Java.

    A time that occurs twice (clocks go back) becomes the earlier instant. A time that does not occur (clocks go
    forward) is read with the offset before the change: 02:30 becomes 03:30.
    """
    found = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest")
    skipped = pc.not_equal(pc.local_timestamp(found), local)
    utc = found.cast(INSTANT)
    if not pc.any(skipped).as_py():
        return utc
    return pc.if_else(skipped, _with_offset_before(local, found), utc)


def _with_offset_before(local: Values, change: Values) -> Values:
    """Convert local times that the clocks skip. `change`: the instants at which the clocks went forward over them."""
    before = pc.subtract(change, pa.scalar(1, pa.duration("us")))
    offset = pc.subtract(pc.local_timestamp(before), before.cast(INSTANT).cast(_LOCAL))
    return pc.subtract(local, offset).cast(INSTANT)


Parser = Callable[[Records], pa.Table]

_ROW = re.compile(r"Row #(?P<csv>\d+)|in row (?P<json>\d+)$")
_HINT_RECORDS_MAX = 2048


@dataclass(frozen=True, slots=True)
class Rows:
    """Good rows and their line numbers."""

    table: pa.Table
    lines: Positions


@dataclass(frozen=True, slots=True)
class Bad:
    """One record that does not fit the schema."""

    line: int
    text: str
    reason: str


def parse_tolerant(records: Records, parse: Parser) -> Iterator[Rows | Bad]:
    """Yield every record in order, as part of good rows or as a bad record."""
    try:
        yield Rows(parse(records), records.lines)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        if len(records) == 1:
            yield Bad(int(records.lines[0]), records.text(0), _reason(error))
            return
        for first, last in pairwise(_cuts(error, len(records))):
            yield from parse_tolerant(records.part(first, last), parse)


def _cuts(error: Exception, count: int) -> list[int]:
    """Return the cuts of a block with a bad record: in halves, or around the row that Arrow names.

    Cutting a large block around one row would parse the rest again for every bad record.
    """
    found = _ROW.search(str(error))
    if found is None or count > _HINT_RECORDS_MAX:
        return [0, count // 2, count]
    row = int(found["csv"]) - 1 if found["csv"] else int(found["json"])
    return sorted({0, row, row + 1, count}) if 0 <= row < count else [0, count // 2, count]


def csv_parser(
    columns: Sequence[str], schema: pa.Schema, delimiter: str, quote: str, null_value: str, zone: str = "UTC"
) -> Parser:
    """Return a parser of CSV records whose fields are `columns`. Its rows have the columns of `schema`, by name.

    `zone`: time zone of timestamps without an offset.
    """
    convert = pacsv.ConvertOptions(
        column_types={field.name: pa.string() if field.type == INSTANT else field.type for field in schema},
        include_columns=schema.names,
        null_values=[null_value],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    shape = pacsv.ParseOptions(delimiter=delimiter, quote_char=quote, newlines_in_values=True)

    def parse(records: Records) -> pa.Table:
        content = records.content() + b"\n"  # without it Arrow treats an empty last field as quoted
        if content.count(quote.encode()) % 2:
            _check_quotes(records, delimiter, quote)
        read = pacsv.ReadOptions(column_names=list(columns), use_threads=False, block_size=len(content) + 1)
        table = pacsv.read_csv(io.BytesIO(content), read_options=read, parse_options=shape, convert_options=convert)
        return _one_row_each(_converted(table, schema, zone), records)

    return parse


def _check_quotes(records: Records, delimiter: str, quote: str) -> None:
    """Raise unless the odd number of quotes is harmless: in a single record, inside an unquoted field."""
    try:
        if len(records) == 1:
            list(csv.reader([records.text(0)], delimiter=delimiter, quotechar=quote, strict=True))
            return
    except csv.Error as error:
        raise pa.ArrowInvalid("a quote is not closed") from error
    raise pa.ArrowInvalid("an odd number of quotes")


def csv_header(records: Records, delimiter: str, quote: str) -> list[str]:
    """Return the column names in a file's first record."""
    return [name.strip() for name in next(csv.reader([records.text(0)], delimiter=delimiter, quotechar=quote))]


def json_parser(schema: pa.Schema, zone: str = "UTC") -> Parser:
    """Return a parser of JSON lines: one object per line. Unknown members are ignored, absent ones are null.

    `zone`: time zone of timestamps without an offset.
    """
    as_text = pa.schema([pa.field(field.name, _written(field.type)) for field in schema])
    shape = pajson.ParseOptions(explicit_schema=as_text, unexpected_field_behavior="ignore")

    def parse(records: Records) -> pa.Table:
        _only_objects(records)
        content = records.content()
        content.decode("utf-8")  # Arrow's JSON reader does not check UTF-8, and fails later on the text
        read = pajson.ReadOptions(use_threads=False, block_size=len(content) + 1)
        table = pajson.read_json(io.BytesIO(content), read_options=read, parse_options=shape)
        return _one_row_each(_converted(table, schema, zone), records)

    return parse


def _only_objects(records: Records) -> None:
    """Refuse records that are no objects: Arrow 26 ends the process on a line that is `null`."""
    first = np.frombuffer(records.data, np.uint8)[records.starts]
    if np.all(first == ord("{")):
        return
    if len(records) > 1 or not records.text(0).lstrip().startswith("{"):
        raise pa.ArrowInvalid("not a JSON object")


def _one_row_each(table: pa.Table, records: Records) -> pa.Table:
    if table.num_rows != len(records):
        raise pa.ArrowInvalid(f"{counted(len(records), 'record')} hold {counted(table.num_rows, 'row')}")
    return table


def _written(kind: pa.DataType) -> pa.DataType:
    """Return the type to read from JSON where Arrow's own reading differs from Spark's, also inside arrays and
    structs.
    """
    if kind == INSTANT or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_written(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_written(field.type)) for field in kind])
    return kind


def _converted(table: pa.Table, schema: pa.Schema, zone: str) -> pa.Table:
    columns = [
        pa.chunked_array([_convert(chunk, field.type, zone) for chunk in table.column(field.name).chunks], field.type)
        for field in schema
    ]
    for values in columns:
        if _has_decimals(values.type):
            values.validate(full=True)  # Arrow's readers check a decimal's scale, and not its precision
    return pa.Table.from_arrays(columns, schema=schema)


def _has_decimals(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_decimals(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_has_decimals(field.type) for field in kind)
    return bool(pa.types.is_decimal(kind))


def _convert(values: Values, kind: pa.DataType, zone: str) -> Values:
    if values.type == kind:
        return values
    if kind == INSTANT:
        return instants_of_texts(values, zone)
    if isinstance(values, pa.ListArray):
        inner = _convert(values.values, kind.value_type, zone)
        return pa.ListArray.from_arrays(values.offsets, inner, type=kind, mask=values.is_null())
    if isinstance(values, pa.StructArray):
        parts = [_convert(part, field.type, zone) for part, field in zip(values.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=values.is_null())
    return values.cast(kind)


def _reason(error: Exception) -> str:
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return first.split(": Row #1: ")[-1].removesuffix(" in row 0")
