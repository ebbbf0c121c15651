"""A batch that was begun and not committed: what its output says counts, else what the user says, else nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ckpt.errors import AdoptionRefused, CheckpointForeign, ConfigInvalid
from spark_rewind.adopt.unfinished import settled
from tests.adopt.adopt_kit import adopted, clicks, opened
from tests.rewind.rewind_kit import WrittenQuery, WrittenTable


@pytest.mark.parametrize(
    ("told", "shown", "answer"),
    [
        (None, True, "done"),
        (None, False, "again"),
        ("done", None, "done"),
        ("again", None, "again"),
        ("done", True, "done"),
        ("again", False, "again"),
    ],
)
def test_whoever_knows_settles_it(told, shown, answer):
    assert settled(4, told, shown) == answer


@pytest.mark.parametrize(("told", "shown"), [("again", True), ("done", False)])
def test_an_answer_that_the_output_contradicts_is_refused(told, shown):
    with pytest.raises(AdoptionRefused, match="the output"):
        settled(4, told, shown)


def test_when_nobody_knows_it_is_refused_with_both_meanings():
    with pytest.raises(AdoptionRefused, match="batch 4") as refused:
        settled(4, None, None)
    assert "these rows are lost" in str(refused.value.context["done"])
    assert "twice" in str(refused.value.context["again"])
    assert "--output DIR" in refused.value.hint


@pytest.mark.parametrize("told", ["done", "again"])
def test_an_answer_to_nothing_is_refused(told):
    with pytest.raises(ConfigInvalid, match="every batch of the query is committed"):
        settled(None, told, None)


def torn(folder: Path) -> WrittenQuery:
    """Batches 0 and 1 are committed, 2 is not."""
    query = clicks(WrittenQuery(folder / "query"), 10, 20)
    return clicks(query, 30, commit=False)


def goes_on_at(folder: Path) -> int:
    return opened(folder).log.manifest(1).cursors["clicks"]["clicks"]["0"]


@pytest.mark.parametrize(("shown", "offset", "batch"), [(2, 30, 2), (1, 20, 1)])
def test_a_delta_tables_transaction_says_whether_it_was_shown(tmp_path, shown, offset, batch):
    query, table = torn(tmp_path), WrittenTable(tmp_path / "table")
    for number in range(shown + 1):
        table.version((query.query, number), ("somebody else", 99))
    done = adopted(query, tmp_path, output=str(table.root))
    assert (done.taking.batch, goes_on_at(tmp_path)) == (batch, offset)


@pytest.mark.parametrize(("entries", "offset"), [(3, 30), (2, 20)])
def test_a_file_sinks_log_says_whether_it_was_shown(tmp_path, entries, offset):
    query, log = torn(tmp_path), tmp_path / "files" / "_spark_metadata"
    log.mkdir(parents=True)
    for number in range(entries):
        (log / str(number)).write_text(f'v1\n{{"path":"file:///x/{number}.parquet","action":"add"}}')
    adopted(query, tmp_path, output=str(tmp_path / "files"))
    assert goes_on_at(tmp_path) == offset


def test_a_table_that_another_query_writes_says_nothing(tmp_path):
    query, table = torn(tmp_path), WrittenTable(tmp_path / "table")
    table.version(("another query", 7))
    with pytest.raises(CheckpointForeign, match="no transaction of the query"):
        adopted(query, tmp_path, output=str(table.root))


def test_a_folder_that_is_no_output_says_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointForeign, match="neither a Delta table nor"):
        adopted(torn(tmp_path), tmp_path, output=str(tmp_path / "folder"))


@pytest.mark.parametrize(("told", "offset"), [("done", 30), ("again", 20)])
def test_what_the_user_says_counts_where_nothing_else_does(tmp_path, told, offset):
    done = adopted(torn(tmp_path), tmp_path, unfinished=told)
    assert goes_on_at(tmp_path) == offset
    assert any("batch 2" in note for note in done.taking.notes)


def test_a_first_batch_that_is_done_again_begins_where_the_source_began(tmp_path):
    query = clicks(WrittenQuery(tmp_path / "query"), 10, commit=False)
    began = query.folder / "sources" / "0"
    began.mkdir(parents=True)
    (began / "0").write_text('\0v1\n{"clicks":{"0":4,"1":2}}')
    done = adopted(query, tmp_path, unfinished="again")
    assert (done.taking.batch, goes_on_at(tmp_path)) == (-1, 4)
