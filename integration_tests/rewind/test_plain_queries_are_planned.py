"""Three real plain queries at different positions: the plan's line agrees with the tables and the state that it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from lake import POISON, STATE, Lake, ids_of_file, made_lake
from pyspark.sql import SparkSession

from integration_tests.spark import connected_session
from spark_ckpt.cli.app import exit_code
from spark_ckpt.errors import RewindOutOfReach
from spark_rewind.pinning import PinRequest, take_pin
from spark_rewind.plan import QueryPlan, RewindPlan, TablePlan
from spark_rewind.planning import RewindRequest, plan_rewind

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
]  # in the gate: tests/rewind, test_an_outbox_is_rewound.py

PAGE = Path(__file__).parents[2] / "docs" / "rewind.md"

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS, ROCKSDB_2 = "HDFS-backed", "RocksDB, changelog, checkpoint format 2"
KINDS = {
    HDFS: {},
    ROCKSDB_2: {
        f"{STATE}.providerClass": ROCKSDB,
        f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{STATE}.checkpointFormatVersion": "2",
    },
}


OTHER_POINTS = [pytest.param(to, marks=pytest.mark.long) for to in ("ingest@7", "dedup@5", "gold@1")]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session({"spark.databricks.delta.snapshotPartitions": "1"})


@pytest.fixture(scope="module", params=[HDFS, ROCKSDB_2])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return made_lake(tmp_path_factory.mktemp("lake"), spark, KINDS[request.param])


def planned(lake: Lake, to: str) -> RewindPlan:
    folders = [str(lake.checkpoint(name)) for name in ("ingest", "dedup", "publish")]
    return plan_rewind(RewindRequest(folders, to, [str(lake.root)]), 0)


def query(plan: RewindPlan, name: str) -> QueryPlan:
    return next(each for each in plan.queries if each.name == name)


def table(plan: RewindPlan, name: str) -> TablePlan:
    return next(each for each in plan.tables if each.path.endswith(f"/{name}"))


def rows_up_to(lake: Lake, plan: RewindPlan, name: str) -> int:
    """Input rows of a query up to its point, from its progress."""
    last = query(plan, name).batch
    return sum(rows for batch, rows in lake.rows[name].items() if last is None or batch <= last)


def test_the_queries_are_at_their_expected_positions(lake):
    plan = planned(lake, "ingest@9")
    assert [each.newest for each in plan.queries[:2]] == [9, 8]
    assert query(plan, "publish").unfinished == (query(plan, "publish").newest or 0) + 1
    assert POISON in lake.ids("silver", 8)
    assert POISON not in lake.ids("gold", table(plan, "gold").newest)
    assert [each.stays for each in plan.queries] == [True, True, True]


@pytest.mark.parametrize("to", ["ingest@4", "publish@2", "bronze@6", *OTHER_POINTS])
def test_tables_and_state_at_the_line_are_those_of_one_prefix(lake, to):
    plan = planned(lake, to)
    bronze, silver, gold = (lake.ids(name, table(plan, name).version) for name in ("bronze", "silver", "gold"))
    ingested = query(plan, "ingest").batch
    files = 10 if ingested is None else ingested + 1
    assert bronze == sorted(each for number in range(files) for each in ids_of_file(number))

    # the rows that were read of a table are a prefix of the table, and the output was made of these rows only
    versions = [lake.ids("bronze", version) for version in range(table(plan, "bronze").version + 1)]
    assert rows_up_to(lake, plan, "dedup") in [0, *map(len, versions)]
    taken = next((each for each in versions if len(each) == rows_up_to(lake, plan, "dedup")), [])
    assert silver == sorted(set(taken))
    assert len(gold) == len(set(gold)) == rows_up_to(lake, plan, "publish")
    assert set(gold) <= set(silver)
    again = table(plan, "silver").in_flight
    assert set(gold) >= set(lake.ids("silver", again[0].first - 1)) if again else gold in ([], silver)

    batch = query(plan, "dedup").batch
    if batch is not None and batch >= 0:
        assert query(plan, "dedup").state_version == batch + 1
        assert lake.state("dedup", batch) == silver


@pytest.mark.parametrize("to", ["ingest@4", "dedup@5"])
def test_one_batch_more_of_anybody_would_be_wrong(lake, to):
    """The line is the greatest: the next batch of a rewound query has read rows that the line undoes, or it is at the target."""
    plan = planned(lake, to)
    for name, source in (("dedup", "bronze"), ("publish", "silver")):
        back = query(plan, name)
        if back.batch is not None and f"{name}@{back.batch}" != to:
            following = sum(rows for batch, rows in lake.rows[name].items() if batch <= back.batch + 1)
            assert following > len(lake.ids(source, table(plan, source).version))


def test_spark_reads_the_state_of_a_pinned_point(lake, tmp_path):
    """The point's folder is a checkpoint: Spark's own reader loads its state, which equals the table at its pinned version."""
    folders = [str(lake.checkpoint(name)) for name in ("ingest", "dedup", "publish")]
    point = take_pin(PinRequest(RewindRequest(folders, "", [str(lake.root)]), tmp_path / "pins"), 0).kept
    assert point.point is not None
    pinned = next(each for each in point.point.queries if each.name == "dedup")
    version = next(each.version for each in point.point.tables if each.path.endswith("/silver"))
    with lake.settings():
        read = lake.spark.read.format("statestore").option("batchId", pinned.batch)
        rows = read.load(str(point.folder / pinned.kept_in)).select("key.id").collect()
    assert sorted(row.id for row in rows) == lake.ids("silver", version)


def test_the_page_has_the_plan_that_the_command_prints(lake, capsys):
    """Except for the paths of folders, and so the width of columns."""
    names = [str(lake.checkpoint(name)) for name in ("ingest", "dedup", "publish")]
    assert exit_code(["rewind", "plan", *names, "--table", str(lake.root), "--to", "ingest@4"]) == 0
    printed = capsys.readouterr().out.replace(str(lake.root), "/lake")
    page = PAGE.read_text()
    shown = page[page.index("to ingest@4: ") : page.index("Nothing was changed.\n```")] + "Nothing was changed.\n"
    assert [line.split() for line in printed.splitlines()] == [line.split() for line in shown.splitlines()]


def test_a_state_file_that_is_lost_is_noticed_as_spark_notices_it(lake):
    """The last test, since it deletes a file: a state that counts as loadable is loaded by Spark's reader."""
    partition = lake.checkpoint("dedup") / "state" / "0" / "0"
    [lost] = [
        path for path in partition.iterdir() if path.name.split("_")[0].split(".")[0] == "6" and path.suffix != ".crc"
    ]
    hidden = lost.rename(lost.with_name(f".{lost.name}"))
    try:
        plan = planned(lake, "dedup@7")
        batch = query(plan, "dedup").batch
        assert batch == 4
        assert [each.point for each in query(plan, "dedup").passed_over] == [7, 6, 5]
        assert lake.state("dedup", batch)
        with pytest.raises(Exception, match=r"(?s)STATE|state|6\.delta|exist"):
            lake.state("dedup", 6)
    finally:
        hidden.rename(lost)


def test_a_point_with_a_cleaned_up_table_is_unreachable_and_the_nearest_is_reachable(lake):
    DeltaTable(str(lake.table("bronze"))).create_checkpoint()
    for version in range(3):
        (lake.table("bronze") / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(RewindOutOfReach) as raised:
        planned(lake, "ingest@1")
    nearest = raised.value.hint.rpartition("--to ")[2]
    assert table(planned(lake, nearest), "bronze").version == 9
