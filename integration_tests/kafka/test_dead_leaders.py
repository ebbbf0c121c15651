"""A publisher keeps its transaction when one of three brokers dies; a start needs no frozen one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kafka_kit import Cluster, Staged, close_all, publish

from integration_tests.broker_cluster import BrokerCluster, running_cluster

pytestmark = pytest.mark.long


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerCluster]:
    with running_cluster(tmp_path / "brokers") as found:
        yield found
        close_all()


def test_dead_leaders_cost_no_attempt_and_no_row(brokers: BrokerCluster, staged: Callable[..., Staged]) -> None:
    cluster = Cluster(brokers, replication=-1)
    publisher = cluster.publisher()
    epochs = [staged(1)]
    publish(publisher, 1, epochs[0])
    process = publisher.pids()

    for dead in brokers.mortal:
        brokers.wait_until_whole()
        epochs.append(staged(len(epochs) + 1, 60_000))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(publish, publisher, len(epochs), epochs[-1])
            dead.kill()
            running.result()
        # Its leaders are still those of the metadata that the publisher has.
        epochs.append(staged(len(epochs) + 1))
        publish(publisher, len(epochs), epochs[-1])
        dead.start()

    assert publisher.pids() == process
    cluster.assert_exactly(*epochs)


def test_a_frozen_bootstrap_server_does_not_stop_a_start(brokers: BrokerCluster) -> None:
    cluster = Cluster(brokers, replication=-1)
    brokers.mortal[0].pause()

    # A server is drawn by chance.
    for _ in range(5):
        cluster.control.close()
        assert cluster.control.identity([cluster.topic])[f"topic {cluster.topic}"]
