"""A batch that a broker refuses temporarily is sent again within its transaction, and is there once and in order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from kafka.record.default_records import DefaultRecordBatch
from spark_ckpt_kafka import batch_producer, cluster
from spark_ckpt_kafka.batch_producer import BatchProducer
from spark_ckpt_kafka.library import EndTxnRequest, kafka_errors
from spark_ckpt_kafka.options import Tuning
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.record_batches import Chunk, ProducerId, Records, frame_batch

PARTITIONS, NODES = 4, 2
REMEMBERED = 5
"""Number of batches of a producer that a Kafka broker compares a new one with, per partition."""
TUNING = Tuning(compression_type="none", batch_size=200)
NOT_LEADER = kafka_errors.NotLeaderForPartitionError.errno
TOO_FEW = kafka_errors.NotEnoughReplicasAfterAppendError.errno
OUT_OF_ORDER = kafka_errors.OutOfOrderSequenceNumberError.errno
DUPLICATE = kafka_errors.DuplicateSequenceNumberError.errno
TAKEN = SimpleNamespace(appends=True, code=0, lost=False)
REFUSED = SimpleNamespace(appends=False, code=NOT_LEADER, lost=False)
APPENDED_AND_REFUSED = SimpleNamespace(appends=True, code=TOO_FEW, lost=False)
LOST = SimpleNamespace(appends=False, code=0, lost=True)
APPENDED_AND_LOST = SimpleNamespace(appends=True, code=0, lost=True)
FATES = (TAKEN, REFUSED, APPENDED_AND_REFUSED, LOST, APPENDED_AND_LOST)


@dataclass
class Partition:
    """A partition's log, with the sequence numbers of its newest batches: (first, last)."""

    values: list[bytes] = field(default_factory=list)
    newest: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def append(self, data: bytes) -> int:
        """Append a batch as Kafka's `ProducerAppendInfo` allows it, and return the code of the answer."""
        batch = DefaultRecordBatch(data)
        first = batch.base_sequence
        last = first + batch.records_count - 1
        if (first, last) in self.newest:
            return 0
        if first != (self.newest[-1][1] + 1 if self.newest else 0):
            return OUT_OF_ORDER
        self.newest.append((first, last))
        self.values += [record.value for record in batch]
        return 0


class SequencedCluster:
    """Brokers that check sequence numbers. `fates`: outcomes of the next requests, each for their first partition or all."""

    def __init__(self, fates: list[Any] | None = None, draw: random.Random | None = None) -> None:
        self.fates = deque(fates or [])
        self.draw = draw
        self.logs = [Partition() for _ in range(PARTITIONS)]
        self.led_by = [number % NODES for number in range(PARTITIONS)]
        self.pauses = 0
        self.ends: list[bool] = []
        self.met: Counter[int] = Counter()

    def ask_coordinator(self, kind: object, key: str, request: Callable[[], Any], code: object, wait_s: float) -> Any:
        made = request()
        if isinstance(made, EndTxnRequest):
            self.ends.append(made.committed)
        return SimpleNamespace(producer_id=7, producer_epoch=3)

    def leaders(self, topic: str, wait_s: float) -> list[int]:
        return [*self.led_by]

    def send(self, request: Any, node: int, timeout_ms: int) -> Any:
        """Append at once, as a broker that gets its requests in order; answer at `wait`."""
        fate = self._fate()
        if fate in FATES:
            self.met[FATES.index(fate)] += 1
        parts = [self._answer(each, node, fate) for each in request.topic_data[0].partition_data]
        if fate.lost:
            return kafka_errors.KafkaConnectionError("lost")
        return SimpleNamespace(responses=[SimpleNamespace(name=request.topic_data[0].name, partition_responses=parts)])

    def wait(self, answer: Any, wait_s: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pause(self, pause_s: float) -> None:
        self.pauses += 1

    def take_news(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _fate(self) -> Any:
        if self.fates:
            return self.fates.popleft()
        if self.draw is None:
            return TAKEN
        if self.draw.random() < 0.1:  # a partition moves to another broker
            self.led_by[self.draw.randrange(PARTITIONS)] = self.draw.randrange(NODES)
        return self.draw.choices(FATES, (6, 1, 1, 1, 1))[0]

    def _answer(self, data: Any, node: int, fate: Any) -> Any:
        code = fate.code
        if node != self.led_by[data.index]:
            code = NOT_LEADER
        elif fate.appends:
            code = self.logs[data.index].append(data.records) or code
        return SimpleNamespace(index=data.index, error_code=code, error_message=None, record_errors=[])


def producer(brokers: SequencedCluster, tuning: Tuning = TUNING) -> BatchProducer:
    one = BatchProducer(brokers, tuning, "store.out.0", lambda: None, lambda: 1_000, random.Random(1))  # type: ignore[arg-type]
    one.init()
    one.begin()
    return one


def chunk(first: int, count: int) -> Chunk:
    numbers = range(first, first + count)
    rows = {
        "value": [b"%d" % number for number in numbers],
        "partition": pa.array([number % PARTITIONS for number in numbers], pa.int32()),
    }
    return Chunk("t", pa.record_batch(rows), [])


def expected(count: int) -> list[list[bytes]]:
    return [[b"%d" % number for number in range(first, count, PARTITIONS)] for first in range(PARTITIONS)]


def sent(brokers: SequencedCluster, chunks: int = 3, rows: int = 200) -> list[list[bytes]]:
    """Return the rows of the partitions after a producer has sent its rows."""
    one = producer(brokers)
    for number in range(chunks):
        one.send(chunk(number * rows, rows))
    one.add_marker("g", "t", 1, "{}")
    assert one.deliver() == chunks * rows
    return [each.values for each in brokers.logs]


@pytest.mark.parametrize("fate", FATES[1:], ids=["refused", "appended and refused", "lost", "appended and lost"])
@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_batch_without_success_is_sent_again_and_is_there_once(fate: Any, at: int) -> None:
    brokers = SequencedCluster([TAKEN] * at + [fate])

    assert sent(brokers) == expected(600)


def test_rows_are_there_once_and_in_order_for_any_fate_of_requests() -> None:
    met: Counter[int] = Counter()
    for seed in range(10):
        brokers = SequencedCluster(draw=random.Random(seed))
        assert sent(brokers) == expected(600)
        met += brokers.met

    assert len(met) == len(FATES)


def _new_number_each_time() -> Callable[..., bytes]:
    counts: Counter[int] = Counter()

    def framed(records: Records, identity: ProducerId, sequence: int, compression: str) -> bytes:
        first = counts[records.partition]
        counts[records.partition] += len(records.rows)
        return frame_batch(records, identity, first, compression)

    return framed


def test_a_planted_new_sequence_number_for_a_repeated_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: a broker that has the batch appends it twice."""
    monkeypatch.setattr(batch_producer, "frame_batch", _new_number_each_time())

    found = sent(SequencedCluster([TAKEN] * 20 + [APPENDED_AND_LOST]))

    assert found != expected(600)
    assert sum(map(len, found)) > 600


def test_a_gap_that_no_refused_batch_explains_ends_the_attempt() -> None:
    """The broker has lost records of this transaction."""
    brokers = SequencedCluster()
    one = producer(brokers)
    one.send(chunk(0, 200))
    one.deliver()
    brokers.logs[2].newest.clear()

    with pytest.raises(ProducerFailed, match="OutOfOrderSequenceNumber"):
        one.send(chunk(200, 200))
        one.deliver()

    assert not brokers.pauses


def test_a_batch_that_arrived_long_ago_counts_as_appended() -> None:
    brokers = SequencedCluster([SimpleNamespace(appends=True, code=DUPLICATE, lost=False)])

    assert sent(brokers) == expected(600)


def test_a_batch_that_stays_refused_ends_the_attempt_with_the_brokers_error() -> None:
    one = producer(SequencedCluster([REFUSED] * 1_000), Tuning(request_timeout_ms=1, delivery_timeout_ms=2))

    with pytest.raises(ProducerFailed, match="NotLeaderForPartition"):
        one.send(chunk(0, 200))
        one.deliver()


def test_a_deleted_topic_gets_no_batch_again() -> None:
    """It may be created again: the earlier rows would be missing there."""
    gone = SimpleNamespace(appends=False, code=kafka_errors.UnknownTopicOrPartitionError.errno, lost=False)
    brokers = SequencedCluster([gone])
    one = producer(brokers)

    with pytest.raises(ProducerFailed, match="UnknownTopicOrPartition"):
        one.send(chunk(0, 8))
        one.deliver()


def test_an_abort_does_not_overtake_a_request_whose_connection_ended() -> None:
    """Although the batch was sent again: the lost request may arrive after the abort."""
    brokers = SequencedCluster([LOST])
    one = producer(brokers)
    one.send(chunk(0, 8))
    one.deliver()

    with pytest.raises(ProducerFailed, match="lost"):
        one.abort()

    assert brokers.ends == []


class Connections:
    """A client whose brokers have a topic of one partition; `ids`: the topic's id at each read."""

    def __init__(self, ids: list[object]) -> None:
        self.ids = ids
        self.cluster = SimpleNamespace(update_metadata=lambda answer: None)

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return asyncio.run(work(*arguments))

    async def send(self, request: Any) -> Any:
        partition = SimpleNamespace(partition_index=0, leader_id=1)
        topic = SimpleNamespace(error_code=0, partitions=[partition], topic_id=self.ids.pop(0))
        return SimpleNamespace(topics=[topic])


@pytest.mark.parametrize("ids", [["a", "a", "b"], [None, None]], ids=["created again", "brokers without ids"])
def test_a_topic_that_was_created_again_gets_no_batch_again(monkeypatch: pytest.MonkeyPatch, ids: list[object]) -> None:
    monkeypatch.setattr(
        cluster, "open_connections", lambda *_: (SimpleNamespace(sleep=asyncio.sleep), Connections(ids))
    )
    asked = cluster.Cluster({}, 1)

    assert [asked.leaders("t", 1.0) for _ in range(2)] == [[1], [1]]
    if ids:
        with pytest.raises(kafka_errors.KafkaError, match="deleted and created again"):
            asked.leaders("t", 1.0)


def test_batches_of_a_moved_partition_go_to_its_new_leader() -> None:
    brokers = SequencedCluster()
    one = producer(brokers)
    one.send(chunk(0, 200))
    brokers.led_by = [1] * PARTITIONS
    one.send(chunk(200, 200))

    assert one.deliver() == 400
    assert [each.values for each in brokers.logs] == expected(400)
