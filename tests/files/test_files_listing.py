"""Listing of files: selection, order, and number of metadata reads."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from files_kit import ListedByArrow
from spark_ckpt_files.listing import DataFile, Directory, is_complete

from spark_ckpt.errors import SourceInvalid


def write(folder: Path, name: str, size: int = 3, modified_s: int = 0) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    if modified_s:
        os.utime(path, (modified_s, modified_s))


def names(directory: Directory, **more: Any) -> list[str]:
    return [file.name for file in directory.files(**more)]


def test_files_come_by_modification_time_then_by_name_as_in_spark(tmp_path: Path) -> None:
    for name, modified_s in [("b.csv", 5), ("a.csv", 7), ("d.csv", 6), ("c.csv", 6)]:
        write(tmp_path, name, modified_s=modified_s)

    assert names(Directory(str(tmp_path))) == ["b.csv", "c.csv", "d.csv", "a.csv"]


@pytest.mark.parametrize("name", [".hidden.csv", "_started.csv", "a.csv.tmp", "a.csv.inprogress", "_dir/a.csv"])
def test_a_file_that_is_still_being_written_is_invisible(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    write(tmp_path, "done.csv")

    assert names(Directory(str(tmp_path), recursive=True)) == ["done.csv"]
    assert Directory(str(tmp_path), recursive=True).names() == {"done.csv"}
    assert not is_complete(name)


def test_subfolders_are_read_only_on_request(tmp_path: Path) -> None:
    write(tmp_path, "day=1/a.csv")

    assert Directory(str(tmp_path)).files() == []
    assert Directory(str(tmp_path), recursive=True).files() == [DataFile("day=1/a.csv", 3)]


@pytest.mark.parametrize("call", [Directory.files, Directory.names])
def test_a_name_that_is_not_utf8_is_refused_and_renaming_it_is_the_cure(call: Any, tmp_path: Path) -> None:
    (tmp_path / "day").mkdir()
    bad = os.fsencode(tmp_path / "day") + b"/caf\xe9.json"
    Path(os.fsdecode(bad)).write_bytes(b"{}")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/_caf\xe9.json")).write_bytes(b"{}")
    directory = Directory(str(tmp_path), recursive=True)

    with pytest.raises(SourceInvalid) as caught:
        call(directory)

    assert (caught.value.context["file"], caught.value.hint) == ("day/caf\\xe9.json", "rename the file")
    Path(os.fsdecode(bad)).rename(tmp_path / "day" / "café.json")
    assert len(call(directory)) == 1


@pytest.mark.parametrize("call", [Directory.files, Directory.names])
@pytest.mark.parametrize("links", [{"a/up": "."}, {"x": ".", "y": "."}, {"a/b": "b", "b/a": "a"}])
def test_links_that_lead_in_a_circle_are_refused_at_once_and_their_new_names_are_the_cure(
    links: dict[str, str], call: Any, tmp_path: Path
) -> None:
    write(tmp_path, "a/1.csv")
    write(tmp_path, "b/2.csv")
    for link, target in links.items():
        (tmp_path / link).symlink_to(tmp_path / target)
    directory = Directory(str(tmp_path), recursive=True)

    with pytest.raises(SourceInvalid) as caught:
        call(directory)

    assert not caught.value.retriable
    for link in links:
        (tmp_path / link).rename(tmp_path / link.replace("/", "/_") if "/" in link else tmp_path / f"_{link}")
    assert len(call(directory)) == 2


def test_a_link_to_another_folder_is_that_folder(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/1.csv")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/day").symlink_to(tmp_path / "elsewhere")

    assert names(Directory(str(tmp_path / "in"), recursive=True)) == ["day/1.csv"]


def test_a_link_to_itself_is_no_outage(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to(tmp_path / "a.csv")

    with pytest.raises(SourceInvalid) as caught:
        Directory(str(tmp_path)).files()

    assert not caught.value.retriable


@pytest.mark.parametrize("call", [Directory.files, Directory.names])
def test_a_missing_directory_is_an_error_with_its_path(call: Any, tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match="nowhere does not exist"):
        call(Directory(str(tmp_path / "nowhere")))


@pytest.mark.parametrize("call", [Directory.files, Directory.names])
def test_a_failed_listing_is_repeated_by_the_next_incarnation(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(path: str) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", path)

    monkeypatch.setattr(os, "scandir", away)
    with pytest.raises(SourceInvalid, match="cannot be listed") as caught:
        call(Directory(str(tmp_path)))
    assert caught.value.retriable


def test_a_uri_lists_the_same_files_as_the_path(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", modified_s=3)

    (by_path,), (by_uri,) = Directory(str(tmp_path)).files(), Directory(tmp_path.as_uri()).files()

    assert (by_path, by_path.modified_ms) == (by_uri, by_uri.modified_ms)


def test_arrows_listing_equals_the_local_listing(tmp_path: Path) -> None:
    """Arrow lists other file systems; on the local one both listings must be equal."""
    for name in ("a.csv", "day=1/b.csv", "_no/c.csv", ".no", "d.tmp"):
        write(tmp_path, name, modified_s=9)
    directory = Directory(str(tmp_path), recursive=True)
    passed: set[str] = set()

    listed = ListedByArrow(str(tmp_path), recursive=True).files({"a.csv"}, passed)

    assert [(file, file.modified_ms) for file in listed] == [
        (file, file.modified_ms) for file in directory.files({"a.csv"})
    ]
    assert passed == {"a.csv"}


def test_known_files_are_listed_without_a_metadata_read(tmp_path: Path) -> None:
    write(tmp_path, "known.csv")
    write(tmp_path, "new.csv")
    passed: set[str] = set()

    assert names(Directory(str(tmp_path)), without={"known.csv", "gone.csv"}, passed=passed) == ["new.csv"]
    assert passed == {"known.csv"}


def test_only_files_that_exist_have_a_size(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", 7)

    assert Directory(str(tmp_path)).stat(["a.csv", "gone.csv"]) == {"a.csv": DataFile("a.csv", 7)}


def test_a_directory_can_be_sent_to_tasks(tmp_path: Path) -> None:
    write(tmp_path, "a.csv")
    used = Directory(str(tmp_path))
    used.files()

    assert names(pickle.loads(pickle.dumps(used))) == ["a.csv"]


def test_a_file_that_grew_after_it_was_planned_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", 3)
    (file,) = Directory(str(tmp_path)).files()
    write(tmp_path, "a.csv", 4)

    with pytest.raises(SourceInvalid, match=r"a\.csv was 3 bytes long .* 4 now"):
        Directory(str(tmp_path)).open(file)
