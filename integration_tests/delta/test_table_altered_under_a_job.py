"""Another user alters a job's table, or restores it to before its store: the job refuses, and its advice leads to a running job."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.survival.process import wait_until
from spark_ckpt.errors import CkptError, IdentityChanged, PublishConflict, RowsRefused, SinkInvalid

pytestmark = pytest.mark.spark
SPARK = {"engine": "spark", "keys": ["id"]}
BOTH = pytest.mark.parametrize(
    "sink", [{}, pytest.param(SPARK, marks=pytest.mark.long)], ids=["deltalake", "spark"]
)  # in the gate, for the engine spark: its refusals in test_delta_spark.py, and the two tests of a merge below


class Published(ckpt.RunListener):
    """Counts the rows that the sink has acknowledged."""

    rows = 0

    def onEpochPublished(self, event: ckpt.EpochEvent) -> None:
        self.rows += event.detail["rows"]


class Altered:
    """A job from files to a table."""

    def __init__(self, spark: SparkSession, folder: Path, sink: dict[str, Any]) -> None:
        self._spark, self._folder, self._sink = spark, folder, sink
        self.table = str(folder / "table")
        (folder / "in").mkdir()

    def put(self, number: int, *rows: dict[str, Any]) -> None:
        hidden = self._folder / "in" / f".{number}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(self._folder / "in" / f"{number}.json")

    def job(self, select: str = "id long, v string") -> ckpt.Job:
        job = ckpt.Job(self._spark, "job", str(self._folder / "store"), interval="every batch", trigger="10 ms")
        rows = job.source("in", FilesSource(str(self._folder / "in"), "json", "id long, v string"))
        if select != "id long, v string":
            rows = rows.selectExpr(*select.split(", "))
        rows.to(DeltaSink(self.table, **self._sink), name="out", publish_every="0 seconds")
        return job

    def rows(self) -> list[tuple[Any, ...]]:
        if not DeltaTable.is_deltatable(self.table):
            return []
        found = pa.table(DeltaTable(self.table).scan().read_all()).to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def refused(self, change: Callable[[], object], *rows: dict[str, Any]) -> CkptError:
        """Return the error that ends the run if the table is altered between its first epoch and `rows`."""
        self.put(1, {"id": 1, "v": "one"})
        job, published = self.job(), Published()
        job.addListener(published)
        run = job.start()
        try:
            # The first row is visible a moment before the sink acknowledges it.
            wait_until(lambda: published.rows == 1, "the first row")
            change()
            self.put(2, *rows)
            with pytest.raises(CkptError) as caught:
                run.awaitTermination(180)
                pytest.fail("the run continued")
        finally:
            with suppress(CkptError):
                run.stop()
        return caught.value

    def drain(self, select: str = "id long, v string", **how: Any) -> None:
        assert self.job(select).start(availableNow=True, **how).awaitTermination(180)


@pytest.mark.long  # in the gate: tests/delta/test_delta_table_changes.py
@BOTH
def test_rows_that_break_a_new_constraint_are_published_once_it_is_dropped(
    spark: SparkSession, tmp_path: Path, sink: dict[str, Any]
) -> None:
    altered = Altered(spark, tmp_path, sink)
    name = f"delta.`{altered.table}`"

    def change() -> None:
        spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (id > 0)")

    error = altered.refused(change, {"id": -5, "v": "two"})

    assert isinstance(error, RowsRefused)
    assert {"sink": "out", "table": altered.table}.items() <= error.context.items()
    assert len(altered.rows()) == 1
    spark.sql(f"ALTER TABLE {name} DROP CONSTRAINT positive")
    altered.drain()
    assert altered.rows() == [(-5, "two"), (1, "one")]


# of Spark's engine in the gate: a column that was dropped under a merge, below
@pytest.mark.long  # in the gate: tests/delta/test_delta_table_changes.py
@BOTH
def test_a_job_that_fits_the_altered_table_continues_from_the_epoch_that_the_error_names(
    spark: SparkSession, tmp_path: Path, sink: dict[str, Any]
) -> None:
    altered = Altered(spark, tmp_path, sink)

    def change() -> None:
        columns = pa.schema([("id", pa.int64()), ("v", pa.int64())])
        rows = pa.table([[1], [1]], schema=columns)
        write_deltalake(altered.table, rows, mode="overwrite", schema_mode="overwrite")

    error = altered.refused(change, {"id": 2, "v": "two"})

    assert isinstance(error, RowsRefused)
    assert "column v is string in the rows, bigint in the table" in error.what
    assert altered.rows() == [(1, 1)]
    named = re.search(r"job\.start\(restore=(\d+)\)", error.hint)
    assert named is not None
    altered.drain("id, cast(length(v) AS long) AS v", restore=int(named[1]))
    assert altered.rows() == [(1, 1), (2, 3)]


@pytest.mark.long  # in the gate: tests/delta/test_delta_table_changes.py
def test_a_table_feature_that_delta_cannot_drop_leads_to_a_copy_of_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    altered, copy = Altered(spark, tmp_path, {}), str(tmp_path / "copy")
    error = altered.refused(
        lambda: spark.sql(f"ALTER TABLE delta.`{altered.table}` CLUSTER BY (id)"), {"id": 2, "v": "two"}
    )

    assert isinstance(error, RowsRefused)
    with pytest.raises(SinkInvalid):
        altered.drain()
    statement = re.search(r"CREATE TABLE [^)]+", error.hint)
    named = re.search(r"job\.start\(restore=(\d+), accept_new_sink='out'\)", error.hint)
    assert statement is not None and named is not None
    spark.sql(statement[0].replace("NEW", copy))
    altered.table = copy
    with pytest.raises(IdentityChanged) as caught:
        altered.drain()
    assert named[0] in caught.value.hint
    altered.drain(restore=int(named[1]), accept_new_sink="out")
    altered.put(3, {"id": 3, "v": "three"})
    altered.drain()
    assert altered.rows() == [(1, "one"), (2, "two"), (3, "three")]


# in the gate: one of two features that the same statements drop
@pytest.mark.long  # in the gate: tests/delta/test_delta_table_changes.py
@pytest.mark.parametrize("setting", ["delta.enableInCommitTimestamps", "delta.enableRowTracking"])
def test_a_table_feature_that_delta_can_drop_is_dropped_by_the_named_statements(
    spark: SparkSession, tmp_path: Path, setting: str
) -> None:
    altered = Altered(spark, tmp_path, {})
    name = f"delta.`{altered.table}`"
    error = altered.refused(
        lambda: spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{setting}' = 'true')"), {"id": 2, "v": "two"}
    )

    assert isinstance(error, RowsRefused)
    statements = re.findall(r"ALTER TABLE \S+ DROP FEATURE \w+", error.hint)
    assert statements
    for statement in statements:
        spark.sql(statement)
    altered.drain()
    assert altered.rows() == [(1, "one"), (2, "two")]


@pytest.mark.long  # in the gate: tests/delta/test_delta_table_changes.py
def test_a_column_that_was_dropped_under_a_merge_does_not_lose_its_values(spark: SparkSession, tmp_path: Path) -> None:
    altered = Altered(spark, tmp_path, {"engine": "spark", "keys": ["id"]})
    name = f"delta.`{altered.table}`"

    def change() -> None:
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
        spark.sql(f"ALTER TABLE {name} DROP COLUMN v")

    error = altered.refused(change, {"id": 2, "v": "two"})

    assert isinstance(error, RowsRefused)
    assert "it has no column v" in error.what
    spark.sql(f"ALTER TABLE {name} ADD COLUMN v string")
    altered.drain()
    read = spark.read.format("delta").load(altered.table).orderBy("id").collect()
    assert [tuple(row) for row in read] == [(1, None), (2, "two")]


@pytest.mark.long  # in the gate: tests/delta/test_delta_table_changes.py
def test_a_table_property_that_expires_markers_ends_the_job_until_it_is_unset(
    spark: SparkSession, tmp_path: Path
) -> None:
    altered = Altered(spark, tmp_path, {"engine": "spark"})
    name, retention = f"delta.`{altered.table}`", "delta.setTransactionRetentionDuration"

    def change() -> None:
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{retention}' = 'interval 5 days')")

    error = altered.refused(change, {"id": 2, "v": "two"})

    assert isinstance(error, RowsRefused)
    with pytest.raises(SinkInvalid) as caught:
        altered.drain()
    spark.sql(caught.value.hint)
    altered.drain()
    assert altered.rows() == [(1, "one"), (2, "two")]


@pytest.mark.long  # in the gate: tests/delta/test_delta_table_from_a_backup.py
@pytest.mark.parametrize("staged", [True, False], ids=["rows are still staged", "rows are gone"])
def test_a_job_whose_table_is_an_older_backup_continues_where_the_error_says(
    spark: SparkSession, tmp_path: Path, staged: bool
) -> None:
    altered = Altered(spark, tmp_path, {})
    altered.put(1, {"id": 1, "v": "one"})
    altered.drain()
    backup = tmp_path / "backup"
    shutil.copytree(altered.table, backup)
    altered.put(2, {"id": 2, "v": "two"})
    altered.drain()
    if staged:
        shutil.rmtree(Path(altered.table) / "_delta_log")
        shutil.copytree(backup / "_delta_log", Path(altered.table) / "_delta_log")
    else:
        shutil.rmtree(altered.table)
        shutil.copytree(backup, altered.table)
    altered.put(3, {"id": 3, "v": "three"})

    with pytest.raises(PublishConflict) as caught:
        altered.drain()

    assert caught.value.context["sink"] == "out"
    assert altered.rows() == [(1, "one")]
    altered.drain(restore=caught.value.context["restore"])
    assert altered.rows() == [(1, "one"), (2, "two"), (3, "three")]
    altered.put(4, {"id": 4, "v": "four"})
    altered.drain()
    assert altered.rows()[3:] == [(4, "four")]


def recreate(altered: Altered) -> None:
    columns = DeltaTable(altered.table).schema()
    shutil.rmtree(altered.table)
    DeltaTable.create(altered.table, schema=columns)


def drop(altered: Altered) -> None:
    shutil.rmtree(altered.table)


def lose_first_versions(altered: Altered) -> None:
    """Leave the files of a delta-spark statement that began before the folder was removed."""
    no_rows = pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.string())})
    write_deltalake(altered.table, no_rows, mode="append")
    log = Path(altered.table) / "_delta_log"
    newest = max(log.glob("*.json"))
    for entry in log.glob("*.*"):
        if entry != newest:
            entry.unlink()


@BOTH
@pytest.mark.parametrize("change", [recreate, pytest.param(drop, marks=pytest.mark.long)])  # in the gate: the other
def test_the_error_of_a_table_that_became_another_one_names_the_next_start(
    spark: SparkSession, tmp_path: Path, sink: dict[str, Any], change: Callable[[Altered], None]
) -> None:
    altered = Altered(spark, tmp_path, sink)
    error = altered.refused(lambda: change(altered), {"id": 2, "v": "two"})

    assert isinstance(error, IdentityChanged)
    assert f"job.start(restore={error.context['restore']}, accept_new_sink='out')" in error.hint
    altered.drain(restore=error.context["restore"], accept_new_sink="out")
    altered.put(3, {"id": 3, "v": "three"})
    altered.drain()
    assert altered.rows() == [(2, "two"), (3, "three")]


@pytest.mark.long  # in the gate: tests/delta/test_delta_table_changes.py
@BOTH
def test_a_table_that_lost_its_first_versions_is_removed_and_written_again_by_one_start(
    spark: SparkSession, tmp_path: Path, sink: dict[str, Any]
) -> None:
    altered = Altered(spark, tmp_path, sink)
    error = altered.refused(lambda: lose_first_versions(altered), {"id": 2, "v": "two"})

    assert isinstance(error, IdentityChanged)
    assert "remove the folder" in error.hint
    assert f"job.start(restore={error.context['restore']}, accept_new_sink='out')" in error.hint
    shutil.rmtree(altered.table)
    altered.drain(restore=error.context["restore"], accept_new_sink="out")
    altered.put(3, {"id": 3, "v": "three"})
    altered.drain()
    assert altered.rows() == [(2, "two"), (3, "three")]
