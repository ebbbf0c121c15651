"""A copy of a checkpoint as of a batch equals the checkpoint of a query that stopped there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rewind_kit import WrittenQuery, content_of, unpacked

from spark_ckpt.errors import CheckpointDamaged, FormatUnknown
from spark_ckpt.spark_internals.state_files import named_in_snapshot, versioned
from spark_rewind import durable
from spark_rewind.checkpoint import QueryCheckpoint, read_checkpoint
from spark_rewind.checkpoint_copy import CheckpointCut, copy_checkpoint
from spark_rewind.positions import DeltaPosition, FilesPosition

STATES = {"hdfs": 4, "hdfs_snap": 3, "rocks": 4, "rocks_log": 4, "rocks_v2": 4, "rocks_v2_zip": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("made"))


def read(folder: Path) -> QueryCheckpoint:
    return read_checkpoint(folder, folder.name)


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [*STATES, "join", "a", "rate", "filesink"])
def test_every_batch_of_every_kind_of_state_can_be_copied(made, tmp_path, name):
    query = read(made / "ckpt" / name)
    before = content_of(query.folder)
    for batch in query.batches:
        copy = copy_checkpoint(query, CheckpointCut(batch.number), tmp_path / str(batch.number))
        assert [each.ends for each in copy.batches] == [
            each.ends for each in query.batches if each.number <= batch.number
        ]
        assert copy.state_gone(batch) is None
        assert copy.state_torn(batch) is None
    assert content_of(query.folder) == before


@pytest.mark.parametrize("name", STATES)
def test_no_state_of_a_later_batch_is_copied_and_none_of_an_earlier_one_is_missing(made, tmp_path, name):
    query = read(made / "ckpt" / name)
    cut = query.batches[-2].number
    copy_checkpoint(query, CheckpointCut(cut), tmp_path / "copy")
    versions = {
        (path, found[0])
        for path in files_of(query.folder / "state")
        if (found := versioned(Path(path).name.removesuffix(".crc"))) is not None
    }
    expected = {path for path, version in versions if version <= cut + 1}
    assert {path for path, version in versions if version > cut + 1}
    assert expected == files_of(tmp_path / "copy" / "state") & {path for path, _ in versions}


def test_state_files_are_the_same_files_under_another_name(made, tmp_path):
    query = read(made / "ckpt" / "rocks_log")
    copy_checkpoint(query, CheckpointCut(5), tmp_path / "copy")
    for path in files_of(tmp_path / "copy" / "state"):
        assert (tmp_path / "copy" / "state" / path).samefile(query.folder / "state" / path)


def test_files_are_copied_on_a_file_system_without_links(made, tmp_path, monkeypatch):
    def refuse(*paths: object) -> None:
        raise PermissionError(1, "no links here")

    query = read(made / "ckpt" / "rocks_v2")
    with monkeypatch.context() as patched:
        patched.setattr(durable.os, "link", refuse)
        copy = copy_checkpoint(query, CheckpointCut(5), tmp_path / "copy")
    assert copy.state_torn(copy.batches[-1]) is None
    [path] = (tmp_path / "copy").glob("state/0/0/6_*.zip")
    assert path.stat().st_nlink == 1


def test_files_of_later_batches_are_not_in_the_copied_source_log(made, tmp_path):
    query = read(made / "ckpt" / "a")
    copy = copy_checkpoint(query, CheckpointCut(3), tmp_path / "copy")
    assert copy.batches[-1].ends["0"] == FilesPosition(3)
    assert sorted(copy.files["0"].entries) == sorted(query.files["0"].up_to(3))
    assert files_of(tmp_path / "copy" / "sources") == {"0/0", "0/1", "0/2", "0/3"}


def compacted_log(folder: Path, entries: int, folds: int, lost_before: int) -> QueryCheckpoint:
    """A query of one file per batch, whose log is compacted every `folds` entries and has lost its oldest files."""
    query = WrittenQuery(folder)
    log = folder / "sources" / "0"
    log.mkdir(parents=True)
    lines: list[str] = []
    for number in range(entries):
        query.batch({"logOffset": number})
        lines.append(json.dumps({"path": f"file:///in/{number}", "timestamp": number, "batchId": number}))
        fold = (number + 1) % folds == 0
        kept = lines if fold else lines[-1:]
        (log / (f"{number}.compact" if fold else f"{number}")).write_text("\n".join(["v1", *kept]))
    for number in range(lost_before):
        for name in (f"{number}", f"{number}.compact"):
            (log / name).unlink(missing_ok=True)
    return read_checkpoint(folder, folder.name)


@pytest.mark.parametrize("lost_before", [0, 3, 5, 8])
def test_a_compacted_log_cut_at_any_batch_is_readable_by_spark(tmp_path, lost_before):
    query = compacted_log(tmp_path / "q", 12, 3, lost_before)
    for cut in range(12):
        copied_so_that_spark_can_read_it(query, cut, tmp_path / f"copy{cut}")


def copied_so_that_spark_can_read_it(query, cut, folder):
    """Spark reads from the newest compact file on, and derives the compaction interval from the compact files' numbers."""
    copy = copy_checkpoint(query, CheckpointCut(cut), folder)
    assert sorted(copy.files["0"].entries.values()) == list(range(cut + 1))
    there = {path.name for path in (folder / "sources" / "0").iterdir()}
    folded = max((int(name.removesuffix(".compact")) for name in there if name.endswith(".compact")), default=0)
    after = {f"{number}" for number in range(folded + 1, cut + 1)}
    assert after <= there
    text = (folder / "sources" / "0" / (f"{folded}.compact" if f"{folded}.compact" in there else "0")).read_text()
    assert len(text.splitlines()) - 1 == folded + 1


def test_earlier_batches_are_left_out_of_a_copy_with_replaced_offsets(made, tmp_path):
    """A later plan reads only valid offsets of the copy: batches with the old offsets are left out."""
    query = read(made / "ckpt" / "rocks_v2")
    new = {"sourceVersion": 1, "reservoirId": "t", "reservoirVersion": 40, "index": 2, "isStartingVersion": False}
    copy = copy_checkpoint(query, CheckpointCut(5, {5: {"0": json.dumps(new)}}), tmp_path / "copy")
    assert [each.number for each in copy.batches] == [5]
    assert copy.batches[0].ends == {"0": DeltaPosition("t", 40, 2, False)}
    assert {path.name for path in (tmp_path / "copy" / "offsets").iterdir()} == {"4", "5"}
    before, after = ((tmp_path / "copy" / "offsets" / name).read_text().splitlines() for name in "45")
    assert before[2:] == after[2:]
    assert json.loads(after[1]) == json.loads((query.folder / "offsets" / "5").read_text().splitlines()[1])


def test_the_copy_adds_a_batch_before_the_oldest_for_sparks_start(made, tmp_path):
    query = read(made / "ckpt" / "hdfs_snap")
    copy = copy_checkpoint(query, CheckpointCut(4), tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy" / "offsets").iterdir()} == {"3", "4"}
    assert {path.name for path in (tmp_path / "copy" / "commits").iterdir()} == {"3", "4"}
    assert [each.number for each in copy.batches] == [4]


def test_an_unfinished_batch_is_kept_with_its_offsets(tmp_path):
    query = WrittenQuery(tmp_path / "q")
    for number in range(3):
        query.batch(number, state=True, commit=number < 2)
    copy = copy_checkpoint(read_checkpoint(tmp_path / "q", "q"), CheckpointCut(2), tmp_path / "copy")
    assert (copy.committed, copy.unfinished.number if copy.unfinished else None) == (1, 2)
    assert {path.name for path in (tmp_path / "copy" / "state" / "0" / "0").iterdir()} == {"1.delta", "2.delta"}


def test_a_query_that_restarts_from_its_start_keeps_its_id_and_its_sources_start(made, tmp_path):
    query = read(made / "ckpt" / "rate")
    copy = copy_checkpoint(query, CheckpointCut(-1), tmp_path / "copy")
    assert (copy.query, copy.batches, copy.operators) == (query.query, (), ())
    assert files_of(tmp_path / "copy") == {"metadata", "sources/0/0", "sources/1/0"}


def test_the_file_of_an_uncommitted_attempt_is_not_copied(tmp_path):
    made = unpacked(tmp_path)
    query = read(made / "ckpt" / "rocks_v2")
    [path] = query.folder.glob("state/0/0/5_*.changelog")
    stray = "5_00000000-0000-0000-0000-000000000000.changelog"
    path.with_name(stray).write_bytes(b"")
    copy_checkpoint(query, CheckpointCut(5), tmp_path / "copy")
    assert f"0/0/{stray}" not in files_of(tmp_path / "copy" / "state")


def test_hadoops_checksums_are_copied_with_their_files_except_rewritten_ones(tmp_path):
    query = WrittenQuery(tmp_path / "q")
    for number in range(3):
        query.batch({"a": {"0": number}})
        (query.folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    end = json.dumps({"a": {"0": 9}})
    copy_checkpoint(read_checkpoint(tmp_path / "q", "q"), CheckpointCut(1), tmp_path / "plain")
    copy_checkpoint(read_checkpoint(tmp_path / "q", "q"), CheckpointCut(1, {1: {"0": end}}), tmp_path / "other")
    assert {path.name for path in (tmp_path / "plain" / "offsets").iterdir()} == {"0", "1", ".0.crc", ".1.crc"}
    assert {path.name for path in (tmp_path / "other" / "offsets").iterdir()} == {"0", "1"}


def test_a_file_that_is_lost_after_the_plan_is_found_in_the_copy(tmp_path):
    made = unpacked(tmp_path)
    query = read(made / "ckpt" / "rocks")
    store = query.folder / "state" / "0" / "0"
    (store / named_in_snapshot(store / "4.zip")[0]).unlink()
    with pytest.raises(CheckpointDamaged, match=r"is incomplete: operator 0, partition 0: SSTs/.* is missing"):
        copy_checkpoint(query, CheckpointCut(3), tmp_path / "copy")


def test_an_unknown_folder_is_refused_by_its_name(made, tmp_path):
    query = WrittenQuery(tmp_path / "q")
    query.batch(0)
    (query.folder / "_schema_log_1").mkdir()
    with pytest.raises(FormatUnknown, match="_schema_log_1"):
        copy_checkpoint(read_checkpoint(query.folder, "q"), CheckpointCut(0), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a folder")
def test_folders_of_a_copy_have_the_owner_of_the_querys(tmp_path):
    query = WrittenQuery(tmp_path / "q")
    query.batch(0, state=True)
    for path in [query.folder, *query.folder.rglob("*")]:
        os.chown(path, 1234, 1234)
    copy_checkpoint(read_checkpoint(query.folder, "q"), CheckpointCut(0), tmp_path / "copy")
    assert {path.stat().st_uid for path in [tmp_path / "copy", *(tmp_path / "copy").rglob("*")]} == {1234}
