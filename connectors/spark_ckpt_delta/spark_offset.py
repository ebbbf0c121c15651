"""Where Spark's own Delta source stands: its offset as a position of ours.

Both count the files that a version added as new data, in the order of the commit, and the files of a whole snapshot by time
and path. Spark's `index` is the last file that was read, ours the next one.
"""

from __future__ import annotations

import json
from typing import Any

from spark_ckpt.errors import SourceInvalid
from spark_ckpt_delta.changes import Position

_VERSIONS = (1, 3)
_FIELDS = {"sourceVersion", "reservoirId", "reservoirVersion", "index", "isStartingVersion"}
_BEFORE_ALL = (-1, -100)
"""Nothing of the version has been read, as offsets of version 1 and 3 write it."""


def position_of_spark(offset: str) -> Position:
    """The next file to read. Raises `SourceInvalid` for what is no offset, or one at a change of the table's columns."""
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
