"""Which files count, and that a directory which is not append-only stops the job with the file's name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_ckpt_files.listing import DataFile, Directory, is_complete
from spark_ckpt_files.position import Position, consumed_and_fresh, prove

from spark_ckpt.errors import SourceInvalid


def write(folder: Path, name: str, size: int = 3) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_files_are_consumed_in_name_order_whatever_their_age(tmp_path: Path) -> None:
    for age, name in enumerate(["b.csv", "a.csv", "c.csv"]):
        write(tmp_path, name)
        os.utime(tmp_path / name, (age, age))

    assert [file.name for file in Directory(str(tmp_path)).files()] == ["a.csv", "b.csv", "c.csv"]


@pytest.mark.parametrize("name", [".hidden.csv", "_started.csv", "a.csv.tmp", "a.csv.inprogress", "_dir/a.csv"])
def test_a_file_that_is_still_being_written_is_invisible(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    write(tmp_path, "done.csv")

    assert [file.name for file in Directory(str(tmp_path), recursive=True).files()] == ["done.csv"]
    assert not is_complete(name)


def test_subfolders_are_read_only_if_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "day=1/a.csv")

    assert Directory(str(tmp_path)).files() == []
    assert Directory(str(tmp_path), recursive=True).files() == [DataFile("day=1/a.csv", 3)]


def test_a_missing_directory_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match="nowhere does not exist"):
        Directory(str(tmp_path / "nowhere")).files()


def test_a_uri_lists_the_same_files_as_the_path(tmp_path: Path) -> None:
    write(tmp_path, "a.csv")

    assert Directory(tmp_path.as_uri()).files() == Directory(str(tmp_path)).files()


def test_a_file_that_grew_after_it_was_planned_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", 3)
    (file,) = Directory(str(tmp_path)).files()
    write(tmp_path, "a.csv", 4)

    with pytest.raises(SourceInvalid, match=r"a\.csv was 3 bytes long .* 4 now"):
        Directory(str(tmp_path)).open(file)


names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=12)
listings = st.dictionaries(names, st.integers(0, 10**12), min_size=1, max_size=12).map(
    lambda files: [DataFile(name, files[name]) for name in sorted(files)]
)


@given(listings, st.data())
def test_position_in_pieces_equals_position_at_once(files: list[DataFile], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(files)))

    assert Position().after(files[:cut]).after(files[cut:]) == Position().after(files)
    assert Position.of(Position().after(files).cursor()) == Position().after(files)


@given(listings, st.data())
def test_one_vanished_file_is_named_from_the_cursor_alone(files: list[DataFile], data: st.DataObject) -> None:
    expected = Position().after(files)
    gone = data.draw(st.integers(0, len(files) - 1))

    with pytest.raises(SourceInvalid) as caught:
        prove("dir", expected, files[:gone] + files[gone + 1 :])

    assert caught.value.context["file"] == files[gone].name
    assert "vanished" in caught.value.what


@given(listings, st.data())
def test_one_late_file_is_named_from_the_cursor_alone(files: list[DataFile], data: st.DataObject) -> None:
    late = data.draw(st.sampled_from(files))
    others = [file for file in files if file != late]

    with pytest.raises(SourceInvalid) as caught:
        prove("dir", Position().after(others), files)

    assert caught.value.context["file"] == late.name
    assert "appeared before" in caught.value.what


@given(listings, st.integers(1, 1000), st.data())
def test_one_grown_file_is_named_from_the_cursor_alone(files: list[DataFile], more: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(files) - 1))
    now = list(files)
    now[index] = DataFile(files[index].name, files[index].size + more)

    with pytest.raises(SourceInvalid) as caught:
        prove("dir", Position().after(files), now)

    assert caught.value.context["file"] == files[index].name
    assert f"was {files[index].size} bytes long" in caught.value.what


@given(listings, listings)
def test_any_other_listing_is_refused(files: list[DataFile], others: list[DataFile]) -> None:
    if files == others:
        prove("dir", Position().after(files), others)
    else:
        with pytest.raises(SourceInvalid):
            prove("dir", Position().after(files), others)


def test_of_several_changes_the_first_is_named_if_the_process_has_seen_the_files() -> None:
    files = [DataFile(name, 1) for name in "abcdef"]

    with pytest.raises(SourceInvalid, match="file b has vanished"):
        prove("dir", Position().after(files), [file for file in files if file.name not in "bd"], files)


def test_a_listing_is_split_right_behind_the_last_consumed_name() -> None:
    files = [DataFile(name, 1) for name in ("a", "b", "c")]

    assert consumed_and_fresh(files, Position().after(files[:2])) == (files[:2], files[2:])
    assert consumed_and_fresh(files, Position()) == ([], files)


def test_a_cursor_of_an_unknown_format_is_refused() -> None:
    with pytest.raises(SourceInvalid, match="format 9"):
        Position.of(dict(Position().cursor()) | {"format": 9})
