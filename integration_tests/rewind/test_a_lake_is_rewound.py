"""Three real plain queries are rewound to before a bug, and the rewind is undone: Spark itself continues from the written files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pyarrow.parquet as pq
import pytest
from lake import STATE, Lake, ids_of_file
from pyspark.sql import SparkSession

from integration_tests.spark import connected_session
from spark_ckpt import failpoints
from spark_ckpt.failpoints import FailpointHit
from spark_ckpt.spark_internals.jvm import jvm_of
from spark_rewind.applying import ApplySettings, apply, undo
from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.declared import Declared
from spark_rewind.fences import fence_paths, put_fences, remove_fences
from spark_rewind.pin_listener import PinListener
from spark_rewind.pins import kept_points
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind

pytestmark = pytest.mark.spark

NAMES = ("ingest", "dedup", "publish")
SETTINGS = ApplySettings(lambda: None, 1_700_000_000_000, "spark-ckpt/test")
ROCKSDB = {
    f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{STATE}.minDeltasForSnapshot": "3",
}
WHOLE = ROCKSDB | {f"{STATE}.rocksdb.changelogCheckpointing.enabled": "false"}
FORMAT_2 = {f"{STATE}.checkpointFormatVersion": "2"}
KINDS = {
    "HDFS-backed": {},
    "RocksDB, changelog": ROCKSDB,
    "RocksDB, changelog, checkpoint format 2": ROCKSDB | FORMAT_2,
    "RocksDB, snapshots": WHOLE,
    "RocksDB, snapshots, checkpoint format 2": WHOLE | FORMAT_2,
}
TAKEN_BACK = (
    "RocksDB, changelog",
    pytest.param("RocksDB, changelog, checkpoint format 2", marks=pytest.mark.long),
    pytest.param("RocksDB, snapshots", marks=pytest.mark.long),
)
"""The later tests have the other kinds."""
GOOD, ALL = 4, 8


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session({"spark.databricks.delta.snapshotPartitions": "1"})


@pytest.fixture
def lake_of(spark: SparkSession, tmp_path: Path) -> Callable[[str], Lake]:
    """Four good files, then three that a bug changed; `publish` has failed on one of them, `dedup` is one file behind."""

    def made(kind: str) -> Lake:
        lake = Lake(tmp_path / "lake", spark, KINDS[kind], poison=-45)
        lake.drop(GOOD)
        lake.run("dedup")
        lake.run("publish")
        lake.sign = -1
        lake.drop(2)
        lake.run("dedup")
        assert "poison" in (lake.run("publish") or "")
        lake.drop(1)
        return lake

    return made


def planned(lake: Lake) -> RewindPlan:
    """Plan after the application's end: its JVM still runs here, so unload the state and finish uploads."""
    jvm_of(lake.spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    return plan_rewind(
        RewindRequest([str(lake.checkpoint(name)) for name in NAMES], f"ingest@{GOOD - 1}", [str(lake.root)]), 0
    )


def run_on(lake: Lake) -> dict[str, list[int]]:
    """Add one more file, and run all queries to their end."""
    lake.drop(1)
    for name in ("dedup", "publish"):
        assert lake.run(name) is None
    return {name: sorted(row.id for row in lake.spark.read.format("delta").load(str(lake.table(name))).collect())
            for name in ("bronze", "silver", "gold")}  # fmt: skip


def wanted(sign_of: Callable[[int], int]) -> dict[str, list[int]]:
    rows = [sign_of(number) * each for number in range(ALL) for each in ids_of_file(number)]
    return {"bronze": sorted(rows), "silver": sorted(set(rows)), "gold": sorted(set(rows))}


def the_state(lake: Lake) -> list[int]:
    """Keys of `dedup` after its newest batch, by Spark's own reader."""
    newest = read_checkpoint(lake.checkpoint("dedup"), "dedup").committed
    assert newest is not None
    return lake.state("dedup", newest)


@pytest.mark.parametrize("kind", TAKEN_BACK)
@pytest.mark.long
def test_tables_are_those_of_queries_that_never_had_the_bug(lake_of, kind):
    lake = lake_of(kind)
    apply(planned(lake), SETTINGS)
    lake.sign, lake.poison = 1, None
    assert run_on(lake) == wanted(lambda number: 1)
    assert the_state(lake) == wanted(lambda number: 1)["silver"]


@pytest.mark.long
def test_after_an_undo_tables_are_those_of_queries_that_were_never_rewound(lake_of):
    lake = lake_of("RocksDB, snapshots, checkpoint format 2")
    plan = planned(lake)
    apply(plan, SETTINGS)
    undo(plan, SETTINGS)
    lake.poison = None
    assert run_on(lake) == wanted(lambda number: 1 if number < GOOD else -1)


@pytest.mark.long  # in the gate: the fences in tests/rewind/test_bugs_of_a_rewind_are_caught.py
def test_no_query_starts_during_an_incomplete_rewind(lake_of):
    """The command is killed when one checkpoint of three is in its place; then it runs again, and the queries run."""
    lake = lake_of("HDFS-backed")
    plan = planned(lake)
    with failpoints.armed("REWIND_SWAPPED:raise:2"), pytest.raises(FailpointHit):
        apply(plan, SETTINGS)
    for name in NAMES:
        assert "a rewind rolls this query back. Run `spark-ckpt rewind apply`" in (lake.run(name) or ""), name
    apply(plan, SETTINGS)
    lake.sign, lake.poison = 1, None
    assert run_on(lake) == wanted(lambda number: 1)
    assert the_state(lake) == wanted(lambda number: 1)["silver"]
    a_running_query_stops_at_a_fence(lake)


def a_running_query_stops_at_a_fence(lake: Lake) -> None:
    """A query that waits for input leaves no trace, so it is not detected as running."""
    folder = lake.checkpoint("ingest")
    fences = fence_paths(read_checkpoint(folder, "ingest"), folder)
    running = lake.started("ingest", once=False)
    try:
        running.processAllAvailable()
        put_fences(fences, "x")
        (lake.root / "inbox" / "late.json").write_text('{"id": 1000}\n')
        with pytest.raises(Exception, match=r"CONCURRENT_STREAM_LOG_UPDATE|concurrently using"):
            running.processAllAvailable()
    finally:
        running.stop()
    remove_fences(fences, "x")


def exported(lake: Lake) -> list[list[int]]:
    """`export` writes a clustered table's rows as files, `mirror` these files as a table: contents of log, folder and table."""
    out, mirrored = lake.root / "out", lake.table("mirrored")
    read = lake.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    for name, rows, form, target in (
        ("export", lambda: lake.stream("bronze"), "parquet", out),
        ("mirror", lambda: read.parquet(str(out)), "delta", mirrored),
    ):
        writer = rows().writeStream.format(form).option("checkpointLocation", str(lake.checkpoint(name)))
        with lake.settings():
            writer.trigger(availableNow=True).start(str(target)).awaitTermination()
    by_log, by_table = (lake.spark.read.format(form).load(str(path)) for form, path in
                        (("parquet", out), ("delta", mirrored)))  # fmt: skip
    listed = [each for path in out.glob("*.parquet") for each in pq.read_table(path).column("id").to_pylist()]
    return [sorted(row.id for row in by_log.collect()), sorted(listed), sorted(row.id for row in by_table.collect())]


FOLDED = "spark.sql.streaming.fileSink.log.compactInterval"


@pytest.mark.long
def test_files_of_a_sink_and_a_clustered_table_are_rewound_and_spark_continues(spark, tmp_path):
    lake = Lake(tmp_path / "lake", spark, {FOLDED: "3"})
    spark.sql(f"CREATE TABLE delta.`{lake.table('bronze')}` (id LONG) USING delta CLUSTER BY (id)")
    lake.drop(GOOD)
    before = exported(lake)
    lake.sign = -1
    lake.drop(2)
    exported(lake)
    declared = Declared.model_validate({"folders": [{"path": str(lake.root / "out"), "written_by": "export"}]})
    names = [str(lake.checkpoint(name)) for name in ("ingest", "export", "mirror")]
    apply(plan_rewind(RewindRequest(names, f"ingest@{GOOD - 1}", [str(lake.root)], declared), 0), SETTINGS)
    assert exported(lake) == before
    lake.sign = 1
    lake.drop(1)
    rows = sorted(each for number in range(ALL - 1) for each in ids_of_file(number))
    assert exported(lake) == [rows] * 3
    assert list((lake.root / "out" / "_spark_metadata").glob("*.compact"))


class Companion(PinListener):
    """A listener that signals the end of a query, and so the report of all its batches."""

    def __init__(self, lake: Lake) -> None:
        tables = [str(lake.root)]
        super().__init__([str(lake.checkpoint("ingest"))], str(lake.root / "pins"), budget="1GiB", tables=tables)
        self.ended = Event()

    def onQueryTerminated(self, event) -> None:
        super().onQueryTerminated(event)
        self.ended.set()


@pytest.mark.long  # in the gate: tests/rewind/test_a_listener_pins_points.py
def test_a_listener_of_a_running_query_pins_points_for_a_rewind(spark, tmp_path):
    lake = Lake(tmp_path / "lake", spark, {})
    listener = Companion(lake)
    spark.streams.addListener(listener)
    try:
        lake.drop(2)
        assert listener.ended.wait(60)
        listener.wait(60)
    finally:
        spark.streams.removeListener(listener)
    [point] = kept_points(lake.root / "pins")
    [query], [table] = point.point.queries, point.point.tables
    lake.drop(1)
    request = RewindRequest([query.folder], point.point.id, [str(lake.root)], pins=lake.root / "pins")
    apply(plan_rewind(request, 0), SETTINGS)
    held = sorted(row.id for row in spark.read.format("delta").load(table.path).collect())
    assert held == sorted(each for number in range(query.batch + 1) for each in ids_of_file(number))
