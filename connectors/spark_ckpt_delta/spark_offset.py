"""Converts an offset of Spark's own Delta source into a position.

Both count the files that a version added as new data, in commit order. Both order the files of a snapshot by time and
path. Spark's `index` is the last file that was read, ours is the next one.
"""

from __future__ import annotations

import json
from typing import Any

from spark_ckpt.errors import SourceInvalid
from spark_ckpt_delta.changes import Position

_VERSIONS = (1, 3)
_FIELDS = {"sourceVersion", "reservoirId", "reservoirVersion", "index", "isStartingVersion"}
_BEFORE_ALL = (-1, -100)
"""Index for "nothing of the version was read", in offsets of version 1 and 3."""


def position_of_spark(offset: str) -> Position:
    """Return the next file to read.

    Raises `SourceInvalid` for text that is no such offset, or for an offset at a change of the table's columns.
    """
    found = _fields(offset)
    table, version, index, snapshot = (
        found.get(name) for name in ("reservoirId", "reservoirVersion", "index", "isStartingVersion")
    )
    if found.get("sourceVersion") not in _VERSIONS or set(found) != _FIELDS:
        raise _unreadable(offset, "it is in another version of the format")
    if not isinstance(table, str) or not table or type(version) is not int or version < 0 or type(snapshot) is not bool:
        raise _unreadable(offset, "it is incomplete")
    if type(index) is not int or (index < 0 and index not in _BEFORE_ALL):
        raise _unreadable(offset, "it stands at a change of the table's columns")
    return Position(table, version, 0 if index < 0 else index + 1, snapshot)


def _fields(offset: str) -> dict[str, Any]:
    try:
        found = json.loads(offset)
    except ValueError as error:
        raise _unreadable(offset, "it is not JSON") from error
    if not isinstance(found, dict):
        raise _unreadable(offset, "it is not a JSON object")
    return found


def _unreadable(offset: str, why: str) -> SourceInvalid:
    return SourceInvalid(
        f"not an offset of Spark's Delta source that can be gone on from: {why}",
        offset=offset[:200],
        hint="let the query pass this place first, or start the job's source at a version, in an empty store",
    )
