"""A job with another topic under the same name: refused before any commit, corrected without a repair, or confirmed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kafka_kit import Cluster, KafkaProducer, wait_for
from pyspark.sql import SparkSession
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt
from integration_tests.spark import connected_session
from spark_ckpt.errors import IdentityChanged, RowsLost, StartOutOfRange
from spark_ckpt.store.store import Store

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


class World:
    """One job from topic to topic."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path) -> None:
        self.spark, self.cluster, self.folder = spark, cluster, folder
        self.input, self.output = cluster.topic, cluster.new_topic()

    def job(
        self,
        source: str | KafkaSource | None = None,
        sink: str | None = None,
        lanes: int = 2,
        interval: str = "1 hour",
    ) -> spark_ckpt.Job:
        servers = self.cluster.broker.servers
        job = spark_ckpt.Job(self.spark, "job", str(self.folder / "store"), interval=interval, trigger="10 ms")
        read = source if isinstance(source, KafkaSource) else KafkaSource(servers, source or self.input)
        rows = job.source("in", read).select("key", "value")
        rows.to(KafkaSink(servers, sink or self.output, lanes=lanes), name="out")
        return job

    def drain(
        self, source: str | KafkaSource | None = None, sink: str | None = None, lanes: int = 2, **confirmed: object
    ) -> None:
        run = self.job(source, sink, lanes).start(availableNow=True, **confirmed)
        assert run.awaitTermination(120)

    def put(self, *values: bytes, into: str | None = None) -> None:
        producer = KafkaProducer(bootstrap_servers=self.cluster.broker.servers)
        try:
            for value in values:
                producer.send(into or self.input, value, key=value).get(10)
        finally:
            producer.close()

    def got(self, topic: str | None = None) -> list[bytes]:
        return sorted(record.value for record in self.cluster.read(topic or self.output))

    def decided(self) -> tuple[int, int]:
        log_state = Store.open(str(self.folder / "store"), "job").log.state()
        return log_state.last, log_state.incarnation

    def refused(self, **arguments: object) -> str:
        before = self.decided()
        with pytest.raises(IdentityChanged) as caught:
            self.drain(**arguments)
        assert self.decided() == before
        return str(caught.value)

    def recreate(self, topic: str) -> None:
        """Delete the topic and create it again."""
        self.cluster.recreate(topic)


@pytest.fixture
def world(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> World:
    return World(spark, cluster, tmp_path)


@pytest.mark.long  # in the gate: tests/simulator/test_spark_operated.py
def test_another_sink_topic_is_refused_and_the_right_one_continues(world: World) -> None:
    world.put(b"a")
    world.drain()
    world.put(b"b")
    other = world.cluster.new_topic()
    text = world.refused(sink=other)
    assert f"topic {world.output} " in text
    assert f"topic {other} " in text
    assert "accept_new_sink='out'" in text
    world.drain()
    assert (world.got(), world.got(other)) == ([b"a", b"b"], [])


@pytest.mark.long  # in the gate: tests/simulator/test_spark_operated.py
def test_a_confirmed_new_sink_topic_gets_all_later_rows_and_so_does_the_old_one_after_it(
    world: World,
) -> None:
    world.put(b"a", b"b")
    world.drain()
    other = world.cluster.new_topic()
    world.put(b"c", b"d")
    world.drain(sink=other, accept_new_sink="out")
    world.put(b"e")
    world.drain(sink=other)
    world.put(b"f", b"g")
    world.drain(accept_new_sink="out")
    world.put(b"h")
    world.drain()
    assert (world.got(), world.got(other)) == ([b"a", b"b", b"f", b"g", b"h"], [b"c", b"d", b"e"])


@pytest.mark.long  # in the gate: tests/simulator/test_spark_operated.py
def test_a_re_created_sink_topic_is_reported_as_such_and_can_be_confirmed(world: World) -> None:
    world.put(b"a")
    world.drain()
    world.recreate(world.output)
    world.put(b"b")
    text = world.refused()
    assert text.count(f"topic {world.output} ") == 2
    world.drain(accept_new_sink="out")
    world.put(b"c")
    world.drain()
    assert world.got() == [b"b", b"c"]


@pytest.mark.long  # in the gate: tests/simulator/test_spark_operated.py
def test_another_source_topic_is_refused_before_its_offsets_are_compared_and_can_be_confirmed(world: World) -> None:
    other = world.cluster.new_topic()
    world.put(b"a")
    world.drain()
    world.put(b"x", b"y", into=other)
    assert f"topic {other} " in world.refused(source=other)
    world.put(b"b")
    world.drain()
    world.drain(source=other, accept_new_source="in")
    world.put(b"z", into=other)
    world.drain(source=other)
    assert world.got() == [b"a", b"b", b"x", b"y", b"z"]


@pytest.mark.long  # in the gate: tests/simulator/test_spark_operated.py
def test_a_re_created_source_topic_with_as_many_records_is_not_read_from_the_middle(world: World) -> None:
    """Offsets alone do not show it: the new topic has more records than the old one had."""
    world.put(b"a")
    world.drain()
    world.recreate(world.input)
    world.put(b"a", b"m", b"n")
    assert "accept_new_source='in'" in world.refused()
    world.drain(accept_new_source="in")
    assert world.got() == [b"a", b"a", b"m", b"n"]


@pytest.mark.long  # in the gate: a re-created topic in test_source.py, and tests/runtime/test_source_watch.py
@pytest.mark.parametrize("more", [3, 0])
def test_a_source_topic_re_created_under_a_running_job_ends_it_and_is_read_once_after_its_confirmation(
    world: World, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """With more records, the job would continue in the middle; with as many, it would wait for ever."""
    monkeypatch.setattr("spark_ckpt.driver.source_watch.LOOK_EVERY_S", 0.5)
    names = [f"{n}".encode() for n in range(6)]
    world.put(*names)
    run = world.job(interval="200 ms").start()
    wait_for(lambda: world.got() == names, "the old topic's records", 120)
    world.recreate(world.input)
    fresh = [*(name + b" again" for name in names), *(f"more {n}".encode() for n in range(more))]
    world.put(*fresh)
    with pytest.raises(IdentityChanged) as caught:
        run.awaitTermination(120)
    assert f"topic {world.input} " in caught.value.context["found"]
    assert world.got() == names, "no record of the other topic is published"
    assert "accept_new_source='in'" in world.refused()
    world.drain(accept_new_source="in")
    world.put(b"later")
    world.drain()
    assert world.got() == sorted([*names, *fresh, b"later"])


@pytest.mark.long  # in the gate: tests/simulator/test_spark_operated.py
def test_a_confirmed_new_topic_leaves_the_other_topics_of_a_source_where_they_are(world: World) -> None:
    other = world.cluster.new_topic()
    source = KafkaSource(world.cluster.broker.servers, topics=[world.input, other])
    world.put(b"a")
    world.put(b"x", into=other)
    world.drain(source)
    world.recreate(other)
    world.put(b"b")
    world.put(b"y", into=other)
    with pytest.raises(IdentityChanged):
        world.drain(source)
    world.drain(source, accept_new_source="in")
    world.put(b"c")
    world.drain(source)
    assert world.got() == [b"a", b"b", b"c", b"x", b"y"]


def test_a_pattern_reads_topics_of_two_underscores_and_not_those_of_the_brokers(world: World) -> None:
    prefix = f"__{world.input}"
    world.cluster.control.create_topic(prefix, 1)
    world.put(b"a")
    world.put(b"b", into=prefix)
    servers = world.cluster.broker.servers
    # Brokers create their topic with the first offset of a group.
    world.cluster.control.show_offsets(world.output, {(world.input, 0): 0})
    assert "__consumer_offsets" in all_topics(servers)
    pattern = f".*{world.input}$|__consumer_.*"
    world.drain(KafkaSource(servers, pattern=pattern))
    assert world.got() == [b"a", b"b"]


@pytest.mark.long  # in the gate: tests/simulator/test_spark_operated.py
def test_a_start_beyond_the_topics_end_is_reported_as_such_and_its_correction_continues(world: World) -> None:
    world.put(b"a")
    servers = world.cluster.broker.servers
    beyond = {world.input: {"0": 500}}
    with pytest.raises(StartOutOfRange) as caught:
        world.drain(KafkaSource(servers, world.input, start=beyond))
    assert caught.value.context | {"start": 500, "partition": 0, "beginning": 0} == caught.value.context
    world.drain(KafkaSource(servers, world.input, start={world.input: {"0": int(str(caught.value.context["end"]))}}))
    world.put(b"b", b"c")
    world.drain()
    assert {b"b", b"c"} <= set(world.got())


def test_a_job_continues_with_its_state_behind_records_that_retention_removed(world: World) -> None:
    servers, topic = world.cluster.broker.servers, f"{world.input}-lost"
    world.cluster.control.create_topic(topic, 1)

    def counted(**arguments: str) -> None:
        job = spark_ckpt.Job(world.spark, "job", str(world.folder / "store"), interval="1 hour", trigger="10 ms")
        # Only the first start uses this offset, which the topic loses below.
        source = KafkaSource(servers, topic, start={topic: {"0": 0}})
        counts = job.source("in", source).groupBy("topic").agg("each row", n=spark_ckpt.count())
        counts.selectExpr("CAST(n AS string) AS value").to(KafkaSink(servers, world.output), name="out")
        assert job.start(availableNow=True, **arguments).awaitTermination(120)

    world.put(b"a", b"b", into=topic)
    counted()
    world.put(b"lost", b"c", into=topic)
    admin = AdminClient({"bootstrap.servers": servers})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        deleted.result(20)

    with pytest.raises(RowsLost, match="offsets 2 to 2 of topic") as caught:
        counted()
    assert "job.start(accept_lost_rows='in')" in caught.value.hint
    counted(accept_lost_rows="in")
    world.put(b"d", into=topic)
    counted()

    assert world.got() == [b"1", b"2", b"3", b"4"]


def all_topics(servers: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=20).topics)


def test_the_identity_of_a_topic_costs_one_answer_of_the_broker(world: World) -> None:
    source = KafkaSource(world.cluster.broker.servers, world.input)
    took_s = []
    for _ in range(5):
        began_s = time.perf_counter()
        parts = source.identity(world.spark)
        took_s.append(time.perf_counter() - began_s)
    assert set(parts) == {"kind", "cluster", f"topic {world.input}"}
    assert all(parts.values())
    assert min(took_s) < 5


@pytest.mark.long  # in the gate: tests/runtime/test_spark_incarnation_identities.py, and test_sink_conformance.py
@pytest.mark.parametrize("lanes", [1, 2])
def test_the_error_of_a_sink_topic_re_created_under_a_job_names_the_next_start(world: World, lanes: int) -> None:
    world.put(b"a")
    run = world.job(lanes=lanes, interval="every batch").start()
    wait_for(lambda: world.got() == [b"a"], "the first record", 120)
    world.recreate(world.output)
    world.put(b"b")

    with pytest.raises(IdentityChanged) as caught:
        run.awaitTermination(120)

    assert {"sink": "out", "restore": caught.value.context["restore"]}.items() <= caught.value.context.items()
    assert f"job.start(restore={caught.value.context['restore']}, accept_new_sink='out')" in caught.value.hint
    assert "spark_ckpt_kafka.repair" not in str(caught.value)
    world.drain(lanes=lanes, restore=caught.value.context["restore"], accept_new_sink="out")
    world.put(b"c")
    world.drain(lanes=lanes)
    assert world.got() == [b"b", b"c"]
