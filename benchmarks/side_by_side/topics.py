"""Topics of one broker: create, fill, read their ends, read back, delete."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from benchmarks.side_by_side.oracle import Outputs

PARTITIONS = 4
_TIMEOUT_S = 30.0
_BATCH = 20_000

# Java's partitioner. A key's records stay in order: retries of an idempotent producer do not overtake one another.
PRODUCER: dict[str, str | int | bool] = {
    "partitioner": "murmur2_random",
    "enable.idempotence": True,
    "log_level": 2,
}
_FILLING = PRODUCER | {"linger.ms": 50, "batch.size": 1_000_000, "queue.buffering.max.messages": 1_000_000}


class Topics:
    """The benchmark's own clients of a broker."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = _admin(servers)

    def create(self, prefix: str) -> str:
        """Create a new topic, and wait until every client can find it."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        for future in self._admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
            future.result(_TIMEOUT_S)
        deadline = time.monotonic() + _TIMEOUT_S
        while not self._has_leaders(name):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the partitions of {name} have no leaders")
            time.sleep(0.1)
        return name

    def _has_leaders(self, topic: str) -> bool:
        """Describe the topic by name first: a client that asks too early remembers for long that it has no leaders."""
        partitions = self._admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        if len(partitions) < PARTITIONS or any(each.leader < 0 for each in partitions.values()):
            return False
        try:
            self.ends(topic)
        except KafkaException:
            self._admin = _admin(self.servers)
            return False
        return True

    def delete(self, topic: str) -> None:
        """Delete an existing topic."""
        for future in self._admin.delete_topics([topic]).values():
            future.result(_TIMEOUT_S)

    def fill(self, topic: str, records: Iterable[tuple[str, str]]) -> None:
        """Write all records, by key, and wait until the broker has them."""
        self._fill(topic, ((key, value, {}) for key, value in records))

    def fill_in_turn(self, topic: str, values: Iterable[str], first: int = 0) -> None:
        """Write records without keys, to one partition after the other."""
        self._fill(topic, ((None, value, {"partition": n % PARTITIONS}) for n, value in enumerate(values, first)))

    def _fill(self, topic: str, records: Iterable[tuple[str | None, str, dict[str, int]]]) -> None:
        producer = Producer({"bootstrap.servers": self.servers, **_FILLING})
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)

        for key, value, place in records:
            produce(producer, topic, key, value, delivered, **place)
        producer.flush()
        if failures:
            raise KafkaException(failures[0])

    def ends(self, topic: str) -> tuple[int, ...]:
        """End offset of each partition for a `read_committed` reader: markers and aborted records below it count as offsets."""
        wanted = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
        found = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S
        )
        by_partition = {place.partition: future.result(_TIMEOUT_S).offset for place, future in found.items()}
        return tuple(by_partition[partition] for partition in range(PARTITIONS))

    def outputs(self, topic: str) -> list[Outputs]:
        """Every committed record of each partition, from offset 0."""
        ends = self.ends(topic)
        return [self._partition(topic, partition, end) for partition, end in enumerate(ends)]

    def _partition(self, topic: str, partition: int, end: int) -> Outputs:
        values: list[pa.Array] = []
        offsets: list[np.ndarray] = []
        for batch in self.batches(topic, partition, end) if end else ():
            values.append(pa.array([message.value() for message in batch], pa.binary()))
            offsets.append(np.fromiter((message.offset() for message in batch), np.int64, len(batch)))
        return Outputs(
            pa.chunked_array(values, pa.binary()), np.concatenate(offsets) if offsets else np.empty(0, np.int64)
        )

    def batches(self, topic: str, partition: int, end: int) -> Iterator[list[Message]]:
        """The partition's committed records up to `end`, in order."""
        consumer = reader(self.servers, {"enable.partition.eof": True, "queued.min.messages": 1_000_000})
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            place = 0
            while place < end:
                messages = consumer.consume(_BATCH, timeout=0.1)
                records = [message for message in messages if message.error() is None]
                if records:
                    yield records
                place = max((_next_offset(message) for message in messages[-1:]), default=place)
        finally:
            consumer.close()


def _admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 2})


def produce(producer: Producer, topic: str, key: str | None, value: str, delivered: Any, **more: int) -> None:
    """Pass a record to the producer; wait while its queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, on_delivery=delivered, **more)
        except BufferError:
            producer.poll(0.05)
        else:
            return


def reader(servers: str, settings: dict[str, str | int | bool]) -> Consumer:
    """A `read_committed` consumer that commits nothing."""
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"benchmark-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 10_000_000,
            "log_level": 2,
            **settings,
        }
    )


def _next_offset(message: Message) -> int:
    """Next offset: of an end-of-partition event (an "error" in this client) its own offset, of a record the offset after it."""
    error = message.error()
    if error is None:
        return int(message.offset()) + 1
    if error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return int(message.offset())
