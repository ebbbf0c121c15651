"""Shared by the Kafka tests: stage rows as tasks do, publish as a driver does, and read with an independent reader."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.producer import KafkaProducer as KafkaProducer
from spark_ckpt_kafka.control import ControlError, KafkaControl
from spark_ckpt_kafka.library import KafkaAdminClient
from spark_ckpt_kafka.marker import TopicMarker
from spark_ckpt_kafka.options import Connection
from spark_ckpt_kafka.publisher import KafkaPublisher, PublishPatience
from spark_ckpt_kafka.sink import KafkaSink

from checkpoint_protocols.ids import Epoch, Incarnation
from integration_tests.broker import Broker
from integration_tests.broker_cluster import BrokerCluster
from spark_ckpt.connector import EpochOutput, PublishReceipt, SinkContext, StagedFile


def kills_at(points: Sequence[str], gate: Sequence[str]) -> pytest.MarkDecorator:
    """Every failpoint, for `point`. Those outside of `gate` are long tests."""
    return pytest.mark.parametrize(
        "point", [pytest.param(point, marks=() if point in gate else pytest.mark.long) for point in points]
    )


PARTITIONS = 3
_open_publishers: list[KafkaPublisher] = []

Row = tuple[bytes, bytes]


@dataclass(frozen=True)
class Staged:
    """One epoch's files of all publishers, as the tasks would have staged them."""

    root: Path
    files: tuple[StagedFile, ...]
    rows: tuple[Row, ...]

    @classmethod
    def write(cls, root: Path, epoch: int, rows: int = 600, lanes: int = 1, row_groups: int = 3) -> Staged:
        """Write `rows` rows of 20 keys, value = epoch and sequence number, several row groups per file."""
        root.mkdir()
        every = [(f"key-{n % 20}".encode(), f"{epoch}:{n:06d}".encode()) for n in range(rows)]
        files = [
            _write(root, lane, [row for row in every if int(row[0][4:]) % lanes == lane], row_groups)
            for lane in range(lanes)
        ]
        return cls(root, tuple(files), tuple(every))

    @classmethod
    def table(cls, root: Path, table: pa.Table) -> Staged:
        """Write one file with exactly these columns, for publisher 0."""
        root.mkdir()
        pq.write_table(table, root / "rows.parquet")
        return cls(root, (_staged(root / "rows.parquet", table.num_rows, lane=0),), ())


def _write(root: Path, lane: int, rows: Sequence[Row], row_groups: int) -> StagedFile:
    columns = {"key": [row[0] for row in rows], "value": [row[1] for row in rows]}
    table = pa.table({name: pa.array(values, pa.binary()) for name, values in columns.items()})
    name = f"lane{lane}.parquet"
    pq.write_table(table, root / name, row_group_size=max(1, len(rows) // row_groups))
    return _staged(root / name, len(rows), lane)


def _staged(path: Path, rows: int, lane: int) -> StagedFile:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return StagedFile(path.name, len(content), rows, lane, batch=0, task=0, part=0, sha256=digest)


@dataclass
class Cluster:
    """A topic and a store id of a test. `replication`: replicas of a topic; -1 for the brokers' own number."""

    broker: Broker | BrokerCluster
    topic: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:10]}")
    store_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    replication: int = 1

    def __post_init__(self) -> None:
        self.control = KafkaControl(Connection(self.broker.servers))
        self._make(self.topic)
        self.topics = [self.topic]

    def new_topic(self) -> str:
        name = f"{self.topic}-{len(self.topics)}"
        self._make(name)
        self.topics.append(name)
        return name

    def administer(self, work: Callable[[KafkaAdminClient], object]) -> None:
        """Do an operator's work with the brokers' tools."""
        admin = KafkaAdminClient(bootstrap_servers=self.broker.servers)
        try:
            work(admin)
        finally:
            admin.close()

    def recreate(self, topic: str) -> None:
        """Delete the topic and create it again."""
        self.administer(lambda admin: admin.delete_topics([topic]))

        wait_for(lambda: not self._partitions_of(topic), "the topic's deletion")
        self._make(topic)

    def _make(self, topic: str) -> None:
        """A busy broker lists a new topic only some time after it confirms its creation."""
        self.control.create_topic(topic, PARTITIONS, self.replication)
        wait_for(lambda: self._partitions_of(topic) == PARTITIONS, "the new topic")

    def _partitions_of(self, topic: str) -> int:
        try:
            return len(self.control.partitions([topic])[topic])
        except ControlError:
            return 0

    def sink(self, **named: Any) -> KafkaSink:
        patience = PublishPatience(total_s=60, stall_s=named.pop("stall_s", 40.0))
        return KafkaSink(self.broker.servers, named.pop("topic", self.topic), patience=patience, **named)

    def context(self, incarnation: int = 1) -> SinkContext:
        return SinkContext("job", "out", self.store_id, Incarnation(incarnation))

    def publisher(self, incarnation: int = 1, **named: Any) -> KafkaPublisher:
        publisher = self.sink(**named).publisher(None, self.context(incarnation))  # type: ignore[arg-type]
        _open_publishers.append(publisher)
        return publisher

    def marker(self, lane: int = 0, topic: str | None = None) -> TopicMarker | None:
        return self.control.marker(f"{self.store_id}.out.{lane}", topic or self.topic)

    def read(self, topic: str | None = None) -> list[Record]:
        """Every committed record from the first offset to the last stable one, by partition and offset."""
        return read_committed(self.broker.servers, topic or self.topic)

    def values(self) -> list[bytes]:
        return sorted(record.value for record in self.read())

    def assert_exactly(self, *epochs: Staged) -> None:
        """The committed records are the epochs' rows: none missing, none twice, each key in order."""
        records = self.read()
        expected = [row for epoch in epochs for row in epoch.rows]
        assert sorted((record.key, record.value) for record in records) == sorted(expected)
        for key in {row[0] for row in expected}:
            found = [record.value for record in records if record.key == key]
            assert found == [value for other, value in expected if other == key], f"order of {key!r}"

    def assert_settled(self) -> None:
        """No transaction is open: the last stable offset is the end of the log in every partition."""
        for topic in self.topics:
            wait_for(partial(self.is_settled, self.control.partitions([topic])), "LSO == HW")

    def is_settled(self, partitions: dict[str, list[int]]) -> bool:
        return self.control.ends(partitions) == self.control.ends(partitions, committed=False)

    def close(self) -> None:
        self.control.close()


def output(epoch: int, staged: Staged, previous: int | None = None) -> EpochOutput:
    return EpochOutput(
        epoch=Epoch(epoch),
        incarnation=Incarnation(1),
        previous=Epoch(epoch - 1 if previous is None else previous),
        root=str(staged.root),
        storage_options={},
        files=staged.files,
    )


def publish(publisher: KafkaPublisher, epoch: int, staged: Staged) -> PublishReceipt:
    return publisher.publish(output(epoch, staged))


def close_all() -> None:
    """End the publisher processes of this test, including stopped ones."""
    while _open_publishers:
        _open_publishers.pop().close()


@dataclass(frozen=True)
class Record:
    """A committed record in the oracle's form."""

    partition: int
    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def read_committed(servers: str, topic: str) -> list[Record]:
    """The oracle: librdkafka's consumer, which shares no code with the sink's control plane."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": f"oracle-{uuid.uuid4()}",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    try:
        places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
        consumer.assign(places)
        return sorted(_until_the_end(consumer, PARTITIONS), key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def _until_the_end(consumer: Consumer, partitions: int) -> Iterator[Record]:
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < partitions:
        assert time.monotonic() < deadline, "the reader does not reach the end"
        for message in consumer.consume(10_000, 0.1):
            if (error := message.error()) is None:
                yield _record(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
            else:
                raise AssertionError(str(error))


def _record(message: Any) -> Record:
    headers = tuple(message.headers() or ())
    place = (message.partition(), message.offset())
    return Record(*place, message.key(), message.value(), message.timestamp()[1], headers)


def described(cluster: Cluster, group: str) -> dict[int, tuple[int, int]]:
    """Committed offset and lag by partition, as `kafka-consumer-groups --describe` computes them."""
    admin = AdminClient({"bootstrap.servers": cluster.broker.servers})
    [asked] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    places = asked.result(30).topic_partitions
    consumer = Consumer({"bootstrap.servers": cluster.broker.servers, "group.id": "looks"})
    try:
        ends = {
            each.partition: consumer.get_watermark_offsets(TopicPartition(each.topic, each.partition), 30)[1]
            for each in places
        }
    finally:
        consumer.close()
    return {each.partition: (each.offset, ends[each.partition] - each.offset) for each in places}


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def is_stopped(pid: int) -> bool:
    """True if SIGSTOP has frozen the process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def wait_until_stopped(publisher: KafkaPublisher, lane: int = 0) -> int:
    """Return the publisher's process id after it is frozen at its failpoint."""
    found: list[int] = []

    def stopped() -> bool:
        pid = publisher.pids()[lane]
        if pid is None or not is_stopped(pid):
            return False
        found.append(pid)
        return True

    wait_for(stopped, "the publisher stops at its failpoint")
    return found[0]


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
