"""Jobs whose rows a topic rejects: refused before the commit, or named after it, with recovery advice that the tests follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kafka_kit import Cluster, KafkaProducer, wait_for
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_kafka import KafkaSink, KafkaSource, repair
from spark_ckpt_kafka.library import ConfigResource, ConfigResourceType

import spark_ckpt
from integration_tests.spark import connected_session
from spark_ckpt.driver.run import Run
from spark_ckpt.errors import CkptError, PublishConflict, RowsRefused
from spark_ckpt.store.store import Store

pytestmark = pytest.mark.spark
WAIT_S = 120


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


class World:
    """One job from topic to topic. It drops the key of records whose value is "bad"."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path) -> None:
        self.spark, self.cluster, self.folder = spark, cluster, folder
        self.output = cluster.new_topic()

    def start(self, only_good: bool = False, dead_letters: str | None = None, **named: object) -> Run:
        servers = self.cluster.broker.servers
        job = spark_ckpt.Job(self.spark, "job", str(self.folder / "store"), interval="1 second", trigger="10 ms")
        rows = job.source("in", KafkaSource(servers, self.cluster.topic)).select("key", "value")
        if dead_letters is not None:
            bad = rows.filter("cast(value as string) = 'bad'").select("value")
            bad.to(KafkaSink(servers, dead_letters), name="dead_letters")
        if only_good or dead_letters is not None:
            rows = rows.filter("cast(value as string) <> 'bad'")
        good = F.col("value").cast("string") != "bad"
        rows.select(F.when(good, F.col("key")).alias("key"), "value").to(KafkaSink(servers, self.output), name="out")
        return job.start(**named)

    def drain(self, **named: object) -> CkptError | None:
        try:
            assert self.start(availableNow=True, **named).awaitTermination(WAIT_S)
        except CkptError as error:
            return error
        return None

    def put(self, *values: bytes) -> None:
        producer = KafkaProducer(bootstrap_servers=self.cluster.broker.servers)
        try:
            for value in values:
                producer.send(self.cluster.topic, value, key=value, partition=0).get(10)
        finally:
            producer.close()

    def configure(self, settings: Mapping[str, str]) -> None:
        asked = [ConfigResource(ConfigResourceType.TOPIC, self.output, dict(settings))]
        self.cluster.administer(lambda admin: admin.alter_configs(asked))

    def got(self, topic: str | None = None) -> list[bytes]:
        return sorted(record.value for record in self.cluster.read(topic or self.output))

    def store(self) -> Store:
        return Store.open(str(self.folder / "store"), "job")


@pytest.fixture
def world(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> World:
    return World(spark, cluster, tmp_path)


def test_a_row_that_the_topic_rejects_is_in_no_epoch_and_a_filter_lets_the_job_continue(world: World) -> None:
    world.configure({"cleanup.policy": "compact"})
    world.put(b"a", b"bad", b"b")

    error = world.drain()

    assert error is not None and error.condition == "CKPT_OUTPUT_INVALID"
    assert (error.context["sink"], error.context["column"]) == ("out", "key")
    assert world.got() == []
    assert world.drain(only_good=True) is None
    assert world.got() == [b"a", b"b"]


@pytest.mark.long  # in the gate: tests/kafka/test_record_rules.py, and the test above
def test_a_record_that_a_topic_no_longer_accepts_ends_the_run_and_the_named_restore_continues(
    world: World,
) -> None:
    world.put(b"a")
    run = world.start()
    wait_for(lambda: world.got() == [b"a"], "the first record", WAIT_S)
    world.configure({"cleanup.policy": "compact"})
    world.put(b"b", b"bad", b"c")

    with pytest.raises(RowsRefused, match="compacted topic") as refused:
        run.awaitTermination(WAIT_S)

    assert (refused.value.context["sink"], refused.value.context["topic"]) == ("out", world.output)
    again = world.drain(only_good=True)
    assert isinstance(again, RowsRefused), "the record is part of a committed epoch"
    named = re.search(r"job\.start\(restore=(\d+)\)", again.hint)
    assert named is not None and "next start publishes" not in again.hint
    assert world.drain(only_good=True, restore=int(named[1])) is None
    assert world.got() == [b"a", b"b", b"c"]


@pytest.mark.long  # in the gate: tests/kafka/test_record_rules.py, and the test above
def test_a_sink_of_dead_letters_gets_the_rejected_records_from_the_named_epoch_on(
    world: World,
) -> None:
    world.put(b"a")
    run = world.start()
    wait_for(lambda: world.got() == [b"a"], "the first record", WAIT_S)
    world.configure({"cleanup.policy": "compact"})
    world.put(b"b", b"bad", b"c")
    with pytest.raises(RowsRefused) as refused:
        run.awaitTermination(WAIT_S)
    letters = world.cluster.new_topic()

    assert world.drain(dead_letters=letters, restore=refused.value.context["restore"]) is None

    assert (world.got(), world.got(letters)) == ([b"a", b"b", b"c"], [b"bad"])


def test_the_first_epochs_are_not_published_twice_when_their_marker_expired(world: World) -> None:
    """The job knows of its first publish although no later epoch exists, and the repair that the error names works."""
    world.put(b"a")
    run = world.start()
    wait_for(lambda: world.got() == [b"a"], "the first record", WAIT_S)
    wait_for(lambda: world.store().log.state().acked.get("out", 0) > 0, "the acknowledgement", WAIT_S)
    acked = world.store().log.state().acked["out"]
    run.stop()
    run.awaitTermination(WAIT_S)
    group = f"{world.store().id}.out.0"
    world.cluster.administer(lambda admin: admin.delete_groups([group]))
    world.put(b"b")

    error = world.drain()

    assert isinstance(error, PublishConflict) and group in error.hint
    assert world.got() == [b"a"]
    newest = world.store().log.state().acked["out"]
    assert newest >= acked
    servers = world.cluster.broker.servers
    assert repair.main(["--servers", servers, "--topic", world.output, "--group", group, "set", str(newest)]) == 0
    assert world.drain() is None
    assert world.got() == [b"a", b"b"]
