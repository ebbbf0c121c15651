"""Kafka fails during one step of a batch: a plain query then writes its Delta table twice, one with an outbox writes it once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration_tests.broker import Broker
from integration_tests.outbox.outbox_deaths import records
from integration_tests.outbox.outbox_driver import sinks_of
from integration_tests.outbox.outbox_query import FILES, Place, expected, run, windows
from integration_tests.survival.ledger import PARTITIONS, create_topic
from spark_ckpt.errors import IdentityChanged, PublishFailed
from spark_ckpt.events.listener import EpochEvent, RetryEvent, RunListener

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.kill]
WITH_ROWS = 2
"""The first batch that closes a window."""


class KillsBroker(RunListener):
    """Kills the broker when the first epoch with rows is committed, so that its publish fails."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.retried: set[str] = set()

    def onEpochCommitted(self, event: EpochEvent) -> None:
        if event.detail["batch"] == WITH_ROWS:
            self._broker.kill()

    def onRetry(self, event: RetryEvent) -> None:
        self.retried.add(event.sink)


def _send(servers: str, topic: str, rows: Sequence[Mapping[str, object]]) -> None:
    producer = Producer({"bootstrap.servers": servers, "message.timeout.ms": 5000})
    failed: list[object] = []
    for row in rows:
        producer.produce(
            topic, key=str(row["k"]), value=json.dumps(row), on_delivery=lambda why, _: why and failed.append(why)
        )
    if producer.flush(30) or failed:
        raise ConnectionError("Kafka did not take the batch")


@pytest.mark.long  # in the gate: test_outbox.py, a sink that fails; tests/simulator/test_outbox_world.py
def test_a_kafka_step_that_fails_leaves_delta_rows_once_with_an_outbox(
    spark: SparkSession, place: Place, broker: Broker
) -> None:
    topic = create_topic(broker.servers, "outbox")
    sinks = sinks_of(place, broker.servers, topic)
    outbox = place.outbox(sinks, publish_timeout="5 seconds")
    heard = KillsBroker(broker)
    outbox.addListener(heard)
    try:
        assert run(outbox, windows(spark, place.inbox)) is not None
        assert isinstance(outbox.exception(), PublishFailed)
        assert heard.retried == {"alerts"}
        assert place.rows("gold").total() > 0
    finally:
        broker.start()
    assert run(place.outbox(sinks), windows(spark, place.inbox)) is None
    assert place.rows("gold") == expected(FILES)
    assert records(broker.servers, topic) == expected(FILES)


@pytest.mark.long  # a property of Spark itself, and the reason for an outbox
def test_a_kafka_step_that_fails_doubles_delta_rows_without_an_outbox(
    spark: SparkSession, place: Place, broker: Broker
) -> None:
    topic = create_topic(broker.servers, "plain")

    def go(kills_broker: bool) -> None:
        def write(batch: DataFrame, number: int) -> None:
            rows = batch.toArrow()
            write_deltalake(place.table("gold"), rows, mode="append")
            if number == WITH_ROWS and kills_broker:
                broker.kill()
            _send(broker.servers, topic, rows.to_pylist())

        query = windows(spark, place.inbox).writeStream.foreachBatch(write).trigger(availableNow=True)
        with suppress(StreamingQueryException):
            query.option("checkpointLocation", str(place.checkpoint)).start().awaitTermination(300)

    try:
        go(kills_broker=True)
    finally:
        broker.start()
    go(kills_broker=False)
    assert records(broker.servers, topic) == expected(FILES)
    doubled = place.rows("gold") - expected(FILES)
    assert doubled.total() > 0
    assert not expected(FILES) - place.rows("gold")


class RecreatesTopic(RunListener):
    """Deletes the topic when the first epoch with rows is committed, and creates another one with its name."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers, self._topic = servers, topic

    def onEpochCommitted(self, event: EpochEvent) -> None:
        if event.detail["batch"] == WITH_ROWS:
            admin = AdminClient({"bootstrap.servers": self._servers})
            admin.delete_topics([self._topic])[self._topic].result(30)
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s:
                with suppress(KafkaException):
                    admin.create_topics([NewTopic(self._topic, PARTITIONS, 1)])[self._topic].result(30)
                    return
                time.sleep(0.2)  # the broker deletes a topic in the background
            raise AssertionError("the topic is not deleted")


@pytest.mark.long  # in the gate: tests/simulator/test_outbox_world.py
def test_a_topic_that_is_made_again_while_the_query_runs_is_refused_and_its_advice_works(
    spark: SparkSession, place: Place, broker: Broker
) -> None:
    topic = create_topic(broker.servers, "outbox")
    sinks = sinks_of(place, broker.servers, topic)
    outbox = place.outbox(sinks, publish_timeout="20 seconds")
    outbox.addListener(RecreatesTopic(broker.servers, topic))
    assert run(outbox, windows(spark, place.inbox)) is not None
    error = outbox.exception()
    assert isinstance(error, IdentityChanged)
    place_named = re.search(r"restore=(\d+), rewind the query to batch (\d+)", error.hint)
    assert place_named is not None
    assert "accept_new_sink='alerts'" in error.hint
    place.rewind(int(place_named[2]))
    confirmed = {"restore": int(place_named[1]), "accept_new_sink": "alerts"}
    assert run(place.outbox(sinks), windows(spark, place.inbox), **confirmed) is None
    assert records(broker.servers, topic) == expected(FILES)
    assert not expected(FILES) - place.rows("gold")
