"""Staged Parquet becomes chunks: every row once, in order, bounded, nothing changed."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_ckpt_kafka import rows
from spark_ckpt_kafka.record_batches import Chunk
from spark_ckpt_kafka.rows import StagedPart, StagedRows, bounded

from spark_ckpt import content
from spark_ckpt.errors import EpochDamaged, RowsRefused


def _staged(root: Path, *tables: pa.Table, row_group: int = 10, topic: str | None = "t") -> StagedRows:
    parts = []
    for number, table in enumerate(tables):
        pq.write_table(table, root / f"{number}.parquet", row_group_size=row_group)
        whole = (root / f"{number}.parquet").read_bytes()
        digest = hashlib.sha256(whole).hexdigest()
        parts.append(StagedPart(f"{number}.parquet", table.num_rows, len(whole), digest))
    return StagedRows(str(root), {}, parts, topic, [])


def _values(chunks: Iterable[Chunk]) -> list[bytes | None]:
    return [value for chunk in chunks for value in chunk.rows.column("value").cast(pa.binary()).to_pylist()]


def _chunks(staged: StagedRows) -> list[Chunk]:
    return [chunk for group in staged.verified().row_groups() for chunk in group]


def test_files_and_row_groups_come_in_publishing_order(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(95)]
    tables = [pa.table({"value": values[:33]}), pa.table({"value": values[33:]})]

    staged = _staged(tmp_path, *tables)

    assert _values(_chunks(staged)) == values
    assert len(list(staged.verified().row_groups())) == 11


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


def test_text_becomes_bytes_and_absent_columns_use_no_memory(tmp_path: Path) -> None:
    table = pa.table({"key": ["ä", None], "value": pa.array([None, "x"]), "partition": pa.nulls(2, pa.int32())})

    (chunk,) = _chunks(_staged(tmp_path, table))

    found = {
        name: column if (column := chunk.column(name)) is None else column.to_pylist() for name in table.schema.names
    }
    assert found == {"key": ["ä".encode(), None], "value": [None, b"x"], "partition": None}


def test_values_that_are_all_null_are_still_rows(tmp_path: Path) -> None:
    table = pa.table({"key": [b"a", b"b"], "value": pa.nulls(2, pa.binary())})

    (chunk,) = _chunks(_staged(tmp_path, table))

    assert len(chunk) == 2
    assert _values([chunk]) == [None, None]


def test_the_sinks_topic_overrides_the_rows_own(tmp_path: Path) -> None:
    table = pa.table({"value": [b"1", b"2", b"3"], "topic": ["a", "b", "a"]})

    fixed = _chunks(_staged(tmp_path, table, topic="t"))
    own = _chunks(_staged(tmp_path, table, topic=None))

    assert [(chunk.topic, _values([chunk])) for chunk in fixed] == [("t", [b"1", b"2", b"3"])]
    assert [(chunk.topic, _values([chunk])) for chunk in own] == [("a", [b"1", b"3"]), ("b", [b"2"])]


@pytest.mark.parametrize("topics", [["a", None], None], ids=["null", "no column"])
def test_a_row_without_a_topic_is_refused(tmp_path: Path, topics: list[str | None] | None) -> None:
    columns = {"value": [b"1", b"2"]} | ({} if topics is None else {"topic": topics})

    with pytest.raises(RowsRefused, match="no topic"):
        _chunks(_staged(tmp_path, pa.table(columns), topic=None))


def test_tables_have_the_positions_of_their_rows(tmp_path: Path) -> None:
    tables = [pa.table({"value": [b"x"] * count}) for count in (25, 5)]

    places = [
        (part.path, first, table.num_rows) for part, first, table in _staged(tmp_path, *tables).verified().tables()
    ]

    assert places == [("0.parquet", 0, 10), ("0.parquet", 10, 10), ("0.parquet", 20, 5), ("1.parquet", 0, 5)]


def test_a_file_with_another_number_of_rows_is_damaged(tmp_path: Path) -> None:
    staged = _staged(tmp_path, pa.table({"value": [b"x"]}))
    wrong = replace(staged, parts=[replace(staged.parts[0], rows=2)])

    with pytest.raises(EpochDamaged, match="has 1 row, 2 were staged"):
        _chunks(wrong)


@pytest.mark.parametrize("written", [None, b"", b"PAR1 but not really"])
def test_a_missing_or_broken_file_is_damaged(tmp_path: Path, written: bytes | None) -> None:
    if written is not None:
        (tmp_path / "0.parquet").write_bytes(written)
    part = StagedPart("0.parquet", 1, size_bytes=len(written or b""))

    with pytest.raises(EpochDamaged, match=r"is missing|cannot be decoded") as caught:
        _chunks(StagedRows(str(tmp_path), {}, [part], "t", [], {"epoch": 7, "sink": "out"}))
    assert (caught.value.context["epoch"], caught.value.context["sink"]) == (7, "out")


@pytest.fixture(params=["kept", "read again"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Keep verified bytes in memory for the decoder, or not."""
    monkeypatch.setattr(rows, "KEPT_BYTES", 16 << 20 if request.param == "kept" else 0)
    monkeypatch.setattr(content, "BLOCK_BYTES", 1000)
    return str(request.param)


def test_rows_of_files_larger_than_memory_are_the_same(tmp_path: Path, kept: str) -> None:
    values = [b"%d" % number * 7 for number in range(995)]
    staged = _staged(tmp_path, pa.table({"value": values[:600]}), pa.table({"value": values[600:]}), row_group=100)

    assert _values(_chunks(staged)) == values


def test_no_row_of_any_file_is_decoded_before_every_file_is_verified(tmp_path: Path, kept: str) -> None:
    staged = _staged(tmp_path, pa.table({"value": [b"x" * 99] * 50}), pa.table({"value": [b"y" * 99] * 50}))
    flip(tmp_path / "1.parquet", 300)

    with pytest.raises(EpochDamaged, match=r"1\.parquet"):
        staged.verified()


def test_bytes_that_change_between_verification_and_decoding_are_not_decoded(tmp_path: Path, kept: str) -> None:
    staged = _staged(tmp_path, pa.table({"value": [b"x%d" % number * 20 for number in range(500)]}), row_group=500)
    expected = _values(_chunks(staged))
    verified = staged.verified()
    flip(tmp_path / "0.parquet", 8 * 1500)

    try:
        found = _values(chunk for group in verified.row_groups() for chunk in group)
    except EpochDamaged as damage:
        assert kept == "read again"
        assert "changed after it was verified" in damage.what
    else:
        assert kept == "kept"
        assert found == expected


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def outcome(staged: StagedRows, expected: list[bytes]) -> str:
    try:
        found = _values(_chunks(staged))
    except EpochDamaged:
        return "damaged"
    except Exception as error:  # noqa: BLE001 - an untyped error is what is looked for
        return f"untyped {type(error).__name__}"
    return "same" if found == expected else "other rows"


@pytest.mark.parametrize("known", [True, False], ids=["digest", "no digest"])
def test_every_flip_of_a_staged_file_is_found_by_its_digest(tmp_path: Path, known: bool) -> None:
    """Without a digest (planted) errors are typed, but some flips publish other rows."""
    values = [b"value %d" % number for number in range(300)]
    staged = _staged(tmp_path, pa.table({"key": values, "value": values}), row_group=100)
    if not known:
        staged = replace(staged, parts=[replace(part, sha256="") for part in staged.parts])
    whole = (tmp_path / "0.parquet").read_bytes()
    rng, seen = random.Random(7), Counter()
    for bit in rng.sample(range(len(whole) * 8), 600):
        flip(tmp_path / "0.parquet", bit)
        seen[outcome(staged, values)] += 1
        (tmp_path / "0.parquet").write_bytes(whole)
    assert not [what for what in seen if what.startswith("untyped")], seen
    if known:
        assert seen == {"damaged": 600}
    else:
        assert seen["other rows"] > 0, seen
