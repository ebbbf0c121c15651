"""Two drivers of one job: the older one cannot publish, and each row is there once, in any interleaving of both."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka_kit import Cluster, Staged, publish, resume, wait_until_stopped
from spark_ckpt_kafka.publisher import KafkaPublisher

from spark_ckpt.errors import Fenced, PublishFailed


@pytest.mark.kill
def test_a_zombie_that_wakes_up_before_its_commit_commits_nothing(
    cluster: Cluster, staged: Callable[..., Staged], failpoint: Callable[[str], None]
) -> None:
    failpoint("PRE_COMMIT:stop")
    zombie = cluster.publisher(1)
    first, second = staged(1), staged(2)
    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(publish, zombie, 1, first)
        pid = wait_until_stopped(zombie)

        receipt = publish(cluster.publisher(2), 1, first)
        resume(pid)

        assert not receipt.replayed, "the zombie's transaction was open, so the new driver published"
        assert old.result(timeout=60).replayed, "the zombie finds the marker"
    cluster.assert_exactly(first)
    with pytest.raises(Fenced):
        publish(zombie, 2, second)
    cluster.assert_exactly(first)


def test_two_drivers_on_one_lane_publish_every_row_once(cluster: Cluster, staged: Callable[..., Staged]) -> None:
    epochs = [staged(number, rows=200) for number in (1, 2, 3, 4)]
    drivers = [cluster.publisher(incarnation) for incarnation in (1, 2)]

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda driver: _publish_all(driver, epochs), drivers))

    for driver, done in zip(drivers, ended, strict=True):
        for number in range(done + 1, 5) if driver is drivers[1] else ():
            publish(driver, number, epochs[number - 1])
    cluster.assert_exactly(*epochs)


def _publish_all(driver: KafkaPublisher, epochs: list[Staged]) -> int:
    """Return the number of epochs that the driver published before it was fenced."""
    for number, epoch in enumerate(epochs, start=1):
        try:
            publish(driver, number, epoch)
        except (Fenced, PublishFailed):
            return number - 1
    return len(epochs)


def test_the_transactional_id_is_the_same_in_every_incarnation(cluster: Cluster) -> None:
    first, second = (cluster.sink().lane_settings(cluster.context(incarnation)) for incarnation in (1, 2))

    assert first.group(0) == second.group(0) == f"{cluster.store_id}.out.0"
