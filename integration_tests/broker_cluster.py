"""A real Kafka cluster of three brokers, two of which can die, one at a time. The first one is the controller.

Every topic has three replicas, and a write needs two of them: one missing broker loses nothing and stops nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicMetadata

from integration_tests.broker import JarBroker

REPLICATED: Mapping[str, str] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "replica.lag.time.max.ms": "3000",
}
_FOLLOWERS = (2, 3)
_TIMEOUT_S = 120.0


class BrokerCluster:
    """Three brokers, by their node's number."""

    def __init__(self, folder: Path) -> None:
        first = JarBroker(folder / "1", REPLICATED, {})
        self._brokers = {1: first} | {
            node: JarBroker(
                folder / str(node), {**REPLICATED, "process.roles": "broker", "node.id": str(node)}, {}, first=first
            )
            for node in _FOLLOWERS
        }
        self.mortal = tuple(self._brokers[node] for node in _FOLLOWERS)
        self.servers = ",".join(each.servers for each in self._brokers.values())

    def start(self) -> None:
        """Return when all brokers have registered."""
        for each in self._brokers.values():
            each.start()
        self._wait(lambda found: len(found.brokers) == len(self._brokers))

    def wait_until_whole(self) -> None:
        """Wait until each partition has a leader and all of its replicas: then another broker may die."""
        self._wait(lambda found: all(_is_whole(topic) for topic in found.topics.values()))

    def leader(self, topic: str, partition: int = 0) -> JarBroker:
        """Return the partition's leader."""
        return self._brokers[self._metadata().topics[topic].partitions[partition].leader]

    def stop(self) -> None:
        """End all brokers, also paused ones."""
        for each in reversed(self._brokers.values()):
            each.stop()

    def _metadata(self) -> ClusterMetadata:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 2}).list_topics(timeout=30)

    def _wait(self, over: Callable[[ClusterMetadata], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not over(self._metadata()):
            if time.monotonic() > deadline:
                raise TimeoutError("the cluster does not become whole")
            time.sleep(0.2)


def _is_whole(topic: TopicMetadata) -> bool:
    return all(each.leader >= 0 and len(each.isrs) == len(each.replicas) for each in topic.partitions.values())


@contextmanager
def running_cluster(folder: Path) -> Iterator[BrokerCluster]:
    """Start three brokers, and end them, even after a failure."""
    cluster = BrokerCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
