"""A Delta source reads appended rows once, restarts at every cut, and refuses every change but an append."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_kit import append
from deltalake import DeltaTable, Schema, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from spark_ckpt_delta import DeltaSource, changes, source
from spark_ckpt_delta import log as delta_log
from spark_ckpt_delta.changes import Position
from spark_ckpt_delta.source import table_schema
from spark_ckpt_delta.stream import DeltaSettings, DeltaStreamReader

from spark_ckpt.connector import Cursor, Source
from spark_ckpt.errors import ConfigInvalid, RowsLost, SourceInvalid, SourceSilent

NO_SPARK: Any = None


def reader(table: Path, cursor: Cursor, **changes: Any) -> DeltaStreamReader:
    opened = DeltaTable(str(table))
    options = {"on_change": "fail", "files_per_batch": 100, "bytes_per_batch": 1 << 30} | changes
    made = DeltaSettings(str(table), **options), table_schema(opened), Position.of(cursor), opened.version()
    return DeltaStreamReader(*made)


def start(table: Path, **options: Any) -> Cursor:
    return DeltaSource(str(table), **options).start(NO_SPARK)


def rows_between(plan: DeltaStreamReader, first: Any, last: Any) -> list[dict[str, Any]]:
    parts = pickle.loads(pickle.dumps(plan.partitions(first, last)))
    task = pickle.loads(pickle.dumps(plan))
    return [row for part in parts for batch in task.read(part) for row in batch.to_pylist()]


def read_on(table: Path, cursor: Cursor, limit: int, batches: int = 100, **changes: Any) -> tuple[list[int], Any]:
    """Return the ids of at most `batches` batches, each read by a fresh reader, and the cursor after them."""
    found: list[int] = []
    at: Any = dict(cursor)
    for _ in range(batches):
        end = reader(table, at, **changes).latestOffset(at, ReadMaxFiles(limit))
        if end == at:
            break
        found += [row["id"] for row in rows_between(reader(table, at, **changes), at, end)]
        at = end
    return found, at


def test_it_is_a_source_of_the_core(table: Path) -> None:
    assert isinstance(DeltaSource(str(table)), Source)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=5),
    st.integers(1, 3),
    st.sampled_from([0, "earliest"]),
)
def test_rows_arrive_once_and_in_order_for_any_batches(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[int]], limit: int, begin: Any
) -> None:
    table = tmp_path_factory.mktemp("lake") / "table"
    write_deltalake(str(table), pa.table({"id": pa.array([0], pa.int64())}))
    cursor, expected = start(table, start=begin), [0]
    for sizes in commits:
        files = [[len(expected) + sum(sizes[:n]) + k for k in range(size)] for n, size in enumerate(sizes)]
        append(table, files)
        expected += [each for file in files for each in file]

    found, end = read_on(table, cursor, limit)

    assert found == expected
    assert DeltaSource(str(table)).reached(end, DeltaSource(str(table)).end(NO_SPARK))


def test_a_restart_at_every_cut_continues_exactly(table: Path) -> None:
    append(table, [[0], [1], [2]])
    append(table, [[3]])
    append(table, [[4], [5]])
    for batches in range(8):
        before, cursor = read_on(table, start(table, start=0), 1, batches=batches)
        after, _ = read_on(table, json.loads(json.dumps(cursor)), 2)

        assert before + after == [0, 1, 2, 3, 4, 5]


def test_a_batch_replays_the_same_files_after_the_table_has_grown(table: Path) -> None:
    append(table, [[0], [1], [2]])
    first: Any = dict(start(table))
    end = reader(table, first).latestOffset(first, ReadMaxFiles(2))
    append(table, [[3]])

    assert [row["id"] for row in rows_between(reader(table, first), first, end)] == [0, 1]


def test_a_snapshot_is_read_although_the_table_is_compacted_in_between(table: Path) -> None:
    append(table, [[0], [1], [2]])
    first, cursor = read_on(table, start(table), 1, batches=1)
    DeltaTable(str(table)).optimize.compact()
    append(table, [[3]])

    rest, _ = read_on(table, cursor, 10)

    assert sorted(first + rest[:2]) == [0, 1, 2]
    assert rest[2:] == [3]


def test_the_columns_are_those_of_one_version_and_cost_one_look_at_the_table(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(source, "open_table", lambda *where: opened.append(where) or delta_log.open_table(*where))

    DeltaSource(str(table)).columns(MagicMock())

    assert len(opened) == 1


def test_latest_reads_only_what_is_appended_afterwards(table: Path) -> None:
    append(table, [[0]])
    cursor = start(table, start="latest")
    append(table, [[1]])

    assert read_on(table, cursor, 10)[0] == [1]


def test_batches_are_bounded_by_bytes_but_take_at_least_one_file(table: Path) -> None:
    append(table, [[0], [1]])
    at: Any = dict(start(table, start=0))
    plan = reader(table, at, bytes_per_batch=1)

    end = plan.latestOffset(at, ReadMaxFiles(10))

    assert [row["id"] for row in rows_between(plan, at, end)] == [0]
    assert rows_between(plan, at, plan.latestOffset(at, ReadAllAvailable())) == [{"id": 0}, {"id": 1}]


def test_available_now_ends_at_the_version_that_was_newest(table: Path) -> None:
    append(table, [[0]])
    at: Any = dict(start(table))
    plan = reader(table, at)
    plan.prepareForTriggerAvailableNow()
    append(table, [[1]])

    assert rows_between(plan, at, plan.latestOffset(at, ReadMaxFiles(10))) == [{"id": 0}]


@pytest.mark.parametrize("call", [DeltaSource.start, DeltaSource.end])
def test_a_table_that_does_not_answer_is_read_again_by_the_next_incarnation(
    table: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[DeltaSource, Any], object]
) -> None:
    def away(table: str, options: object) -> DeltaTable:
        raise OSError("Generic S3 error: connection reset")

    monkeypatch.setattr(source, "open_table", away)
    with pytest.raises(SourceInvalid, match="cannot be opened") as caught:
        call(DeltaSource(str(table)), None)
    assert caught.value.retriable


def test_an_offset_without_new_rows_stays_the_same_text(table: Path) -> None:
    append(table, [[0]])
    _, at = read_on(table, start(table), 10)

    assert list(reader(table, at).latestOffset(at, ReadMaxFiles(1)).items()) == list(at.items())


def deletion(table: Path) -> None:
    DeltaTable(str(table)).delete("id = 0")


def update(table: Path) -> None:
    DeltaTable(str(table)).update(updates={"id": "id + 10"}, predicate="id = 0")


def overwrite(table: Path) -> None:
    write_deltalake(str(table), pa.table({"id": pa.array([7], pa.int64())}), mode="overwrite")


@pytest.mark.parametrize("change", [deletion, update, overwrite])
def test_a_version_that_changes_old_rows_stops_the_source(table: Path, change: Callable[[Path], None]) -> None:
    append(table, [[0], [1]])
    change(table)

    with pytest.raises(SourceInvalid, match=r"version 2 .* deletes or updates rows"):
        read_on(table, start(table, start=0), 1)


@pytest.mark.parametrize("change", [deletion, update, overwrite])
def test_skip_omits_such_a_version_completely(table: Path, change: Callable[[Path], None]) -> None:
    append(table, [[0], [1]])
    change(table)
    append(table, [[2]])

    assert read_on(table, start(table, start=0), 1, on_change="skip")[0] == [0, 1, 2]


def test_compaction_is_invisible(table: Path) -> None:
    append(table, [[0], [1]])
    _, cursor = read_on(table, start(table, start=0), 1, batches=2)
    DeltaTable(str(table)).optimize.compact()
    append(table, [[2]])

    assert read_on(table, cursor, 10)[0] == [2]
    assert read_on(table, start(table, start=0), 1)[0] == [0, 1, 2]


def test_a_column_added_later_is_null_in_older_files(table: Path) -> None:
    append(table, [[0]])
    write_deltalake(
        str(table),
        pa.table({"id": pa.array([1], pa.int64()), "note": ["new"]}),
        mode="append",
        schema_mode="merge",
    )
    at: Any = dict(start(table))
    plan = reader(table, at)

    rows = rows_between(plan, at, plan.latestOffset(at, ReadMaxFiles(10)))

    assert sorted((row["id"], row["note"]) for row in rows) == [(0, None), (1, "new")]


def test_a_running_reader_keeps_its_columns_when_one_is_added(table: Path) -> None:
    append(table, [[0]])
    at: Any = dict(start(table, start=0))
    plan = reader(table, at)
    both = pa.table({"id": pa.array([1], pa.int64()), "note": ["new"]})
    write_deltalake(str(table), both, mode="append", schema_mode="merge")

    assert rows_between(plan, at, plan.latestOffset(at, ReadMaxFiles(10))) == [{"id": 0}, {"id": 1}]


def test_a_char_column_is_padded_as_by_spark(tmp_path: Path) -> None:
    """Spark pads each text that it compares with such a column: a text as it is stored would equal none."""
    table = tmp_path / "table"
    kind = {"type": "string", "nullable": True}
    char = {"name": "c", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}, **kind}
    varchar = {"name": "v", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}, **kind}
    DeltaTable.create(str(table), Schema.from_json(json.dumps({"type": "struct", "fields": [char, varchar]})))
    texts = ["é", "abc", "a  ", None]
    write_deltalake(str(table), pa.table({"c": texts, "v": texts}), mode="append")
    at: Any = dict(start(table, start=1))
    plan = reader(table, at)

    found = rows_between(plan, at, plan.latestOffset(at, ReadAllAvailable()))

    assert [row["c"] for row in found] == ["é  ", "abc", "a  ", None]
    assert [row["v"] for row in found] == texts


def test_a_null_is_no_value_if_a_column_may_be_null_since_the_job_started(tmp_path: Path) -> None:
    table = tmp_path / "table"
    DeltaTable.create(str(table), Schema.from_arrow(pa.schema([pa.field("id", pa.int64(), nullable=False)])))
    at: Any = dict(start(table, start=1))
    plan = reader(table, at)
    now = DeltaTable(str(table)).metadata()
    columns = Schema.from_arrow(pa.schema([("id", pa.int64())])).to_json()
    kept = {"id": str(now.id), "format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
    tamper(table, {"metaData": {**kept, "schemaString": columns, "configuration": {}}})
    write_deltalake(str(table), pa.table({"id": pa.array([None], pa.int64())}), mode="append")
    end = plan.latestOffset(at, ReadAllAvailable())

    with pytest.raises(SourceInvalid, match="has null in id, NOT NULL when the job started"):
        rows_between(plan, at, end)
    assert rows_between(reader(table, at), at, end) == [{"id": None}]


def test_partition_values_come_from_the_log(tmp_path: Path) -> None:
    table = tmp_path / "table"
    days = pa.array([19_000, None], pa.date32())
    rows = pa.table({"id": pa.array([0, 1], pa.int64()), "city": ["New York/%", "x"], "day": days})
    write_deltalake(str(table), rows, partition_by=["city", "day"])
    for begin in (0, "earliest"):
        at: Any = dict(start(table, start=begin))
        plan = reader(table, at)

        found = rows_between(plan, at, plan.latestOffset(at, ReadMaxFiles(10)))

        assert sorted(found, key=lambda row: row["id"]) == rows.to_pylist()


def test_an_empty_partition_text_is_null(tmp_path: Path) -> None:
    table = tmp_path / "table"
    rows = pa.table({"id": pa.array([0], pa.int64()), "city": ["x"]})
    write_deltalake(str(table), rows, partition_by=["city"])
    cursor = start(table, start=0)
    first = table / f"_delta_log/{0:020d}.json"
    first.write_text(first.read_text().replace('"partitionValues":{"city":"x"}', '"partitionValues":{"city":""}'))
    plan = reader(table, cursor)

    found = rows_between(plan, dict(cursor), plan.latestOffset(dict(cursor), ReadMaxFiles(1)))

    assert found == [{"id": 0, "city": None}]


@pytest.mark.parametrize("begin", [0, "earliest"])
@pytest.mark.parametrize("cleaned", [False, True], ids=["from commits", "from a checkpoint"])
def test_a_partitions_local_time_is_read_in_the_sessions_zone_as_by_spark(
    tmp_path: Path, begin: Any, cleaned: bool
) -> None:
    """delta-spark wrote a partition's timestamp in local time before it wrote instants. A table may have both."""
    table, columns = tmp_path / "table", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    DeltaTable.create(str(table), Schema.from_arrow(columns), partition_by=["at"])
    pq.write_table(pa.table({"id": [1]}), table / "a b.parquet")
    file = {"size": (table / "a b.parquet").stat().st_size, "modificationTime": 1, "dataChange": True}
    texts = ["2024-07-01 12:34:56.5", "2024-07-01T12:34:56.500000Z", ""]
    for number, text in enumerate(texts):
        shutil.copy(table / "a b.parquet", table / f"a b{number}.parquet")
        tamper(table, {"add": {"path": f"a%20b{number}.parquet", "partitionValues": {"at": text}, **file}})
    cursor: Any = dict(start(table, start=begin))
    if cleaned and begin:
        DeltaTable(str(table)).create_checkpoint()
        for version in range(4):
            (table / f"_delta_log/{version:020d}.json").unlink()

    plan = reader(table, cursor, time_zone="America/New_York")
    found = rows_between(plan, cursor, plan.latestOffset(cursor, ReadAllAvailable()))

    instants = [dt.datetime(2024, 7, 1, hour, 34, 56, 500_000, dt.UTC) for hour in (16, 12)]
    assert [row["at"] for row in found] == [*instants, None]


def test_a_partitions_local_time_is_read_if_the_log_is_cleaned_after_its_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, columns = tmp_path / "table", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    DeltaTable.create(str(table), Schema.from_arrow(columns), partition_by=["at"])
    pq.write_table(pa.table({"id": [1]}), table / "part.parquet")
    file = {"size": (table / "part.parquet").stat().st_size, "modificationTime": 1, "dataChange": True}
    tamper(table, {"add": {"path": "part.parquet", "partitionValues": {"at": "2024-07-01 12:34:56"}, **file}})

    class Cleaned:
        """Log cleanup runs after the first listing."""

        def __init__(self, system: Any) -> None:
            self._system = system

        def __getattr__(self, name: str) -> Any:
            return getattr(self._system, name)

        def get_file_info(self, selector: Any) -> Any:
            listed = self._system.get_file_info(selector)
            if not (table / "_delta_log/_last_checkpoint").exists():
                DeltaTable(str(table)).create_checkpoint()
                for version in range(2):
                    (table / f"_delta_log/{version:020d}.json").unlink()
            return listed

    system = delta_log.filesystem(str(table), {})
    monkeypatch.setattr(delta_log, "filesystem", lambda table, options: Cleaned(system))

    (found,) = delta_log.snapshot_files(str(table), {}, 1)

    assert found.partition == (("at", "2024-07-01 12:34:56"),)


def test_another_table_under_the_same_path_is_refused(table: Path) -> None:
    append(table, [[0]])
    cursor = start(table, start=0)
    columns = DeltaTable(str(table)).schema()
    shutil.rmtree(table)
    DeltaTable.create(str(table), schema=columns)

    with pytest.raises(SourceInvalid, match="another table"):
        read_on(table, cursor, 1)


def test_a_log_cleaned_beyond_the_cursor_is_an_error(table: Path) -> None:
    for n in range(3):
        append(table, [[n]])
    _, cursor = read_on(table, start(table, start=0), 1, batches=2)
    DeltaTable(str(table)).create_checkpoint()
    for version in range(4):
        (table / f"_delta_log/{version:020d}.json").unlink()

    with pytest.raises(RowsLost, match="log no longer has version 3"):
        read_on(table, cursor, 1)


def test_a_log_cleaned_beyond_the_cursor_is_an_error_of_the_start_without_a_hint_at_the_checkpoint(table: Path) -> None:
    for n in range(3):
        append(table, [[n]])
    cursor = start(table, start=2)
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log/_last_checkpoint").unlink()
    for version in range(4):
        (table / f"_delta_log/{version:020d}.json").unlink()
    newest = DeltaTable(str(table)).version()

    with pytest.raises(RowsLost, match="log no longer has version 2"):
        changes.History(str(table), {}, "fail", [], newest).require(Position.of(cursor), newest)


def without_old_commits(table: Path) -> None:
    """Keep the last commit only, as log cleanup does."""
    DeltaTable(str(table)).create_checkpoint()
    for version in range(DeltaTable(str(table)).version()):
        (table / f"_delta_log/{version:020d}.json").unlink()


def without_file_of(version: int, table: Path) -> None:
    """Remove the file that a version added, as VACUUM does after a compaction."""
    (file,) = (each for each in changes.read_commit(changes.filesystem(str(table), {}), version).added)
    (table / file.path).unlink()


@pytest.mark.parametrize(
    ("lose", "begin", "read", "rest"),
    [
        pytest.param(without_old_commits, 0, 1, [3], id="cleaned commits"),
        pytest.param(partial(without_file_of, 3), 0, 1, [3], id="a vacuumed file and an older one that is there"),
        pytest.param(partial(without_file_of, 4), 0, 1, [], id="the newest file"),
        pytest.param(partial(without_file_of, 1), 0, 1, [1, 2, 3], id="a file that was read"),
        pytest.param(partial(without_file_of, 2), "earliest", 1, [], id="a file of the unfinished snapshot"),
        pytest.param(without_old_commits, "earliest", 1, [1, 2, 3], id="commits before the snapshot"),
        pytest.param(lambda table: None, 0, 2, [2, 3], id="nothing"),
    ],
)
def test_a_source_can_continue_behind_lost_rows(
    table: Path, lose: Callable[[Path], None], begin: Any, read: int, rest: list[int]
) -> None:
    for n in range(4):
        append(table, [[n]])
    _, cursor = read_on(table, start(table, start=begin), 1, batches=read)
    lose(table)
    source = DeltaSource(str(table))

    past = source.past_lost(NO_SPARK, cursor)

    assert read_on(table, past, 1)[0] == rest
    assert source.past_lost(NO_SPARK, past) == past
    assert (past == cursor) == (len(rest) == 4 - read)


def rewound(table: Path, base: int, line: int, written: int | None = None) -> None:
    """Roll the table back to version `line`: the versions after `base` follow again, the first `written` of them."""
    newest, log = DeltaTable(str(table)).version(), table / "_delta_log"
    added = {
        number: [json.loads(each) for each in (log / f"{number:020d}.json").read_text().splitlines() if '"add"' in each]
        for number in range(base + 1, newest + 1)
    }
    there = {Path(each).name for each in DeltaTable(str(table)).file_uris()}
    removed = [each["add"] for adds in added.values() for each in adds if each["add"]["path"] in there]
    parts: list[list[dict[str, Any]]] = [[{"remove": {"path": each["path"], "dataChange": True}} for each in removed]]
    parts += [added[number] for number in range(base + 1, line + 1)]
    for part, actions in enumerate(parts[: 1 + (line - base if written is None else written)]):
        said = json.dumps({"spark_rewind": f"made at {newest}", "part": part, "parts": len(parts) - 1})
        info = {"commitInfo": {"operation": "WRITE" if part else "RESTORE", "userMetadata": said}}
        text = "".join(json.dumps(each) + "\n" for each in [info, *actions])
        (log / f"{newest + 1 + part:020d}.json").write_text(text)


def test_the_advice_after_a_rewind_reads_no_row_twice(table: Path) -> None:
    for n in range(1, 5):
        append(table, [[n]])
    _, cursor = read_on(table, start(table, start=1), 1, batches=4)
    rewound(table, base=1, line=3)

    with pytest.raises(SourceInvalid, match="deletes or updates rows") as refused:
        read_on(table, cursor, 1)
    assert "start='earliest'" in refused.value.hint
    assert read_on(table, start(table, start="earliest"), 100)[0] == [1, 2, 3]
    assert read_on(table, cursor, 100, on_change="skip")[0] == []


def without_commits_before(version: int, table: Path) -> None:
    DeltaTable(str(table)).create_checkpoint()
    for each in range(version):
        (table / f"_delta_log/{each:020d}.json").unlink()


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(partial(without_file_of, 2), id="a file that the rewind has named again"),
        pytest.param(partial(without_commits_before, 7), id="commits up to a version that was written again"),
    ],
)
def test_a_source_continues_behind_lost_rows_after_the_versions_that_a_rewind_wrote_again(
    table: Path, lose: Callable[[Path], None]
) -> None:
    for n in range(1, 5):
        append(table, [[n]])
    read, cursor = read_on(table, start(table, start=1), 1, batches=3)
    rewound(table, base=1, line=3)
    append(table, [[7]])
    without_file_of(4, table)
    lose(table)

    past = DeltaSource(str(table), on_change="skip").past_lost(NO_SPARK, cursor)

    assert read + read_on(table, past, 1, on_change="skip")[0] == [1, 2, 3, 7]


def test_a_source_whose_table_lost_its_newest_versions_can_continue_at_the_end(table: Path) -> None:
    for n in range(3):
        append(table, [[n]])
    _, cursor = read_on(table, start(table, start=0), 1)
    for version in (2, 3):
        (table / f"_delta_log/{version:020d}.json").unlink()
    source = DeltaSource(str(table))
    with pytest.raises(RowsLost, match="is at version 1, the job has read up to 3"):
        source.read(NO_SPARK, cursor)

    past = source.past_lost(NO_SPARK, cursor)
    append(table, [[7]])

    assert read_on(table, past, 1)[0] == [7]


@pytest.mark.parametrize("kept", [0, 1, 40])
def test_an_entry_that_is_still_being_copied_is_read_once_it_is_whole(table: Path, kept: int) -> None:
    cursor = start(table, start=1)
    entry = table / f"_delta_log/{append(table, [[1]]):020d}.json"
    whole, plan = entry.read_bytes(), reader(table, cursor)
    entry.write_bytes(whole[:kept])

    with pytest.raises(SourceSilent, match="version 1 cannot be read") as caught:
        plan.latestOffset(dict(cursor), ReadMaxFiles(1))

    assert caught.value.retriable
    entry.write_bytes(whole)
    assert read_on(table, cursor, 1)[0] == [1]


@pytest.mark.parametrize("hint", ["", '{"vers', "{}", "[]", '{"version": null}'])
def test_a_damaged_hint_at_the_last_checkpoint_does_not_stop_the_source(table: Path, hint: str) -> None:
    """Delta's readers then list the log; an object store may show the hint half written."""
    append(table, [[0]])
    _, cursor = read_on(table, start(table, start=0), 1)
    (table / "_delta_log/_last_checkpoint").write_text(hint)

    assert read_on(table, cursor, 1)[0] == []
    append(table, [[1]])
    assert read_on(table, cursor, 1)[0] == [1]
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log/_last_checkpoint").write_text(hint)
    append(table, [[2]])
    (table / f"_delta_log/{cursor['version']:020d}.json").unlink()
    with pytest.raises(RowsLost, match="log no longer has version"):
        read_on(table, cursor, 1)


def test_a_version_that_appears_with_its_checkpoint_between_two_reads_is_read(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source found no such version; then a writer committed it and wrote a checkpoint; then the source read it."""
    append(table, [[0]])
    _, cursor = read_on(table, start(table, start=0), 1)
    plan = reader(table, cursor)
    look = changes.read_commit

    def then_written(system: Any, version: int) -> Any:
        monkeypatch.setattr(changes, "read_commit", look)
        found = look(system, version)
        append(table, [[1]])
        DeltaTable(str(table)).create_checkpoint()
        return found

    monkeypatch.setattr(changes, "read_commit", then_written)
    end = plan.latestOffset(dict(cursor), ReadMaxFiles(1))

    assert [row["id"] for row in rows_between(reader(table, cursor), dict(cursor), end)] == [1]


def test_a_file_that_cannot_be_read_is_an_error_with_its_name(table: Path) -> None:
    cursor = start(table)
    append(table, [list(range(1_000))])
    (file,) = [each for each in table.glob("*.parquet") if each.stat().st_size > 2_000]
    damaged = bytearray(file.read_bytes())
    damaged[12:20] = b"\xff" * 8
    file.write_bytes(damaged)

    plan = reader(table, cursor)
    with pytest.raises(SourceSilent, match=f"{file.name} cannot be read: "):
        rows_between(plan, cursor, plan.latestOffset(cursor, ReadAllAvailable()))


def test_a_vacuumed_file_is_an_error_with_its_name(table: Path) -> None:
    append(table, [[0]])
    at: Any = dict(start(table))
    plan = reader(table, at)
    end = plan.latestOffset(at, ReadMaxFiles(1))
    (file,) = table.glob("*.parquet")
    file.unlink()

    with pytest.raises(RowsLost, match=f"{file.name} is gone"):
        rows_between(plan, at, end)


def tamper(table: Path, action: dict[str, Any]) -> None:
    """Write the next commit by hand."""
    version = DeltaTable(str(table)).version() + 1
    (table / f"_delta_log/{version:020d}.json").write_text(json.dumps(action) + "\n")


@pytest.mark.parametrize(
    ("protocol", "complaint"),
    [
        ({"readerFeatures": ["deletionVectors", "hypothetical"], "minReaderVersion": 3}, "hypothetical"),
        ({"readerFeatures": ["typeWidening"], "minReaderVersion": 3}, "typeWidening"),
    ],
)
def test_an_unknown_reader_feature_stops_the_source(table: Path, protocol: dict[str, Any], complaint: str) -> None:
    cursor = start(table, start="latest")
    plan = reader(table, cursor)
    tamper(table, {"protocol": protocol | {"minWriterVersion": 7, "writerFeatures": protocol["readerFeatures"]}})

    with pytest.raises(SourceInvalid, match=complaint) as refused:
        plan.latestOffset(dict(cursor), ReadMaxFiles(1))
    # In this store the copy would be read from its start, after rows that it has, too.
    assert "new store" in refused.value.hint


def mapped(table: Path, files_name: str, mode: str = "name") -> None:
    """Give the table column mapping, with a name of its column in the files."""
    opened = DeltaTable(str(table))
    schema = json.loads(opened.schema().to_json())
    schema["fields"][0]["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": files_name}
    metadata = {"format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
    metadata |= {"id": str(opened.metadata().id), "schemaString": json.dumps(schema)}
    tamper(table, {"metaData": metadata | {"configuration": {"delta.columnMapping.mode": mode}}})


def test_a_table_that_gets_column_mapping_is_read_on_until_a_column_is_renamed(table: Path) -> None:
    append(table, [[0]])
    at: Any = dict(start(table, start=0))
    plan = reader(table, at)
    mapped(table, "id")
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), table / "later.parquet")
    size = (table / "later.parquet").stat().st_size
    add = {"path": "later.parquet", "size": size, "partitionValues": {}, "modificationTime": 10**12, "dataChange": True}
    tamper(table, {"add": add})

    end = plan.latestOffset(at, ReadMaxFiles(10))
    assert rows_between(plan, at, end) == [{"id": 0}, {"id": 1}]
    DeltaSource(str(table)).check(NO_SPARK)
    assert read_on(table, start(table), 10)[0] == [0, 1]
    mapped(table, "col-1f3c")
    for refuses in (lambda: plan.latestOffset(end, ReadMaxFiles(1)), lambda: DeltaSource(str(table)).check(NO_SPARK)):
        with pytest.raises(SourceInvalid, match=r"column mapping \(name\), and its files may have other names for id"):
            refuses()


def test_columns_that_files_have_by_an_id_are_not_read_by_their_names(table: Path) -> None:
    cursor = start(table, start="latest")
    plan = reader(table, cursor)
    mapped(table, "id", mode="id")
    for refuses in (
        lambda: plan.latestOffset(dict(cursor), ReadMaxFiles(1)),
        lambda: DeltaSource(str(table)).check(NO_SPARK),
    ):
        with pytest.raises(SourceInvalid, match=r"column mapping \(id\)"):
            refuses()


def test_a_file_with_a_deletion_vector_is_refused(table: Path) -> None:
    cursor = start(table, start="latest")
    plan = reader(table, cursor)
    tamper(
        table,
        {"add": {"path": "f.parquet", "size": 1, "dataChange": True, "deletionVector": {"cardinality": 1}}},
    )

    with pytest.raises(SourceInvalid, match=r"f\.parquet has a deletion vector"):
        plan.latestOffset(dict(cursor), ReadMaxFiles(1))


def test_skip_omits_a_deletion_by_vector_which_stays_in_the_log(table: Path) -> None:
    cursor = start(table, start="latest")
    plan = reader(table, cursor, on_change="skip")
    marked = {"path": "f.parquet", "size": 1, "dataChange": True, "partitionValues": {}}
    version = DeltaTable(str(table)).version() + 1
    actions = [{"remove": marked}, {"add": marked | {"deletionVector": {"cardinality": 1}}}]
    entry = table / f"_delta_log/{version:020d}.json"
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))

    assert Position.of(plan.latestOffset(dict(cursor), ReadMaxFiles(9))).version == version + 1


def test_the_start_that_a_version_with_changes_advises_begins_after_it(table: Path) -> None:
    append(table, [[0], [1]])
    deletion(table)
    cursor = start(table, start=1)
    with pytest.raises(SourceInvalid) as refused:
        read_on(table, cursor, 1)

    found = re.search(r"start=(\d+)", refused.value.hint)
    assert found is not None
    advised = DeltaSource(str(table), start=int(found[1]))
    append(table, [[7]])
    assert read_on(table, advised.start(NO_SPARK), 1)[0] == [7]


def test_a_changed_column_type_stops_the_source(table: Path) -> None:
    cursor = start(table, start="latest")
    plan = reader(table, cursor)
    fields = [{"name": "id", "type": "string", "nullable": True, "metadata": {}}]
    tamper(
        table,
        {
            "metaData": {
                "id": cursor["table"],
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
            }
        },
    )

    with pytest.raises(SourceInvalid, match="changes or drops columns that the job reads: id"):
        plan.latestOffset(dict(cursor), ReadMaxFiles(1))


def test_a_job_that_starts_again_after_columns_were_added_reads_the_versions_before(tmp_path: Path) -> None:
    path = str(tmp_path / "grown")
    struct = pa.struct([("a", pa.int64())])
    write_deltalake(path, pa.table({"id": [1], "s": pa.array([{"a": 1}], struct)}))
    DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    more = pa.struct([("a", pa.int64()), ("b", pa.string())])
    added = pa.table({"id": [2], "s": pa.array([{"a": 2, "b": "x"}], more), "k": [5]})
    write_deltalake(path, added, mode="append", schema_mode="merge")
    cursor = start(tmp_path / "grown", start=0)
    plan = reader(tmp_path / "grown", cursor)

    end = plan.latestOffset(dict(cursor), ReadMaxFiles(9))

    old, new = {"id": 1, "s": {"a": 1, "b": None}, "k": None}, {"id": 2, "s": {"a": 2, "b": "x"}, "k": 5}
    assert rows_between(plan, cursor, end) == [old, new]


def test_a_start_names_the_available_versions(table: Path) -> None:
    append(table, [[0]])

    with pytest.raises(SourceInvalid, match="no version 9 in its log; it has 0 to 1"):
        DeltaSource(str(table), start=9).start(NO_SPARK)


def test_a_log_that_is_cleaned_during_a_start_is_reported_and_the_next_start_succeeds(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cleaned(*where: object) -> None:
        raise FileNotFoundError("version 1 cannot be opened any more")

    append(table, [[0]])
    with monkeypatch.context() as meanwhile, pytest.raises(SourceSilent):
        meanwhile.setattr(source, "snapshot_files", cleaned)
        start(table)

    assert read_on(table, start(table), 1)[0] == [0]


def test_check_refuses_a_path_without_a_table(tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match="not a Delta table"):
        DeltaSource(str(tmp_path)).check(NO_SPARK)


@pytest.mark.parametrize("wrong", [{"start": "now"}, {"start": -1}, {"on_change": "ignore"}, {"maxFilesPerTrigger": 0}])
def test_a_wrong_option_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid):
        DeltaSource("table", **wrong)


def test_credentials_are_never_printed(table: Path) -> None:
    source = DeltaSource(str(table), storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"})

    assert "hidden" not in repr(vars(source)) + str(source.describe())


def test_a_table_that_comes_back_from_a_backup_and_grows_again_stops_a_running_reader(table: Path) -> None:
    append(table, [[1]])
    backup = table.with_name("backup")
    shutil.copytree(table, backup)
    cursor = start(table, start=1)
    append(table, [[2]])
    plan = reader(table, cursor)
    end = plan.latestOffset(dict(cursor), ReadAllAvailable())
    shutil.rmtree(table)
    shutil.copytree(backup, table)
    append(table, [[3]])
    append(table, [[4]])
    with pytest.raises(SourceInvalid) as caught:
        plan.latestOffset(end, ReadAllAvailable())
    assert caught.value.context == {"version": 2}


def test_rows_that_a_restore_brings_back_are_not_read_twice(table: Path) -> None:
    cursor = start(table, start=1)
    version = append(table, [[1], [2]])
    DeltaTable(str(table)).delete("id = 1")
    DeltaTable(str(table)).restore(version)
    append(table, [[3]])
    assert read_on(table, cursor, 100, on_change="skip")[0] == [1, 2, 3]
    with pytest.raises(SourceInvalid, match="DELETE"):
        read_on(table, cursor, 100)


def test_the_same_source_object_notices_a_table_created_again(table: Path) -> None:
    source = DeltaSource(str(table))
    before = source.identity(NO_SPARK)
    schema = DeltaTable(str(table)).schema()
    shutil.rmtree(table)
    DeltaTable.create(str(table), schema=schema)
    after = source.identity(NO_SPARK)
    assert [name for name in before if before[name] != after[name]] == ["table id"]
