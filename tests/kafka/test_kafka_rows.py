"""Staged Parquet becomes chunks: every row once, in order, bounded, nothing changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_ckpt_kafka import rows
from spark_ckpt_kafka.producer import Chunk
from spark_ckpt_kafka.rows import StagedPart, StagedRows, bounded

from spark_ckpt.errors import EpochDamaged


def _staged(root: Path, *tables: pa.Table, row_group: int = 10, topic: str | None = "t") -> StagedRows:
    parts = []
    for number, table in enumerate(tables):
        pq.write_table(table, root / f"{number}.parquet", row_group_size=row_group)
        parts.append(StagedPart(f"{number}.parquet", table.num_rows))
    return StagedRows(str(root), {}, parts, topic, [])


def _chunks(staged: StagedRows) -> list[Chunk]:
    return [chunk for group in staged.row_groups() for chunk in group]


def test_files_and_row_groups_come_in_publishing_order(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(95)]
    tables = [pa.table({"value": values[:33]}), pa.table({"value": values[33:]})]

    staged = _staged(tmp_path, *tables)

    assert [value for chunk in _chunks(staged) for value in chunk.values] == values
    assert len(list(staged.row_groups())) == 11
    assert staged.count == 95


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_slices_are_bounded_and_lose_nothing(sizes: list[int]) -> None:
    batch = pa.record_batch({"value": [b"x" * size for size in sizes]})
    whole = pa.RecordBatch.from_pydict({"value": batch.column(0)})

    limit, rows.CHUNK_BYTES = rows.CHUNK_BYTES, 64
    try:
        pieces = list(bounded(whole))
    finally:
        rows.CHUNK_BYTES = limit

    assert [value for piece in pieces for value in piece.column(0).to_pylist()] == batch.column(0).to_pylist()
    assert all(piece.num_rows for piece in pieces)
    assert whole.nbytes <= 64 or len(pieces) > 1 or len(sizes) == 1


def test_text_becomes_bytes_and_absent_columns_cost_nothing(tmp_path: Path) -> None:
    table = pa.table({"key": ["ä", None], "value": pa.array([None, "x"]), "partition": pa.nulls(2, pa.int32())})

    (chunk,) = _chunks(_staged(tmp_path, table))

    assert list(chunk.keys) == ["ä".encode(), None]
    assert list(chunk.values) == [None, b"x"]
    assert chunk.plain


def test_values_that_are_all_null_are_still_rows(tmp_path: Path) -> None:
    table = pa.table({"key": [b"a", b"b"], "value": pa.nulls(2, pa.binary())})

    (chunk,) = _chunks(_staged(tmp_path, table))

    assert len(chunk) == 2
    assert list(chunk.values) == [None, None]


def test_the_sinks_topic_overrides_the_rows_own(tmp_path: Path) -> None:
    table = pa.table({"value": [b"x"], "topic": ["other"]})

    (fixed,) = _chunks(_staged(tmp_path, table, topic="t"))
    (own,) = _chunks(_staged(tmp_path, table, topic=None))

    assert (fixed.topic, fixed.topics) == ("t", None)
    assert own.topics == ["other"]


def test_timestamps_are_milliseconds(tmp_path: Path) -> None:
    table = pa.table(
        {"value": [b"x", b"y"], "timestamp": pa.array([1_234_567_891, None], pa.timestamp("us", tz="UTC"))}
    )

    (chunk,) = _chunks(_staged(tmp_path, table))

    assert chunk.timestamps == [1_234_567, None]


def test_a_stamp_goes_behind_the_rows_own_headers() -> None:
    stamp: list[tuple[str, bytes | None]] = [("ckpt-epoch", b"7")]

    assert rows.stamped(None, [], 2) is None
    assert rows.stamped(None, stamp, 2) == [stamp, stamp]
    assert rows.stamped([[("h", b"1")], None], stamp, 2) == [[("h", b"1"), *stamp], stamp]


def test_a_file_with_another_number_of_rows_is_damaged(tmp_path: Path) -> None:
    staged = _staged(tmp_path, pa.table({"value": [b"x"]}))
    wrong = StagedRows(staged.root, {}, [StagedPart("0.parquet", 2)], "t", [])

    with pytest.raises(EpochDamaged, match="it has 1 rows, 2 were staged"):
        _chunks(wrong)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 but not really"])
def test_a_missing_or_broken_file_is_damaged(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "0.parquet").write_bytes(content)

    with pytest.raises(EpochDamaged, match="cannot be read"):
        _chunks(StagedRows(str(tmp_path), {}, [StagedPart("0.parquet", 1)], "t", []))
