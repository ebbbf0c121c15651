"""Positions are printed in words and times; JSON output has the cursor."""

import pytest

from spark_ckpt.cursor_text import cursor_text


@pytest.mark.parametrize(
    ("cursor", "text"),
    [
        (
            {"format": 2, "path": "/in", "count": 42, "bytes": 9, "newest_ms": 1_700_000_000_000, "segments": []},
            "42 files, newest 2023-11-14 22:13:20Z",
        ),
        ({"format": 2, "path": "/in", "count": 0, "bytes": 0, "newest_ms": 0, "segments": []}, "no file yet"),
        ({"format": 2, "table": "t", "version": 7, "index": 0, "snapshot": False}, "version 7"),
        (
            {"format": 2, "table": "t", "version": 7, "index": 2, "snapshot": True},
            "the rows of version 7, 2 files of it",
        ),
        ({"orders": {"0": 42, "1": 17}, "refunds": {"0": 3}}, "orders 0:42, 1:17; refunds 0:3"),
        ({"orders": {str(n): 1000 + n for n in range(12)}}, "orders 12 partitions, offsets 1,000 to 1,011"),
        ({"epoch": 3, "taken_ms": 1_700_000_000_000}, '{"epoch": 3, "taken": "2023-11-14 22:13:20Z"}'),
        ({"offset": {"value": 5}}, '{"offset": {"value": 5}}'),
        ({}, "{}"),
    ],
)
def test_a_cursor_is_printed_in_words(cursor, text):
    assert cursor_text(cursor) == text


def test_a_known_lag_is_printed():
    assert cursor_text({"t": {"0": 5}}, lag=12345) == "t 0:5; 12,345 rows behind"
