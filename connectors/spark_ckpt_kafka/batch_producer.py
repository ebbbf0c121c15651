"""The data plane: one transaction of one transactional id, with record batches that are encoded from columns.

kafka-python's own producer makes a future and several other objects for each record. Here no record becomes a Python
object. The requests are those of the Java producer (KIP-98), in its order: init, partitions, records, group, offset of
the group, end. A batch that a broker cannot take for now is sent again under the same sequence number, as an idempotent
producer does. After any other failure the caller opens a new producer.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from spark_ckpt.errors import RowsRefused
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt_kafka.cluster import Cluster
from spark_ckpt_kafka.library import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    CoordinatorType,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    kafka_errors,
)
from spark_ckpt_kafka.options import Connection, Settings, Tuning
from spark_ckpt_kafka.partitioner import UnknownPartition, choose_partitions
from spark_ckpt_kafka.producer import (
    ABORT_TIMEOUT_S,
    COMMIT_TIMEOUT_S,
    INIT_TIMEOUT_S,
    Clock,
    ProducerFailed,
    Progress,
    hint_for,
    refusal_of,
)
from spark_ckpt_kafka.record_batches import Chunk, ProducerId, Records, encode_records, frame_batch

MOST_IN_FLIGHT = 4
"""Unanswered requests per broker. kafka-python refuses more than five."""
MOST_VERIFYING = 1
"""Unanswered requests per broker with a first batch of a partition.

At such a batch the broker asks the coordinator whether the partition belongs to the transaction (KIP-890). A second
such request ends the first one: NotEnoughReplicas, "Underlying error: NETWORK_EXCEPTION" (AddPartitionsToTxnManager).
"""
RETRY_PAUSE_S = 0.1
"""Pause before a batch is sent again: Kafka's default of retry.backoff.ms."""
_ALL_REPLICAS = -1
_OLD = 3
"""Version up to which a request does not belong to the second protocol of transactions (KIP-890)."""

_TAKEN = (0, kafka_errors.DuplicateSequenceNumberError.errno)
"""Codes of a batch that the partition has; the second one: it came again, and newer ones have followed."""
_OUT_OF_ORDER = kafka_errors.OutOfOrderSequenceNumberError.errno

Place = tuple[str, int]


class _Batch(NamedTuple):
    """A batch and the rows that it is of. `sequence`: number of its first record in the partition. `until_s`: time of
    the monotonic clock until which it may be sent.
    """

    chunk: Chunk
    records: Records
    sequence: int
    until_s: float

    @property
    def place(self) -> Place:
        return self.chunk.topic, self.records.partition


class _Sent(NamedTuple):
    """A request with batches of different partitions, and the future of its answer. `verifies`: one of them is the
    first of its partition.
    """

    node: int
    batches: Sequence[_Batch]
    verifies: bool
    answer: Any


class _Refused(NamedTuple):
    """A batch that a broker did not take for now, or gave no answer for."""

    batch: _Batch
    why: ProducerFailed


class BatchProducer:
    """One transaction. `now_ms` stamps rows without a time; `draw` chooses the partition of rows without a key."""

    def __init__(
        self,
        cluster: Cluster,
        tuning: Tuning,
        transactional_id: str,
        progress: Progress,
        now_ms: Clock,
        draw: random.Random,
    ) -> None:
        self._cluster = cluster
        self._tuning = tuning
        self._id = transactional_id
        self._progress = progress
        self._now_ms = now_ms
        self._draw = draw
        self._producer = ProducerId(-1, -1)
        self._leaders: dict[str, list[int]] = {}
        # Next sequence number of each partition that was added to the transaction.
        self._next: dict[Place, int] = {}
        # Partitions whose leader has taken a batch, and need not ask the coordinator again.
        self._verified: set[Place] = set()
        self._in_flight: deque[_Sent] = deque()
        self._busy: Counter[int] = Counter()
        self._acknowledged = 0
        # True once the coordinator has the transaction: it refuses the end of one without partitions and groups.
        self._opened = False
        # A request without an answer, which may still arrive at a broker.
        self._lost: ProducerFailed | None = None

    def renew(self) -> BatchProducer:
        """Return the producer of the next transaction, over the same connections. Only after a commit."""
        return BatchProducer(self._cluster, self._tuning, self._id, self._progress, self._now_ms, self._draw)

    def init(self) -> None:
        """Fence every older producer of the id. Return when their transactions are decided."""
        answer = self._ask_transactions(
            "init_transactions",
            lambda: InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=self._tuning.transaction_timeout_ms,
                # No id of its own: an init with one fails as soon as another producer has followed (KIP-360).
                producer_id=-1,
                producer_epoch=-1,
                max_version=4,
            ),
            INIT_TIMEOUT_S,
        )
        self._producer = ProducerId(answer.producer_id, answer.producer_epoch)

    def begin(self) -> None:
        """Open the transaction. The brokers open it with its first partition or offset."""
        with _translated("begin_transaction"):
            # The init may be hours ago, and nothing has read the connections since: a closed one is noticed here.
            self._cluster.take_news()

    def send(self, chunk: Chunk) -> None:
        """Send rows in order. Block while a broker has `MOST_IN_FLIGHT` requests."""
        with _translated("send"):
            leaders = self._leaders_of(chunk.topic)
            # Rows without a key share one partition per chunk, as with the Java client's sticky partitioner
            # (KIP-480): batches are full then.
            partitions = choose_partitions(chunk, len(leaders), self._draw.randrange(len(leaders)))
            batches = encode_records(chunk, partitions, self._now_ms(), self._tuning.batch_size)
            self._check_sizes(batches)
            self._add_partitions(chunk.topic, dict.fromkeys(each.partition for each in batches))
            for node, together in _in_requests(batches, leaders):
                self._send_request(node, chunk, together)

    def add_marker(self, group: str, topic: str, epoch: int, metadata: str) -> None:
        """Write the marker into the transaction, as the committed offset of partition 0."""
        self._ask_transactions(
            "send_offsets_to_transaction",
            lambda: AddOffsetsToTxnRequest(group_id=group, **self._names(), max_version=_OLD),
            COMMIT_TIMEOUT_S,
        )
        self._opened = True
        at = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition = at.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=epoch, committed_leader_epoch=-1, committed_metadata=metadata
        )
        with _translated("send_offsets_to_transaction"):
            # The broker asks the coordinator about the group's partition, too.
            while any(sent.verifies for sent in self._in_flight):
                self._settle()
            self._cluster.ask_coordinator(
                CoordinatorType.GROUP,
                group,
                lambda: TxnOffsetCommitRequest(
                    group_id=group,
                    # As of no member: the reserved group has none, and the broker compares no generation (KIP-447).
                    generation_id=-1,
                    member_id="",
                    group_instance_id=None,
                    topics=[at(name=topic, partitions=[partition])],
                    **self._names(),
                    max_version=_OLD,
                ),
                lambda answer: next((one.error_code for each in answer.topics for one in each.partitions), 0),
                COMMIT_TIMEOUT_S,
            )
        self._progress()

    def deliver(self) -> int:
        """Wait until every record is acknowledged, and return their number."""
        with _translated("deliver"):
            while self._in_flight:
                self._settle()
        return self._acknowledged

    def commit(self) -> None:
        """Commit the transaction. The caller verifies the result with the marker."""
        # A lost answer leaves the outcome open, and EndTxn may be repeated: the coordinator answers the same to the
        # same producer epoch.
        hit(Failpoint.COMMITTING)
        self._end(committed=True, wait_s=COMMIT_TIMEOUT_S)

    def abort(self) -> None:
        """Abort the transaction, best effort. Raises `ProducerFailed` if the next init has to do it.

        That is so if a request with records has no answer: it could arrive behind the abort, and open the transaction
        again. An init fences it.
        """
        with _translated("abort_transaction"):
            for sent in self._in_flight:
                self._cluster.wait(sent.answer, ABORT_TIMEOUT_S)
            if self._lost is not None:
                raise self._lost
        if self._opened:
            self._end(committed=False, wait_s=ABORT_TIMEOUT_S)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def _leaders_of(self, topic: str) -> list[int]:
        if topic not in self._leaders:
            self._leaders[topic] = self._cluster.leaders(topic, INIT_TIMEOUT_S)
        return self._leaders[topic]

    def _check_sizes(self, batches: Sequence[Records]) -> None:
        most = self._tuning.max_request_size
        large = next((each for each in batches if len(each.rows) == 1 and each.data.size > most), None)
        if large is not None:
            what = f"send: MessageSizeTooLarge: a record has {large.data.size} bytes, max.request.size is {most}"
            raise ProducerFailed(what, hint=hint_for(what), refusal="size")

    def _add_partitions(self, topic: str, partitions: Iterable[int]) -> None:
        # Records of a partition that was not added are refused. Brokers before KIP-890 kept them as a transaction
        # that never ended.
        new = [partition for partition in partitions if (topic, partition) not in self._next]
        if not new:
            return
        topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=new)]
        named = {f"v3_and_below_{name}": value for name, value in self._names().items()}
        self._ask_transactions(
            "add_partitions",
            lambda: AddPartitionsToTxnRequest(v3_and_below_topics=topics, **named, max_version=_OLD),
            COMMIT_TIMEOUT_S,
            _first_error,
        )
        self._opened = True
        self._next |= {(topic, partition): 0 for partition in new}

    def _send_request(self, node: int, chunk: Chunk, records: Sequence[Records]) -> None:
        verifies = self._verifies((chunk.topic, each.partition) for each in records)
        while self._busy[node] >= MOST_IN_FLIGHT or (verifies and self._verifying(node) >= MOST_VERIFYING):
            self._settle()
        self._transmit(node, [self._numbered(chunk, each) for each in records])

    def _numbered(self, chunk: Chunk, records: Records) -> _Batch:
        until_s = time.monotonic() + self._tuning.delivery_timeout_ms / 1000
        batch = _Batch(chunk, records, self._next[chunk.topic, records.partition], until_s)
        self._next[batch.place] += len(records.rows)
        return batch

    def _transmit(self, node: int, batches: Sequence[_Batch]) -> None:
        topic, kind = ProduceRequest.TopicProduceData, self._tuning.compression_type
        data = [
            topic.PartitionProduceData(
                index=each.records.partition,
                records=frame_batch(each.records, self._producer, each.sequence, kind),
            )
            for each in batches
        ]
        request = ProduceRequest(
            transactional_id=self._id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._tuning.request_timeout_ms,
            topic_data=[topic(name=batches[0].chunk.topic, partition_data=data)],
            # Version 3 brought transactions; version 12 belongs to their second protocol (`_OLD`).
            min_version=3,
            max_version=9,
        )
        left_s = min(each.until_s for each in batches) - time.monotonic()
        answer = self._cluster.send(request, node, max(1, round(left_s * 1000)))
        self._in_flight.append(_Sent(node, batches, self._verifies(each.place for each in batches), answer))
        self._busy[node] += 1

    def _verifies(self, places: Iterable[Place]) -> bool:
        return any(place not in self._verified for place in places)

    def _verifying(self, node: int) -> int:
        return sum(sent.verifies for sent in self._in_flight if sent.node == node)

    def _settle(self) -> None:
        """Wait for the oldest request and count its records. Batches that a broker cannot take for now are sent again."""
        refused = self._answered()
        # Later batches of such a partition fail, too: their sequence numbers leave a gap. So every request is answered
        # before the first batch is sent again, and then one batch at a time keeps the order.
        while refused and self._in_flight:
            refused += self._answered({each.batch.place for each in refused})
        for each in refused:
            self._send_again(each)

    def _answered(self, gaps: Collection[Place] = ()) -> list[_Refused]:
        """Wait for the oldest request and count its records. Return the batches to send again.

        `gaps`: partitions that lack an earlier batch.
        """
        sent = self._in_flight[0]
        try:
            answer = self._cluster.wait(sent.answer, self._tuning.delivery_timeout_ms / 1000)
        except kafka_errors.RetriableError as error:
            # The broker may have the records, and an answer that was lost with the connection.
            self._lost = _failure("deliver", error)
            self._forget_oldest()
            return [_Refused(batch, self._lost) for batch in sent.batches]
        self._forget_oldest()
        refused = self._refused_of(sent, answer, gaps)
        self._progress()
        return refused

    def _forget_oldest(self) -> None:
        self._busy[self._in_flight.popleft().node] -= 1

    def _refused_of(self, sent: _Sent, answer: Any, gaps: Collection[Place]) -> list[_Refused]:
        batches = {batch.place: batch for batch in sent.batches}
        refused = []
        for topic in answer.responses:
            for each in topic.partition_responses:
                batch = batches[topic.name, each.index]
                if each.error_code in _TAKEN:
                    self._acknowledged += len(batch.records.rows)
                    self._verified.add(batch.place)
                elif _may_pass(each.error_code) or (each.error_code == _OUT_OF_ORDER and batch.place in gaps):
                    refused.append(_Refused(batch, _refused(batch, each)))
                else:
                    raise _refused(batch, each)
        return refused

    def _send_again(self, refused: _Refused) -> None:
        """Send a batch to the partition's leader until it is taken or its time is over."""
        batch, why = refused
        leaders = self._leaders_of(batch.chunk.topic)
        while (left_s := batch.until_s - time.monotonic()) > 0:
            self._cluster.pause(RETRY_PAUSE_S)
            # In place: `send` reads it for the requests that follow. Partitions that were added meanwhile stay without
            # rows, so that a key stays where it was in this transaction.
            leaders[:] = self._cluster.leaders(batch.chunk.topic, left_s)[: len(leaders)]
            # A new leader asks the coordinator about the partition again.
            self._verified.clear()
            # Under its old sequence number, by which a broker knows a batch that it has and appends it once.
            self._transmit(leaders[batch.records.partition], [batch])
            # The answer to this very request: `_settle` has left no other in flight.
            again = self._answered()
            if not again:
                return
            why = again[0].why
        raise why

    def _end(self, *, committed: bool, wait_s: float) -> None:
        self._ask_transactions(
            "commit_transaction" if committed else "abort_transaction",
            lambda: EndTxnRequest(committed=committed, **self._names(), max_version=_OLD),
            wait_s,
        )

    def _names(self) -> dict[str, Any]:
        return {
            "transactional_id": self._id,
            "producer_id": self._producer.number,
            "producer_epoch": self._producer.epoch,
        }

    def _ask_transactions(
        self,
        doing: str,
        request: Callable[[], object],
        wait_s: float,
        code: Callable[[Any], int] = lambda answer: int(answer.error_code),
    ) -> Any:
        with _translated(doing):
            answer = self._cluster.ask_coordinator(CoordinatorType.TRANSACTION, self._id, request, code, wait_s)
        self._progress()
        return answer


def _in_requests(batches: Sequence[Records], leaders: Sequence[int]) -> Iterator[tuple[int, list[Records]]]:
    """Yield brokers with the batches of one request each: one batch per partition, those of a partition in order."""
    left = list(batches)
    while left:
        # Reversed: of several batches of a partition the first one stays in the dict.
        first = {each.partition: each for each in reversed(left)}
        left = [each for each in left if each is not first[each.partition]]
        # Divided before the first one is sent: leaders may change at each `yield`, and no batch may be left out then.
        by_node: dict[int, list[Records]] = {}
        for partition, each in first.items():
            by_node.setdefault(leaders[partition], []).append(each)
        yield from sorted(by_node.items())


def _first_error(answer: Any) -> int:
    codes = [
        one.partition_error_code for each in answer.results_by_topic_v3_and_below for one in each.results_by_partition
    ]
    # A partition that the broker did not try says nothing about the reason.
    untried = kafka_errors.OperationNotAttemptedError.errno
    return next((code for code in codes if code not in (0, untried)), max(codes, default=0))


def _may_pass(code: int) -> bool:
    error = kafka_errors.for_code(code)
    # Not to an unknown topic, although Kafka calls that retriable: it may be created again, and empty then.
    return issubclass(error, kafka_errors.RetriableError) and error is not kafka_errors.UnknownTopicOrPartitionError


def _refused(batch: _Batch, answer: Any) -> ProducerFailed:
    """Return the error of a refused batch, with the key of the record that the broker names."""
    error = kafka_errors.for_code(answer.error_code)
    why = [answer.error_message or "", *(each.batch_index_error_message or "" for each in answer.record_errors or ())]
    text = f"deliver: {error.__name__}: {'; '.join(filter(None, why)) or error.description}"
    # Counted within the batch: `records.rows` leads to the row of the chunk.
    named = next((each.batch_index for each in answer.record_errors or ()), None)
    key = None
    if named is not None:
        keys = batch.chunk.column("key")
        value = None if keys is None else keys[int(batch.records.rows[named])].as_py()
        topic, partition = batch.place
        key = f"{topic}/{partition}, " + ("no key" if value is None else f"key {value[:80]!r}")
    return ProducerFailed(text, fenced=_is_fenced(error()), hint=hint_for(text), refusal=refusal_of(text), key=key)


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except (ProducerFailed, RowsRefused):
        raise
    except UnknownPartition as error:
        raise ProducerFailed(f"{doing}: {error}", refusal="partition") from error
    except Exception as error:
        # Every exception of the client has the same consequence: open a new producer and read the marker.
        raise _failure(doing, error) from error


def _failure(doing: str, error: Exception) -> ProducerFailed:
    text = f"{doing}: {type(error).__name__}: {error}"
    return ProducerFailed(text, fenced=_is_fenced(error), hint=hint_for(text), refusal=refusal_of(text))


def _is_fenced(error: BaseException) -> bool:
    return isinstance(error, (kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError))


def open_cluster(connection: Connection, tuning: Tuning) -> Cluster:
    """Connect. Raises `ProducerFailed`."""
    settings: Settings = connection.for_kafka_python() | {
        "request_timeout_ms": tuning.request_timeout_ms,
        # With kafka-python's 30 s a pause could outlast the timeout of the request that waits for the connection.
        "reconnect_backoff_max_ms": 300,
        # A request for metadata would create a topic that was deleted, and rows would go into an empty one.
        "allow_auto_create_topics": False,
    }
    with _translated("connect"):
        return Cluster(settings, int(INIT_TIMEOUT_S * 1000))
