"""A realistic input topic: few hot keys, nulls, long values, aborted transactions, new partitions."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from integration_tests.survival.ledger import PARTITIONS, Ledger, text_of
from integration_tests.survival.process import wait_until

LONG = 50_000
MOST_PARTITIONS = 12


@contextmanager
def feeding(write: Callable[[int], None], records: int) -> Iterator[None]:
    """Write `records` records every half second while the context lasts."""
    over = threading.Event()
    failed: list[BaseException] = []

    def feed() -> None:
        try:
            while not over.wait(0.5):
                write(records)
        except BaseException as error:  # noqa: BLE001 - raised where the context ends
            failed.append(error)

    thread = threading.Thread(target=feed, name="feed", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(120)
        assert not thread.is_alive(), "the input topic takes no records"
    if failed:
        raise failed[0]


class HardLedger(Ledger):
    """Writes in transactions, some of which are aborted; a key keeps its partition for ever."""

    def __init__(self, servers: str, topic: str, keys: int, seed: int) -> None:
        super().__init__(servers, topic, keys, seed)
        self.partitions = PARTITIONS
        self._draw = random.Random(seed)
        self._homes: dict[str, int] = {}
        settings = {"bootstrap.servers": servers, "transactional.id": f"up-{topic}", "log_level": 0, "linger.ms": 20}
        self._upstream = Producer(settings | {"transaction.timeout.ms": 60_000})
        self._upstream.init_transactions(60)

    def write(self, count: int) -> None:
        """Write `count` records in committed transactions, and others in aborted ones between them."""
        while count > 0:
            part = min(count, self._draw.randrange(50, 400))
            if self._draw.random() < 0.3:
                self._transaction(part, self._write_aborted, self._upstream.abort_transaction)
            self._transaction(part, self._write_one, self._upstream.commit_transaction)
            count -= part

    def add_partition(self) -> bool:
        """Add a partition, for keys that are new from now on. False if there are enough."""
        if self.partitions >= MOST_PARTITIONS:
            return False
        admin = AdminClient({"bootstrap.servers": self.servers})
        for future in admin.create_partitions([NewPartitions(self.topic, self.partitions + 1)]).values():
            future.result(30)
        wait_until(lambda: self._known_partitions() > self.partitions, "the producer knows the new partition")
        self.partitions += 1
        return True

    def _known_partitions(self) -> int:
        """Partitions that the producer knows: it refuses to write to others."""
        return len(self._upstream.list_topics(self.topic, 30).topics[self.topic].partitions)

    def _transaction(self, records: int, write: Callable[[], None], end: Callable[[float], None]) -> None:
        self._upstream.begin_transaction()
        for _ in range(records):
            write()
        assert self._upstream.flush(60) == 0
        end(60)

    def _write_one(self) -> None:
        key = self._key()
        value = None if self._draw.random() < 0.05 else self._draw.randrange(-1000, 1000)
        size = LONG if self._draw.random() < 0.002 else 0
        body = {"k": key, "v": value, "n": self.records, "size": size, "pad": text_of(self.records, size) or None}
        self._produce(key, None if self._draw.random() < 0.1 else key.encode(), body)
        self._expect(key, value or 0)

    def _write_aborted(self) -> None:
        key = self._key()
        self._produce(key, key.encode(), {"k": key, "v": 10**12, "n": -1})

    def _key(self) -> str:
        """Zipf's law: the first key has a tenth of all records, and new keys never end."""
        rank = int(self._draw.paretovariate(0.7)) % self._keys
        return f"key-{rank}"

    def _produce(self, key: str, kafka_key: bytes | None, body: object) -> None:
        home = self._homes.setdefault(key, self._draw.randrange(self.partitions))
        value = json.dumps(body).encode()
        while True:
            try:
                self._upstream.produce(self.topic, value, kafka_key, home)
                break
            except BufferError:
                self._upstream.poll(0.1)
        self._upstream.poll(0)
