"""A real broker appends a batch once, even if the batch is sent again because its answer was lost.

`tests/kafka/test_batches_sent_again.py` has the other faults, and the planted bugs.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from kafka_kit import Cluster
from spark_ckpt_kafka import cluster
from spark_ckpt_kafka.batch_producer import BatchProducer
from spark_ckpt_kafka.library import kafka_errors
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.record_batches import Chunk

ROWS, CHUNKS, LOST_EVERY = 600, 3, 3


class LosesAnswers(cluster.Cluster):
    """Drops the broker's answer to each third request, and reports that the connection ended."""

    waited = 0

    def wait(self, future: Any, wait_s: float) -> Any:
        answer = super().wait(future, wait_s)
        self.waited += 1
        if self.waited % LOST_EVERY == 0:
            raise kafka_errors.KafkaConnectionError("lost")
        return answer


def committed(target: Cluster) -> int:
    """Commit rows with a producer that loses answers. Return its number of requests."""
    tuning = Tuning(batch_size=4_000)
    settings = Connection(target.broker.servers).for_kafka_python() | {"request_timeout_ms": tuning.request_timeout_ms}
    brokers = LosesAnswers(settings, 30_000)
    one = BatchProducer(brokers, tuning, f"{target.topic}.lost", lambda: None, lambda: 1_000, random.Random(1))
    try:
        one.init()
        one.begin()
        for chunk in range(CHUNKS):
            values = [b"%d" % row for row in range(chunk * ROWS, (chunk + 1) * ROWS)]
            one.send(Chunk(target.topic, pa.record_batch({"key": values, "value": values}), []))
        assert one.deliver() == CHUNKS * ROWS
        one.commit()
    finally:
        one.close()
    return brokers.waited


def test_a_batch_whose_answer_was_lost_is_in_the_topic_once_and_in_its_place(cluster: Cluster) -> None:
    requests = committed(cluster)

    by_partition: dict[int, list[int]] = {}
    for record in cluster.read():
        by_partition.setdefault(record.partition, []).append(int(record.value or b"-1"))
    assert requests > 2 * LOST_EVERY
    assert sorted(row for rows in by_partition.values() for row in rows) == list(range(CHUNKS * ROWS))
    assert all(rows == sorted(rows) for rows in by_partition.values())
