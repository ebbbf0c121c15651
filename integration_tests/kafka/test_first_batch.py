"""A job with a backlog: a small first batch that ends an epoch, then batches as the sources are configured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_kit import Cluster, KafkaProducer, read_committed, wait_for
from pyspark.sql import SparkSession
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt
from integration_tests.spark import connected_session
from spark_ckpt.driver.query import admission

pytestmark = pytest.mark.spark
_SMALL, _LIMIT, _ROWS = 10, 40, 100


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


@pytest.fixture
def inputs(cluster: Cluster) -> tuple[str, str]:
    """Two topics with the same number of records, in one partition, so that limits are met exactly."""
    topics = (cluster.topic, cluster.new_topic())
    producer = KafkaProducer(bootstrap_servers=cluster.broker.servers)
    for topic in topics:
        for number in range(_ROWS):
            producer.send(topic, b"%s %d" % (topic.encode(), number), partition=0)
    producer.flush()
    producer.close()
    return topics


def _job(
    spark: SparkSession, cluster: Cluster, inputs: tuple[str, str], output: str, aside: str, store: Path
) -> spark_ckpt.Job:
    """One source with a limit, one without. A second branch reads the limited one."""
    job = spark_ckpt.Job(spark, "behind", store=str(store), interval="1 hour")
    servers = cluster.broker.servers
    limited = job.source("limited", KafkaSource(servers, inputs[0], options={"maxOffsetsPerTrigger": _LIMIT}))
    unlimited = job.source("unlimited", KafkaSource(servers, inputs[1]))
    limited.select("value").union(unlimited.select("value")).to(KafkaSink(servers, output), name="out")
    limited.filter("offset % 2 = 0").select("value").to(KafkaSink(servers, aside), name="aside")
    return job


def _read_up_to(run: spark_ckpt.Run) -> list[tuple[int, int]]:
    """Positions of both sources, batch by batch, without batches that have no rows."""
    records: list[Any] = run.recentProgress
    return [tuple(_place(cursor) for cursor in each["sources"].values()) for each in records if each["numInputRows"]]  # type: ignore[misc]


def _place(cursor: dict[str, dict[str, int]]) -> int:
    return sum(offset for partitions in cursor.values() for offset in partitions.values())


def test_the_first_batch_is_small_and_an_epoch_and_the_next_are_as_configured(
    spark: SparkSession, cluster: Cluster, inputs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "FIRST_BATCH_ROWS", _SMALL)
    output, aside = cluster.new_topic(), cluster.new_topic()
    run = _job(spark, cluster, inputs, output, aside, tmp_path / "store").start()

    wait_for(lambda: len(read_committed(cluster.broker.servers, output)) == 2 * _SMALL, "the first batch is published")
    wait_for(lambda: run.lastProgress is not None and _place_of_limited(run) == _ROWS, "all is read")
    run.stop()

    first, second = (_SMALL, _SMALL), (_SMALL + _LIMIT, _ROWS)
    assert _read_up_to(run) == [first, second, (_SMALL + 2 * _LIMIT, _ROWS), (_ROWS, _ROWS)]
    assert sorted(record.value for record in read_committed(cluster.broker.servers, output)) == sorted(
        b"%s %d" % (topic.encode(), number) for topic in inputs for number in range(_ROWS)
    )
    assert sorted(record.value for record in read_committed(cluster.broker.servers, aside)) == sorted(
        b"%s %d" % (inputs[0].encode(), number) for number in range(0, _ROWS, 2)
    )


def _place_of_limited(run: spark_ckpt.Run) -> int:
    return _read_up_to(run)[-1][0]


@pytest.mark.long  # in the gate: the test above
def test_a_job_that_drains_keeps_its_batches(
    spark: SparkSession, cluster: Cluster, inputs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "FIRST_BATCH_ROWS", _SMALL)
    run = _job(spark, cluster, inputs, cluster.new_topic(), cluster.new_topic(), tmp_path / "store").start(
        availableNow=True
    )
    run.awaitTermination(120)

    assert _read_up_to(run) == [(_LIMIT, _ROWS), (2 * _LIMIT, _ROWS), (_ROWS, _ROWS)]
