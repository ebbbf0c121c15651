"""Checkpoints of Spark 4.2 are read as Spark reads them: complete states, positions of sources, written files."""

from __future__ import annotations

from pathlib import Path

import pytest
from rewind_kit import WrittenQuery, unpacked

from spark_ckpt.errors import FormatUnknown
from spark_rewind.checkpoint import QueryCheckpoint, read_checkpoint
from spark_rewind.positions import DeltaPosition, FilesPosition, KafkaPosition, OtherPosition, position_of
from spark_rewind.sink_logs import read_sink_log
from spark_rewind.tables import read_table


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("made"))


def read(made: Path, name: str) -> QueryCheckpoint:
    return read_checkpoint(made / "ckpt" / name, name)


def loadable(query: QueryCheckpoint) -> list[int]:
    return [each.number for each in query.batches if query.state_gone(each) is None and query.state_torn(each) is None]


@pytest.mark.parametrize(
    ("name", "batches", "whole"),
    [
        ("hdfs", [0, 1, 2, 3], [0, 1, 2, 3]),  # deltas from the first version on
        ("hdfs_snap", [4, 5, 6], [4, 5, 6]),  # snapshots, the oldest versions are cleaned up
        ("rocks", [0, 1, 2, 3], [0, 1, 2, 3]),  # a zip for each version
        ("rocks_log", [3, 4, 5, 6], [3, 4, 5, 6]),  # changelogs and snapshots
        ("rocks_v2", [3, 4, 5, 6], [3, 4, 5, 6]),  # checkpoint format 2, with changelogs
        ("rocks_v2_zip", [0, 1, 2, 3], [0, 1, 2, 3]),  # checkpoint format 2, without
        ("join", [0], [0]),  # four stores in a partition, each with ids of its own
    ],
)
def test_states_that_can_be_loaded_are_found(made, name, batches, whole):
    query = read(made, name)
    assert [each.number for each in query.batches] == batches
    assert len(query.operators) == 1
    assert loadable(query) == whole


@pytest.mark.parametrize(
    ("name", "lost", "whole"),
    [
        ("hdfs", "state/0/0/2.delta", [0]),
        ("hdfs_snap", "state/0/0/5.delta", [5, 6]),  # version 6 has a snapshot
        ("hdfs_snap", "state/0/0/6.snapshot", [4, 5, 6]),  # the changes since 3 are there
        ("hdfs_snap", "state/0/0/3.snapshot", [5, 6]),  # nothing to begin with for version 5, which is batch 4
        ("rocks", "state/0/0/2.zip", [0, 2, 3]),
        ("rocks_log", "state/0/0/7.changelog", [3, 4, 5]),
        ("rocks_log", "state/0/0/4.zip", [5, 6]),
        ("rocks_v2", "state/0/0/5_*.changelog", [3, 5, 6]),
        ("join", "state/0/0/right-keyWithIndexToValue/1_*.changelog", []),
    ],
)
def test_a_state_with_a_missing_file_is_not_used(tmp_path, name, lost, whole):
    made = unpacked(tmp_path)
    [path] = (made / "ckpt" / name).glob(lost)
    path.unlink()
    assert loadable(read(made, name)) == whole


def test_the_file_of_a_failed_attempt_is_not_taken_for_the_committed_one(tmp_path):
    made = unpacked(tmp_path)
    [path] = (made / "ckpt" / "rocks_v2").glob("state/0/0/7_*.changelog")
    path.rename(path.with_name("7_00000000-0000-0000-0000-000000000000.changelog"))
    assert loadable(read(made, "rocks_v2")) == [3, 4, 5]


def test_a_snapshot_whose_table_file_is_gone_is_torn(tmp_path):
    made = unpacked(tmp_path)
    path = min((made / "ckpt" / "rocks" / "state" / "0" / "0" / "SSTs").iterdir())
    path.unlink()
    query = read(made, "rocks")
    assert all(query.state_gone(each) is None for each in query.batches)
    assert any(path.name in (query.state_torn(each) or "") for each in query.batches)


def test_a_snapshot_that_is_cut_off_is_torn(tmp_path):
    made = unpacked(tmp_path)
    path = made / "ckpt" / "rocks" / "state" / "0" / "0" / "3.zip"
    path.write_bytes(path.read_bytes()[:100])
    assert loadable(read(made, "rocks")) == [0, 1, 3]


def test_positions_are_those_that_spark_wrote(made):
    ends = [each.ends["0"] for each in read(made, "hdfs_snap").batches]
    [table] = {each.table for each in ends if isinstance(each, DeltaPosition)}
    assert ends == [
        DeltaPosition(table, 6, 4, True),
        DeltaPosition(table, 6, 5, True),
        DeltaPosition(table, 7, -1, False),
    ]
    assert [each.ends["0"] for each in read(made, "a").batches] == [FilesPosition(number) for number in range(7)]


def test_a_log_with_names_for_its_sources_is_read(made):
    query = read(made, "rate")
    assert (query.folder / "offsets" / "2").read_text().startswith("v2\n")
    assert dict(query.batches[2].ends) == {"0": OtherPosition("1"), "1": OtherPosition("1")}


def test_files_that_a_source_read_are_known_by_entry(made):
    files = read(made, "a").files["0"]
    assert sorted(files.entries.values()) == list(range(7))
    assert len(files.after(4)) == 2
    gone = files.newest_gone(4)  # its inbox is not here
    assert gone is not None
    assert gone[1] in files.after(4)
    assert gone[0] == max(files.entries[each] for each in files.after(4))
    assert files.newest_gone(6) is None


def test_files_that_a_sink_wrote_are_known_by_batch(made):
    log = read_sink_log(made / "tables" / "filesink" / "_spark_metadata")
    assert sorted(log.batches.values()) == [0, 1, 2, 3]


def test_a_compacted_log_bounds_the_batch_of_each_file(tmp_path):
    made = unpacked(tmp_path)
    folder = made / "tables" / "filesink" / "_spark_metadata"
    lines = [line for number in (0, 1, 2) for line in (folder / str(number)).read_text().splitlines()[1:]]
    (folder / "2.compact").write_text("\n".join(["v1", *lines]))
    for number in (0, 2):
        (folder / str(number)).unlink()
    assert sorted(read_sink_log(folder).batches.values()) == [1, 2, 2, 3]


def test_a_table_names_query_and_batch_of_each_version(made):
    table, query = read_table(made / "tables" / "a2"), read(made, "a")
    assert [each.transactions for each in table.versions] == [((query.query, number),) for number in range(7)]
    assert [each.operation for each in table.versions] == ["STREAMING UPDATE"] * 7
    assert (table.newest, table.openable, dict(table.gone), len(table.ids)) == (6, 0, {}, 1)


def test_kafka_offsets_are_known_by_their_shape():
    assert position_of('{"orders":{"0":42,"1":0}}') == KafkaPosition({("orders", 0): 42, ("orders", 1): 0})
    assert position_of('{"orders":{"0":"42"}}') == OtherPosition('{"orders":{"0":"42"}}')
    assert position_of("17") == OtherPosition("17")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("offsets/3", "v3\n{}\n-", "'v3'; v1 and v2 can be read"),
        ("commits/3", "v7\n{}", "'v7'; v1 and v2 can be read"),
        ("sources/0/3", "v2\n{}", "'v2'; v1 can be read"),
    ],
)
def test_a_newer_log_is_refused_by_its_name(tmp_path, file, text, message):
    made = unpacked(tmp_path)
    (made / "ckpt" / "a" / file).write_text(text)
    with pytest.raises(FormatUnknown) as raised:
        read(made, "a")
    assert file in str(raised.value)
    assert message in str(raised.value)


def test_a_newer_offset_of_delta_is_refused_by_its_name(tmp_path):
    query = WrittenQuery(tmp_path / "new")
    query.batch(
        {"sourceVersion": 4, "reservoirId": "x", "reservoirVersion": 1, "index": -1, "isStartingVersion": False}
    )
    with pytest.raises(FormatUnknown, match="Delta source offset 4"):
        read_checkpoint(tmp_path / "new", "new")


def test_a_state_store_of_another_kind_is_refused_by_its_file(tmp_path):
    made = unpacked(tmp_path)
    (made / "ckpt" / "hdfs" / "state" / "0" / "0" / "5.lsm").write_bytes(b"")
    with pytest.raises(FormatUnknown, match=r"5\.lsm is no file of a state store that is known"):
        read(made, "hdfs")
