"""Batches of a files source, planned without Spark: bounded, replayable, stopped by a changed directory."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import DateType, LongType, MapType, StringType, StructField, StructType
from spark_ckpt_files import FilesSource
from spark_ckpt_files.position import Position
from spark_ckpt_files.settings import Settings, check_schema, output_schema
from spark_ckpt_files.stream import FilesStreamReader

from spark_ckpt.connector import Source
from spark_ckpt.errors import ConfigInvalid, SourceInvalid
from spark_ckpt.file_stream import FileRun

DATA = StructType([StructField("id", LongType())])


def settings(folder: Path, **changes: Any) -> Settings:
    return FilesSource(str(folder), "csv", DATA, header=False, **changes)._settings


def reader(folder: Path, **changes: Any) -> FilesStreamReader:
    chosen = settings(folder, **changes)
    return FilesStreamReader(chosen, output_schema(DATA, chosen), Position())


def fill(folder: Path, count: int, first: int = 0) -> None:
    for n in range(first, first + count):
        (folder / f"{n:03}.csv").write_text(f"{n}\n")


def ids(plan: FilesStreamReader, start: dict[str, object], end: dict[str, object]) -> list[int]:
    parts = pickle.loads(pickle.dumps(plan.partitions(start, end)))
    task = pickle.loads(pickle.dumps(plan))
    return [row["id"] for part in parts for batch in task.read(part) for row in batch.to_pylist()]


def test_batches_are_bounded_by_files_and_replay_exactly(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    plan = reader(tmp_path, files_per_batch=2)
    offsets = [plan.initialOffset()]
    while (end := plan.latestOffset(offsets[-1], plan.getDefaultReadLimit())) != offsets[-1]:
        offsets.append(end)
    fill(tmp_path, 3, first=5)

    replay = [ids(reader(tmp_path), start, end) for start, end in pairwise(offsets)]

    assert replay == [[0, 1], [2, 3], [4]]


def test_batches_are_bounded_by_bytes_but_take_at_least_one_file(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    plan = reader(tmp_path, bytes_per_batch=1)

    assert plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))["count"] == 1


def test_everything_is_taken_when_spark_asks_for_everything(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    plan = reader(tmp_path, files_per_batch=1)

    assert plan.latestOffset(plan.initialOffset(), ReadAllAvailable())["count"] == 3


def test_available_now_ends_at_the_files_that_were_there(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    plan = reader(tmp_path)
    plan.prepareForTriggerAvailableNow()
    fill(tmp_path, 2, first=2)

    assert plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))["count"] == 2


def test_a_late_file_stops_the_query_instead_of_being_skipped(tmp_path: Path) -> None:
    fill(tmp_path, 2, first=5)
    plan = reader(tmp_path)
    offset = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    fill(tmp_path, 2, first=1)

    with pytest.raises(SourceInvalid, match=r"file 001\.csv appeared before 006\.csv"):
        plan.latestOffset(offset, ReadMaxFiles(10))


def test_a_vanished_file_stops_a_replay_instead_of_shortening_it(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    (tmp_path / "001.csv").unlink()

    with pytest.raises(SourceInvalid, match=r"file 001\.csv has vanished"):
        reader(tmp_path).partitions(plan.initialOffset(), end)


def test_a_file_changed_between_plan_and_read_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    (part,) = plan.partitions(plan.initialOffset(), end)
    (tmp_path / "000.csv").write_text("0\n1\n")

    with pytest.raises(SourceInvalid, match="bytes long"):
        list(plan.read(part))


def test_small_files_share_a_partition_and_large_ones_do_not(tmp_path: Path) -> None:
    for n, size in enumerate([10, 10, 9 << 20, 9 << 20, 10]):
        with (tmp_path / f"{n}.csv").open("wb") as file:
            file.truncate(size)
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadAllAvailable())

    parts = plan.partitions(plan.initialOffset(), end)

    assert [[f.name[0] for f in part.files] for part in parts if isinstance(part, FileRun)] == [
        ["0", "1", "2"],
        ["3", "4"],
    ]


def test_an_offset_without_new_files_stays_the_same_text(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))

    assert list(plan.latestOffset(end, ReadMaxFiles(10)).items()) == list(end.items())
    assert plan.partitions(end, end) == []


def test_it_is_a_source_of_the_core(tmp_path: Path) -> None:
    assert isinstance(FilesSource(str(tmp_path), "csv", DATA), Source)


def test_end_and_reached(tmp_path: Path) -> None:
    source = FilesSource(str(tmp_path), "csv", DATA)
    spark: Any = None
    begin = source.start(spark)
    assert source.reached(begin, source.end(spark))

    fill(tmp_path, 2)
    end = source.end(spark)

    assert not source.reached(begin, end)
    assert source.reached(end, end)
    assert FilesSource(str(tmp_path), "csv", DATA, start="latest").start(spark) == end


@pytest.mark.parametrize(
    "wrong",
    [{"format": "xml"}, {"on_error": "ignore"}, {"start": 3}, {"files_per_batch": 0}, {"delimiter": '"'}],
)
def test_a_wrong_option_is_refused_at_once(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid):
        FilesSource(**({"path": str(tmp_path), "format": "csv", "schema": DATA} | wrong))


@pytest.mark.parametrize(
    ("schema", "format", "complaint"),
    [
        (StructType([]), "csv", "no columns"),
        (StructType([StructField("_line", LongType())]), "csv", "reserved: _line"),
        (StructType([StructField("m", MapType(StringType(), StringType()))]), "json", "column m"),
        (StructType([StructField("s", StructType([StructField("d", DateType())]))]), "json", "column s"),
        (StructType([StructField("s", DATA)]), "csv", "column s"),
    ],
)
def test_a_schema_that_no_file_can_have_is_refused(schema: StructType, format: Any, complaint: str) -> None:
    with pytest.raises(SourceInvalid, match=complaint):
        check_schema(schema, format)


def test_the_output_has_the_columns_that_the_settings_ask_for(tmp_path: Path) -> None:
    columns = {mode: output_schema(DATA, settings(tmp_path, on_error=mode)).names for mode in ("fail", "drop", "keep")}

    assert columns == {
        "fail": ["id"],
        "drop": ["id", "ckpt_reject"],
        "keep": ["id", "_corrupt_record", "_file", "_line"],
    }
