"""The oracle finds each fault that it must find."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from integration_tests.broker import Broker
from integration_tests.survival.ledger import Output, Watcher, assert_same, assert_settled, create_topic
from integration_tests.survival.process import wait_until

ROWS = [Output("a", 0, 1, 5), Output("a", 1, 2, 7), Output("a", 4, 3, 6)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:-1], "lost=1, duplicated=0, wrong=0, reordered=0"),
        (lambda rows: [*rows, rows[0]], "lost=0, duplicated=1, wrong=0, reordered=0"),
        (lambda rows: [rows[1], rows[0], rows[2]], "lost=0, duplicated=0, wrong=0, reordered=1"),
        (lambda rows: [*rows[:2], rows[2]._replace(total=0)], "lost=1, duplicated=0, wrong=1, reordered=0"),
        (lambda rows: [*rows, Output("b", 9, 1, 1)], "lost=0, duplicated=0, wrong=1, reordered=0"),
    ],
)
def test_a_lost_repeated_disordered_or_wrong_record_is_reported(
    change: Callable[[list[Output]], list[Output]], said: str
) -> None:
    found = change(ROWS)
    by_key = {key: [row for row in found if row.key == key] for key in "ab"}
    with pytest.raises(AssertionError, match=said):
        assert_same({"a": ROWS}, by_key)


@pytest.mark.kafka
@pytest.mark.parametrize("change", [[0, 0], [0, 2], [1, 0]])
def test_the_watching_reader_reports_a_repeated_a_missing_and_a_disordered_record(
    broker: Broker, change: list[int]
) -> None:
    topic = create_topic(broker.servers, "watched")
    watcher = Watcher(broker.servers, topic)
    watcher.start()
    producer = Producer({"bootstrap.servers": broker.servers})
    for row in (ROWS[at] for at in change):
        body = {"k": row.key, "n": row.n, "count": row.count, "total": row.total}
        producer.produce(topic, json.dumps(body).encode(), row.key.encode())
    producer.flush(30)

    wait_until(lambda: watcher.records == len(change), "the watcher reads")
    watcher.stop()

    assert watcher.anomalies


@pytest.mark.kafka
def test_an_open_transaction_is_reported(broker: Broker) -> None:
    topic = create_topic(broker.servers, "open")
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"{}", b"a")
    producer.flush(30)

    with pytest.raises(AssertionError, match="transaction is open"):
        assert_settled(broker.servers, topic, timeout_s=1)
    producer.abort_transaction(30)
    assert_settled(broker.servers, topic)
