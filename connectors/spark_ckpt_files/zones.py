"""Converts local times to instants, like Spark and Java.

A time that occurs twice (clocks go back) becomes the earlier instant. A time that does not occur (clocks go forward) is
read with the offset before the change: 02:30 becomes 03:30.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

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
    """Return local times (timestamp[us] without a zone) as instants."""
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
