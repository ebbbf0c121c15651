"""Typed values from a topic to another, with a schema registry, on real Spark and a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka_kit import Cluster, KafkaProducer, read_committed
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_kafka import Avro, KafkaSink, KafkaSource

import spark_ckpt as ckpt
from integration_tests.spark import connected_session
from spark_ckpt.errors import BadRecord
from tests.kafka.registry_kit import RegistryServer

pytestmark = pytest.mark.spark
FIELDS = [{"name": "customer", "type": "string"}, {"name": "amount", "type": "double"}]
OLD = json.dumps({"type": "record", "name": "Order", "fields": FIELDS})
NEW = json.dumps(
    {"type": "record", "name": "Order", "fields": [*FIELDS, {"name": "currency", "type": "string", "default": "EUR"}]}
)
WAIT_S = 120


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    running = RegistryServer()
    yield running
    running.close()


def put(cluster: Cluster, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.broker.servers)
    try:
        for value in values:
            producer.send(cluster.topic, value, partition=0).get(30)
    finally:
        producer.close()


def test_rows_of_an_older_schema_are_typed_columns_and_leave_typed_and_a_broken_one_ends_the_run_with_its_place(
    spark: SparkSession, cluster: Cluster, registry: RegistryServer, tmp_path: Path
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    write = AvroSerializer(client, OLD)
    context = SerializationContext(cluster.topic, MessageField.VALUE)
    put(
        cluster,
        *(write({"customer": name, "amount": amount}, context) for name, amount in (("ada", 4.5), ("bob", 1.0))),
    )
    out = Cluster(cluster.broker)
    values = Avro(registry.url, NEW)

    def run() -> ckpt.Run:
        job = ckpt.Job(spark, "registry", str(tmp_path / "store"), interval="1 hour")
        orders = job.source("orders", KafkaSource(cluster.broker.servers, cluster.topic, value=values))
        dear = orders.select("value.*").filter("amount > 2")
        dear.select(values.encoded(F.struct("*"), out.topic).alias("value")).to(
            KafkaSink(out.broker.servers, out.topic)
        )
        return job.start(availableNow=True)

    try:
        assert run().awaitTermination(WAIT_S)
        [record] = read_committed(out.broker.servers, out.topic)
        read = AvroDeserializer(client)(record.value, SerializationContext(out.topic, MessageField.VALUE))
        assert read == {"customer": "ada", "amount": 4.5, "currency": "EUR"}

        put(cluster, b"no Avro at all")
        with pytest.raises(BadRecord) as caught:
            run().awaitTermination(WAIT_S)
        assert caught.value.context["record"] == f"{cluster.topic}/0/2"
        assert len(read_committed(out.broker.servers, out.topic)) == 1
    finally:
        out.close()
