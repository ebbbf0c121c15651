"""An input topic with holes: aborted transactions, commit markers, compaction. Cursors are exact."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from integration_tests.survival.job import KafkaJob
from integration_tests.survival.ledger import (
    PARTITIONS,
    Output,
    assert_same,
    assert_settled,
    output_of,
    read_committed,
)
from integration_tests.survival.process import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.kill]


class Upstream:
    """A transactional writer; Kafka keys repeat, so that compaction can remove records."""

    def __init__(self, servers: str, topic: str) -> None:
        self._topic = topic
        settings = {"bootstrap.servers": servers, "transactional.id": f"up-{topic}", "log_level": 0}
        self._producer = Producer(settings | {"transaction.timeout.ms": 600_000})
        self._producer.init_transactions(60)
        self._number = 0

    def transaction(self, records: int, end: str) -> None:
        self._producer.begin_transaction()
        for _ in range(records):
            self._write()
        assert self._producer.flush(60) == 0
        if end == "commit":
            self._producer.commit_transaction(60)
        elif end == "abort":
            self._producer.abort_transaction(60)

    def end_open(self) -> None:
        self._producer.abort_transaction(60)

    def _write(self) -> None:
        key = f"key-{self._number % 50}"
        body = {"k": key, "v": self._number % 17, "n": self._number}
        kafka_key, partition = f"{key}-{self._number % 2500}", self._number % 50 % PARTITIONS
        self._producer.produce(self._topic, json.dumps(body).encode(), kafka_key.encode(), partition)
        self._number += 1


@pytest.mark.long  # in the gate: integration_tests/kafka/test_source.py, without a kill
def test_aborted_transactions_and_compaction_leave_cursors_exact(job: KafkaJob, spark: SparkSession) -> None:
    topic = job.ledger.topic
    upstream = Upstream(job.servers, topic)
    for number in range(12):
        upstream.transaction(400, "abort" if number % 3 == 1 else "commit")
    _compacted(job, upstream)
    upstream.transaction(300, "open")

    with job.lives.start("--max-offsets", "500") as driver:
        driver.wait_for_events("committed", 2)
        driver.kill()
    job.lives.drain_on(spark, "--max-offsets", "500")
    _check(job)
    upstream.end_open()
    upstream.transaction(300, "commit")
    job.lives.drain_on(spark, "--max-offsets", "500")
    _check(job)


def _compacted(job: KafkaJob, upstream: Upstream) -> None:
    """Wait until compaction removes records. It works on closed segments only, so new records are necessary."""
    topic = job.ledger.topic
    written = len(read_committed(job.servers, topic))
    job.compact(topic)

    def taken() -> bool:
        upstream.transaction(50, "commit")
        return len(read_committed(job.servers, topic)) < written

    wait_until(taken, "compaction takes records", 90)
    job.stop_compaction(topic)


def _check(job: KafkaJob) -> None:
    """The output is exactly that of the input which a committed reader sees."""
    expected: dict[str, list[Output]] = defaultdict(list)
    for message in read_committed(job.servers, job.ledger.topic):
        body = json.loads(message.value())
        done = expected[body["k"]]
        total = done[-1].total if done else 0
        done.append(Output(body["k"], body["n"], len(done) + 1, total + body["v"]))
    found: dict[str, list[Output]] = defaultdict(list)
    for message in read_committed(job.servers, job.output):
        found[message.key().decode()].append(output_of(message))
    assert sum(map(len, expected.values())) > 1000
    assert_same(expected, found)
    assert_settled(job.servers, job.output)
    job.check_watcher()
