"""delta-spark reads the store's own tables: state at any epoch by plain `versionAsOf`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "store"))
from store_world import OPERATOR, SINK, World

pytestmark = pytest.mark.spark


def state_at(spark: SparkSession, world: World, version: int) -> dict[str, int]:
    """The newest row of every key by SQL alone, as a user would write it."""
    table = world.store.state(OPERATOR).location.uri
    rows = spark.read.format("delta").option("versionAsOf", version).load(table)
    newest = rows.groupBy("k").agg(F.max_by(F.struct("v", "ckpt_op"), "ckpt_epoch").alias("last"))
    return {row.k: row.last.v for row in newest.where("last.ckpt_op = 'put'").collect()}


def world_with_history(folder: Path) -> World:
    world = World(folder / "store")
    world.begin()
    world.epoch({"a": 1, "b": 1})
    world.epoch({"a": 2, "c": 2})
    world.epoch({"b": None})
    world.epoch({"c": 4}, full=True)
    world.begin(restore=2)
    world.epoch({"d": 5})
    return world


def test_spark_reads_the_state_of_every_epoch_by_its_version(spark: SparkSession, tmp_path: Path) -> None:
    world = world_with_history(tmp_path)
    for epoch in range(1, 6):
        version = world.store.state(OPERATOR).version(epoch)

        assert state_at(spark, world, version) == world.expected[epoch] == world.state_at(epoch)


def test_the_newest_version_is_the_newest_epoch(spark: SparkSession, tmp_path: Path) -> None:
    world = world_with_history(tmp_path)
    rows: Any = spark.sql(f"DESCRIBE HISTORY delta.`{world.store.state(OPERATOR).location.uri}`").collect()

    assert rows[0].version == world.store.state(OPERATOR).version(5)


def test_the_query_of_the_page_about_state_reads_an_epoch(spark: SparkSession, tmp_path: Path) -> None:
    world = world_with_history(tmp_path)
    state = world.store.state(OPERATOR)
    page = (Path(__file__).parents[2] / "docs" / "state.md").read_text()
    query = page.partition("```sql\n")[2].partition("```")[0]
    for asked, here in (
        ("<store>/state/totals", state.location.uri),
        ("PARTITION BY customer", "PARTITION BY k"),
        ("AS OF 7", f"AS OF {state.version(5)}"),
    ):
        assert asked in query
        query = query.replace(asked, here)

    assert {row.k: row.v for row in spark.sql(query).collect()} == world.expected[5]


def test_the_python_api_of_the_extra_delta_reads_the_tables_of_a_store(spark: SparkSession, tmp_path: Path) -> None:
    from delta.tables import DeltaTable

    world = world_with_history(tmp_path)
    state = world.store.state(OPERATOR)
    opened = DeltaTable.forPath(spark, state.location.uri)

    assert opened.history(1).collect()[0].version == state.version(5)
    assert {row.k for row in opened.toDF().collect()} == {"a", "b", "c", "d"}


def test_an_outbox_is_a_plain_delta_table_of_the_staged_rows(spark: SparkSession, tmp_path: Path) -> None:
    world = world_with_history(tmp_path)

    rows = spark.read.format("delta").load(world.store.staged(SINK).location.uri).collect()

    assert sorted(row.value for row in rows) == [f"row of {epoch}" for epoch in range(1, 6)]


@pytest.mark.long  # in the gate: tests/store/test_damaged_logs_say_so.py reads a folded log
def test_a_folded_log_still_opens_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.begin()
    for n in range(70):
        world.epoch({"a": n})

    assert state_at(spark, world, world.store.state(OPERATOR).version(70)) == {"a": 69}
