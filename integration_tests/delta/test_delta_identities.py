"""A table that delta-spark creates with the first rows: its id is recorded after its creation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt
from spark_ckpt.errors import IdentityChanged
from spark_ckpt.store.store import Store

pytestmark = pytest.mark.spark


def drain(spark: SparkSession, folder: Path, **confirmed: object) -> None:
    job = spark_ckpt.Job(spark, "job", str(folder / "store"), interval="1 hour", trigger="10 ms")
    rows = job.source("in", FilesSource(str(folder / "in"), "csv", "id long", maxFilesPerTrigger=1))
    rows.to(DeltaSink(str(folder / "table"), engine="spark"), name="out")
    assert job.start(availableNow=True, **confirmed).awaitTermination(300)


def recorded(folder: Path) -> list[str]:
    """The table's id in each epoch."""
    log = Store.open(str(folder / "store"), "job").log
    return [log.manifest(brief.epoch).sink_identities["out"].parts["table id"] for brief in log.state().epochs]


@pytest.mark.long  # in the gate: tests/store/test_identity_decisions.py
def test_the_id_of_a_table_made_by_the_first_publish_is_recorded_with_the_next_epoch_and_guards_from_then_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("id\n1\n")
    drain(spark, tmp_path)
    assert recorded(tmp_path) == ["", ""], "the run ended after the publish, before an epoch that could record it"
    table = str(DeltaTable(str(tmp_path / "table")).metadata().id)
    (tmp_path / "in" / "2.csv").write_text("id\n2\n")
    drain(spark, tmp_path)
    assert recorded(tmp_path) == ["", "", table]

    shutil.rmtree(tmp_path / "table")
    (tmp_path / "in" / "3.csv").write_text("id\n3\n")
    with pytest.raises(IdentityChanged, match=f"table id {table}"):
        drain(spark, tmp_path)
    assert len(recorded(tmp_path)) == 3

    drain(spark, tmp_path, accept_new_sink="out")
    rows = pa.table(DeltaTable(str(tmp_path / "table")).scan().read_all())
    assert rows.column("id").to_pylist() == [3]
