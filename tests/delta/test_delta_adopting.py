"""Positions of Spark's own Delta source become cursors: the next file, none skipped and none twice."""

from __future__ import annotations

import json

import pytest
from spark_ckpt_delta.changes import History, Position
from spark_ckpt_delta.source import DeltaSource

from spark_ckpt.errors import SourceInvalid
from tests.rewind.rewind_kit import WrittenTable

TABLE = "5d6e"


def offset(version: int = 4, index: int = -1, snapshot: bool = False, written_as: int = 1, **changed: object) -> str:
    fields = {
        "sourceVersion": written_as, "reservoirId": TABLE, "reservoirVersion": version, "index": index,
        "isStartingVersion": snapshot,
    }  # fmt: skip
    return json.dumps(fields | changed)


@pytest.mark.parametrize(
    ("line", "position"),
    [
        (offset(4), Position(TABLE, 4)),
        (offset(4, written_as=3, index=-100), Position(TABLE, 4)),
        (offset(4, index=0), Position(TABLE, 4, 1)),
        (offset(4, index=2), Position(TABLE, 4, 3)),
        (offset(7, index=5, snapshot=True), Position(TABLE, 7, 6, snapshot=True)),
        (offset(7, snapshot=True), Position(TABLE, 7, 0, snapshot=True)),
    ],
)
def test_sparks_last_file_is_before_our_next_one(line, position):
    adopted = DeltaSource.adopted(line)
    assert Position.of(adopted.cursor) == position
    assert adopted.identity["table id"] == TABLE


@pytest.mark.parametrize(
    "line",
    [
        offset(index=-20, written_as=3),
        offset(index=-19, written_as=3),
        offset(written_as=2),
        offset(written_as=4),
        offset(version=-1),
        offset(reservoirId=""),
        offset(isStartingVersion="yes"),
        offset(index=True),
        offset(more=1),
        "[]",
        "{",
        '{"clicks":{"0":1}}',
    ],
)
def test_a_position_without_a_cursor_is_refused(line):
    with pytest.raises(SourceInvalid, match="Delta source") as refused:
        DeltaSource.adopted(line)
    assert refused.value.hint


def test_a_part_of_a_version_that_would_be_skipped_is_reported(tmp_path):
    """A plain query may have read it with ignoreChanges; to skip the rest would lose rows."""
    table = WrittenTable(tmp_path / "table")
    table.version()
    table.version(removed=["part-0.parquet"])
    history = History(str(table.root), {}, "skip", [], 0)
    history.require(Position(table.id, 1), 1)
    with pytest.raises(SourceInvalid, match="a part of version 1"):
        history.require(Position(table.id, 1, 1), 1)
