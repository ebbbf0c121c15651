"""Two real plain queries joined by a topic: the broker gives the bounds of an undone batch's records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from spark_ckpt_kafka.control import KafkaControl
from spark_ckpt_kafka.options import Connection

from integration_tests.broker import Broker
from integration_tests.spark import connected_session
from spark_rewind.cli.rewind import BrokerTopics
from spark_rewind.declared import Declared
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

TOPIC, PARTITIONS, FILES = "bounded-orders", 2, 6


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


@pytest.fixture(scope="module")
def folders(broker: Broker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Each file is one batch of `writer`; `reader` runs after every second one. Spark orders files by their times."""
    root = tmp_path_factory.mktemp("topic")
    inbox = root / "inbox"
    inbox.mkdir()
    with KafkaControl(Connection(broker.servers, {})) as control:
        control.create_topic(TOPIC, PARTITIONS)
    for number in range(FILES):
        part = inbox / f".{number}.json"
        part.write_text("".join(json.dumps({"key": f"{each}", "value": f"{number}"}) + "\n" for each in range(20)))
        os.utime(part, (1_700_000_000 + number,) * 2)
        part.rename(inbox / f"{number}.json")
        if number % 2:
            write(spark, broker, root)
            read(spark, broker, root)
    return [str(root / "writer"), str(root / "reader")]


def write(spark: SparkSession, broker: Broker, root: Path) -> None:
    source = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    rows = source.json(str(root / "inbox"))
    to = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", broker.servers).option("topic", TOPIC)
    to.option("checkpointLocation", str(root / "writer")).trigger(availableNow=True).start().awaitTermination()


def read(spark: SparkSession, broker: Broker, root: Path) -> None:
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    rows = source.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
    to = rows.writeStream.format("noop").option("checkpointLocation", str(root / "reader"))
    to.trigger(availableNow=True).start().awaitTermination()


@pytest.fixture(scope="module")
def sent(broker: Broker, folders: list[str]) -> dict[int, list[int]]:
    """By partition: the batch of each record, by its offset; read by another library."""
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "truth", "enable.partition.eof": True})
    found: dict[int, list[int]] = {}
    for partition in range(PARTITIONS):
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        found[partition] = []
        while (message := consumer.poll(10)) is not None and message.error() is None:
            found[partition].append(int(message.value()))
    consumer.close()
    return found


def planned(folders: list[str], to: str, broker: Broker | None) -> RewindPlan:
    declared = Declared.model_validate({"topics": [{"topic": TOPIC, "written_by": ["writer"]}]})
    asked = BrokerTopics(broker.servers, {}) if broker else None
    try:
        return plan_rewind(RewindRequest(folders, to, (), declared, asked), 0)
    finally:
        if asked is not None:
            asked.close()


def reader_batch(plan: RewindPlan) -> int | None:
    return next(each.batch for each in plan.queries if each.name == "reader")


BATCHES = [*(pytest.param(each, marks=pytest.mark.long) for each in range(FILES - 2)), FILES - 2]
"""The last one; a long test has the others."""


@pytest.mark.parametrize("batch", BATCHES)
def test_with_a_broker_the_public_records_are_exactly_those_of_undone_batches(folders, sent, broker, batch):
    plan = planned(folders, f"writer@{batch}", broker)
    bounds = {each.partition: (each.first, each.last) for each in plan.public}
    assert bounds == {
        partition: (next(at for at, each in enumerate(batches) if each > batch), len(batches) - 1)
        for partition, batches in sent.items()
    }


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("asked", [True, False], ids=["broker", "readers only"])
def test_the_reader_keeps_no_record_of_an_undone_batch(folders, sent, broker, batch, asked):
    plan = planned(folders, f"writer@{batch}", broker if asked else None)
    expected = (batch + 1) // 2 - 1  # its batch n has files 2n and 2n + 1
    assert reader_batch(plan) == expected
    for each in plan.public:
        assert each.first <= next(at for at, found in enumerate(sent[each.partition]) if found > batch)


def test_the_start_of_a_kafka_source_is_read_from_its_files(folders, broker):
    """It starts again at offset 0, which the topic still has."""
    assert reader_batch(planned(folders, "writer@0", broker)) == -1
    text = (Path(folders[1]) / "sources" / "0" / "0").read_text()
    assert text.startswith("\0v1\n")
