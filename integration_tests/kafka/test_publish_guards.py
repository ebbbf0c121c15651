"""Promises of a producer on a real broker when brokers freeze, transactions time out and coordinators move."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from kafka_kit import Cluster, wait_for
from spark_ckpt_kafka.library import kafka_errors
from spark_ckpt_kafka.marker import TopicMarker
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import ProducerFailed, TransactionalProducer, open_producer
from spark_ckpt_kafka.record_batches import Chunk

HASTY = Tuning(request_timeout_ms=400, delivery_timeout_ms=1200, batch_size=500, compression_type="none")
SHORT_TRANSACTION = Tuning(
    request_timeout_ms=400, delivery_timeout_ms=900, transaction_timeout_ms=1000, compression_type="none"
)
_producers: list[TransactionalProducer] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _producers:
        _producers.pop().close()


def _producer(cluster: Cluster, tuning: Tuning) -> TransactionalProducer:
    producer = open_producer(Connection(cluster.broker.servers), tuning, f"guard-{cluster.topic}", lambda: None)
    _producers.append(producer)
    return producer


def _rows(cluster: Cluster, count: int, tag: str) -> Chunk:
    values = [f"{tag}{n}".encode() for n in range(count)]
    return Chunk(cluster.topic, pa.record_batch({"key": values, "value": values}), [])


def _begun(cluster: Cluster, tuning: Tuning) -> TransactionalProducer:
    """A producer with 20 acknowledged records."""
    producer = _producer(cluster, tuning)
    producer.init()
    producer.begin()
    producer.send(_rows(cluster, 20, "early"))
    assert producer.deliver() == 20
    return producer


def test_records_without_an_answer_stop_the_publish_before_its_commit(cluster: Cluster) -> None:
    producer = _begun(cluster, HASTY)
    cluster.broker.pause()
    try:
        with pytest.raises(ProducerFailed, match=r"send|deliver"):
            producer.send(_rows(cluster, 300, "late"))
            producer.deliver()
        with pytest.raises(ProducerFailed):
            producer.abort()
    finally:
        cluster.broker.resume()
    _producer(cluster, HASTY).init()

    assert cluster.read() == []


def test_records_that_arrive_after_the_next_init_open_no_transaction(cluster: Cluster) -> None:
    """The frozen broker has them in its socket, and takes them when it continues."""
    producer = _begun(cluster, HASTY)
    cluster.broker.pause()
    try:
        producer.send(_rows(cluster, 30, "late"))
        with pytest.raises(ProducerFailed):
            producer.deliver()
    finally:
        cluster.broker.resume()
    _producer(cluster, HASTY).init()
    partitions = cluster.control.partitions([cluster.topic])

    wait_for(lambda: cluster.is_settled(partitions), "no open transaction", 20)
    assert cluster.read() == []


def test_a_transaction_that_timed_out_does_not_count_as_committed(cluster: Cluster) -> None:
    producer = _begun(cluster, SHORT_TRANSACTION)
    partitions = cluster.control.partitions([cluster.topic])
    assert not cluster.is_settled(partitions)
    wait_for(lambda: cluster.is_settled(partitions), "the broker aborts the transaction", 20)

    with pytest.raises(ProducerFailed) as failed:
        producer.send(_rows(cluster, 5, "late"))
        producer.add_marker(f"guard-{cluster.topic}", cluster.topic, 1, TopicMarker(1, 0, 1, 25, 1, 1).encode())
        producer.deliver()
        producer.commit()

    assert failed.value.fenced
    assert cluster.read() == []
    assert cluster.control.marker(f"guard-{cluster.topic}", cluster.topic) is None


@pytest.mark.parametrize("error", [kafka_errors.KafkaConnectionError, kafka_errors.NotCoordinatorError])
def test_a_coordinator_that_is_lost_or_moves_does_not_lose_the_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    producer = _begun(cluster, Tuning(compression_type="none"))
    producer.add_marker(f"guard-{cluster.topic}", cluster.topic, 1, TopicMarker(1, 0, 1, 20, 1, 1).encode())
    lost = _fail_the_next_answer(monkeypatch, error)

    producer.commit()

    assert lost == [error]
    assert len(cluster.read()) == 20


def _fail_the_next_answer(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> list[type[Exception]]:
    """The broker has done the request; its answer is lost."""
    from spark_ckpt_kafka import cluster

    whole, lost = cluster.raise_for, []

    def fails(code: int) -> None:
        if not lost:
            lost.append(error)
            raise error("planted")
        whole(code)

    monkeypatch.setattr(cluster, "raise_for", fails)
    return lost


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_reader_with_another_client_reads_each_compression(cluster: Cluster, compression: str) -> None:
    producer = _producer(cluster, Tuning(compression_type=compression))
    producer.init()
    producer.begin()
    producer.send(_rows(cluster, 3_000, "row" * 30))
    assert producer.deliver() == 3_000
    producer.commit()

    assert len({record.value for record in cluster.read()}) == 3_000
