"""The default data plane: kafka-python, with guards against its known hazards.

- H1: a batch that expires inside a transaction fails only its futures; the commit then succeeds without its rows.
  Guard: every future is checked before the commit.
- H2: an error on a batch during a commit can turn the commit into a no-op that "succeeds".
  Guard: everything is flushed first, producer id and epoch are compared, and the caller reads the marker again.
- H4: the sender thread loses a request when the coordinator's connection is down, and the caller waits for ever.
  Guard: the connection check is wrapped, and every wait has a timeout.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt_kafka.library import (
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
    has_lz4,
    kafka_errors,
    network_client,
)
from spark_ckpt_kafka.options import BATCH_ROOM, Connection, Settings, Tuning
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
_RETRY_BACKOFF_MS = 5  # the sender thread sleeps this long between the requests of a transaction


class KafkaPythonProducer:
    """One transaction of one transactional id, over kafka-python."""

    def __init__(self, connection: Connection, tuning: Tuning, transactional_id: str, progress: Progress) -> None:
        self._progress = progress
        self._delivery_timeout_s = tuning.delivery_timeout_ms / 1000 + 2
        self._under_way: deque[list[Any]] = deque()
        self._acknowledged = 0
        self._identity: object = None
        with _translated("connect"):
            self._producer = KafkaProducer(**_settings(connection, tuning, transactional_id))
        self._keep_requests()

    def init(self) -> None:
        """Fence every older producer of the id."""
        with _translated("init_transactions"):
            self._producer.init_transactions()
        self._identity = self._transactions.producer_id_and_epoch
        self._progress()

    def begin(self) -> None:
        """Open the transaction."""
        with _translated("begin_transaction"):
            self._producer.begin_transaction()

    def send(self, chunk: Chunk) -> None:
        """Queue rows in order. Block while four chunks are unacknowledged."""
        while len(self._under_way) >= _MAX_CHUNKS_UNDER_WAY:
            self._settle(self._under_way.popleft())
        with _translated("send"):
            self._under_way.append(self._send_plain(chunk) if chunk.plain else self._send_rich(chunk))

    def add_marker(self, group: str, topic: str, epoch: int, metadata: str) -> None:
        """Write the marker into the transaction, as the committed offset of partition 0."""
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(epoch, metadata, -1)}
        with _translated("send_offsets_to_transaction"):
            result = self._transactions.send_offsets_to_transaction(offsets, group)
            self._wait(result, COMMIT_TIMEOUT_S)

    def deliver(self) -> int:
        """Wait until every record is acknowledged, and return their number."""
        with _translated("flush"):
            self._producer.flush(self._delivery_timeout_s)
        while self._under_way:
            self._settle(self._under_way.popleft())
        return self._acknowledged

    def commit(self) -> None:
        """Commit the transaction. The caller verifies the result with the marker."""
        self._check_identity()
        with _translated("commit_transaction"):
            result = self._transactions.begin_commit()
            self._producer._sender.wakeup()
            hit(Failpoint.COMMITTING)
            self._wait(result, COMMIT_TIMEOUT_S)

    def abort(self) -> None:
        """Abort the transaction, best effort."""
        with _translated("abort_transaction"):
            self._wait(self._transactions.begin_abort(), ABORT_TIMEOUT_S)

    def close(self) -> None:
        """Close the client."""
        self._producer.close(timeout=1)

    @property
    def _transactions(self) -> Any:
        return self._producer._transaction_manager

    def _send_plain(self, chunk: Chunk) -> list[Any]:
        send, topic = self._producer.send, chunk.topic
        return [send(topic, value, key) for value, key in zip(chunk.values, chunk.keys, strict=True)]

    def _send_rich(self, chunk: Chunk) -> list[Any]:
        send, size = self._producer.send, len(chunk)
        columns = (
            chunk.topics or [chunk.topic] * size,
            chunk.values,
            chunk.keys,
            chunk.headers or [None] * size,
            chunk.partitions or [None] * size,
            chunk.timestamps or [None] * size,
        )
        return [send(*row) for row in zip(*columns, strict=True)]

    def _settle(self, futures: list[Any]) -> None:
        """Wait for every record of a chunk (guard of H1)."""
        with _translated("deliver"):
            for future in futures:
                future.get(self._delivery_timeout_s)
        self._acknowledged += len(futures)
        self._progress()

    def _check_identity(self) -> None:
        """Raise `ProducerFailed` unless producer id, epoch and state are the same as after `init` (guard of H2)."""
        transactions = self._transactions
        if transactions.producer_id_and_epoch != self._identity or transactions._current_state.name != "IN_TRANSACTION":
            raise ProducerFailed("the producer's epoch changed inside the transaction", fenced=True)

    def _wait(self, result: Any, timeout_s: float) -> None:
        self._producer._sender.wakeup()
        if not result.wait(timeout_ms=timeout_s * 1000):
            raise ProducerFailed(f"no answer within {timeout_s:.0f} s")
        self._progress()

    def _keep_requests(self) -> None:
        """Treat a lost coordinator connection as "not ready" instead of dropping the request (guard of H4)."""
        # The client would split a batch that is too large, and flush does not wait for the parts. Instead the next
        # attempt uses smaller batches.
        self._producer._sender._can_split = lambda *_: False
        client = self._producer._sender._client
        client.await_ready = _patient(client.await_ready)


def _patient(await_ready: Callable[..., bool]) -> Callable[..., bool]:
    def wrapped(node: int, timeout_ms: float) -> bool:
        try:
            return await_ready(node, timeout_ms=timeout_ms)
        except kafka_errors.KafkaConnectionError:
            time.sleep(0.05)  # the sender thread retries at once
            return False

    return wrapped


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except ProducerFailed:
        raise
    except Exception as error:
        # Every exception of the client has the same consequence: open a new producer and read the marker.
        text = f"{doing}: {type(error).__name__}: {error}"
        refusal = refusal_of(text)
        raise ProducerFailed(text, fenced=_is_fenced(error), hint=hint_for(text), refusal=refusal) from error


def _is_fenced(error: BaseException) -> bool:
    kinds = (kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError)
    nested = [error, error.__cause__, *error.args]
    return any(isinstance(one, kinds) for one in nested) or "Fenced" in str(error)


def _settings(connection: Connection, tuning: Tuning, transactional_id: str) -> Settings:
    codec = tuning.compression_type
    settings: dict[str, Any] = {
        "transactional_id": transactional_id,
        "transaction_timeout_ms": tuning.transaction_timeout_ms,
        "delivery_timeout_ms": tuning.delivery_timeout_ms,
        "request_timeout_ms": tuning.request_timeout_ms,
        "linger_ms": tuning.linger_ms,
        "batch_size": tuning.batch_size,
        "max_request_size": max(tuning.max_request_size, tuning.batch_size + BATCH_ROOM),
        "compression_type": None if codec == "none" or (codec == "lz4" and not has_lz4()) else codec,
        "max_block_ms": int(INIT_TIMEOUT_S * 1000),
        "bootstrap_timeout_ms": 10_000,
        "retry_backoff_ms": _RETRY_BACKOFF_MS,
        "reconnect_backoff_max_ms": 300,
        "metrics_enabled": False,
        "allow_auto_create_topics": False,
        "kafka_client": network_client,
    }
    return connection.for_kafka_python() | settings
