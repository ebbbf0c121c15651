"""The fast data plane: librdkafka through confluent-kafka.

Only failed deliveries call back into Python. librdkafka counts a message until its delivery report is served. So an
empty queue after a flush, with no failure reported, proves that every message was delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.wording import counted
from spark_ckpt_kafka.options import Connection, Settings, Tuning
from spark_ckpt_kafka.producer import (
    ABORT_TIMEOUT_S,
    COMMIT_TIMEOUT_S,
    INIT_TIMEOUT_S,
    Chunk,
    ProducerFailed,
    Progress,
    hint_for,
    refusal_of,
)

_MAX_CHUNKS_UNDER_WAY = 4
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class ConfluentProducer:
    """One transaction of one transactional id, over confluent-kafka."""

    def __init__(self, connection: Connection, tuning: Tuning, transactional_id: str, progress: Progress) -> None:
        self._connection = connection
        self._progress = progress
        self._failure: KafkaError | None = None
        self._failures = 0
        self._refused_key: str | None = None
        self._refused: KafkaError | None = None
        self._sent = 0
        self._under_way: deque[int] = deque()
        callbacks = {"on_delivery": self._delivered, "error_cb": self._heard}
        self._producer = Producer(_settings(connection, tuning, transactional_id) | callbacks)

    def init(self) -> None:
        """Fence every older producer of the id."""
        # Without a connection librdkafka polls for the coordinator every 500 ms; this request opens one.
        self._call(self._producer.list_topics, None, INIT_TIMEOUT_S)
        self._call(self._producer.init_transactions, INIT_TIMEOUT_S)

    def begin(self) -> None:
        """Open the transaction."""
        self._call(self._producer.begin_transaction)

    def send(self, chunk: Chunk) -> None:
        """Queue rows in order. Block while more than four chunks are unacknowledged."""
        self._under_way.append(len(chunk))
        if len(self._under_way) > _MAX_CHUNKS_UNDER_WAY:
            # Wait for the oldest chunk, so that the queue stays bounded.
            self._under_way.popleft()
            self._drain(sum(self._under_way))
        self._call(self._send_plain if chunk.plain else self._send_rich, chunk)
        self._sent += len(chunk)
        with self._translated("send"):
            self._producer.poll(0)
        self._check()

    def add_marker(self, group: str, topic: str, epoch: int, metadata: str) -> None:
        """Write the marker into the transaction, as the committed offset of partition 0."""
        place = TopicPartition(topic, 0, epoch, metadata)
        names = _group_metadata(self._connection, group)
        self._call(self._producer.send_offsets_to_transaction, [place], names, COMMIT_TIMEOUT_S)

    def deliver(self) -> int:
        """Wait until every record is acknowledged, and return their number."""
        self._drain(0)
        return self._sent - self._failures

    def commit(self) -> None:
        """Commit the transaction. The caller verifies the result with the marker."""
        hit(Failpoint.COMMITTING)
        self._call(self._producer.commit_transaction, COMMIT_TIMEOUT_S)

    def abort(self) -> None:
        """Abort the transaction, best effort."""
        with self._translated("abort"):
            # Records that are still queued would delay the abort.
            self._producer.purge(blocking=False)
        self._call(self._producer.abort_transaction, ABORT_TIMEOUT_S)

    def close(self) -> None:
        """Close the client."""
        with self._translated("close"):
            self._producer.close()

    def _send_plain(self, chunk: Chunk) -> None:
        produce, topic = self._producer.produce, chunk.topic
        for value, key in zip(chunk.values, chunk.keys, strict=True):
            produce(topic, value, key)

    def _send_rich(self, chunk: Chunk) -> None:
        if chunk.timestamps is not None and 0 in chunk.timestamps:
            raise ProducerFailed("librdkafka sends the present time for 0 ms", refusal="record")
        produce, size = self._producer.produce, len(chunk)
        columns = (
            chunk.topics or [chunk.topic] * size,
            chunk.values,
            chunk.keys,
            chunk.partitions or [None] * size,
            chunk.timestamps or [None] * size,
            chunk.headers or [None] * size,
        )
        for topic, value, key, partition, timestamp, headers in zip(*columns, strict=True):
            where = -1 if partition is None else partition
            produce(topic, value, key, where, timestamp=timestamp or 0, headers=headers)

    def _drain(self, limit: int) -> None:
        """Serve delivery reports until at most `limit` messages are unacknowledged."""
        producer = self._producer
        left = len(producer)
        while left > limit:
            with self._translated("deliver"):
                # flush also sends batches that still linger; poll leaves them to fill up.
                if limit:
                    producer.poll(0.05)
                else:
                    producer.flush(1.0)
            before, left = left, len(producer)
            if left < before:
                self._progress()
            self._check()
        self._check()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        # Report the first failure. Exception: a broker that refuses one record fails the others of its batch with
        # _INVALID_DIFFERENT_RECORD, so that the refused record itself takes precedence.
        if error is None:
            return
        first = self._failure is None or self._failure.code() == KafkaError._INVALID_DIFFERENT_RECORD
        if first and (self._failure is None or error.code() != KafkaError._INVALID_DIFFERENT_RECORD):
            self._failure, self._refused_key = error, _shown(message)
        self._failures += 1

    def _heard(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:
            self._refused = error

    def _check(self) -> None:
        if self._failure is not None:
            doing = f"{counted(self._failures, 'record was', 'records were')} not delivered"
            raise _failed(self._failure, doing, self._refused_key)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        with self._translated(function.__name__.strip("_")):
            function(*arguments)
        self._progress()

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            # A fenced producer raises again in every poll, also during an abort.
            with suppress(KafkaException):
                # Serves error_cb: librdkafka retries a refused login until its timeout and gives the reason there only.
                self._producer.poll(0)
            if self._failure is not None and error.args[0].code() not in _FENCED:
                raise _failed(self._failure, doing, self._refused_key) from error  # the delivery failure is the cause
            raise _failed(self._refused or error.args[0], doing) from error
        except BufferError as error:
            raise ProducerFailed("the producer's queue is full although it was drained") from error


def _group_metadata(connection: Connection, group: str) -> object:
    # Only a consumer creates the group metadata that librdkafka requires. This one never connects.
    consumer = Consumer(connection.for_confluent() | {"group.id": group, "log_level": 0})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def _failed(error: KafkaError, doing: str, key: str | None = None) -> ProducerFailed:
    text = f"{doing}: {error.name()}: {error.str()}"
    return ProducerFailed(text, fenced=error.code() in _FENCED, hint=hint_for(text), refusal=refusal_of(text), key=key)


def _shown(message: Message) -> str:
    key = message.key()
    return (
        f"{message.topic()}/{message.partition()}, key {bytes(key)[:80]!r}"
        if key is not None
        else f"{message.topic()}/{message.partition()}, no key"
    )


def _settings(connection: Connection, tuning: Tuning, transactional_id: str) -> dict[str, Any]:
    settings: Settings = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": tuning.transaction_timeout_ms,
        "message.timeout.ms": tuning.delivery_timeout_ms,
        "request.timeout.ms": tuning.request_timeout_ms,
        "linger.ms": tuning.linger_ms,
        "batch.size": tuning.batch_size,
        "batch.num.messages": 100_000,
        "message.max.bytes": tuning.max_request_size,
        "compression.type": tuning.compression_type,
        # The partitioner of the Java client and of kafka-python; librdkafka's default is a different one.
        "partitioner": "murmur2_random",
        # The chunks in flight bound the memory, not these two.
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": 2_097_151,
        "delivery.report.only.error": True,
        "reconnect.backoff.max.ms": 300,
        "log_level": 2,  # failures arrive as errors
    }
    return connection.for_confluent() | settings
