"""kafka-python's hazards are real, and each guard catches its own: with the guard taken out, rows are lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Unfinished
from typing import Any

import pytest
from kafka_kit import Cluster, wait_for
from spark_ckpt_kafka.control import KafkaControl
from spark_ckpt_kafka.kafka_python_producer import KafkaPythonProducer
from spark_ckpt_kafka.library import kafka_errors
from spark_ckpt_kafka.marker import TopicMarker
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import Chunk, ProducerFailed

# Small batches: one per partition is under way, the others wait in the client and expire there.
HASTY = Tuning(request_timeout_ms=400, delivery_timeout_ms=1200, linger_ms=5, batch_size=500, compression_type="none")
SHORT_TRANSACTION = Tuning(
    request_timeout_ms=400, delivery_timeout_ms=900, transaction_timeout_ms=1000, compression_type="none"
)
_producers: list[KafkaPythonProducer] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _producers:
        _producers.pop()._producer.close(timeout=0)


def _producer(cluster: Cluster, tuning: Tuning) -> KafkaPythonProducer:
    producer = KafkaPythonProducer(Connection(cluster.broker.servers), tuning, f"guard-{cluster.topic}", lambda: None)
    _producers.append(producer)
    return producer


def _rows(cluster: Cluster, count: int, tag: str) -> Chunk:
    values = [f"{tag}{n}".encode() for n in range(count)]
    return Chunk(cluster.topic, values, values)


def _send_into_a_frozen_broker(cluster: Cluster, producer: KafkaPythonProducer) -> None:
    """20 records are acknowledged, most of 300 expire while the broker is frozen."""
    producer.init()
    producer.begin()
    producer.send(_rows(cluster, 20, "early"))
    assert producer.deliver() == 20
    cluster.broker.pause()
    try:
        producer.send(_rows(cluster, 300, "late"))
        futures = list(producer._under_way[-1])
        wait_for(lambda: all(future.is_done for future in futures), "the batches expire", 20)
        assert any(future.failed() for future in futures)
    finally:
        cluster.broker.resume()


def test_h1_without_the_guard_a_commit_succeeds_without_its_rows(cluster: Cluster) -> None:
    producer = _producer(cluster, HASTY)
    _send_into_a_frozen_broker(cluster, producer)

    producer.commit()

    assert 0 < len(cluster.read()) < 320, "the hazard is gone: kafka-python fails the transaction now"


def test_h1_an_expired_batch_stops_the_publish_before_its_commit(cluster: Cluster) -> None:
    producer = _producer(cluster, HASTY)
    _send_into_a_frozen_broker(cluster, producer)

    with pytest.raises(ProducerFailed, match="deliver"):
        producer.deliver()
    _producer(cluster, HASTY).init()

    assert cluster.read() == []


def _send_into_a_timed_out_transaction(cluster: Cluster, producer: KafkaPythonProducer) -> None:
    """The broker aborts the transaction, then one more batch is queued."""
    producer.init()
    producer.begin()
    producer.send(_rows(cluster, 10, "early"))
    producer.deliver()
    partitions = cluster.control.partitions([cluster.topic])
    assert not cluster.is_settled(partitions)
    wait_for(lambda: cluster.is_settled(partitions), "the broker aborts the transaction", 20)
    producer.send(_rows(cluster, 5, "late"))


def test_h2_a_transaction_that_timed_out_is_not_taken_for_committed(cluster: Cluster) -> None:
    producer = _producer(cluster, SHORT_TRANSACTION)
    _send_into_a_timed_out_transaction(cluster, producer)

    with pytest.raises(ProducerFailed):
        producer.deliver()
        producer.commit()

    assert cluster.read() == []


def test_h2_whatever_commit_says_after_a_timeout_the_marker_does_not_move(cluster: Cluster) -> None:
    """Without flush and check the client's commit is worth nothing; the marker tells."""
    producer = _producer(cluster, SHORT_TRANSACTION)
    _send_into_a_timed_out_transaction(cluster, producer)
    producer._identity = None  # take the identity check out as well
    producer._check_identity = lambda: None  # type: ignore[method-assign]

    with _ignored():
        producer.commit()

    assert cluster.read() == []
    assert KafkaControl(Connection(cluster.broker.servers)).marker(f"guard-{cluster.topic}", cluster.topic) is None


def _lose_the_coordinator_once(producer: KafkaPythonProducer, guarded: bool) -> None:
    """The next look at the coordinator's connection fails, as when the broker has just died."""
    client = producer._producer._sender._client
    whole = client.await_ready
    lost: list[int] = []

    def once(node: int, timeout_ms: float) -> bool:
        if not lost:
            lost.append(node)
            raise kafka_errors.KafkaConnectionError("lost")
        return bool(whole(node, timeout_ms=timeout_ms))

    client.await_ready = once
    if guarded:
        producer._keep_requests()


def test_h4_without_the_guard_a_commit_waits_for_ever(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ckpt_kafka.kafka_python_producer.COMMIT_TIMEOUT_S", 2.0)
    producer = _committable(cluster)
    _lose_the_coordinator_once(producer, guarded=False)

    with pytest.raises(ProducerFailed, match="no answer"):
        producer.commit()
    _producer(cluster, Tuning()).init()

    assert cluster.read() == []


def test_h4_a_lost_coordinator_connection_does_not_lose_the_commit(cluster: Cluster) -> None:
    producer = _committable(cluster)
    _lose_the_coordinator_once(producer, guarded=True)

    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(producer.commit).result(timeout=10)
        except Unfinished:
            pytest.fail("the commit request was lost")

    assert len(cluster.read()) == 10


def _committable(cluster: Cluster) -> KafkaPythonProducer:
    producer = _producer(cluster, Tuning(compression_type="none"))
    producer.init()
    producer.begin()
    producer.send(_rows(cluster, 10, "row"))
    producer.add_marker(f"guard-{cluster.topic}", cluster.topic, 1, TopicMarker(1, 0, 1, 10, 1, 1).encode())
    assert producer.deliver() == 10
    return producer


class _ignored:  # noqa: N801 - reads as a phrase
    def __enter__(self) -> None:
        self.started = time.monotonic()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return kind is not None and issubclass(kind, ProducerFailed)
