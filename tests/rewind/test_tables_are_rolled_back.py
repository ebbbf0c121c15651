"""Commits that roll a table back, as other Delta readers read them, and tables for which they would be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from rewind_kit import WrittenQuery, planned
from spark_ckpt_delta.changes import Bounds, History, Position
from spark_ckpt_delta.log import filesystem, read_commit

from integration_tests.campaign.rewinds import settings_for
from integration_tests.rewind.small_lake import checkpoints, history
from integration_tests.rewind.small_spark import SmallTable
from spark_ckpt.errors import RewindOutOfReach, SourceSilent
from spark_rewind.applying import apply, undo
from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.drafting import QueryWish, TableWish, stamp_of, table_draft
from spark_rewind.shifts import Shift
from spark_rewind.table_commits import Stamp, commits, refusal
from spark_rewind.table_content import Content, commit_lines, content_at
from spark_rewind.tables import read_table

PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
STAMP = Stamp("x", 1_000)


def content(version: int = 0, protocol: dict | None = None, files: tuple[str, ...] = (), **metadata: object) -> Content:
    held = {(name, ""): {"path": name, "size": 1} for name in files}
    return Content(version, protocol or PROTOCOL, {"id": "t", **metadata}, held)


def with_features(*names: str) -> dict:
    return {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": list(names)}


@pytest.mark.parametrize(
    ("now", "then", "message"),
    [
        (content(protocol=with_features("rowTracking")), content(), "feature rowTracking"),
        (content(protocol=with_features("appendOnly", "catalogManaged")), content(), "feature catalogManaged"),
        (content(protocol=with_features("somethingNew")), content(), "feature somethingNew"),
        (content(configuration={"delta.appendOnly": "true"}), content(), "delta.appendOnly"),
        (content(configuration={"delta.appendOnly": "True"}), content(), "delta.appendOnly"),
        (content(configuration={"delta.coordinatedCommits.commitCoordinator-preview": "x"}), content(), "catalog"),
        (content(schemaString='{"metadata":{"delta.identity.start":1}}'), content(), "identity column"),
        (content(protocol=with_features()), content(), "protocol was changed"),
        (
            content(configuration={"delta.enableInCommitTimestamps": "true"}),
            content(),
            "enableInCommitTimestamps was changed",
        ),
        (content(configuration={"delta.columnMapping.mode": "name"}), content(), "maps columns"),
    ],
)
def test_a_table_with_an_unsupported_feature_is_refused_by_its_name(now, then, message):
    assert message in (refusal(now, then, []) or "")


def test_characters_that_end_a_line_elsewhere_end_no_action_of_a_commit(tmp_path):
    """Writers leave U+2028 and U+0085 as they are. Python's `splitlines` splits there."""
    texts = ["a\u2028b", "c\u0085d"]
    for text in texts:
        rows = pa.table({"part": [text], "text": [text]})
        write_deltalake(tmp_path, rows, mode="append", partition_by=["part"])
    found = [each["partitionValues"]["part"] for each in content_at(tmp_path, 1).files.values()]
    assert found == texts
    [read] = read_commit(filesystem(str(tmp_path), {}), 1).commit.bodies("add")
    assert read["partitionValues"]["part"] == texts[1]
    assert [len(commit_lines(tmp_path, number)) for number in range(2)] == [4, 2]


def test_a_file_that_would_return_with_a_deletion_vector_is_refused():
    vector = {"storageType": "u", "pathOrInlineDv": "ab", "offset": 1}
    assert "deletion vector" in (
        refusal(content(), content(), [[{"add": {"path": "a", "deletionVector": vector}}]]) or ""
    )


@pytest.mark.parametrize(
    "features",
    [
        (),
        ("appendOnly", "invariants"),
        ("inCommitTimestamp",),
        ("deletionVectors", "columnMapping"),
        ("clustering", "domainMetadata"),
    ],
)
def test_features_that_do_not_matter_here_are_accepted(features):
    same = with_features(*features)
    assert refusal(content(protocol=same), content(protocol=same), []) is None


BY_A, BY_B = ({"domain": "delta.clustering", "configuration": f'{{"clusteringColumns":[["{name}"]]}}'} for name in "ab")
CLUSTERED = with_features("clustering", "domainMetadata")


def of_domains(*actions: dict, version: int = 0) -> Content:
    said = [{"domainMetadata": {"removed": False, **each}} for each in actions]
    return content(version, protocol=CLUSTERED).after(version, said)


@pytest.mark.parametrize(
    ("now", "then", "replayed", "message"),
    [
        (of_domains(BY_A), of_domains(BY_A), [], None),
        (of_domains(BY_A), of_domains(BY_A), [BY_A], None),
        (of_domains(BY_A), Content(), [BY_A], None),
        (of_domains(BY_B), of_domains(BY_A), [], "clustered by were changed after version 0"),
        (of_domains(BY_A), of_domains(), [], "clustered by were changed"),
        (of_domains(BY_A, {**BY_A, "removed": True}), of_domains(BY_A), [], "clustered by were changed"),
        (of_domains(BY_A), of_domains(BY_A), [BY_B], "clustered by were changed"),
        (of_domains(BY_B), Content(), [BY_A], "clustered by were changed"),
        (of_domains({"domain": "delta.rowTracking"}), of_domains(), [], "the domain delta.rowTracking"),
        (of_domains(), of_domains({"domain": "mine"}), [], "the domain mine"),
    ],
)
def test_a_clustered_table_rolls_back_if_its_columns_stay_the_same(now, then, replayed, message):
    found = refusal(now, then, [[{"domainMetadata": {"removed": False, **each}}] for each in replayed])
    assert found is None if message is None else message in (found or "")


def test_clustering_is_read_from_a_checkpoint_of_the_log_too(tmp_path):
    log = tmp_path / "_delta_log"
    log.mkdir()
    row = {"domain": BY_A["domain"], "configuration": BY_A["configuration"], "removed": False}
    columns = {"protocol": [CLUSTERED, None], "metaData": [{"id": "t"}, None], "domainMetadata": [None, row]}
    pq.write_table(pa.table(columns), log / f"{4:020d}.checkpoint.parquet")
    assert content_at(tmp_path, 4).domains == {BY_A["domain"]: BY_A["configuration"]}


def test_a_returned_file_keeps_its_clustering_provider():
    file = {"path": "a", "size": 1, "clusteringProvider": "liquid", "stats": '{"numRecords":1}'}
    then = Content(0, CLUSTERED, {"id": "t"}, {("a", ""): file}, {}, of_domains(BY_A).domains)
    [text] = commits(Shift(0, 0, 2), of_domains(BY_A, version=1), then, [], [], STAMP)
    adds = [json.loads(line)["add"] for line in text.splitlines() if "add" in json.loads(line)]
    assert adds == [{**file, "dataChange": True}]
    assert "domainMetadata" not in text


@pytest.mark.parametrize("true", ["true", "TRUE"])
def test_in_commit_timestamps_continue_to_grow_and_come_first(true):
    now = content(3, configuration={"delta.enableInCommitTimestamps": true})
    texts = commits(Shift(1, 2, 4), now, now, [['{"add":{"path":"b"}}']], [], Stamp("x", 1_000, after_ms=9_000))
    first = [json.loads(text.splitlines()[0])["commitInfo"] for text in texts]
    assert [next(iter(each)) for each in first] == ["inCommitTimestamp"] * 2
    assert [each["inCommitTimestamp"] for each in first] == [9_001, 9_002]


def test_an_application_that_wrote_later_has_no_batch_again():
    now = Content(1, PROTOCOL, {"id": "t"}, {}, {"new": 4, "old": 7})
    then = Content(0, PROTOCOL, {"id": "t"}, {}, {"old": 7})
    [text] = commits(Shift(0, 0, 2), now, then, [], [], STAMP)
    taken = [json.loads(line)["txn"] for line in text.splitlines() if "txn" in line]
    assert [(each["appId"], each["version"]) for each in taken] == [("new", -1)]


def test_a_writers_number_is_always_written_so_that_its_concurrent_commit_conflicts():
    now = Content(1, PROTOCOL, {"id": "t"}, {}, {"writer": 4})
    [text] = commits(Shift(1, 1, 2), now, now, [], ["writer"], STAMP)
    assert [json.loads(line)["txn"]["version"] for line in text.splitlines() if "txn" in line] == [4]


def test_metadata_of_the_base_is_restored():
    now, then = content(1, name="new"), content(0, name="old")
    [text] = commits(Shift(0, 0, 2), now, then, [], [], STAMP)
    assert [json.loads(line)["metaData"]["name"] for line in text.splitlines() if "metaData" in line] == ["old"]


@pytest.fixture
def rewritten(tmp_path: Path) -> SmallTable:
    """Five versions; the third and the fifth remove files, as a MERGE does."""
    table = SmallTable(tmp_path / "t")
    table.append([[1], [2]], ("app", 0))
    table.append([[3]], ("app", 1))
    table.append([[4]], ("app", 2), removed=(table.files(1)[0],))
    table.append([[5]], ("app", 3))
    table.append([], ("app", 4), removed=tuple(table.files(3)[:2]))
    return table


@pytest.mark.parametrize("version", range(-1, 5))
def test_another_reader_finds_the_rows_and_the_number_of_the_version(rewritten, version):
    expected = sorted(rewritten.rows(rewritten.files(version)))
    read = read_table(rewritten.root)
    draft = table_draft(TableWish(read, version, []), [], stamp_of(read, "x", 1_000, "test"))
    for number, text in enumerate(draft.texts, draft.change.first):
        (rewritten.log / f"{number:020d}.json").write_text(text)
    table = DeltaTable(str(rewritten.root))
    assert sorted(table.to_pyarrow_table().column("id").to_pylist()) == expected
    assert table.transaction_version("app") == version


@pytest.fixture
def replayed(tmp_path: Path) -> SmallTable:
    """Five versions with a file each. A rewind for a reader of versions 0 and 1 wrote 5, and versions 2 and 3 again."""
    table = SmallTable(tmp_path / "t")
    for number in range(5):
        table.append([[number]], ("app", number))
    written = WrittenQuery(tmp_path / "q")
    place = {"reservoirId": table.id, "reservoirVersion": 2, "index": -1, "isStartingVersion": False}
    written.batch({"sourceVersion": 1} | place)
    query, read = read_checkpoint(written.folder, "q"), read_table(table.root)
    wish = QueryWish(query, query, 0, goes=False)
    draft = table_draft(TableWish(read, 3, []), [wish], stamp_of(read, "x", 1_000, "test"))
    assert (draft.change.first, draft.change.last) == (5, 7)
    for number, text in enumerate(draft.texts, draft.change.first):
        (table.log / f"{number:020d}.json").write_text(text)
    return table


def read_by_a_job(table: SmallTable, version: int, size: int) -> list[int]:
    """Read on from the beginning of a version, in batches of `size` files, each after a restart."""
    found: list[int] = []
    at, newest = Position(table.id, version), table.newest()
    while at.version <= newest:
        history = History(str(table.root), {}, "skip", [], newest)
        history.require(at, newest)
        end, files = history.take(at, Bounds(files=size))
        assert History(str(table.root), {}, "skip", [], newest).between(at, end) == files
        found += table.rows([file.path for file in files])
        at = end
    return found


@pytest.mark.parametrize("size", [1, 2, 10])
def test_a_job_that_skips_a_rewind_reads_no_version_a_second_time(replayed, size):
    replayed.append([[5]])
    assert read_by_a_job(replayed, 0, size) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("behind", [2, 3, 4])
def test_a_job_that_skips_a_rewind_and_its_undo_reads_no_version_a_second_time(tmp_path, behind):
    """With `behind` 3 the undo finds the table as its slowest reader has it, and commits only the versions after that."""
    table = SmallTable(tmp_path / "t")
    for number in range(5):
        table.append([[number]], ("app", number))
    written = WrittenQuery(tmp_path / "q")
    place = {"reservoirId": table.id, "reservoirVersion": behind, "index": -1, "isStartingVersion": False}
    written.batch({"sourceVersion": 1} | place)
    query = read_checkpoint(written.folder, "q")
    for line, readers in ((2, []), (4, [QueryWish(query, query, 0, goes=False)])):
        read = read_table(table.root)
        wish = TableWish(read, line, [], undoes=bool(readers))
        draft = table_draft(wish, readers, stamp_of(read, f"x{line}", 1_000, "test"))
        for number, text in enumerate(draft.texts, draft.change.first):
            (table.log / f"{number:020d}.json").write_text(text)
    table.append([[5]])
    assert read_by_a_job(table, 0, 10) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("size", [1, 10])
def test_a_job_that_adopted_a_reader_of_a_rewind_reads_the_versions_that_follow_again(replayed, size):
    assert read_by_a_job(replayed, 6, size) == [2, 3]


def test_a_job_waits_for_the_versions_that_a_rewind_has_yet_to_write(replayed):
    (replayed.log / f"{7:020d}.json").unlink()
    with pytest.raises(SourceSilent, match="has written version 5, and not yet version 7"):
        read_by_a_job(replayed, 0, 10)


def test_a_job_reads_what_another_writer_added_amid_a_rewind(replayed):
    """The rewind then rolls the table back once more."""
    (replayed.log / f"{7:020d}.json").unlink()
    replayed.append([[6]])
    assert read_by_a_job(replayed, 0, 10) == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize("version", [3, 4])
def test_a_log_that_begins_with_a_checkpoint_gives_the_same_actions(rewritten, version):
    whole = content_at(rewritten.root, version)
    DeltaTable(str(rewritten.root), version=2).create_checkpoint()
    for number in range(3):
        (rewritten.log / f"{number:020d}.json").unlink()
    from_checkpoint = content_at(rewritten.root, version)
    assert from_checkpoint.files.keys() == whole.files.keys()
    assert (from_checkpoint.transactions, from_checkpoint.protocol) == (whole.transactions, whole.protocol)
    for key, file in whole.files.items():
        assert {name: from_checkpoint.files[key][name] for name in file} == dict(file)


def test_a_reader_whose_versions_left_the_log_is_out_of_reach(rewritten, tmp_path):
    written = WrittenQuery(tmp_path / "q")
    place = {"reservoirId": rewritten.id, "reservoirVersion": 2, "index": -1, "isStartingVersion": False}
    written.batch({"sourceVersion": 1} | place)
    query = read_checkpoint(written.folder, "q")
    DeltaTable(str(rewritten.root), version=3).create_checkpoint()
    for number in range(3):
        (rewritten.log / f"{number:020d}.json").unlink()
    with pytest.raises(
        RewindOutOfReach, match="a reader has version 2 before it at its point, and the log has lost that"
    ):
        table_draft(TableWish(read_table(rewritten.root), 3, []), [QueryWish(query, query, 0, goes=False)], STAMP)


def test_a_rolled_back_table_is_planned_from_its_restored_version_on(tmp_path):
    """Earlier versions are of no use: readers' positions and the numbers of batches are of the rolled-back history."""
    lake, good = history(tmp_path / "lake", 3)
    plan = planned(checkpoints(lake), f"ingest@{good}", [lake.root])
    record = apply(plan, settings_for(plan))
    for change in record.tables:
        table = read_table(Path(change.path))
        assert table.versions[0].number == change.first == table.openable
        assert table.versions[0].restored
        app = next(iter(change.transactions))
        assert table.before[app] <= change.transactions[app]


def test_files_of_a_clones_source_are_not_missing(tmp_path):
    """A shallow clone names its source's files by URIs, local ones with one slash. VACUUM of the clone keeps them."""
    lake, good = history(tmp_path / "lake", 3)
    bronze = lake.tables["bronze"]
    elsewhere = (tmp_path / "source" / "part-0.parquet").absolute()
    elsewhere.parent.mkdir()
    line = next(
        each.version
        for each in planned(checkpoints(lake), f"ingest@{good}", [lake.root]).tables
        if each.path.endswith("bronze")
    )
    name = bronze.files(line)[0]
    (bronze.root / name).rename(elsewhere)
    for commit in (bronze.root / "_delta_log").glob("*.json"):
        commit.write_text(commit.read_text().replace(f'"{name}"', f'"file:{elsewhere}"'))
    bronze.append([], removed=(f"file:{elsewhere}",))
    assert read_table(bronze.root).gone == {}
    plan = planned(checkpoints(lake), f"ingest@{good}", [lake.root])
    [change] = [each for each in apply(plan, settings_for(plan)).tables if each.path == str(bronze.root)]
    assert (change.line, change.put_back) == (line, {})


def test_a_rewind_for_which_append_only_was_unset_can_be_undone(tmp_path):
    """The rewind brings the property back with the metadata of its time."""
    lake, good = history(tmp_path / "lake", 3)
    bronze = lake.tables["bronze"]
    first, then = (bronze.log / f"{number:020d}.json" for number in (0, read_table(bronze.root).newest + 1))
    [metadata] = [
        each["metaData"] for line in first.read_text().splitlines() if "metaData" in (each := json.loads(line))
    ]
    unset = {"metaData": metadata, "commitInfo": {"timestamp": 1, "operation": "SET TBLPROPERTIES"}}
    then.write_text("".join(json.dumps({name: each}) + "\n" for name, each in unset.items()))
    set_then = {**metadata, "configuration": {"delta.appendOnly": "true"}}
    first.write_text(first.read_text().replace(json.dumps(metadata), json.dumps(set_then)))
    wanted = DeltaTable(str(bronze.root)).to_pyarrow_table().sort_by("id")
    plan = planned(checkpoints(lake), f"ingest@{good}", [lake.root])
    apply(plan, settings_for(plan))
    assert DeltaTable(str(bronze.root)).metadata().configuration == {"delta.appendOnly": "true"}
    undo(plan, settings_for(plan))
    table = DeltaTable(str(bronze.root))
    assert table.metadata().configuration == {}
    assert table.to_pyarrow_table().sort_by("id") == wanted
