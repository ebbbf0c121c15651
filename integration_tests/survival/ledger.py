"""The oracle: the records of the input topic, the expected output topic, and a reader that watches it.

It knows Kafka through librdkafka only and shares no code with the library.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

PARTITIONS = 4


class Output(NamedTuple):
    """One record of the output topic. `count` and `total` are the key's running figures as of input number `n`."""

    key: str
    n: int
    count: int
    total: int


class Ledger:
    """Writes input records and computes their expected output."""

    def __init__(self, servers: str, topic: str, keys: int, seed: int) -> None:
        self.servers = servers
        self.topic = topic
        self.expected: dict[str, list[Output]] = defaultdict(list)
        self.records = 0
        self._keys = keys
        self._random = random.Random(seed)
        settings = {"bootstrap.servers": servers, "linger.ms": 20, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer(settings)

    def write(self, count: int) -> None:
        """Write `count` more records, each key in one partition."""
        for _ in range(count):
            self._write_one()
        assert self._producer.flush(60) == 0

    def write_garbage(self, count: int) -> None:
        """Write records that cannot be parsed, spread over the partitions."""
        for number in range(count):
            self._producer.produce(self.topic, b'{"k": "x", "v": "garbage', b"x", number % PARTITIONS)
        assert self._producer.flush(60) == 0

    def _write_one(self) -> None:
        key, value = f"key-{self._random.randrange(self._keys)}", self._random.randrange(-1000, 1000)
        body = json.dumps({"k": key, "v": value, "n": self.records}).encode()
        partition = zlib.crc32(key.encode()) % PARTITIONS
        while True:
            try:
                self._producer.produce(self.topic, body, key.encode(), partition)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)
        self._expect(key, value)

    def _expect(self, key: str, value: int) -> None:
        done = self.expected[key]
        total = done[-1].total if done else 0
        done.append(Output(key, self.records, len(done) + 1, total + value))
        self.records += 1

    def check(self, topic: str) -> None:
        """Check that the output has every record exactly once, each key in order with correct figures, and no open transaction."""
        found_out = self.differences(topic)
        assert not found_out, str(found_out)
        assert_settled(self.servers, topic)

    def differences(self, topic: str) -> Differences:
        """Compare the topic, as a committed reader sees it, with the expected output."""
        found: dict[str, list[Output]] = defaultdict(list)
        for message in read_committed(self.servers, topic):
            found[message.key().decode()].append(output_of(message))
        return differences(self.expected, found)


class Differences(NamedTuple):
    """Numbers of faulty output records, and some of them."""

    lost: int
    duplicated: int
    wrong: int
    reordered: int
    examples: str

    def __bool__(self) -> bool:
        return any(self[:4])


def differences(expected: dict[str, list[Output]], found: dict[str, list[Output]]) -> Differences:
    """Compare two outputs by key, each key's records in order. `wrong`: records without an input."""
    wanted = Counter(row for rows in expected.values() for row in rows)
    got = Counter(row for rows in found.values() for row in rows)
    lost, extra = wanted - got, got - wanted
    twice = Counter({row: times for row, times in extra.items() if row in wanted})
    disordered = [] if lost or extra else [key for key in expected if expected[key] != found[key]]
    examples = f"missing {sorted(lost)[:3]}, too many {sorted(extra)[:3]}, out of order {disordered[:5]}"
    return Differences(lost.total(), twice.total(), (extra - twice).total(), len(disordered), examples)


def assert_same(expected: dict[str, list[Output]], found: dict[str, list[Output]]) -> None:
    """Raise with the numbers of lost, repeated, wrong and disordered records, and some examples."""
    found_out = differences(expected, found)
    assert not found_out, str(found_out)


def output_of(message: Any) -> Output:
    body = json.loads(message.value())
    assert message.key().decode() == body["k"]
    assert body.get("pad", "") == text_of(body["n"], body.get("size", 0)), f"record {body['n']} has another text"
    return Output(body["k"], body["n"], body.get("count", 0), body.get("total", 0))


def text_of(n: int, size: int) -> str:
    """The long text of record `n`, if the input has such texts."""
    return (f"{n}." * (size // 2))[:size]


class Watcher(threading.Thread):
    """A read_committed consumer that reads throughout and notes every anomaly: each key must count up one by one."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(name="watcher", daemon=True)
        self.anomalies: list[str] = []
        self.records = 0
        self._last: dict[str, Output] = {}
        self._consumer = _assigned(servers, topic, "read_committed", PARTITIONS)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(5000, 0.2):
                error = message.error()
                if error is None:
                    self._take(output_of(message))
                elif error.code() not in _PASSING:
                    self.anomalies.append(f"reader: {error}")
        self._consumer.close()

    def _take(self, row: Output) -> None:
        before = self._last.get(row.key, Output(row.key, -1, 0, 0))
        if row.count != before.count + 1 or row.n <= before.n:
            self.anomalies.append(f"{row} follows {before}")
        self._last[row.key] = row
        self.records += 1

    def stop(self) -> None:
        self._over.set()
        self.join(30)


_PASSING = {KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}


def create_topic(servers: str, prefix: str, partitions: int = PARTITIONS, **config: str) -> str:
    """Create a topic for one test."""
    name = f"{prefix}-{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(name, partitions, -1, config=config)]).values():
        future.result(30)
    return name


def alter_topic(servers: str, topic: str, config: Mapping[str, str]) -> None:
    """Change settings of a topic."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def read_committed(servers: str, topic: str, partitions: int = PARTITIONS) -> list[Any]:
    """Every committed record from the first offset to the last stable one."""
    consumer = _assigned(servers, topic, "read_committed", partitions)
    try:
        return list(_until_the_end(consumer, partitions))
    finally:
        consumer.close()


def assert_settled(servers: str, topic: str, timeout_s: float = 30.0) -> None:
    """No transaction is open: the last stable offset is the end of the log in every partition."""
    readers = [_assigned(servers, topic, level, PARTITIONS) for level in ("read_committed", "read_uncommitted")]
    try:
        _poll(lambda: _ends(readers[0], topic) == _ends(readers[1], topic), "a transaction is open", timeout_s)
    finally:
        for reader in readers:
            reader.close()


def _ends(consumer: Consumer, topic: str) -> list[int]:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    return [consumer.get_watermark_offsets(place, timeout=20)[1] for place in places]


def _assigned(servers: str, topic: str, level: str, partitions: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"oracle-{uuid.uuid4()}",
            "isolation.level": level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    return consumer


def _until_the_end(consumer: Consumer, partitions: int) -> Iterator[Any]:
    ended: set[int] = set()
    silent = 0
    while len(ended) < partitions:
        batch = consumer.consume(10_000, 0.5)
        silent = 0 if batch else silent + 1
        assert silent < 60, "the reader does not reach the end"
        for message in batch:
            if (error := message.error()) is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise AssertionError(str(error))


def _poll(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} after {timeout_s} s"
        time.sleep(0.1)
