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
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from spark_ckpt.wording import counted
from spark_ckpt_files.records import Positions, Records, borders_of, quotes_are_plain

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
    # Each half is null where the other one has a value.
    return pc.coalesce(zoned, instants(local, zone))


def _local_times_of_texts(texts: Values) -> Values:
    """Return ISO 8601 texts as local times. Raises `pa.ArrowInvalid`, also for a text with an offset, as in Spark."""
    trimmed = pc.replace_substring_regex(texts, _BEYOND_MICROSECONDS, r"\1")
    if pc.any(pc.match_substring_regex(trimmed, _NOT_IN_UTC_TEXT)).as_py():
        raise pa.ArrowInvalid("a timestamp without a zone has an offset")
    return trimmed.cast(_LOCAL)


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
    parts = [records]
    # A list, since calls within calls, one for each bad record, would end at Python's limit.
    while parts:
        part = parts.pop()
        try:
            found: Rows | Bad = Rows(parse(part), part.lines)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            if len(part) > 1:
                parts += [part.part(first, last) for first, last in pairwise(_cuts(error, len(part)))][::-1]
                continue
            found = Bad(int(part.lines[0]), part.text(0), _reason(error))
        yield found


def _cuts(error: Exception, count: int) -> list[int]:
    """Return the cuts of a block with a bad record: in halves, or around the row that Arrow names."""
    found = _ROW.search(str(error))
    # Around one row, the rest of a large block would be parsed again for every bad record.
    if found is None or count > _HINT_RECORDS_MAX:
        return [0, count // 2, count]
    # Arrow counts the rows of CSV from 1, and those of JSON from 0.
    row = int(found["csv"]) - 1 if found["csv"] else int(found["json"])
    return sorted({0, row, row + 1, count}) if 0 <= row < count else [0, count // 2, count]


def csv_parser(
    columns: Sequence[str], schema: pa.Schema, delimiter: str, quote: str, null_value: str, zone: str = "UTC"
) -> Parser:
    """Return a parser of CSV records whose fields are `columns`. Its rows have the columns of `schema`, by name.

    Nulls are Spark's: unquoted empty fields, and fields equal to `null_value`, quoted or not. `zone`: time zone of
    timestamps without an offset.
    """
    shape = pacsv.ParseOptions(delimiter=delimiter, quote_char=quote, newlines_in_values=True)
    strict = [field.name for field in schema if _is_strict(field.type)]
    classes = _lenience_classes(delimiter, quote)
    whole, borders = _record_pattern(delimiter, quote), borders_of(delimiter, quote)

    def fields(content: bytes, types: pa.Schema) -> pa.Table:
        # Without threads, and in one block: only then does Arrow name the row of an error, which `_cuts` looks for.
        read = pacsv.ReadOptions(column_names=list(columns), use_threads=False, block_size=len(content) + 1)
        convert = _csv_values(types, null_value)
        return pacsv.read_csv(io.BytesIO(content), read_options=read, parse_options=shape, convert_options=convert)

    def parse(records: Records) -> pa.Table:
        content = records.content() + b"\n"  # without it Arrow treats an empty last field as quoted
        if content.count(quote.encode()) % 2 or not quotes_are_plain(content, borders, quote):
            _check_quotes(records, quote, whole)
        table = fields(content, _as_texts(schema, [field.name for field in schema if field.type == INSTANT]))
        suspects = [*(strict if _may_be_lenient(content, classes) else []), *_with_names_of_numbers(table)]
        if suspects:
            as_texts = _as_texts(schema, suspects)
            _check_fields(fields(content, pa.schema([as_texts.field(name) for name in suspects])), schema)
        return _one_row_each(_converted(_without(table, null_value), schema, zone), records)

    return parse


def _csv_values(types: pa.Schema, null_value: str) -> pacsv.ConvertOptions:
    return pacsv.ConvertOptions(
        column_types={field.name: field.type for field in types},
        include_columns=types.names,
        # a quoted empty field is Spark's null only if null is written as an empty field
        null_values=sorted({null_value, ""}),
        strings_can_be_null=True,
        quoted_strings_can_be_null=not null_value,
        true_values=_spellings("true"),
        false_values=_spellings("false"),
    )


def _spellings(word: str) -> list[str]:
    """Return the word in every mixture of upper and lower case."""
    return ["".join(letters) for letters in product(*zip(word, word.upper(), strict=True))]


def _as_texts(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([field.with_type(pa.string()) if field.name in names else field for field in schema])


def _without(table: pa.Table, null_value: str) -> pa.Table:
    """Return the table with null for texts that are a quoted `null_value`."""
    for at, field in enumerate(table.schema):
        if null_value and pa.types.is_string(field.type):
            values = table.column(at)
            absent = pc.fill_null(pc.equal(values, null_value), False)
            table = table.set_column(at, field, pc.if_else(absent, pa.scalar(None, pa.string()), values))
    return table


# Fields that Arrow reads and Spark does not. A second pass over the texts finds them. It runs only for blocks that may hold
# such a field, since it costs as much as the first.

_LENIENT = r"^\s|\s$|^0[xX]"
_NAME_OF_A_NUMBER = r"(?i)nan|inf"
_NAMES_OF_NUMBERS = r"^(\s*[+-]?(NaN|Infinity)\s*|-?Inf)$"


def _is_strict(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind))


def _lenience_classes(delimiter: str, quote: str) -> bytes:
    """Return a table for `bytes.translate`, in which no two other classes have the sum of a pair that matters."""
    # Delimiters replace blanks: a tab may be one.
    classes = {**dict.fromkeys(b" \t", 1), **dict.fromkeys(f"{delimiter}{quote}\r\n".encode(), 2), ord("0"): 8}
    classes |= dict.fromkeys(b"xX", 32)
    return bytes(classes.get(byte, 0) for byte in range(256))


def _may_be_lenient(content: bytes, classes: bytes) -> bool:
    """Return False if no field begins or ends with a blank or is hexadecimal."""
    # The first field has a border, too.
    found = np.frombuffer((b"\n" + content).translate(classes), np.uint8)
    pairs = found[:-1] + found[1:]
    # A blank at a border of a field, on either side of it; 0x.
    return bool(np.any(pairs == 1 + 2) or np.any(pairs == 8 + 32))


def _with_names_of_numbers(table: pa.Table) -> list[str]:
    """Return the columns with an infinite value or NaN."""
    floating = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    return [name for name in floating if pc.all(pc.is_finite(table.column(name))).as_py() is False]


def _check_fields(texts: pa.Table, schema: pa.Schema) -> None:
    """Raise `pa.ArrowInvalid` for a text that Spark does not read as its column's type."""
    for field in texts.schema:
        values, kind = texts.column(field.name), schema.field(field.name).type
        if pa.types.is_floating(kind):
            named = pc.match_substring_regex(values, _NAME_OF_A_NUMBER)
            wrong = pc.and_not(named, pc.match_substring_regex(values, _NAMES_OF_NUMBERS))
        else:
            wrong = pc.match_substring_regex(values, _LENIENT)
        # 0 if no text is wrong.
        if row := pc.index(wrong, True).as_py() + 1:
            # In the words of Arrow: `_cuts` finds the record by them.
            raise pa.ArrowInvalid(f"CSV: Row #{row}: column '{field.name}': invalid {kind} {values[row - 1].as_py()!r}")


def _record_pattern(delimiter: str, quote: str) -> re.Pattern[bytes]:
    d, q = re.escape(delimiter), re.escape(quote)
    field = f"(?:{q}[^{q}]*+(?:{q}{q}[^{q}]*+)*+{q}|[^{q}{d}][^{d}]*+|)"
    return re.compile(f"{field}(?:{d}{field})*+\\r?".encode())


def _check_quotes(records: Records, quote: str, whole: re.Pattern[bytes]) -> None:
    """Raise `pa.ArrowInvalid` for a field that begins with a quote and does not end with one: Arrow reads `"a"b` as `ab`."""
    for row, (start, end) in enumerate(zip(records.starts.tolist(), records.ends.tolist(), strict=True), 1):
        text = records.data[start:end]
        if quote.encode() in text and not whole.fullmatch(text):
            why = "text follows a closing quote" if text.count(quote.encode()) % 2 == 0 else "a quote is not closed"
            raise pa.ArrowInvalid(f"CSV: Row #{row}: {why}")


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
    # Looked at before Arrow, which ends the process (26) on a line that is `null`.
    first = np.frombuffer(records.data, np.uint8)[records.starts]
    # The usual case, without a loop over records: a line may begin with blanks, too.
    if np.all(first == ord("{")):
        return
    # The caller then cuts the block, until each doubtful record is looked at alone.
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
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_written(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_written(field.type)) for field in kind])
    return kind


def _converted(table: pa.Table, schema: pa.Schema, zone: str) -> pa.Table:
    columns = [
        # With its type, which a column without a chunk could not tell.
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
    if kind == _LOCAL:
        return _local_times_of_texts(values)
    if isinstance(values, pa.ListArray):
        inner = _convert(values.values, kind.value_type, zone)
        return pa.ListArray.from_arrays(values.offsets, inner, type=kind, mask=values.is_null())
    if isinstance(values, pa.StructArray):
        parts = [_convert(part, field.type, zone) for part, field in zip(values.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=values.is_null())
    return values.cast(kind)


def _reason(error: Exception) -> str:
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    # Its row in the block, where it is alone, means nothing to a reader: the error has its line in the file.
    return first.split(": Row #1: ")[-1].removesuffix(" in row 0")
