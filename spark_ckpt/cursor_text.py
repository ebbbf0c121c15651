"""Cursors of sources for people: files, offsets, table versions, times. JSON output keeps the cursor itself."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_ckpt.json_values import plain
from spark_ckpt.wording import counted

if TYPE_CHECKING:
    from spark_ckpt.connector import Json

_LISTED_MAX = 8
"""Most partitions of a topic whose offsets are listed."""


def cursor_text(cursor: Mapping[str, Json], lag: int | None = None) -> str:
    """Return the position that a cursor holds, in words. `lag`: rows that wait behind it, if known.

    A cursor of another connector is shown as its JSON, with times in UTC.
    """
    said = _files(cursor) or _table(cursor) or _topics(cursor) or _other(cursor)
    return said if lag is None else f"{said}; {counted(lag, 'row')} behind"


def _files(cursor: Mapping[str, Json]) -> str:
    count, newest = cursor.get("count"), cursor.get("newest_ms")
    if not isinstance(count, int) or not isinstance(newest, int):
        return ""
    if not count:
        return "no file yet"
    return f"{counted(count, 'file')}, newest {_utc(newest)}" if newest > 0 else counted(count, "file")


def _table(cursor: Mapping[str, Json]) -> str:
    version, index = cursor.get("version"), cursor.get("index")
    if "table" not in cursor or not isinstance(version, int) or not isinstance(index, int):
        return ""
    rows = f"the rows of version {version}" if cursor.get("snapshot") else f"version {version}"
    return f"{rows}, {counted(index, 'file')} of it" if index else rows


def _topics(cursor: Mapping[str, Json]) -> str:
    """Return "orders 0:42, 1:17", or the range of the offsets for many partitions."""
    told = []
    for topic, partitions in cursor.items():
        if not isinstance(partitions, Mapping):
            return ""
        offsets = [(str(name), at) for name, at in partitions.items() if isinstance(at, int) and str(name).isdecimal()]
        if not offsets or len(offsets) != len(partitions):
            return ""
        if len(offsets) <= _LISTED_MAX:
            told.append(f"{topic} " + ", ".join(f"{name}:{at}" for name, at in offsets))
        else:
            least, most = min(at for _, at in offsets), max(at for _, at in offsets)
            told.append(f"{topic} {counted(len(offsets), 'partition')}, offsets {least:,} to {most:,}")
    return "; ".join(told)


def _other(cursor: Mapping[str, Json]) -> str:
    shown = {
        name.removesuffix("_ms"): _utc(value) if name.endswith("_ms") and isinstance(value, int) and value else value
        for name, value in cursor.items()
    }
    return json.dumps(plain(shown), ensure_ascii=False)


def _utc(milliseconds: int) -> str:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
