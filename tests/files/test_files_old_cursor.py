"""Cursors of the first format are still read: names up to the last one are consumed, and what cannot be told is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_ckpt_files.listing import DataFile
from spark_ckpt_files.old_cursor import Position, is_old, present_of_old

from spark_ckpt.errors import SourceInvalid

WRITTEN_BY_THE_FIRST_FORMAT = {
    "format": 1,
    "name": "b.csv",
    "count": 2,
    "bytes": 7,
    "sum": f"{sum(int.from_bytes(hashlib.blake2b(each, digest_size=8).digest()) for each in (b'a.csv' + bytes(1) + b'3', b'b.csv' + bytes(1) + b'4')) % 2**64:016x}",  # noqa: E501
    "names": f"{int.from_bytes(b'a.csv', 'little') ^ int.from_bytes(b'b.csv', 'little'):x}",
}
A, B, C = DataFile("a.csv", 3), DataFile("b.csv", 4), DataFile("c.csv", 5)


def cursor(files: Sequence[DataFile]) -> dict[str, Any]:
    """As the first format wrote it."""
    at = Position().after(sorted(files, key=lambda file: file.name))
    sums = {"sum": f"{at.sum:016x}", "names": f"{at.names:x}"}
    return {"format": 1, "name": at.name, "count": at.count, "bytes": at.bytes} | sums


def test_a_cursor_as_it_was_written_has_its_files_behind_it():
    assert is_old(WRITTEN_BY_THE_FIRST_FORMAT)
    assert cursor([A, B]) == WRITTEN_BY_THE_FIRST_FORMAT

    consumed = present_of_old("dir", WRITTEN_BY_THE_FIRST_FORMAT, [C, B, A])

    assert {file.name for file in consumed.files} == {"a.csv", "b.csv"}
    assert (consumed.count, consumed.bytes) == (2, 7)


def test_files_that_are_gone_do_not_hinder():
    consumed = present_of_old("dir", cursor([A, B, C]), [C])

    assert [file.name for file in consumed.files] == ["c.csv"]
    assert consumed.count == 3


def test_what_an_old_cursor_has_behind_it_is_never_cleaned():
    """It may have been passed over by start="latest"."""
    assert not any(file.read for file in present_of_old("dir", cursor([A]), [A]).files)


names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=12)
listings = st.dictionaries(names, st.integers(0, 10**12), min_size=1, max_size=12).map(
    lambda files: [DataFile(name, files[name]) for name in sorted(files)]
)


@given(listings, st.data())
def test_one_late_file_is_named_from_the_cursor_alone(files: list[DataFile], data: st.DataObject) -> None:
    late = data.draw(st.sampled_from(files[:-1] or files))
    others = [file for file in files if file != late]

    if late == files[-1]:
        present_of_old("dir", cursor(others), files)  # it follows the others, and is new
        return
    with pytest.raises(SourceInvalid) as caught:
        present_of_old("dir", cursor(others), files)

    assert caught.value.context["file"] == late.name
    assert "appeared before" in caught.value.what


@given(listings, st.integers(1, 1000), st.data())
def test_one_grown_file_is_named_from_the_cursor_alone(files: list[DataFile], more: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(files) - 1))
    now = list(files)
    now[index] = DataFile(files[index].name, files[index].size + more)

    with pytest.raises(SourceInvalid) as caught:
        present_of_old("dir", cursor(files), now)

    assert caught.value.context["file"] == files[index].name
    assert f"was {files[index].size} bytes long" in caught.value.what


def test_a_late_file_in_place_of_a_removed_one_is_refused():
    with pytest.raises(SourceInvalid, match="is not what was consumed"):
        present_of_old("dir", cursor([A, C]), [B, C])
