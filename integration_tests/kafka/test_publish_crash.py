"""A publisher killed anywhere leaves exactly one copy of every row, in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka_kit import PLANES, Cluster, Staged, publish

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


@pytest.mark.kill
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("plane", PLANES)
def test_kill_9_of_the_publishing_process_loses_and_repeats_nothing(
    cluster: Cluster,
    staged: Callable[..., Staged],
    failpoint: Callable[[str], None],
    plane: str,
    point: str,
) -> None:
    failpoint(point)
    publisher = cluster.publisher(client=plane)
    first, second = staged(1), staged(2)
    before = publisher.lane_pids()

    receipt = publish(publisher, 1, first)
    publish(publisher, 2, second)

    died = publisher.lane_pids() != before
    assert died or "COMMITTING" in point, "the failpoint did not kill anything"
    assert receipt.rows == 600
    assert receipt.replayed == (point == "PUBLISH_COMMITTED:kill") or "COMMITTING" in point
    cluster.assert_exactly(first, second)


@pytest.mark.kill
@pytest.mark.parametrize("plane", PLANES)
def test_a_driver_that_dies_after_the_commit_publishes_the_epoch_once(
    cluster: Cluster, staged: Callable[..., Staged], plane: str
) -> None:
    epoch = staged(1)
    publish(cluster.publisher(client=plane), 1, epoch)

    again = publish(cluster.publisher(2, client=plane), 1, epoch)

    assert again.replayed
    cluster.assert_exactly(epoch)


@pytest.mark.kill
@pytest.mark.parametrize("plane", PLANES)
def test_a_frozen_publishing_process_is_killed_and_replaced(
    cluster: Cluster, staged: Callable[..., Staged], failpoint: Callable[[str], None], plane: str
) -> None:
    failpoint("FLUSHED:stop")
    publisher = cluster.publisher(client=plane, stall_s=2.0)
    epoch = staged(1)

    publish(publisher, 1, epoch)

    cluster.assert_exactly(epoch)
