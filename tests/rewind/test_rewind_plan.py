"""A plan for queries joined by Delta tables names each query's batch, its cause, and the undone batches."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rewind_kit import NOW_MS, WrittenQuery, WrittenTable, began, planned, query_of, table_of

from spark_ckpt.errors import ConfigInvalid, RewindOutOfReach
from spark_rewind import source_files, state_versions
from spark_rewind.plan import RewindPlan


class Chain:
    """Queries enrich -> bronze -> totals -> gold: a batch of `enrich` is one version, `totals` reads one per batch."""

    def __init__(self, folder: Path, batches: int = 6, lag: int = 1) -> None:
        self.enrich = WrittenQuery(folder / "enrich")
        self.totals = WrittenQuery(folder / "totals")
        self.bronze = WrittenTable(folder / "bronze")
        self.gold = WrittenTable(folder / "gold")
        self.folders = [self.enrich.folder, self.totals.folder]
        self.tables = [self.bronze.root, self.gold.root]
        for number in range(batches):
            self.enrich.batch(number, state=True)
            self.bronze.version((self.enrich.query, number), at_ms=began(number, 1000))
            if number >= lag:
                self.take(number - lag)

    def take(self, version: int) -> None:
        number = self.totals.batch(self.bronze.at(version + 1), state=True, at_ms=began(version + 1, 2000))
        self.gold.version((self.totals.query, number), at_ms=began(version + 1, 3000))

    def plan(self, to: str) -> RewindPlan:
        return planned(self.folders, to, self.tables)


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path)


def test_a_reader_of_an_undone_version_rolls_back_before_it(chain):
    plan = chain.plan("enrich@2")
    assert [(each.name, each.batch, each.state_version) for each in plan.queries] == [
        ("enrich", 2, 3),
        ("totals", 2, 3),
    ]
    assert [(table_of(plan, root).version) for root in chain.tables] == [2, 2]
    assert query_of(plan, "totals").undone == [3, 4]


def test_each_step_names_the_batch_that_forced_it(chain):
    reasons = query_of(chain.plan("enrich@2"), "totals").reasons
    bronze = f"table {chain.bronze.root}"
    assert [each.sentence for each in reasons] == [
        "enrich rolls back to batch 2: --to enrich@2",
        f"{bronze} rolls back from version 5 to version 2: it holds batches 3 to 5 of enrich, which rolls back to batch 2",
        f"totals rolls back from batch 4 to batch 2: it has read versions 3 to 4 of {bronze}, which rolls back to version 2",
    ]
    assert [(each.cause, each.who, each.other) for each in reasons] == [
        ("target", "enrich", ""),
        ("orphan", bronze, "enrich"),
        ("orphan", "totals", bronze),
    ]


def test_a_reader_that_rolls_back_alone_reads_its_source_again(chain):
    plan = chain.plan("totals@1")
    assert query_of(plan, "enrich").stays
    assert table_of(plan, chain.bronze.root).stays
    [again] = table_of(plan, chain.bronze.root).in_flight
    assert (again.reader, again.first, again.last) == ("totals", 2, 5)


def test_a_query_rolls_back_with_its_table(chain):
    """With `--to TABLE@VERSION`, the table's later batches would be lost if its writer continued."""
    plan = chain.plan("gold@2")
    assert (query_of(plan, "totals").batch, query_of(plan, "enrich").stays) == (2, True)
    [target, why] = query_of(plan, "totals").reasons
    assert (target.cause, why.cause) == ("target", "lost")
    assert why.sentence.endswith(f"table {chain.gold.root} at version 2 does not hold its batches 3 to 4")


def test_a_time_is_compared_with_the_commits_of_batches(chain):
    moment = began(3, 5000)  # enrich's batch 3 is committed at this moment, totals' batch 2 two seconds later
    plan = chain.plan("2023-11-14T22:13:55Z")
    assert plan.target.most == moment
    assert [(each.name, each.batch) for each in plan.queries] == [("enrich", 3), ("totals", 1)]


def test_undone_versions_name_their_writers(chain):
    chain.bronze.version(("somebody-else", 7), at_ms=began(9))
    chain.bronze.version(at_ms=began(9))
    plan = chain.plan("enrich@4")
    undone = table_of(plan, chain.bronze.root).undone
    assert [(each.version, each.batches, each.strangers) for each in undone] == [
        (5, ["enrich batch 5"], []),
        (6, [], ["somebody-else"]),
        (7, [], []),
    ]
    assert any("somebody-else wrote versions that go and is none of these queries" in note for note in plan.notes)
    assert any("written outside of these queries: 7" in note for note in plan.notes)


@pytest.mark.parametrize(("writer", "named"), [("spark-ckpt/store/gold/delta-rs", True), ("somebody-else", False)])
def test_a_plan_without_the_outbox_of_an_undone_version_names_the_missing_option(chain, writer, named):
    chain.bronze.version((writer, 7), at_ms=began(9))
    notes = chain.plan("enrich@4").notes
    assert any("plan again with --outbox STORE" in note for note in notes) is named


def test_an_unfinished_batch_stays_unless_its_input_is_undone(chain):
    """Spark runs it again with the same end offsets, and the table skips a batch that it has."""
    chain.enrich.batch(6, state=True, commit=False)
    chain.bronze.version((chain.enrich.query, 6))
    plan = chain.plan("totals@3")
    assert (query_of(plan, "enrich").stays, query_of(plan, "enrich").unfinished) == (True, 6)
    assert table_of(plan, chain.bronze.root).stays
    assert query_of(chain.plan("enrich@5"), "enrich").batch == 5
    assert table_of(chain.plan("enrich@5"), chain.bronze.root).version == 5


def test_a_partly_read_version_counts_as_read(chain):
    chain.totals.batch(chain.bronze.at(5, index=0), state=True)
    assert query_of(chain.plan("enrich@4"), "totals").batch == 4


def test_a_batch_without_its_state_is_skipped_with_a_reason(chain):
    for version in (3, 2):
        (chain.totals.folder / "state" / "0" / "0" / f"{version}.delta").unlink()
    plan = chain.plan("enrich@2")
    totals = query_of(plan, "totals")
    assert totals.batch == 0
    assert [(each.point, each.why) for each in totals.passed_over] == [
        (2, "operator 0, partition 0: no state of version 3, version 3 is missing"),
        (1, "operator 0, partition 0: no state of version 2, version 2 is missing"),
    ]


def test_a_table_with_vacuumed_files_rolls_back_further(chain):
    chain.bronze.version(removed=["part-1.parquet"])
    (chain.bronze.root / "part-1.parquet").unlink()
    plan = chain.plan("enrich@3")
    bronze = table_of(plan, chain.bronze.root)
    assert (bronze.version, query_of(plan, "enrich").batch) == (0, 0)
    assert bronze.passed_over[0].why == "data file part-1.parquet of version 3 is missing (VACUUM)"


def test_a_cleaned_up_log_limits_the_reachable_versions(chain):
    log = chain.bronze.root / "_delta_log"
    txn = pa.StructArray.from_arrays([pa.array([chain.enrich.query]), pa.array([3])], ["appId", "version"])
    ids = pa.StructArray.from_arrays([pa.array([chain.bronze.id])], ["id"])
    pq.write_table(pa.table({"txn": txn, "metaData": ids}), log / f"{3:020d}.checkpoint.parquet")
    for version in range(4):
        (log / f"{version:020d}.json").unlink()
    assert table_of(chain.plan("enrich@4"), chain.bronze.root).version == 4
    with pytest.raises(RewindOutOfReach) as raised:
        chain.plan("enrich@3")
    assert "--to enrich@4" in raised.value.hint


def test_an_unreachable_target_names_the_nearest_reachable_one(chain):
    """The log lacks its oldest batches, as Spark deletes them after `minBatchesToRetain`."""
    for number in range(3):
        (chain.enrich.folder / "offsets" / str(number)).unlink()
        (chain.enrich.folder / "commits" / str(number)).unlink()
    with pytest.raises(RewindOutOfReach) as raised:
        chain.plan("enrich@1")
    assert raised.value.hint == "the nearest that can be reached: --to enrich@3"
    assert raised.value.context["expired"] == "the oldest that its log still has is 3"
    assert query_of(chain.plan("enrich@3"), "enrich").batch == 3


@pytest.mark.parametrize("named", ["bronze", "path"])
def test_the_nearest_target_of_a_table_can_be_used_as_written(chain, named):
    for log in ("offsets", "commits"):
        for number in range(3):
            (chain.enrich.folder / log / str(number)).unlink()
    table = str(chain.bronze.root) if named == "path" else named
    with pytest.raises(RewindOutOfReach) as raised:
        chain.plan(f"{table}@1")
    found = raised.value.hint.partition("--to ")[2]
    assert found == f"{table}@3"
    assert (chain.plan(found).target.text, table_of(chain.plan(found), chain.bronze.root).version) == (found, 3)


def test_an_unknown_target_lists_names_that_can_be_used(chain):
    with pytest.raises(ConfigInvalid) as raised:
        chain.plan("silver@1")
    for each in raised.value.hint.removeprefix("there are: ").split(", "):
        assert chain.plan(f"{each}@2").queries


def test_the_nearest_is_reached_by_time_too(chain):
    for number in range(3):
        (chain.enrich.folder / "offsets" / str(number)).unlink()
        (chain.enrich.folder / "commits" / str(number)).unlink()
    with pytest.raises(RewindOutOfReach) as raised:
        chain.plan("2023-11-14T22:13:21Z")
    found = raised.value.hint.rpartition(" ")[2]
    assert [each.batch for each in chain.plan(found).queries] == [3, 1]


def test_a_plan_has_a_digest_of_each_query_and_table(chain):
    """A new batch changes the digest, so an outdated plan is detected."""
    first, same = chain.plan("enrich@2"), chain.plan("enrich@2")
    chain.totals.batch(chain.bronze.at(6), state=True)
    later = chain.plan("enrich@2")
    assert query_of(first, "totals").digest == query_of(same, "totals").digest != query_of(later, "totals").digest
    assert query_of(first, "enrich").digest == query_of(later, "enrich").digest
    assert table_of(first, chain.gold.root).digest == table_of(later, chain.gold.root).digest


def test_a_printed_plan_is_read_unchanged(chain):
    plan = chain.plan("enrich@2")
    assert RewindPlan.model_validate_json(plan.model_dump_json()) == plan
    assert (plan.format, plan.made_at_ms) == (1, NOW_MS)


def test_tables_are_found_below_a_folder_and_around_a_checkpoint(tmp_path):
    chain = Chain(tmp_path / "lake")
    assert chain.plan("enrich@2").tables == planned(chain.folders, "enrich@2", [tmp_path]).tables
    inside = chain.gold.root / "_checkpoints" / "totals"
    shutil.move(chain.totals.folder, inside)
    plan = planned([chain.enrich.folder, inside], "enrich@2", [chain.bronze.root])
    assert [each.path for each in plan.tables] == [str(chain.bronze.root), str(chain.gold.root)]


def test_a_query_without_a_batch_stays(tmp_path):
    chain = Chain(tmp_path)
    new = WrittenQuery(tmp_path / "new")
    plan = planned([*chain.folders, new.folder], "enrich@2", chain.tables)
    assert query_of(plan, "new").stays


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("yesterday", "neither a time nor NAME@NUMBER"),
        ("0001-01-01T00:00:00+14:00", "neither a time nor NAME@NUMBER"),
        ("9999-12-31T23:59:59-14:00", "neither a time nor NAME@NUMBER"),
        ("2023-11-14T22:13:55", "in which time zone?"),
        ("enrich@x", "'x' is no number"),
        ("nobody@3", "no query and no table 'nobody'"),
        ("enrich@6", "there is no batch 6, its newest committed batch is 5"),
        ("gold@9", "there is no version 9, its newest version is 4"),
        ("3", "of which query?"),
    ],
)
def test_a_wrong_target_is_refused(chain, to, message):
    with pytest.raises(ConfigInvalid, match=message):
        chain.plan(to)


def test_only_queries_that_roll_back_have_their_partitions_listed(chain, monkeypatch):
    """Most of a plan's time is listings; `benchmarks/inside/rewind_plans.py` measures it."""
    listed = []
    real = state_versions.numbered_folders
    monkeypatch.setattr(state_versions, "numbered_folders", lambda folder: listed.append(folder) or real(folder))
    chain.plan("totals@1")
    assert {each.parent.parent.name for each in listed if each.name == "0"} == {"totals"}


def test_each_input_file_is_looked_up_once_for_all_batches(tmp_path, monkeypatch):
    query, log = WrittenQuery(tmp_path / "query"), tmp_path / "query" / "sources" / "0"
    log.mkdir(parents=True)
    for number in range(6):
        query.batch({"logOffset": number})
        paths = [tmp_path / f"{number}-{part}.json" for part in range(2)]
        for path in paths:
            path.touch()
        entries = [json.dumps({"path": path.as_uri(), "timestamp": 0, "batchId": number}) for path in paths]
        (log / str(number)).write_text("\n".join(["v1", *entries]))
    looked = Counter[str]()
    found = source_files.file_of
    monkeypatch.setattr(source_files, "file_of", lambda uri: looked.update([uri]) or found(uri))
    assert query_of(planned([query.folder], "query@3"), "query").batch == 3
    assert max(looked.values()) == 1
    (tmp_path / "2-0.json").unlink()
    assert query_of(planned([query.folder], "query@3"), "query").batch == 3
    with pytest.raises(RewindOutOfReach) as raised:
        planned([query.folder], "query@1")
    assert "2-0.json again, and it is missing" in str(raised.value.context["gone"])
