"""`KafkaSource` keeps the promises of a source in real queries, by the suite for any connector."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kafka_kit import Cluster, KafkaProducer
from pyspark.sql import SparkSession
from spark_ckpt_kafka import KafkaSource

from integration_tests.spark import connected_session
from spark_ckpt.testing import SourceConformance, SourceSubject, SparkReading

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


def lose(cluster: Cluster) -> None:
    """Delete the first record of partition 0, as retention does."""
    admin = AdminClient({"bootstrap.servers": cluster.broker.servers})
    for future in admin.delete_records([TopicPartition(cluster.topic, 0, 1)]).values():
        future.result(30)


class TestKafkaSource(SourceConformance):
    @pytest.fixture
    def subject(self, spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Iterator[SourceSubject]:
        numbers = itertools.count()
        producer = KafkaProducer(bootstrap_servers=cluster.broker.servers)

        def add() -> Sequence[dict[str, object]]:
            rows = [{"value": f"{number}".encode(), "partition": number % 2} for number in itertools.islice(numbers, 4)]
            for row in rows:
                producer.send(cluster.topic, row["value"], partition=row["partition"]).get(10)
            return rows

        yield SourceSubject(
            make=lambda: KafkaSource(cluster.broker.servers, cluster.topic),
            add=add,
            reading=SparkReading(spark, tmp_path),
            lose=lambda: lose(cluster),
            renew=lambda: cluster.recreate(cluster.topic),
        )
        producer.close()
