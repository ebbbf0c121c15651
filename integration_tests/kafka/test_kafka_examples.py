"""The examples from Kafka to Kafka run as their first lines say. (`totals.py` has a test of its own, under spark-submit.)"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka_kit import Cluster, KafkaProducer, described, read_committed
from pyspark.sql import SparkSession

from integration_tests.spark import connected_session
from tests.kafka.registry_kit import RegistryServer

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
OLD = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "customer", "type": "string"}, {"name": "amount", "type": "double"}],
    }
)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run `python NAME.py WORDS drain`."""
    monkeypatch.setattr("spark_ckpt.session", lambda *names: spark)

    def running(name: str, *words: object) -> None:
        program = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [program, *map(str, words), "drain"])
        runpy.run_path(program, run_name="__main__")

    return running


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    running = RegistryServer()
    yield running
    running.close()


def put(cluster: Cluster, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.broker.servers)
    try:
        for value in values:
            producer.send(topic, value, partition=0).get(30)
    finally:
        producer.close()


def topics(cluster: Cluster, *names: str) -> None:
    for name in names:
        cluster.control.create_topic(name, 3)
        cluster.topics.append(name)


def reading(device: str, celsius: float, minute: int) -> bytes:
    return json.dumps({"device": device, "celsius": celsius, "at": f"2024-05-01 09:{minute:02}:00"}).encode()


@pytest.mark.long  # in the gate: integration_tests/kafka/test_registry.py
def test_a_large_order_is_written_typed_and_an_invalid_one_to_its_own_topic(
    run: Callable[..., None], cluster: Cluster, registry: RegistryServer, tmp_path: Path
) -> None:
    topics(cluster, "orders", "large-orders", "broken-orders")
    client = SchemaRegistryClient({"url": registry.url})
    write = AvroSerializer(client, OLD)
    context = SerializationContext("orders", MessageField.VALUE)
    orders = [write({"customer": name, "amount": amount}, context) for name, amount in (("ada", 250.0), ("bob", 20.0))]
    put(cluster, "orders", *orders, b"no Avro at all")

    run("typed_orders", cluster.broker.servers, registry.url, tmp_path / "store")

    [large] = read_committed(cluster.broker.servers, "large-orders")
    read = AvroDeserializer(client)(large.value, SerializationContext("large-orders", MessageField.VALUE))
    assert (large.key, read) == (b"ada", {"customer": "ada", "amount": 250.0, "currency": "EUR"})
    assert [record.key for record in read_committed(cluster.broker.servers, "broken-orders")] == [b"orders/0/2"]
    assert described(cluster, "typed-orders")[0] == (3, 0), "Kafka's own tools see how far the job is"


@pytest.mark.long  # in the gate: timeouts in integration_tests/runtime/test_jobs.py
def test_a_hot_device_and_a_silent_one_are_reported_once(
    run: Callable[..., None], cluster: Cluster, tmp_path: Path
) -> None:
    topics(cluster, "readings", "alerts")
    store = tmp_path / "store"
    put(cluster, "readings", *(reading("oven", 95, minute) for minute in range(5)), reading("door", 20, 1), b"noise")
    run("silent_devices", cluster.broker.servers, store)
    put(cluster, "readings", *(reading("oven", 80, minute) for minute in (8, 14)))
    run("silent_devices", cluster.broker.servers, store)

    alerts = [json.loads(record.value) for record in read_committed(cluster.broker.servers, "alerts")]

    assert sorted((each["device"], each["alert"], each["at"][11:16]) for each in alerts) == [
        ("door", "silent", "09:01"), ("oven", "hot", "09:02"),
    ]  # fmt: skip
