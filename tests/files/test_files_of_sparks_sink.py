"""A folder that Spark's file sink writes is read as Spark reads it: the log in `_spark_metadata` names the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from files_kit import ListedByArrow, settings_of
from pyspark.sql.streaming.datasource import ReadMaxFiles
from pyspark.sql.types import LongType, StructField, StructType
from spark_ckpt_files import FilesSource
from spark_ckpt_files.listing import Directory
from spark_ckpt_files.offsets import Offset
from spark_ckpt_files.settings import output_schema
from spark_ckpt_files.sink_log import SparkSinkLog
from spark_ckpt_files.stream import FilesStreamReader

from spark_ckpt.errors import ConfigInvalid, SourceInvalid

DATA = StructType([StructField("id", LongType())])


class Sink:
    """Files of Spark's file sink in a folder, batch by batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "_spark_metadata"
        self.log.mkdir(parents=True)
        self._next = 0
        self._entries: list[str] = []

    def write(self, name: str, content: str = "1\n") -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return self.entry(path.as_uri())

    def entry(self, uri: str, **changes: Any) -> str:
        fields = {"path": uri, "size": 2, "isDir": False, "modificationTime": 1, "blockReplication": 1}
        return json.dumps({**fields, "blockSize": 33554432, "action": "add", **changes})

    def commit(self, *entries: str, compact: bool = False) -> None:
        self._entries += entries
        lines, name = (self._entries, f"{self._next}.compact") if compact else (entries, str(self._next))
        (self.log / name).write_text("\n".join(["v1", *lines]))
        (self.log / f".{name}.crc").write_bytes(b"crc")
        self._next += 1


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "lake")


def names(sink: Sink, **options: Any) -> list[str]:
    return [file.name for file in Directory(str(sink.folder), **options).files()]


def reader(folder: Path, **options: Any) -> FilesStreamReader:
    settings = settings_of(folder, **options)
    return FilesStreamReader(settings, output_schema(DATA, settings), Offset())


def test_a_file_of_a_dead_attempt_is_left_out(sink: Sink) -> None:
    sink.commit(sink.write("part-0.csv"))
    sink.write("part-0-dead.csv")

    assert names(sink) == ["part-0.csv"]
    assert Directory(str(sink.folder)).names() == {"part-0.csv"}


def test_no_file_counts_before_the_first_batch(sink: Sink) -> None:
    sink.write("part-0.csv")

    assert names(sink) == []


def test_every_committed_batch_counts_also_after_compaction(sink: Sink) -> None:
    directory = Directory(str(sink.folder))
    seen: list[int] = []
    for batch in range(25):
        sink.commit(sink.write(f"part-{batch:02}.csv"), compact=batch % 10 == 9)
        seen.append(len(directory.files()))
    for old in range(9):
        (sink.log / str(old)).unlink()  # as Spark does, some minutes after a compaction

    assert seen == list(range(1, 26))
    assert names(sink) == [f"part-{batch:02}.csv" for batch in range(25)]


def test_a_reader_slower_than_a_compaction_misses_no_file(sink: Sink) -> None:
    directory = Directory(str(sink.folder))
    sink.commit(sink.write("part-0.csv"))
    directory.files()
    sink.commit(sink.write("part-1.csv"))
    sink.commit(sink.write("part-2.csv"), compact=True)
    for old in ("0", "1"):
        (sink.log / old).unlink()
    sink.commit(sink.write("part-3.csv"))

    assert [file.name for file in directory.files()] == [f"part-{batch}.csv" for batch in range(4)]


class Torn:
    """A file system whose first listing lacks a file that another process creates meanwhile."""

    def __init__(self, missed: str) -> None:
        self.real, self.missed = pafs.LocalFileSystem(), missed

    def get_file_info(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        missed, self.missed = self.missed, ""
        return [each for each in self.real.get_file_info(selector) if each.base_name != missed]

    def open_input_stream(self, path: str) -> Any:
        return self.real.open_input_stream(path)


def test_a_listing_that_missed_a_new_entry_of_the_log_is_repeated(sink: Sink) -> None:
    for batch in range(3):
        sink.commit(sink.write(f"part-{batch}.csv"))
    system: Any = Torn("1")

    assert list(SparkSinkLog(system, str(sink.folder)).committed()) == [f"part-{batch}.csv" for batch in range(3)]


def test_a_file_that_the_log_deletes_is_left_out(sink: Sink) -> None:
    """Spark before 3.1 wrote such entries."""
    sink.commit(sink.write("part-0.csv"), sink.write("part-1.csv"))
    sink.commit(sink.entry((sink.folder / "part-0.csv").as_uri(), action="delete"))

    assert names(sink) == ["part-1.csv"]


def test_folders_in_the_log_are_no_files(sink: Sink) -> None:
    sink.commit(sink.write("part-0.csv"), sink.entry((sink.folder / "day=1").as_uri(), isDir=True))

    assert names(sink) == ["part-0.csv"]


def test_names_are_decoded_as_spark_encodes_them(sink: Sink) -> None:
    odd = ["a b.csv", "a%20b.csv", "ü#?.csv", "_day=1/part-0.csv"]
    sink.commit(*map(sink.write, odd))

    assert sorted(names(sink, recursive=True)) == sorted(odd)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_sinks_folder_below_the_directory_follows_its_own_log(sink: Sink, is_local: bool) -> None:
    sink.commit(sink.write("day=1/part-0.csv"))
    sink.write("day=1/part-0-dead.csv")
    (sink.folder.parent / "plain.csv").write_text("1\n")
    listed = (Directory if is_local else ListedByArrow)(str(sink.folder.parent), recursive=True).files()

    assert sorted(file.name for file in listed) == ["lake/day=1/part-0.csv", "plain.csv"]


def test_a_link_to_the_folder_is_the_folder(sink: Sink, tmp_path: Path) -> None:
    sink.commit(sink.write("part-0.csv"))
    (tmp_path / "link").symlink_to(sink.folder)

    assert [file.name for file in Directory(str(tmp_path / "link")).files()] == ["part-0.csv"]


@pytest.mark.parametrize(
    "uri",
    ["s3a:/{lake}/part-0.csv", "abfss://box@account.dfs.core.windows.net/lake/part-0.csv", "hdfs://name:8020{lake}/part-0.csv",
     "file:{lake}/part-0.csv"],
)  # fmt: skip
def test_files_are_found_by_the_uris_of_every_file_system(uri: str, sink: Sink, tmp_path: Path) -> None:
    system, root = pafs.LocalFileSystem(), str(sink.folder)
    if not uri.startswith(("hdfs", "file")):  # Arrow's paths there begin with the bucket or container
        system, root = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "box/lake"
        (tmp_path / "box").symlink_to(tmp_path)
        uri = uri.replace("{lake}", "/box/lake")
    sink.commit(sink.entry(uri.format(lake=root)))

    assert list(SparkSinkLog(system, root).committed()) == ["part-0.csv"]


def test_a_copied_folder_is_refused_and_the_advice_reads_every_file(sink: Sink, tmp_path: Path) -> None:
    sink.commit(sink.write("part-0.csv"))
    sink.write("part-0-dead.csv")
    sink.folder.rename(tmp_path / "copy")

    with pytest.raises(SourceInvalid) as caught:
        Directory(str(tmp_path / "copy")).files()
    assert (caught.value.context["folder"], "move _spark_metadata away" in caught.value.hint) == (
        str(tmp_path / "copy"),
        True,
    )
    (tmp_path / "copy" / "_spark_metadata").rename(tmp_path / "away")
    assert len(Directory(str(tmp_path / "copy")).files()) == 2


@pytest.mark.parametrize("damage", ["gap", "version", "entry", "outside"])
def test_a_damaged_log_is_never_an_answer(sink: Sink, damage: str) -> None:
    for batch in range(3):
        sink.commit(sink.write(f"part-{batch}.csv"))
    if damage == "gap":
        (sink.log / "1").unlink()
    elif damage == "version":
        (sink.log / "1").write_text("v9\n")
    elif damage == "entry":
        (sink.log / "1").write_text('v1\n{"path": "file:///x')
    else:
        (sink.log / "1").write_text("v1\n" + sink.entry(f"{sink.folder.as_uri()}/../secret.csv"))

    with pytest.raises(SourceInvalid):
        names(sink)


def test_a_log_that_appears_while_the_job_runs_is_followed(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "before.csv").write_text("1\n")
    plan = reader(tmp_path / "lake")
    first = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    sink = Sink(tmp_path / "lake")
    sink.write("part-0-dead.csv")
    sink.commit(sink.write("part-0.csv"))

    second = plan.latestOffset(first, ReadMaxFiles(10))

    assert [file[0] for file in second["files"]] == ["part-0.csv"]  # type: ignore[attr-defined]


def test_a_missing_committed_file_stops_the_job_and_the_advice_continues_without_it(sink: Sink) -> None:
    sink.commit(sink.write("part-0.csv"), sink.write("part-1.csv"))
    (sink.folder / "part-0.csv").unlink()
    plan = reader(sink.folder)

    with pytest.raises(SourceInvalid) as caught:
        plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))

    assert caught.value.context["file"] == "part-0.csv"
    assert "ignoreMissingFiles=True" in caught.value.hint
    plan = reader(sink.folder, ignore_missing=True)
    assert plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))["count"] == 1


def test_a_consumed_file_may_be_removed(sink: Sink) -> None:
    sink.commit(sink.write("part-0.csv"))
    plan = reader(sink.folder)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    (sink.folder / "part-0.csv").unlink()

    assert plan.latestOffset(end, ReadMaxFiles(10)) == end


def test_cleaning_a_sinks_folder_is_refused(sink: Sink) -> None:
    sink.commit(sink.write("part-0.csv"))

    with pytest.raises(ConfigInvalid):
        FilesSource(str(sink.folder), "csv", DATA, header=False, cleanSource="delete").check(None)  # type: ignore[arg-type]
