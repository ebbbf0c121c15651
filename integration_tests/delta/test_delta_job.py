"""A whole job, files to Delta, killed between commit and publish and between publish and acknowledgement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from integration_tests.delta import job_child

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.parametrize(
    "deaths",
    [
        ("PUBLISH_COMMITTED:kill:1",),
        pytest.param(("PUBLISH_COMMITTED:kill:1", "EPOCH_COMMITTED:kill:2"), marks=pytest.mark.long),
    ],
    ids=["published", "both"],
)
def test_every_row_is_in_the_table_once_after_any_kill(
    spark: SparkSession, tmp_path: Path, deaths: tuple[str, ...]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "once").mkdir()
    for n in range(6):
        lines = "".join(f"{n * 10 + k},city {k % 2}\n" for k in range(10))
        (tmp_path / "in" / f"f{n}.csv").write_text("id,city\n" + lines)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SPARK_CKPT_FAILPOINT": ",".join(deaths),
        "SPARK_CKPT_FAILPOINT_ONCE": str(tmp_path / "once"),
    }
    places = [str(tmp_path / name) for name in ("in", "table", "store")]
    for _ in deaths:
        child = subprocess.run([sys.executable, job_child.__file__, *places], env=environment, timeout=400, check=False)
        assert child.returncode == -signal.SIGKILL
    job_child.run_on(spark, *places)

    rows = pa.table(DeltaTable(str(tmp_path / "table")).scan().read_all())
    assert sorted(rows.column("id").to_pylist()) == list(range(60))
    assert set(rows.column("city").to_pylist()) == {"city 0", "city 1"}
