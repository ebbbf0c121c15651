"""Parser for schemas as Spark writes them ("customer STRING, `total amount` DOUBLE"), without Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

# Group 1 is a quoted name, in which two backquotes stand for one; group 2 is a plain name.
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`,]+))")
_ROW = "struct<"
# Of nested types, and of arguments such as decimal(10,2).
_OPEN, _CLOSE = "<(", ">)"
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)", re.IGNORECASE)
_NESTED = re.compile(r"(array|map|struct)<(.*)>$", re.DOTALL | re.IGNORECASE)
_FIXED: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
"""Types without arguments, as state files hold them."""


def column_names(ddl: str) -> list[str]:
    """Return the names of the top-level columns, in order."""
    return [_name(part) for part in _parts(_columns(ddl))]


def column_types(ddl: str) -> dict[str, str]:
    """Return the types of the top-level columns as written, by name, in order."""
    return {_name(part): _NAME.sub("", part, count=1).strip(" :\n") for part in _parts(_columns(ddl))}


class Inside(NamedTuple):
    """Types inside a nested type, by name: a struct's fields; `element`; `key` and `value`."""

    kind: str
    types: dict[str, str]


def types_inside(type_: str) -> Inside | None:
    """Return the types inside an array, a map or a struct; None for any other type."""
    nested = _NESTED.match(type_)
    if nested is None:
        return None
    kind = nested[1].lower()
    if kind == "struct":
        return Inside("struct", column_types(type_))
    names = ("element",) if kind == "array" else ("key", "value")
    return Inside(kind, dict(zip(names, map(str.strip, _parts(nested[2])), strict=True)))


def arrow_schema(ddl: str) -> pa.Schema:
    """Return the columns with their Arrow types in state files; null for an unknown type."""
    return pa.schema([pa.field(_name(part), type_of(_NAME.sub("", part, count=1))) for part in _parts(_columns(ddl))])


def _columns(ddl: str) -> str:
    # Spark writes a schema also as the type of a row: `struct<k:string,n:bigint>`.
    text = ddl.strip()
    return text[len(_ROW) : -1] if text.startswith(_ROW) and text.endswith(">") else text


def type_of(text: str) -> pa.DataType:
    """Return the Arrow type of a Spark type; null if it is unknown."""
    text = text.strip(" :\n")
    if decimal := _DECIMAL.match(text):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if text.lower().startswith("interval day"):
        return pa.duration("us")
    nested = _NESTED.match(text)
    if nested is None:
        # Arrow has no length for varchar(10) and char(3).
        return _FIXED.get(text.split("(")[0].lower(), pa.null())
    return _nested(nested[1].lower(), nested[2])


def _nested(kind: str, inside: str) -> pa.DataType:
    if kind == "struct":
        return pa.struct(list(arrow_schema(f"{_ROW}{inside}>")))
    types = [type_of(part) for part in _parts(inside)]
    return pa.list_(types[0]) if kind == "array" else pa.map_(types[0], types[1])


def _name(part: str) -> str:
    match = _NAME.match(part)
    if match is None:
        raise ValueError(f"{part!r} is no column of a schema")
    return match[1].replace("``", "`") if match[1] is not None else match[2]


def _parts(ddl: str) -> list[str]:
    """Split at commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for char in ddl:
        if quote:
            # Two backquotes for one end the quote and begin it again, which changes nothing.
            quote = "" if char == quote else quote
        elif char in "`'\"":
            quote = char
        depth += (char in _OPEN) - (char in _CLOSE) if not quote else 0
        # A comma may also be part of a quoted name, of decimal(10,2) or of a nested type.
        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]
