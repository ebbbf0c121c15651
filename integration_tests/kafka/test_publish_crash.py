"""A publisher killed at any point leaves exactly one copy of every row, in order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_kit import Cluster, Staged, kills_at, publish, wait_for

POINTS = (
    "PUBLISH_INIT:kill",
    "MARKER_READ:kill",
    "MID_SEND:kill:2",
    "OFFSETS_SENT:kill",
    "FLUSHED:kill",
    "PRE_COMMIT:kill",
    "COMMITTING:kill:1:1",
    "PUBLISH_COMMITTED:kill",
)
IN_GATE = ("MID_SEND:kill:2", "PRE_COMMIT:kill", "COMMITTING:kill:1:1")
"""Before, at and after the commit. tests/simulator/test_spark_early_sends.py judges the other failpoints."""


@pytest.mark.kill
@kills_at(POINTS, IN_GATE)
def test_kill_9_of_the_publishing_process_loses_and_repeats_nothing(
    cluster: Cluster,
    staged: Callable[..., Staged],
    failpoint: Callable[[str], None],
    point: str,
) -> None:
    failpoint(point)
    publisher = cluster.publisher()
    first, second = staged(1), staged(2)
    before = publisher.pids()

    receipt = publish(publisher, 1, first)
    publish(publisher, 2, second)

    died = publisher.pids() != before
    assert died or "COMMITTING" in point, "the failpoint did not kill anything"
    assert receipt.rows == 600
    assert receipt.replayed == (point == "PUBLISH_COMMITTED:kill") or "COMMITTING" in point
    cluster.assert_exactly(first, second)


@pytest.mark.smoke
@pytest.mark.kill
def test_a_driver_that_dies_after_the_commit_publishes_the_epoch_once(
    cluster: Cluster, staged: Callable[..., Staged]
) -> None:
    epoch = staged(1)
    publish(cluster.publisher(), 1, epoch)

    again = publish(cluster.publisher(2), 1, epoch)

    assert again.replayed
    cluster.assert_exactly(epoch)


@pytest.mark.kill
def test_a_frozen_publishing_process_is_killed_and_replaced(
    cluster: Cluster, staged: Callable[..., Staged], failpoint: Callable[[str], None]
) -> None:
    failpoint("FLUSHED:stop")
    publisher = cluster.publisher(stall_s=10.0)
    epoch = staged(1)

    publish(publisher, 1, epoch)

    cluster.assert_exactly(epoch)


DRIVER = """
import sys, time
from spark_ckpt.connector import SinkContext
from spark_ckpt_kafka import KafkaSink
servers, topic = sys.argv[1:]
publisher = KafkaSink(servers, topic).publisher(None, SinkContext("job", "out", "store-of-a-dead-driver", 1))
print(*publisher.pids(), flush=True)
time.sleep(60)
"""


@pytest.mark.kill
def test_publisher_processes_end_with_their_driver(cluster: Cluster) -> None:
    command = [sys.executable, "-c", DRIVER, cluster.broker.servers, cluster.topic]
    environment = {"PYTHONPATH": ":".join(entry for entry in sys.path if entry)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout is not None
        lane = int(driver.stdout.readline())
        assert Path(f"/proc/{lane}").exists()
        driver.kill()

    wait_for(lambda: not _alive(lane), "the publisher process ends", 20)


def _alive(pid: int) -> bool:
    """True if it runs, and is not a zombie process that its parent has not waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
