"""Batches of a files source, planned without Spark: bounded, replayable, stopped by a changed directory."""

from __future__ import annotations

import json
import os
import pickle
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from files_kit import settings_of
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import DateType, LongType, MapType, StringType, StructField, StructType
from spark_ckpt_files import FilesSource
from spark_ckpt_files.ledger import encoded
from spark_ckpt_files.listing import DataFile, HeldFolder
from spark_ckpt_files.offsets import Offset
from spark_ckpt_files.settings import check_schema, output_schema
from spark_ckpt_files.stream import FilesStreamReader

from spark_ckpt.connector import Json, Source
from spark_ckpt.connector_parts.file_stream import FileRun
from spark_ckpt.errors import ConfigInvalid, SourceInvalid

DATA = StructType([StructField("id", LongType())])


def reader(folder: Path, **changes: Any) -> FilesStreamReader:
    chosen = settings_of(folder, **changes)
    return FilesStreamReader(chosen, output_schema(DATA, chosen), Offset())


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


def test_an_unlimited_batch_takes_every_file(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    plan = reader(tmp_path, files_per_batch=1)

    assert plan.latestOffset(plan.initialOffset(), ReadAllAvailable())["count"] == 3


def test_available_now_ends_at_the_files_that_were_there(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    plan = reader(tmp_path)
    plan.prepareForTriggerAvailableNow()
    fill(tmp_path, 2, first=2)

    assert plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))["count"] == 2


def test_a_file_of_any_name_is_read_when_it_comes(tmp_path: Path) -> None:
    fill(tmp_path, 2, first=5)
    plan = reader(tmp_path)
    first = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    fill(tmp_path, 2, first=1)

    second = plan.latestOffset(first, ReadMaxFiles(10))

    assert [ids(plan, first, second), second["count"]] == [[1, 2], 4]


def test_consumed_files_may_be_removed(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    (tmp_path / "001.csv").unlink()

    assert plan.latestOffset(end, ReadMaxFiles(10)) == end


def test_a_planned_file_that_vanishes_stops_the_batch_with_its_name(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    (tmp_path / "001.csv").unlink()

    with pytest.raises(SourceInvalid, match=r"file 001\.csv has vanished") as caught:
        ids(reader(tmp_path), plan.initialOffset(), end)
    assert "its rows are missing" in caught.value.hint
    again = reader(tmp_path)
    first = again.initialOffset()
    assert ids(again, first, again.latestOffset(first, ReadMaxFiles(10))) == [0, 2]


def test_a_consumed_file_that_comes_back_is_not_read_twice(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    assert plan.latestOffset(end, ReadMaxFiles(10)) == end
    away = tmp_path.parent / "away.csv"
    (tmp_path / "001.csv").rename(away)
    assert plan.latestOffset(end, ReadMaxFiles(10)) == end
    away.rename(tmp_path / "001.csv")

    assert plan.latestOffset(end, ReadMaxFiles(10)) == end


def test_a_reused_name_stops_the_job_instead_of_being_skipped(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    assert plan.latestOffset(end, ReadMaxFiles(10)) == end
    (tmp_path / "001.csv").unlink()
    assert plan.latestOffset(end, ReadMaxFiles(10)) == end
    (tmp_path / "001.csv").write_text("77\n")

    with pytest.raises(SourceInvalid, match=r"001\.csv was consumed, removed, and re-created"):
        plan.latestOffset(end, ReadMaxFiles(10))


def test_a_file_too_old_to_be_distinguished_from_a_deleted_entry_stops_the_job(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    plan = reader(tmp_path, max_age_ms=24 * 3600 * 1000)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    fill(tmp_path, 1, first=7)
    newest_s = (tmp_path / "000.csv").stat().st_mtime
    os.utime(tmp_path / "007.csv", (newest_s - 86_300,) * 2)
    assert ids(plan, end, plan.latestOffset(end, ReadMaxFiles(10))) == [7]
    os.utime(tmp_path / "007.csv", (newest_s - 86_500,) * 2)

    with pytest.raises(SourceInvalid, match=r"file 007\.csv was modified") as caught:
        plan.latestOffset(end, ReadMaxFiles(10))
    assert "touch it" in caught.value.hint


def test_a_file_dated_in_the_future_does_not_make_later_files_too_old(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    os.utime(tmp_path / "000.csv", (4e9, 4e9))
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    fill(tmp_path, 1, first=1)

    assert ids(plan, end, plan.latestOffset(end, ReadMaxFiles(10))) == [1]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_cursor_is_never_in_the_future(start: Any, tmp_path: Path) -> None:
    fill(tmp_path, 1)
    os.utime(tmp_path / "000.csv", (4e9, 4e9))
    source = FilesSource(str(tmp_path), "csv", DATA, header=False, start=start)
    began = source.start(None)  # type: ignore[arg-type]
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))

    cursor = source.cursor(json.dumps(end), began) if start == "earliest" else began

    assert 0 < int(str(cursor["newest_ms"])) <= time.time() * 1000


def test_a_backlog_of_any_age_is_read_oldest_first(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    for n in range(4):
        os.utime(tmp_path / f"{n:03}.csv", (10**9 - n * 10**7,) * 2)
    plan = reader(tmp_path, files_per_batch=1)
    offsets = [plan.initialOffset()]
    while (end := plan.latestOffset(offsets[-1], plan.getDefaultReadLimit())) != offsets[-1]:
        offsets.append(end)

    assert [ids(plan, start, end) for start, end in pairwise(offsets)] == [[3], [2], [1], [0]]


def test_files_consumed_by_earlier_incarnations_come_from_a_list(tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    inbox.mkdir()
    fill(inbox, 3)
    (tmp_path / "list").write_bytes(encoded([DataFile("000.csv", 2), DataFile("002.csv", 2), DataFile("gone.csv", 1)]))
    chosen = settings_of(inbox)
    plan = FilesStreamReader(chosen, output_schema(DATA, chosen), Offset(3, 5), str(tmp_path / "list"))

    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))

    assert (ids(plan, plan.initialOffset(), end), end["count"]) == ([1], 4)


def test_a_checkpoint_ahead_of_the_readers_ledger_is_refused(tmp_path: Path) -> None:
    """It would read the files between them again."""
    fill(tmp_path, 3)
    plan = reader(tmp_path, files_per_batch=1)
    first = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(1))
    second = plan.latestOffset(first, ReadMaxFiles(1))
    assert reader(tmp_path).latestOffset(first, ReadMaxFiles(10))["count"] == 3

    with pytest.raises(SourceInvalid, match="the checkpoint is at 2 files, the source was read from 0 on"):
        reader(tmp_path).latestOffset(second, ReadMaxFiles(10))


def test_a_file_changed_between_plan_and_read_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    plan = reader(tmp_path)
    end = plan.latestOffset(plan.initialOffset(), ReadMaxFiles(10))
    (part,) = plan.partitions(plan.initialOffset(), end)
    (tmp_path / "000.csv").write_text("0\n1\n")

    with pytest.raises(SourceInvalid, match="bytes long"):
        list(plan.read(part))


def test_a_start_refuses_a_consumed_file_that_grew_until_it_is_moved_away(tmp_path: Path) -> None:
    (inbox := tmp_path / "in").mkdir()
    fill(inbox, 2)
    source = FilesSource(str(inbox), "csv", DATA, header=False, start="latest")
    spark = MagicMock()
    cursor = source.start(spark)
    (inbox / "001.csv").write_text("1\n7\n")

    with pytest.raises(SourceInvalid, match=r"001\.csv was 2 bytes long when it was consumed and is 4 now") as caught:
        source.read(spark, cursor)

    assert "move it out of the directory" in caught.value.hint
    (inbox / "001.csv").rename(tmp_path / "001.csv")
    source.read(spark, cursor)


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
    source = FilesSource(str(tmp_path), "csv", DATA, header=False)
    spark: Any = None
    begin = source.start(spark)
    assert source.reached(begin, source.end(spark))

    fill(tmp_path, 2)
    plan, end = reader(tmp_path), source.end(spark)
    after = source.cursor(json.dumps(plan.latestOffset(plan.initialOffset(), ReadMaxFiles(9))), begin)
    fill(tmp_path, 1, first=2)

    assert not source.reached(begin, end)
    assert source.reached(after, end)
    assert not source.reached(after, source.end(spark))


def test_a_file_deleted_before_it_was_consumed_does_not_block_a_drain(tmp_path: Path) -> None:
    source = FilesSource(str(tmp_path), "csv", DATA)
    spark: Any = None
    fill(tmp_path, 1)
    end = source.end(spark)
    (tmp_path / "000.csv").unlink()

    assert source.reached(source.start(spark), end)


def test_a_drain_of_many_files_that_were_cleaned_meanwhile_ends(tmp_path: Path) -> None:
    """The ledger forgets old files that are gone, so that it no longer has the names of the drain's begin."""
    source = FilesSource(str(tmp_path), "csv", DATA)
    spark: Any = None
    cleaned: list[Json] = [f"{number}.csv" for number in range(10_001)]
    fill(tmp_path, 1)

    assert source.reached(source.start(spark), {"names": cleaned})
    assert not source.reached(source.start(spark), {"names": [*cleaned, "000.csv"]})


def test_latest_begins_after_all_existing_files(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    source = FilesSource(str(tmp_path), "csv", DATA, start="latest")
    spark: Any = None

    assert source.reached(source.start(spark), source.end(spark))


@pytest.mark.parametrize(
    "wrong",
    [{"format": "xml"}, {"on_error": "ignore"}, {"start": 3}, {"maxFilesPerTrigger": 0}, {"delimiter": '"'}],
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


def test_the_output_has_the_columns_of_the_settings(tmp_path: Path) -> None:
    columns = {
        mode: output_schema(DATA, settings_of(tmp_path, on_error=mode)).names for mode in ("fail", "drop", "keep")
    }

    assert columns == {
        "fail": ["id"],
        "drop": ["id", "ckpt_reject"],
        "keep": ["id", "_corrupt_record", "_file", "_line"],
    }


def replaced(folder: Path) -> None:
    """Replace the folder by another one at the same path."""
    folder.rename(folder.with_name("before"))
    folder.mkdir()


def test_a_folder_that_another_one_replaces_while_the_job_runs_is_read_on_by_names(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    fill(folder, 2)
    plan = reader(folder)
    first = plan.latestOffset(plan.initialOffset(), ReadAllAvailable())
    replaced(folder)
    fill(folder, 2, first=2)
    end = plan.latestOffset(first, ReadAllAvailable())
    assert ids(plan, first, end) == [2, 3]


def test_another_file_under_a_consumed_name_in_a_replaced_folder_is_not_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    fill(folder, 2)
    plan = reader(folder)
    first = plan.latestOffset(plan.initialOffset(), ReadAllAvailable())
    replaced(folder)
    (folder / "001.csv").write_text("7\n")
    os.utime(folder / "001.csv", (1, 1))
    with pytest.raises(SourceInvalid) as caught:
        plan.latestOffset(first, ReadAllAvailable())
    assert caught.value.context == {"file": "001.csv"}


def test_a_folder_that_was_deleted_and_created_again_is_another_one(tmp_path: Path) -> None:
    """File systems reuse a freed inode for the next folder."""
    folder = tmp_path / "in"
    folder.mkdir()
    held_folder = HeldFolder(str(folder))
    answers = [held_folder.replaced(), held_folder.replaced()]
    folder.rmdir()
    folder.mkdir()
    assert [*answers, held_folder.replaced(), held_folder.replaced()] == [False, False, True, False]
