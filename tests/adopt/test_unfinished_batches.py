"""An uncommitted batch is settled by its output, else by the user's answer, else it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ckpt.errors import AdoptionRefused, CheckpointDamaged, CheckpointForeign, ConfigInvalid, LogDamaged
from spark_rewind.adopt.unfinished import settled
from tests.adopt.adopt_kit import adopted, clicks, opened
from tests.rewind.rewind_kit import WrittenQuery, WrittenTable


@pytest.mark.parametrize(
    ("given", "shown", "answer"),
    [
        (None, True, "done"),
        (None, False, "again"),
        ("done", None, "done"),
        ("again", None, "again"),
        ("done", True, "done"),
        ("again", False, "again"),
    ],
)
def test_output_or_user_settle_an_unfinished_batch(given, shown, answer):
    assert settled(4, given, shown) == answer


@pytest.mark.parametrize(("given", "shown"), [("again", True), ("done", False)])
def test_an_answer_that_the_output_contradicts_is_refused(given, shown):
    with pytest.raises(AdoptionRefused, match="the output"):
        settled(4, given, shown)


def test_an_unknown_outcome_is_refused_with_the_meaning_of_both_answers():
    with pytest.raises(AdoptionRefused, match="batch 4") as refused:
        settled(4, None, None)
    assert "these rows are lost" in str(refused.value.context["done"])
    assert "twice" in str(refused.value.context["again"])
    assert "--output DIR" in refused.value.hint


@pytest.mark.parametrize("given", ["done", "again"])
def test_an_answer_without_an_unfinished_batch_is_refused(given):
    with pytest.raises(ConfigInvalid, match="every batch of the query is committed"):
        settled(None, given, None)


def torn(folder: Path) -> WrittenQuery:
    """Batches 0 and 1 are committed, 2 is not."""
    query = clicks(WrittenQuery(folder / "query"), 10, 20)
    return clicks(query, 30, commit=False)


def cursor_of(folder: Path) -> int:
    return opened(folder).log.manifest(1).cursors["clicks"]["clicks"]["0"]


@pytest.mark.parametrize(("shown", "offset", "batch"), [(2, 30, 2), (1, 20, 1)])
def test_a_delta_tables_transaction_proves_if_the_batch_was_published(tmp_path, shown, offset, batch):
    query, table = torn(tmp_path), WrittenTable(tmp_path / "table")
    for number in range(shown + 1):
        table.version((query.query, number), ("somebody else", 99))
    done = adopted(query, tmp_path, output=str(table.root))
    assert (done.taking.batch, cursor_of(tmp_path)) == (batch, offset)


@pytest.mark.parametrize(("entries", "offset"), [(3, 30), (2, 20)])
def test_a_file_sinks_log_proves_if_the_batch_was_published(tmp_path, entries, offset):
    query, log = torn(tmp_path), tmp_path / "files" / "_spark_metadata"
    log.mkdir(parents=True)
    for number in range(entries):
        (log / str(number)).write_text(f'v1\n{{"path":"file:///x/{number}.parquet","action":"add"}}')
    adopted(query, tmp_path, output=str(tmp_path / "files"))
    assert cursor_of(tmp_path) == offset


def test_a_table_of_another_query_proves_nothing(tmp_path):
    query, table = torn(tmp_path), WrittenTable(tmp_path / "table")
    table.version(("another query", 7))
    # The answer does not help next to an output that proves nothing, so the advice is to leave that out.
    for told in (None, "done"):
        with pytest.raises(CheckpointForeign, match="no transaction of the query") as refused:
            adopted(query, tmp_path, output=str(table.root), unfinished=told)
        assert "leave --output out" in refused.value.hint
    adopted(query, tmp_path, unfinished="done")


def test_a_folder_that_is_no_output_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointForeign, match="neither a Delta table nor"):
        adopted(torn(tmp_path), tmp_path, output=str(tmp_path / "folder"))


@pytest.mark.parametrize(("log", "name"), [("_delta_log", f"{0:020d}.json"), ("_spark_metadata", "0")])
def test_advice_for_an_output_with_a_damaged_log_leads_to_an_epoch(tmp_path, log, name):
    query, output = torn(tmp_path), tmp_path / "output"
    (output / log).mkdir(parents=True)
    (output / log / name).write_text('{"torn')
    with pytest.raises((LogDamaged, CheckpointDamaged)) as refused:
        adopted(query, tmp_path, output=str(output))
    assert "leave --output out, and pass --unfinished done or again" in refused.value.hint
    assert "plan" not in refused.value.hint
    assert adopted(query, tmp_path, unfinished="done").epoch == 1


@pytest.mark.parametrize(("given", "offset"), [("done", 30), ("again", 20)])
def test_the_users_answer_counts_without_a_proof(tmp_path, given, offset):
    done = adopted(torn(tmp_path), tmp_path, unfinished=given)
    assert cursor_of(tmp_path) == offset
    assert any("batch 2" in note for note in done.taking.notes)


def test_a_repeated_first_batch_begins_at_the_sources_start(tmp_path):
    query = clicks(WrittenQuery(tmp_path / "query"), 10, commit=False)
    began = query.folder / "sources" / "0"
    began.mkdir(parents=True)
    (began / "0").write_text('\0v1\n{"clicks":{"0":4,"1":2}}')
    done = adopted(query, tmp_path, unfinished="again")
    assert (done.taking.batch, cursor_of(tmp_path)) == (-1, 4)
