"""Column names of a schema written as Spark writes it ("customer STRING, `total amount` DOUBLE"), without Spark."""

from __future__ import annotations

import re

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`,]+))")
_OPEN, _CLOSE = "<(", ">)"


def column_names(ddl: str) -> list[str]:
    """Names of the top-level columns, in order."""
    return [_name(part) for part in _parts(ddl)]


def _name(part: str) -> str:
    match = _NAME.match(part)
    if match is None:
        raise ValueError(f"{part!r} is no column of a schema")
    return match[1].replace("``", "`") if match[1] is not None else match[2]


def _parts(ddl: str) -> list[str]:
    """Split at commas that are outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for char in ddl.strip().removeprefix("struct<") if ddl.strip().startswith("struct<") else ddl:
        if quote:
            quote = "" if char == quote else quote
        elif char in "`'\"":
            quote = char
        depth += (char in _OPEN) - (char in _CLOSE) if not quote else 0
        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]
