"""A whole job, files to Delta, killed between decision and publish and between publish and acknowledgement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

pytestmark = [pytest.mark.spark, pytest.mark.kill]
CHILD = Path(__file__).with_name("job_child.py")


@pytest.mark.parametrize(
    "deaths",
    [
        ("PUBLISH_COMMITTED:kill:1",),
        pytest.param(("PUBLISH_COMMITTED:kill:1", "EPOCH_COMMITTED:kill:2"), marks=pytest.mark.long),
    ],
    ids=["published", "both"],
)
def test_every_row_is_in_the_table_once_whatever_was_killed(tmp_path: Path, deaths: tuple[str, ...]) -> None:
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
    command = [sys.executable, str(CHILD), *(str(tmp_path / name) for name in ("in", "table", "store"))]
    codes: list[int] = []
    while len(codes) < 4 and (not codes or codes[-1] != 0):
        codes.append(subprocess.run(command, env=environment, timeout=400, check=False).returncode)

    assert codes == [*[-signal.SIGKILL] * len(deaths), 0]
    rows = pa.table(DeltaTable(str(tmp_path / "table")).scan().read_all())
    assert sorted(rows.column("id").to_pylist()) == list(range(60))
    assert set(rows.column("city").to_pylist()) == {"city 0", "city 1"}
