"""Processes killed at every point of a publish, or racing each other, leave the rows exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_kit import ids

pytestmark = pytest.mark.kill
CHILD = Path(__file__).with_name("delta_child.py")


def stage(table: Path, sink: str, epoch: int, values: list[int]) -> None:
    path = table / f"ckpt-{sink}-i1-b{epoch}-t0-0-x.parquet"
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), path)


def child(table: Path, incarnation: int, sink: str, last: int, failpoint: str = "") -> subprocess.Popen[str]:
    environment = os.environ | {"SPARK_CKPT_FAILPOINT": failpoint, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(CHILD), str(table), str(incarnation), sink, "1", str(last)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("point", ["MARKER_READ:kill:2", "PRE_COMMIT:kill:2", "PUBLISH_COMMITTED:kill:2"])
def test_a_publisher_killed_at_any_point_loses_and_repeats_no_row(table: Path, point: str) -> None:
    for epoch in (1, 2, 3):
        stage(table, "out", epoch, [epoch])
    victim = child(table, 1, "out", 3, point)
    acknowledged = victim.communicate(timeout=60)[0].split()
    assert (victim.returncode, acknowledged) == (-signal.SIGKILL, ["1"])
    assert ids(table) == ([1, 2] if point.startswith("PUBLISH_COMMITTED") else [1])

    heir = child(table, 2, "out", 3)
    heir.communicate(timeout=60)

    assert (heir.returncode, ids(table)) == (0, [1, 2, 3])


def test_sinks_that_publish_to_one_table_at_the_same_time_all_land_once(table: Path) -> None:
    for sink, offset in (("left", 100), ("right", 200)):
        for epoch in range(1, 11):
            stage(table, sink, epoch, [offset + epoch])
    racers = [child(table, 1, "left", 10), child(table, 1, "right", 10)]
    # The same epochs of one sink, published by its successor at the same time.
    racers.append(child(table, 2, "right", 10))
    for racer in racers:
        racer.communicate(timeout=120)

    assert [racer.returncode for racer in (racers[0], racers[2])] == [0, 0]
    assert ids(table) == [*range(101, 111), *range(201, 211)]
