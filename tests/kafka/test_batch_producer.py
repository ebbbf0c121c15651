"""A producer reports the end of its transaction: fenced, a record refused, or unknown."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from publishing_kit import ROWS, World
from spark_ckpt_kafka import batch_producer, publishing
from spark_ckpt_kafka.batch_producer import MOST_IN_FLIGHT, BatchProducer
from spark_ckpt_kafka.library import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    kafka_errors,
)
from spark_ckpt_kafka.options import Tuning
from spark_ckpt_kafka.producer import ProducerFailed, refusal_of
from spark_ckpt_kafka.record_batches import Chunk

PARTITIONS = 3


class ModelCluster:
    """Answer each request at once. `fails`: errors to raise instead, by the request's class, once each."""

    def __init__(self, *_: object) -> None:
        self.asked: list[Any] = []
        self.fails: dict[type, Exception] = {}
        self.fenced = False
        self.answers: deque[Any] = deque()
        self.unanswered = 0
        self.most_unanswered = 0

    def ask_coordinator(self, kind: object, key: str, request: Callable[[], Any], code: object, wait_s: float) -> Any:
        made = request()
        self._note(made)
        return SimpleNamespace(producer_id=7, producer_epoch=3)

    def leaders(self, topic: str, wait_s: float) -> list[int]:
        return [0] * PARTITIONS

    def send(self, request: Any, node: int, timeout_ms: int) -> Any:
        self._note(request)
        self.unanswered += 1
        self.most_unanswered = max(self.most_unanswered, self.unanswered)
        return request

    def wait(self, sent: Any, wait_s: float) -> Any:
        if (error := self.fails.get(type(self))) is not None:
            raise error
        self.unanswered -= 1
        return self.answers.popleft() if self.answers else produced(sent)

    def pause(self, pause_s: float) -> None:
        pass

    def take_news(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _note(self, request: Any) -> None:
        self.asked.append(request)
        error = self.fails.get(type(request))
        self.fenced = self.fenced or isinstance(error, kafka_errors.ProducerFencedError)
        if self.fenced:
            raise kafka_errors.ProducerFencedError
        if error is not None:
            raise error


def produced(request: Any, **refusal: Any) -> Any:
    """Return the answer to a request with records; `refusal` is its first partition's."""
    parts = [
        SimpleNamespace(index=each.index, error_code=0, error_message=None, record_errors=[])
        for each in request.topic_data[0].partition_data
    ]
    vars(parts[0]).update(refusal)
    return SimpleNamespace(responses=[SimpleNamespace(name=request.topic_data[0].name, partition_responses=parts)])


@pytest.fixture
def cluster() -> ModelCluster:
    return ModelCluster()


def producer(
    cluster: ModelCluster, tuning: Tuning | None = None, kind: type[BatchProducer] = BatchProducer
) -> BatchProducer:
    one = kind(
        cluster,  # type: ignore[arg-type]
        tuning or Tuning(),
        "store.out.0",
        lambda: None,
        lambda: 1_000,
        random.Random(1),
    )
    one.init()
    one.begin()
    return one


def chunk(count: int, **columns: Any) -> Chunk:
    return Chunk("t", pa.record_batch({"value": [b"%d" % number for number in range(count)], **columns}), [])


FENCED_AT = [AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest]


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("at", FENCED_AT)
def test_a_lane_whose_producer_is_fenced_raises_fenced(
    cluster: ModelCluster, world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, at: type, ahead: bool
) -> None:
    one = world()
    monkeypatch.setattr(publishing, "open_producer", lambda *_: producer(cluster))
    cluster.fails[at] = kafka_errors.ProducerFencedError()
    publisher = one.publisher()

    def both() -> None:
        if ahead:
            publisher.send_early(one.in_parts(1, ROWS // 2))
        publisher.publish(one.in_parts(1, ROWS))

    with pytest.raises(ProducerFailed) as caught:
        both()

    assert caught.value.fenced


def test_records_that_wait_for_an_answer_are_bounded(cluster: ModelCluster) -> None:
    one = producer(cluster, Tuning(batch_size=100))

    one.send(chunk(500))

    assert cluster.most_unanswered == MOST_IN_FLIGHT
    assert one.deliver() == 500


class VerifyingCluster(ModelCluster):
    """One broker. Like Kafka's, it ends a request that waits for the coordinator when another request repeats the verification."""

    def __init__(self) -> None:
        super().__init__()
        self.verified: set[int] = set()
        self.asking: Any = None
        self.ended: list[Any] = []

    def ask_coordinator(self, kind: object, key: str, request: Callable[[], Any], code: object, wait_s: float) -> Any:
        if isinstance(request(), TxnOffsetCommitRequest):
            self._ask(None)
        return super().ask_coordinator(kind, key, request, code, wait_s)

    def send(self, request: Any, node: int, timeout_ms: int) -> Any:
        if not self.verified.issuperset(_partitions(request)):
            self._ask(request)
        return super().send(request, node, timeout_ms)

    def wait(self, sent: Any, wait_s: float) -> Any:
        if sent is self.asking:
            self.asking = None
        if any(sent is each for each in self.ended):
            code = kafka_errors.NotEnoughReplicasError.errno
            return produced(sent, error_code=code, error_message="Underlying error: NETWORK_EXCEPTION")
        self.verified |= _partitions(sent)
        return super().wait(sent, wait_s)

    def _ask(self, request: Any) -> None:
        if self.asking is not None:
            self.ended.append(self.asking)
        self.asking = request


def _partitions(request: Any) -> set[int]:
    return {each.index for each in request.topic_data[0].partition_data}


def _ended_of_small_requests() -> int:
    """Return the number of requests that the broker ended. Their batches are sent again, after a pause each."""
    cluster = VerifyingCluster()
    one = producer(cluster, Tuning(batch_size=100))
    for partition in (0, 1):
        one.send(chunk(40, partition=pa.array([partition] * 40, pa.int32())))
    assert one.deliver() == 80
    return len(cluster.ended)


def test_a_request_does_not_end_another_one_whose_partitions_the_broker_verifies() -> None:
    assert _ended_of_small_requests() == 0


def test_a_marker_does_not_end_a_request_whose_partitions_the_broker_verifies() -> None:
    cluster = VerifyingCluster()
    one = producer(cluster)
    one.send(chunk(40))
    one.add_marker("g", "t", 1, "{}")

    assert one.deliver() == 40
    assert not cluster.ended


def test_planted_requests_that_end_one_another_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: several requests with first batches of partitions."""
    monkeypatch.setattr(batch_producer, "MOST_VERIFYING", MOST_IN_FLIGHT)

    assert _ended_of_small_requests() > 0


def test_sequences_continue_from_batch_to_batch_of_a_partition(cluster: ModelCluster) -> None:
    one = producer(cluster, Tuning(batch_size=200))
    for _ in range(2):
        one.send(chunk(40, partition=pa.array([1] * 40, pa.int32())))

    sent = [each.topic_data[0].partition_data for each in cluster.asked if isinstance(each, ProduceRequest)]
    heads = [header(part.records) for (part,) in sent]

    assert len(heads) > 4
    assert [head.sequence for head in heads] == [sum(each.count for each in heads[:at]) for at in range(len(heads))]
    assert {(head.producer, head.epoch) for head in heads} == {(7, 3)}


def test_each_partition_is_added_to_the_transaction_once_before_its_records(cluster: ModelCluster) -> None:
    one = producer(cluster)
    for _ in range(2):
        one.send(chunk(30, partition=pa.array([0, 2] * 15, pa.int32())))

    kinds = [type(each) for each in cluster.asked]
    (added,) = [each for each in cluster.asked if isinstance(each, AddPartitionsToTxnRequest)]

    assert kinds == [InitProducerIdRequest, AddPartitionsToTxnRequest, ProduceRequest, ProduceRequest]
    assert [(each.name, each.partitions) for each in added.v3_and_below_topics] == [("t", [0, 2])]


def test_a_refused_record_is_named_by_its_key(cluster: ModelCluster) -> None:
    one = producer(cluster)
    keys = [b"%d" % number for number in range(5)]
    one.send(chunk(5, key=keys, partition=pa.array([2] * 5, pa.int32())))
    named = SimpleNamespace(batch_index=3, batch_index_error_message="too old")
    code = kafka_errors.InvalidRecordError.errno
    cluster.answers.append(produced(cluster.asked[-1], error_code=code, record_errors=[named]))

    with pytest.raises(ProducerFailed, match=r"InvalidRecord.*too old") as failed:
        one.deliver()

    assert (failed.value.refusal, failed.value.key) == ("record", "t/2, key b'3'")
    assert not failed.value.fenced


def test_a_partition_that_the_topic_does_not_have_is_refused(cluster: ModelCluster) -> None:
    with pytest.raises(ProducerFailed, match="no partition 3") as failed:
        producer(cluster).send(chunk(1, partition=pa.array([PARTITIONS], pa.int32())))

    assert failed.value.refusal == "partition"


def test_a_record_above_the_sinks_own_limit_is_not_sent(cluster: ModelCluster) -> None:
    with pytest.raises(ProducerFailed, match=r"max\.request\.size is 50") as failed:
        producer(cluster, Tuning(max_request_size=50)).send(Chunk("t", pa.record_batch({"value": [b"x" * 60]}), []))

    assert failed.value.refusal == "size"
    assert not [each for each in cluster.asked if isinstance(each, ProduceRequest)]


def _ends(cluster: ModelCluster) -> Iterator[bool]:
    return (each.committed for each in cluster.asked if isinstance(each, EndTxnRequest))


def _abort_with_records_on_their_way(cluster: ModelCluster, kind: type[BatchProducer]) -> list[bool]:
    """Return the ends of transactions that the brokers got."""
    one = producer(cluster, kind=kind)
    one.send(chunk(3))
    cluster.fails[ModelCluster] = kafka_errors.KafkaConnectionError("lost")
    with suppress(ProducerFailed):
        one.abort()
    return list(_ends(cluster))


def test_an_abort_does_not_overtake_records_without_an_answer(cluster: ModelCluster) -> None:
    """They would open the transaction again, after its abort. The next init fences them."""
    assert _abort_with_records_on_their_way(cluster, BatchProducer) == []


class AbortsAtOnce(BatchProducer):
    """A planted bug: does not wait for the answers."""

    def abort(self) -> None:
        self._end(committed=False, wait_s=1.0)


def test_a_planted_abort_that_overtakes_records_is_found(cluster: ModelCluster) -> None:
    assert _abort_with_records_on_their_way(cluster, AbortsAtOnce) != []


def test_an_abort_that_is_left_to_the_next_init_is_reported(cluster: ModelCluster) -> None:
    one = producer(cluster)
    one.send(chunk(3))
    cluster.fails[ModelCluster] = kafka_errors.KafkaConnectionError("lost")

    with pytest.raises(ProducerFailed, match="lost"):
        one.abort()


def test_an_abort_ends_a_transaction_whose_records_are_answered(cluster: ModelCluster) -> None:
    one = producer(cluster)
    one.send(chunk(3))

    one.abort()

    assert list(_ends(cluster)) == [False]


def test_a_renewed_producer_begins_a_transaction_of_its_own(cluster: ModelCluster) -> None:
    one = producer(cluster)
    one.send(chunk(30))
    one.deliver()
    one.commit()

    two = one.renew()
    two.init()
    two.begin()
    two.send(chunk(20))

    assert two.deliver() == 20
    assert [type(each) for each in cluster.asked].count(AddPartitionsToTxnRequest) == 2
    sent = [each for each in cluster.asked if isinstance(each, ProduceRequest)]
    assert {header(part.records).sequence for part in sent[-1].topic_data[0].partition_data} == {0}


def test_a_transaction_that_no_broker_knows_needs_no_abort(cluster: ModelCluster) -> None:
    producer(cluster).abort()

    assert list(_ends(cluster)) == []


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("deliver: InvalidRecordError: one or more records", "record"),
        ("deliver: MessageSizeTooLargeError: [Error 10]", "size"),
        ("deliver: KafkaTimeoutError", ""),
    ],
)
def test_an_error_names_the_refused_operation(text: str, refusal: str) -> None:
    assert refusal_of(text) == refusal


class Head(SimpleNamespace):
    """Fields of a record batch."""


def header(batch: bytes) -> Head:
    """Decoded by kafka-python."""
    from kafka.record.default_records import DefaultRecordBatch

    _, _, _, _, _, _, _, _, _, producer_id, epoch, sequence, count = DefaultRecordBatch.HEADER_STRUCT.unpack_from(batch)
    return Head(producer=producer_id, epoch=epoch, sequence=sequence, count=count)
