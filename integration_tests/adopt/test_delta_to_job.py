"""Adoption from RocksDB with files that have ids, from Delta, with a watermark and timeouts; and the planted faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from spark_ckpt_delta import DeltaSink, DeltaSource, source
from spark_ckpt_delta.changes import Bounds, History, Position

import spark_ckpt as ckpt
from integration_tests.adopt.sessions import GAP_MS, sessions
from spark_ckpt.cli.app import exit_code
from spark_ckpt.epochs.records import chain_of
from spark_ckpt.spark_internals.query_logs import parse_batch
from spark_ckpt.store.ddl import arrow_schema
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.rows import StateSchema
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.tasks.state.levels import LevelCache, range_ref
from spark_rewind.adopt import state as adopt_state
from tests.rewind.rewind_kit import content_of

pytestmark = pytest.mark.spark

STATE_STORE = "spark.sql.streaming.stateStore"
ROCKSDB = {
    f"{STATE_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{STATE_STORE}.checkpointFormatVersion": "2",
}
RECORD, STATE, OUTPUT = "user string, at timestamp, v long", "n long", "user string, n long"
T0_S = 1_700_000_000
DELAY = "5 seconds"
USERS = [f"user-{number:02}" for number in range(30)]
JOB, KEY_GROUPS = "sessions", 8


@dataclass
class World:
    """A table `bronze` that a plain query has read, its checkpoint, and its output."""

    spark: SparkSession
    root: Path
    rows_of_batch: dict[int, int]

    @property
    def bronze(self) -> str:
        return str(self.root / "bronze")

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def feed(self, rows: list[tuple[str, int, int]], files: int = 1) -> None:
        """Write (user, seconds after T0, value) as one version of `files` files."""
        frame = self.spark.createDataFrame(
            [(user, T0_S + after, v) for user, after, v in rows], "user string, at long, v long"
        )
        frame = frame.withColumn("at", F.timestamp_seconds("at")).repartition(files)
        frame.write.format("delta").mode("append").save(self.bronze)

    def run_plain(self) -> None:
        for key, value in ROCKSDB.items():
            self.spark.conf.set(key, value)
        try:
            read = self.spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(self.bronze)
            sums = (
                read.withWatermark("at", DELAY)
                .groupBy("user")
                .applyInPandasWithState(sessions, OUTPUT, STATE, "append", GroupStateTimeout.EventTimeTimeout)
            )
            writer = sums.writeStream.format("delta").option("checkpointLocation", str(self.checkpoint))
            query = writer.trigger(availableNow=True).start(str(self.root / "table"))
            query.awaitTermination()
            self.rows_of_batch |= {each["batchId"]: each["numInputRows"] for each in query.recentProgress}
        finally:
            for key in ROCKSDB:
                self.spark.conf.unset(key)

    def adopt(self, store: str) -> int:
        arguments = [
            "adopt",
            str(self.checkpoint),
            str(self.root / store),
            "--job",
            JOB,
            "--source",
            "bronze",
            "--json",
            "--watch-s",
            "0",
        ]
        return exit_code([*arguments, "--operator", "sessions", "--key-groups", str(KEY_GROUPS)])

    def store(self, name: str) -> Store:
        return Store.open(str(self.root / name), JOB)

    def run_job(self, store: str) -> None:
        job = ckpt.Job(self.spark, JOB, store=str(self.root / store), interval="1 second")
        rows = job.source("bronze", DeltaSource(self.bronze, maxFilesPerTrigger=1)).withWatermark("at", DELAY)
        counted = rows.groupBy("user").applyInPandasWithState(
            sessions, OUTPUT, STATE, "append", GroupStateTimeout.EventTimeTimeout, name="sessions"
        )
        counted.to(DeltaSink(str(self.root / "table")))
        assert job.start(availableNow=True).awaitTermination(180)

    def shown(self) -> list[tuple[str, int]]:
        table = DeltaTable(str(self.root / "table")).to_pyarrow_table()
        return sorted(zip(table.column("user").to_pylist(), table.column("n").to_pylist(), strict=True))

    def rows_behind(self, position: Position) -> int:
        """Rows of `bronze` that a source at this position would read."""
        newest = DeltaTable(self.bronze).version()
        history = History(self.bronze, {}, "fail", [], newest)
        _, files = history.take(position, Bounds(last_version=newest))
        return sum(pq.read_metadata(Path(self.bronze) / file.path).num_rows for file in files)


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A snapshot of two files, and two more versions of two files; a file is a batch."""
    world = World(spark, tmp_path_factory.mktemp("delta"), {})
    world.feed([(user, 0, 1) for user in USERS], files=2)
    world.run_plain()
    world.feed([(user, 5, 2) for user in USERS[:20]], files=2)
    world.feed([(user, 10, 3) for user in USERS[:10]], files=2)
    world.run_plain()
    return world


COUNTS = {user: 1 + (number < 20) + (number < 10) for number, user in enumerate(USERS)}
"""Counts of the plain query."""


def faults(world: World, store: str) -> list[str]:
    """Faults of an adopted epoch, found without its code: each key is looked up as the operator does, by Spark's hash."""
    opened = world.store(store)
    manifest = opened.log.manifest(1)
    opened.verify(manifest, deep=True)
    found = []
    unread = world.rows_behind(Position.of(manifest.cursors["bronze"]))
    if unread:
        found.append(f"{unread} rows would be read again")
    if manifest.cursors["bronze"]["version"] != DeltaTable(world.bronze).version() + 1:
        found.append("the next version would be skipped")
    snapshot = manifest.operators["sessions"]
    schema = StateSchema(arrow_schema(snapshot.key_schema), arrow_schema(snapshot.state_schema))
    frame = world.spark.createDataFrame([(user,) for user in USERS], "user string")
    hashes = {row.user: row.h for row in frame.select("user", F.xxhash64("user").alias("h")).collect()}
    cache = LevelCache(world.root / f"{store}-cache", opened.state("sessions").location, schema, "sessions")
    for user, n in COUNTS.items():
        group = hashes[user] % snapshot.key_groups
        files = [range_ref(file, group) for file in chain_of(snapshot.files, group)]
        held = KeyGroupState.restored(schema, cache, group, files)
        there = held.resolve(pa.table({"user": [user]}), np.array([hashes[user]]))
        timeout_ms = (T0_S + {1: 0, 2: 5, 3: 10}[n]) * 1000 + GAP_MS
        if (there.state.to_pylist(), there.timeout_ms.tolist()) != ([{"n": n}], [timeout_ms]):
            found.append(f"{user}: {there.state.to_pylist()} with timeout {there.timeout_ms.tolist()}")
    rows = sum(file.rows for file in snapshot.files)
    return found + ([] if rows == len(USERS) else [f"{rows} keys"])


def test_our_source_continues_after_the_end_of_any_batch(world):
    """Also inside of a snapshot or a version: Spark's index and ours count the same files in the same order."""
    inside = 0
    for path in sorted((world.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)):
        line = parse_batch(path.read_text()).offsets["0"]
        position = Position.of(DeltaSource.adopted(line or "").cursor)
        inside += position.index > 0
        later = sum(rows for batch, rows in world.rows_of_batch.items() if batch > int(path.name))
        assert world.rows_behind(position) == later, line
    assert inside >= 3


def test_each_key_is_where_the_operator_looks_for_it(world, capsys):
    before = content_of(world.checkpoint)
    assert world.adopt("whole") == 0
    assert content_of(world.checkpoint) == before
    shown = json.loads(capsys.readouterr().out)["operators"]["sessions"]
    assert (shown["keys"], shown["timeouts"], shown["key_groups"]) == (len(USERS), len(USERS), KEY_GROUPS)
    assert faults(world, "whole") == []


def one_file_too_far(patch: pytest.MonkeyPatch) -> None:
    good = source.position_of_spark
    patch.setattr(source, "position_of_spark", lambda line: good(line).following())


def one_version_too_early(patch: pytest.MonkeyPatch) -> None:
    good = source.position_of_spark
    patch.setattr(source, "position_of_spark", lambda line: Position(good(line).table, good(line).version - 1))


def without_a_partition_of_the_state(patch: pytest.MonkeyPatch) -> None:
    good = adopt_state.state_rows
    patch.setattr(adopt_state, "state_rows", lambda *of: good(*of).where(F.spark_partition_id() != 1))


def keys_in_the_wrong_group(patch: pytest.MonkeyPatch) -> None:
    good = adopt_state.key_hash_of
    patch.setattr(adopt_state, "key_hash_of", lambda *of: good(*of) + F.lit(1))


def without_timeouts(patch: pytest.MonkeyPatch) -> None:
    good = adopt_state.state_rows
    patch.setattr(adopt_state, "state_rows", lambda *of: good(*of).withColumn("timeout_ms", F.lit(None).cast("long")))


@pytest.mark.parametrize(
    "bug",
    [
        one_file_too_far,
        one_version_too_early,
        without_a_partition_of_the_state,
        keys_in_the_wrong_group,
        without_timeouts,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_is_found(world: World, bug: Callable[[pytest.MonkeyPatch], None], monkeypatch, capsys):
    with monkeypatch.context() as patched:
        bug(patched)
        assert world.adopt(bug.__name__) == 0
    assert faults(world, bug.__name__) != []


def test_a_damaged_state_file_is_reported_and_leaves_no_store(world, capsys):
    """All names are there: only Spark's reader notices the damage."""
    partition = world.checkpoint / "state" / "0" / "0"
    newest = max(partition.glob("*.changelog"), key=lambda path: int(path.name.split("_")[0]))
    whole = newest.read_bytes()
    newest.write_bytes(b"\0" * len(whole))
    try:
        assert world.adopt("damaged") == 5
    finally:
        newest.write_bytes(whole)
    output = capsys.readouterr()
    assert output.err.startswith('{"error": {"condition": "CKPT_CHECKPOINT_DAMAGED"')
    assert "Traceback" not in output.err
    assert not (world.root / "damaged").exists()


def test_a_batch_that_only_its_output_has_is_not_done_again(world, capsys):
    """Files without ids are read after a batch that was not committed; with ids its commit would have to name them."""
    newest = max((world.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    hidden = newest.rename(world.root / "commit")
    try:
        arguments = ["adopt", str(world.checkpoint), str(world.root / "unfinished"), "--job", JOB, "--source", "bronze"]
        code = exit_code([*arguments, "--operator", "sessions", "--output", str(world.root / "table")])
    finally:
        hidden.rename(newest)
    assert (code, "may be incomplete" in capsys.readouterr().err) == (5, True)


def test_it_continues_as_a_job_with_its_watermark_and_its_timeouts(world):
    """The last test, since the job reads more. The result is that of an undisturbed run: each user once, no late record counted."""
    assert world.adopt("store") == 0
    world.feed([*((user, 12, 4) for user in USERS[:5]), ("user-29", -3600, 5), ("tick", 100, 6)])
    world.feed([("tick", 101, 7)])
    world.run_job("store")
    assert world.shown() == sorted((user, COUNTS[user] + (user in USERS[:5])) for user in USERS)
    store = world.store("store")
    [left] = store.state("sessions").read(store.log.state().latest).to_pylist()
    assert (left["user"], left["n"]) == ("tick", 2)
