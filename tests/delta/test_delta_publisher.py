"""A committed epoch is in the table exactly once, after any repetition, kill, race or rollback."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_kit import append, context, ids, output, stage
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from spark_ckpt_delta import publisher as publisher_module
from spark_ckpt_delta.marker import (
    TableMarker,
    application_id,
    check_owner,
    declared_version,
    is_published,
)
from spark_ckpt_delta.publisher import DeltalakePublisher
from spark_ckpt_delta.refusals import publish_failed

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt import failpoints
from spark_ckpt.connector import SinkContext
from spark_ckpt.errors import (
    EpochDamaged,
    Fenced,
    FormatUnknown,
    IdentityChanged,
    PublishConflict,
    PublishFailed,
    SinkInvalid,
)
from spark_ckpt.failpoints import FailpointHit


def opened(table: Path, incarnation: int = 1, **who: Any) -> DeltalakePublisher:
    return DeltalakePublisher(str(table), {}, context(incarnation, **who))


def test_an_epoch_becomes_visible_in_one_commit_without_rewriting(table: Path) -> None:
    files = [stage(table, {"id": [1, 2]}), stage(table, {"id": [3]})]

    receipt = opened(table).publish(output(table, 1, files))

    assert (ids(table), receipt.rows, receipt.replayed) == ([1, 2, 3], 3, False)
    assert DeltaTable(str(table)).version() == 1
    assert {Path(path).name for path in DeltaTable(str(table)).file_uris()} == {file.path for file in files}


def test_publishing_again_is_a_replay(table: Path) -> None:
    epoch = output(table, 1, [stage(table, {"id": [1]})])
    opened(table).publish(epoch)

    again = opened(table, incarnation=2).publish(epoch)

    assert (again.replayed, again.rows) == (True, 1)
    assert (ids(table), DeltaTable(str(table)).version()) == ([1], 1)


def test_epochs_follow_each_other(table: Path) -> None:
    publisher = opened(table)
    for n in range(1, 4):
        publisher.publish(output(table, n, [stage(table, {"id": [n]})]))

    assert ids(table) == [1, 2, 3]


def test_an_epoch_without_rows_leaves_no_commit_and_no_gap(table: Path) -> None:
    publisher = opened(table)
    publisher.publish(output(table, 1, [stage(table, {"id": [1]})]))

    receipt = publisher.publish(output(table, 2, []))
    publisher.publish(output(table, 3, [stage(table, {"id": [3]})]))

    assert (receipt.rows, receipt.replayed, DeltaTable(str(table)).version()) == (0, False, 2)
    assert ids(table) == [1, 3]


def test_the_first_epoch_leaves_its_marker_even_without_rows(table: Path) -> None:
    opened(table).publish(output(table, 1, []))

    assert opened(table, incarnation=2).publish(output(table, 1, [])).replayed
    assert DeltaTable(str(table)).version() == 1


def test_a_table_without_the_marker_that_the_log_knows_is_a_conflict(table: Path) -> None:
    late = replace(output(table, 9, [stage(table, {"id": [9]})]), acked=Epoch(8))

    with pytest.raises(PublishConflict, match="epoch 8 is published, but the table has no marker"):
        opened(table).publish(late)
    assert ids(table) == []


def fail_after_commit(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int = 1) -> None:
    """Let the commit land, and lose its answer."""
    real, left = DeltaTable.create_write_transaction, [times]

    def lossy(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        if left[0]:
            left[0] -= 1
            raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lossy)


@pytest.mark.parametrize("error", [OSError("connection reset"), CommitFailedError("unknown")])
def test_a_commit_whose_answer_was_lost_is_found_by_its_marker(
    table: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail_after_commit(monkeypatch, error)

    receipt = opened(table).publish(output(table, 1, [stage(table, {"id": [1]})]))

    assert (receipt.replayed, ids(table), DeltaTable(str(table)).version()) == (True, [1], 1)


def test_death_between_commit_and_acknowledgement_is_replayed(table: Path) -> None:
    epoch = output(table, 1, [stage(table, {"id": [1]})])
    with failpoints.armed("PUBLISH_COMMITTED:raise"), pytest.raises(FailpointHit):
        opened(table).publish(epoch)

    assert opened(table, incarnation=2).publish(epoch).replayed
    assert ids(table) == [1]


def test_a_commit_that_never_lands_is_a_retriable_failure(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        raise OSError("disk full")

    epoch = output(table, 1, [stage(table, {"id": [1]})])
    monkeypatch.setattr(DeltaTable, "create_write_transaction", refuse)
    with pytest.raises(PublishFailed, match="disk full") as caught:
        opened(table).publish(epoch)
    monkeypatch.undo()

    assert caught.value.retriable
    assert not opened(table).publish(epoch).replayed
    assert ids(table) == [1]


def before_commit(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """Run `what` between the publisher's read of the table and its first commit."""
    real, done = DeltaTable.create_write_transaction, [False]

    def interleaved(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        if not done[0]:
            done[0] = True
            what()
        real(self, *arguments, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", interleaved)


def test_an_append_of_another_writer_in_between_is_no_conflict(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = pa.table({"id": pa.array([100], pa.int64())})
    before_commit(monkeypatch, lambda: write_deltalake(str(table), other, mode="append"))

    receipt = opened(table).publish(output(table, 1, [stage(table, {"id": [1]})]))

    assert (ids(table), receipt.replayed, DeltaTable(str(table)).version()) == ([1, 100], False, 2)


def test_a_schema_change_in_between_is_retried_on_the_new_schema(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wider = pa.table({"id": pa.array([100], pa.int64()), "note": ["x"]})
    before_commit(monkeypatch, lambda: write_deltalake(str(table), wider, mode="append", schema_mode="merge"))

    opened(table).publish(output(table, 1, [stage(table, {"id": [1]})]))

    assert ids(table) == [1, 100]
    assert DeltaTable(str(table)).schema().to_arrow().names == ["id", "note"]


def test_of_two_publishers_of_one_epoch_one_commits(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = output(table, 1, [stage(table, {"id": [1]})])
    before_commit(monkeypatch, lambda: opened(table).publish(epoch))

    receipt = opened(table).publish(epoch)

    assert (receipt.replayed, ids(table), DeltaTable(str(table)).version()) == (True, [1], 1)


def test_a_zombie_that_loses_the_race_to_its_successor_is_fenced(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = output(table, 1, [stage(table, {"id": [1]})])
    before_commit(monkeypatch, lambda: opened(table, incarnation=2).publish(epoch))

    with pytest.raises(Fenced):
        opened(table).publish(epoch)
    assert (ids(table), DeltaTable(str(table)).version()) == ([1], 1)


def test_a_zombie_does_not_publish_a_diverged_epoch(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The zombie was paused before its commit. Its successor continues from an older epoch, and has no epoch of its own yet."""
    opened(table).publish(output(table, 1, [stage(table, {"id": [1]})]))
    left = output(table, 2, [stage(table, {"id": [2]})])
    before_commit(monkeypatch, lambda: opened(table, incarnation=2).fence())
    with pytest.raises(Fenced):
        opened(table).publish(left)
    assert ids(table) == [1]

    following = output(table, 3, [stage(table, {"id": [3]}, incarnation=2)], incarnation=2, previous=1)
    opened(table, incarnation=2).publish(replace(following, dropped=(Epoch(2),)))
    assert ids(table) == [1, 3]


def test_a_table_is_fenced_once(table: Path) -> None:
    zombie = opened(table)
    for _ in range(2):
        opened(table, incarnation=2).fence()
    assert DeltaTable(str(table)).version() == 1
    for late in (zombie.fence, lambda: zombie.publish(output(table, 1, [stage(table, {"id": [1]})]))):
        with pytest.raises(Fenced):
            late()
    assert ids(table) == []


def test_a_zombie_is_fenced_by_a_newer_incarnation(table: Path) -> None:
    zombie = opened(table, incarnation=1)
    opened(table, incarnation=2).publish(output(table, 5, [stage(table, {"id": [5]})], incarnation=2))

    with pytest.raises(Fenced):
        zombie.publish(output(table, 4, [stage(table, {"id": [4]})]))
    assert ids(table) == [5]


def test_a_rerun_after_a_rollback_is_not_skipped(table: Path) -> None:
    publisher = opened(table)
    for n in (1, 2, 3):
        publisher.publish(output(table, n, [stage(table, {"id": [n]})]))
    DeltaTable(str(table)).restore(1)

    opened(table, incarnation=2).publish(output(table, 4, [stage(table, {"id": [40]}, 2)], incarnation=2))

    assert ids(table) == [1, 40]


def test_a_redo_under_the_number_of_a_newer_incarnation_is_a_replay(table: Path) -> None:
    files = [stage(table, {"id": [1]})]
    opened(table).publish(output(table, 1, files))

    assert opened(table, incarnation=2).publish(output(table, 1, files, incarnation=2)).replayed
    assert ids(table) == [1]


def test_a_marker_that_the_log_does_not_know_is_a_conflict(table: Path) -> None:
    opened(table).publish(output(table, 9, [stage(table, {"id": [9]})]))
    late = output(table, 10, [stage(table, {"id": [10]})], previous=5)

    with pytest.raises(PublishConflict, match="epoch 9 is published, but the log committed 5"):
        opened(table).publish(late)
    assert ids(table) == [9]


@pytest.mark.parametrize("marker", [None, 3, 7])
def test_a_replaced_table_may_have_no_marker_or_an_earlier_one(table: Path, marker: int | None) -> None:
    if marker is not None:
        opened(table).publish(output(table, marker, [stage(table, {"id": [marker]})], previous=0))
    first = replace(output(table, 9, [stage(table, {"id": [9]})], previous=0), begun_after=Epoch(7), acked=Epoch(0))

    opened(table).publish(first)

    assert ids(table) == [*([] if marker is None else [marker]), 9]


def test_a_replaced_table_with_a_later_marker_is_a_conflict(table: Path) -> None:
    opened(table).publish(output(table, 8, [stage(table, {"id": [8]})], previous=0))
    first = replace(output(table, 9, [stage(table, {"id": [9]})], previous=0), begun_after=Epoch(7), acked=Epoch(0))

    with pytest.raises(PublishConflict, match="epoch 8 is published"):
        opened(table).publish(first)


def test_sinks_and_stores_do_not_share_markers(table: Path) -> None:
    for who in ({"sink": "out"}, {"sink": "other"}, {"store": "ffff"}):
        opened(table, **who).publish(output(table, 1, [stage(table, {"id": [1]})]))

    assert ids(table) == [1, 1, 1]


def test_partition_values_reach_the_log_as_tasks_wrote_them(tmp_path: Path) -> None:
    table = tmp_path / "table"
    columns = pa.schema([("id", pa.int64()), ("city", pa.string())])
    DeltaTable.create(str(table), schema=Schema.from_arrow(columns), partition_by=["city"])
    cities = ["New York", "a/b=c%", "ü", None, ""]
    files = [stage(table, {"id": [n]}, city=city) for n, city in enumerate(cities)]

    opened(table).publish(output(table, 1, files))

    rows = pa.table(DeltaTable(str(table)).scan().read_all()).to_pylist()
    assert [row["city"] for row in sorted(rows, key=lambda row: row["id"])] == [*cities[:4], None]


@pytest.mark.parametrize("text", ["", " ", "%41", "__HIVE_DEFAULT_PARTITION__"])
def test_of_all_partition_texts_only_the_empty_one_is_read_as_null(tmp_path: Path, text: str) -> None:
    path = tmp_path / "parts"
    schema = pa.schema([("id", pa.int64()), ("region", pa.string())])
    DeltaTable.create(str(path), Schema.from_arrow(schema), partition_by=["region"])
    publisher = DeltalakePublisher(str(path), {}, context())
    publisher.publish(output(path, 1, [stage(path, {"id": [1]}, region=text)]))
    [row] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert row == {"id": 1, "region": text or None}


def test_a_missing_staged_file_never_reaches_the_log(table: Path) -> None:
    files = [stage(table, {"id": [1]}), stage(table, {"id": [2]})]
    (table / files[1].path).unlink()

    with pytest.raises(EpochDamaged, match=files[1].path):
        opened(table).publish(output(table, 1, files))
    assert DeltaTable(str(table)).version() == 0


def test_a_staged_file_that_vacuum_removes_between_two_attempts_never_reaches_the_log(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stage(table, {"id": [1]})
    wider = pa.table({"id": pa.array([100], pa.int64()), "note": ["x"]})

    def conflict_and_vacuum() -> None:
        write_deltalake(str(table), wider, mode="append", schema_mode="merge")
        (table / file.path).unlink()

    before_commit(monkeypatch, conflict_and_vacuum)

    with pytest.raises(EpochDamaged, match=file.path):
        opened(table).publish(output(table, 1, [file]))
    assert ids(table) == [100]


def test_a_table_created_again_while_the_job_runs_is_noticed(table: Path) -> None:
    publisher = opened(table)
    columns = DeltaTable(str(table)).schema()
    shutil.rmtree(table)
    DeltaTable.create(str(table), schema=columns)

    with pytest.raises(IdentityChanged, match="re-created"):
        publisher.publish(output(table, 1, [stage(table, {"id": [1]})]))


def test_the_commit_and_its_folder_are_synced_before_the_receipt(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    epoch = output(table, 1, [stage(table, {"id": [1]})])
    opened(table).publish(epoch)
    assert synced == ["00000000000000000001.json", "_delta_log"]

    synced.clear()
    append(table, [[2]])
    opened(table, incarnation=2).publish(epoch)
    assert synced == ["00000000000000000002.json", "00000000000000000001.json", "_delta_log"]


def test_a_publish_to_an_object_store_reads_no_entry_of_the_log(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is synced there, and each entry would be a request: a replay used to read up to 1,000 of them."""
    monkeypatch.setattr(publisher_module, "local_root", lambda table: None)
    monkeypatch.setattr(publisher_module, "read_commit", lambda system, version: pytest.fail(f"reads {version}"))
    epoch = output(table, 1, [stage(table, {"id": [1]})])

    receipts = [opened(table, incarnation).publish(epoch) for incarnation in (1, 2)]

    assert [each.replayed for each in receipts] == [False, True]


def test_history_shows_who_published(table: Path) -> None:
    opened(table).publish(output(table, 1, [stage(table, {"id": [1]})]))

    newest = DeltaTable(str(table)).history(1)[0]

    shown = "spark-ckpt job=job sink=out epoch=1 incarnation=1 engine=deltalake decision=unknown application="
    assert newest["userMetadata"] == shown + application_id(context(), "deltalake")


def test_a_published_table_stays_in_the_oldest_protocol(table: Path) -> None:
    opened(table).publish(output(table, 1, [stage(table, {"id": [1]})]))

    protocol = DeltaTable(str(table)).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_the_other_engine_is_refused_once_this_one_has_published(table: Path) -> None:
    mark = Transaction(application_id(context(), "spark"), declared_version(Epoch(1)))
    handle = DeltaTable(str(table))
    properties = CommitProperties(app_transactions=[mark])
    handle.create_write_transaction([], "append", handle.schema(), commit_properties=properties)

    with pytest.raises(SinkInvalid, match="engine 'spark'; one engine owns a table"):
        opened(table)
    opened(table, sink="other")
    check_owner(str(table), DeltaTable(str(table)), context(), "spark")


@pytest.mark.parametrize(
    ("marker", "expected"), [(None, False), ((1, 1), False), ((2, 2), False), ((1, 3), True), ((2, 4), True)]
)
def test_the_decision_table_of_a_marker(marker: tuple[int, int] | None, expected: bool, table: Path) -> None:
    found = None if marker is None else TableMarker(Epoch(marker[1]), Incarnation(marker[0]))
    who: SinkContext = context(incarnation=2)

    assert is_published(found, output(table, 3, []), who) is expected


def test_an_epoch_published_for_a_lost_commit_is_not_taken_for_this_one(table: Path) -> None:
    """The log loses its newest epoch after the publish and uses its number again, for other rows."""
    lost = replace(output(table, 1, [stage(table, {"id": [1]})]), decision="a" * 32)
    again = replace(output(table, 1, [stage(table, {"id": [1, 2]})], incarnation=2), decision="b" * 32)
    opened(table).publish(lost)

    assert opened(table, incarnation=2).publish(replace(lost, incarnation=Incarnation(2))).replayed
    with pytest.raises(PublishConflict, match="another commit of that number"):
        opened(table, incarnation=2).publish(again)
    assert ids(table) == [1]


def test_the_log_entry_holds_rows_and_marker_together(table: Path) -> None:
    opened(table).publish(output(table, 1, [stage(table, {"id": [1]})]))

    lines = (table / "_delta_log/00000000000000000001.json").read_text().splitlines()
    kinds = [next(iter(json.loads(line))) for line in lines]
    assert sorted(kinds) == ["add", "commitInfo", "txn", "txn"]


def test_an_epoch_published_without_a_decision_counts_for_every_decision(table: Path) -> None:
    """A publish without a decision leaves no name to compare."""
    undecided = output(table, 1, [stage(table, {"id": [1]})])
    opened(table).publish(undecided)

    assert opened(table, incarnation=2).publish(replace(undecided, decision="a" * 32)).replayed


@pytest.mark.parametrize("foreign", [0, 60])
def test_another_decision_is_noticed_below_any_number_of_foreign_commits(table: Path, foreign: int) -> None:
    lost = replace(output(table, 1, [stage(table, {"id": [1]})]), decision="a" * 32)
    again = replace(output(table, 1, [stage(table, {"id": [2]})], incarnation=2), decision="b" * 32)
    opened(table).publish(lost)
    for n in range(foreign):
        append(table, [[100 + n]])
    DeltaTable(str(table)).create_checkpoint()
    for commit in sorted((table / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()

    assert opened(table, incarnation=2).publish(replace(lost, incarnation=Incarnation(2))).replayed
    with pytest.raises(PublishConflict, match="another commit of that number"):
        opened(table, incarnation=2).publish(again)


def test_a_marker_of_an_older_format_is_refused(table: Path) -> None:
    """Its version is the bare epoch, without bits of the manifest's name."""
    handle = DeltaTable(str(table))
    mark = CommitProperties(app_transactions=[Transaction(application_id(context(), "deltalake"), 3)])
    handle.create_write_transaction([], "append", handle.schema(), commit_properties=mark)

    with pytest.raises(FormatUnknown) as refused:
        opened(table, incarnation=2).publish(output(table, 4, [stage(table, {"id": [4]})]))
    assert refused.value.context == {"found": 1, "reads": 2}


def test_a_log_without_its_first_versions_is_permanently_another_table() -> None:
    said = "[DELTA_STATE_RECOVER_ERROR] The metadata of your Delta table could not be recovered"
    error = publish_failed("/t", said, None, SinkContext("job", "out", "0f1e2d3c", Incarnation(1)), Epoch(4))
    assert isinstance(error, IdentityChanged)
    assert not error.retriable
    assert "from a backup" in error.hint
    assert "remove the folder" in error.hint
    assert not publish_failed("/t", "busy", None, SinkContext("job", "out", "0f1e2d3c", Incarnation(1)), Epoch(4)).hint
