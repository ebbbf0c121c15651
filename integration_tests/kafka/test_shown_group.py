"""Kafka's own tools show a job's position: a consumer group has the cursors of the newest epoch. The job never reads it."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer
from kafka_kit import Cluster, KafkaProducer, described
from spark_ckpt_kafka import KafkaSource

from spark_ckpt.errors import SourceInvalid


def fill(cluster: Cluster, per_partition: int) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.broker.servers)
    try:
        for partition in range(3):
            for number in range(per_partition):
                producer.send(cluster.topic, str(number).encode(), partition=partition)
        producer.flush(30)
    finally:
        producer.close()


def test_the_group_shows_the_cursors_and_their_lag_and_a_consumer_in_it_is_left_alone(cluster: Cluster) -> None:
    group = f"shown-{cluster.topic}"
    source = KafkaSource(cluster.broker.servers, cluster.topic, shown_group=group)
    fill(cluster, 10)
    cursor = {cluster.topic: {"0": 4, "1": 10, "2": 0}}

    assert source.shown_as == group
    source.show(cursor)
    assert described(cluster, group) == {0: (4, 6), 1: (10, 0), 2: (0, 10)}
    assert source.lag(cursor, source.end(None)) == 16

    source.show({cluster.topic: {"0": 3, "1": 10, "2": 0}})
    assert described(cluster, group)[0] == (3, 7), "a restore to an older epoch shows where the job reads again"

    member = Consumer({"bootstrap.servers": cluster.broker.servers, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        member.subscribe([cluster.topic])
        assert member.consume(1, 60), "another consumer reads in the group"
        with pytest.raises(SourceInvalid, match=group):
            source.show(cursor)
    finally:
        member.close()
