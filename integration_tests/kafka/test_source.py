"""Spark's Kafka source with our cursors: exact restarts, committed rows only, holes reported before the query starts."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_kit import Cluster, KafkaProducer, Staged, publish
from pyspark.sql import DataFrame, SparkSession
from spark_ckpt_kafka import KafkaSource

from integration_tests.spark import connected_session
from spark_ckpt.connector import Cursor
from spark_ckpt.errors import ConfigInvalid, RowsLost, SourceInvalid

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


def _drain(rows: DataFrame, folder: Path) -> tuple[list[Any], str]:
    """Rows of the present input, and the offset line that Spark wrote for them."""
    found: list[Any] = []
    query = (
        rows.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    last = max((folder / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return found, last.read_text().split("\n")[2]


def _plain(cluster: Cluster, values: list[bytes], partition: int | None = None, at: dt.datetime | None = None) -> None:
    timestamp_ms = None if at is None else int(at.timestamp() * 1000)
    producer = KafkaProducer(bootstrap_servers=cluster.broker.servers)
    try:
        for value in values:
            producer.send(cluster.topic, value, key=value, partition=partition, timestamp_ms=timestamp_ms).get(10)
    finally:
        producer.close()


def test_a_new_query_continues_exactly_where_the_offset_log_of_the_old_one_ends(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    source = KafkaSource(cluster.broker.servers, cluster.topic)
    source.check(spark)
    start = source.start(spark)
    _plain(cluster, [b"a", b"b", b"c"])
    first, line = _drain(source.read(spark, start), tmp_path / "one")
    cursor = source.cursor(line, start)
    _plain(cluster, [b"d", b"e"])

    second, _ = _drain(source.read(spark, cursor), tmp_path / "two")

    assert sorted(bytes(row.value) for row in first) == [b"a", b"b", b"c"]
    assert sorted(bytes(row.value) for row in second) == [b"d", b"e"]
    assert json.loads(json.dumps(cursor)) == cursor, "a cursor is JSON"


def test_rows_of_an_aborted_transaction_are_not_read_and_end_is_reached_all_the_same(
    spark: SparkSession, cluster: Cluster, staged: Callable[..., Staged], tmp_path: Path
) -> None:
    _abort_a_transaction(cluster)
    publish(cluster.publisher(), 1, staged(1, rows=30))
    source = KafkaSource(cluster.broker.servers, cluster.topic, options={"maxOffsetsPerTrigger": 25})
    start, end = source.start(spark), source.end(spark)

    rows, line = _drain(source.read(spark, start), tmp_path / "q")

    assert sorted(bytes(row.value) for row in rows) == cluster.values()
    assert len(rows) == 30
    assert not source.reached(start, end)
    assert source.reached(source.cursor(line, start), end)


def _abort_a_transaction(cluster: Cluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.broker.servers, transactional_id=cluster.topic)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(10):
            producer.send(cluster.topic, b"never", key=b"%d" % number)
        producer.flush()
        producer.abort_transaction()
    finally:
        producer.close()


def test_headers_are_read_on_request(
    spark: SparkSession, cluster: Cluster, staged: Callable[..., Staged], tmp_path: Path
) -> None:
    publish(cluster.publisher(audit_headers=True), 1, staged(1, rows=1))
    source = KafkaSource(cluster.broker.servers, cluster.topic, options={"includeHeaders": True})

    rows, _ = _drain(source.read(spark, source.start(spark)), tmp_path / "q")

    assert [(one.key, bytes(one.value)) for one in rows[0].headers][1] == ("ckpt-epoch", b"1")


def test_start_can_be_earliest_latest_or_explicit(spark: SparkSession, cluster: Cluster) -> None:
    _plain(cluster, [b"a", b"b"], partition=1)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=50)
    _plain(cluster, [b"c"], partition=1, at=later)

    def start(where: Any) -> Cursor:
        return KafkaSource(cluster.broker.servers, cluster.topic, start=where).start(spark)

    assert start("earliest") == {cluster.topic: {"0": 0, "1": 0, "2": 0}}
    assert start("latest") == {cluster.topic: {"0": 0, "1": 3, "2": 0}}
    assert start({cluster.topic: {"1": 2}}) == {cluster.topic: {"0": 0, "1": 2, "2": 0}}
    # Kafka counts whole milliseconds.
    assert start(later - dt.timedelta(milliseconds=1)) == {cluster.topic: {"0": 0, "1": 2, "2": 0}}
    assert start(later + dt.timedelta(milliseconds=1)) == {cluster.topic: {"0": 0, "1": 3, "2": 0}}
    assert start(dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) == start("earliest")
    with pytest.raises(ConfigInvalid, match="no partition"):
        start({cluster.topic: {"7": 2}})


def test_a_partition_added_later_is_read_from_its_beginning(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    source = KafkaSource(cluster.broker.servers, cluster.topic)
    start = {cluster.topic: {"0": 0, "1": 0}}
    _plain(cluster, [b"new"], partition=2)

    rows, line = _drain(source.read(spark, start), tmp_path / "q")

    assert [bytes(row.value) for row in rows] == [b"new"]
    assert source.cursor(line, start) == {cluster.topic: {"0": 0, "1": 0, "2": 1}}


def test_a_pattern_reads_every_topic_that_matches(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    _plain(cluster, [b"a"])
    cluster.new_topic()
    source = KafkaSource(cluster.broker.servers, pattern=f"{cluster.topic}.*")

    rows, line = _drain(source.read(spark, source.start(spark)), tmp_path / "q")

    assert [bytes(row.value) for row in rows] == [b"a"]
    assert sorted(json.loads(line)) == cluster.topics


def test_an_error_names_the_hole_of_records_that_retention_removed_unread(
    spark: SparkSession, cluster: Cluster
) -> None:
    _plain(cluster, [b"a", b"b", b"c"], partition=0)
    _delete_records(cluster, 2)
    source = KafkaSource(cluster.broker.servers, cluster.topic)

    with pytest.raises(RowsLost, match=r"offsets 1 to 1 .* partition 0"):
        source.read(spark, {cluster.topic: {"0": 1, "1": 0, "2": 0}})
    # A partition that was added since: Spark only reports it while the job runs, and the next incarnation would read on.
    with pytest.raises(RowsLost, match=r"offsets 0 to 1 .* partition 0"):
        source.read(spark, {cluster.topic: {"1": 0, "2": 0}})
    assert source.past_lost(spark, {cluster.topic: {"0": 1, "1": 0}}) == {cluster.topic: {"0": 2, "1": 0}}


def test_a_start_inside_an_open_transaction_is_reported_as_such_and_works_after_it(
    spark: SparkSession, cluster: Cluster
) -> None:
    """Spark would report lost records. The cursor may be of a plain query, which read the open transaction."""
    _plain(cluster, [b"a", b"b"], partition=0)
    later = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(seconds=50)
    producer = KafkaProducer(bootstrap_servers=cluster.broker.servers, transactional_id=cluster.topic)
    sources = [
        KafkaSource(cluster.broker.servers, cluster.topic, start=start) for start in ({cluster.topic: {"0": 3}}, later)
    ]
    inside = {cluster.topic: {"0": 3, "1": 0, "2": 0}}
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for at in (later - dt.timedelta(seconds=20), later):
            producer.send(cluster.topic, b"t", partition=0, timestamp_ms=int(at.timestamp() * 1000)).get(10)
        for source in sources:
            for asked in (source.start, lambda spark, source=source: source.read(spark, inside)):
                with pytest.raises(SourceInvalid, match="a transaction is open there since offset 2") as caught:
                    asked(spark)
                assert "wait until the transaction has ended" in caught.value.hint
        uncommitted = KafkaSource(
            cluster.broker.servers, cluster.topic, start=later, options={"isolation.level": "read_uncommitted"}
        )
        assert uncommitted.start(spark) == inside
        producer.commit_transaction()
    finally:
        producer.close()
    assert [source.start(spark) for source in sources] == [inside, inside]
    sources[0].read(spark, inside)


def _delete_records(cluster: Cluster, before: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": cluster.broker.servers})
    for future in admin.delete_records([TopicPartition(cluster.topic, 0, before)]).values():
        future.result(20)


def test_a_topic_that_was_created_again_is_an_error(spark: SparkSession, cluster: Cluster) -> None:
    source = KafkaSource(cluster.broker.servers, cluster.topic)

    with pytest.raises(RowsLost, match="created again"):
        source.read(spark, {cluster.topic: {"0": 5, "1": 0, "2": 0}})


def test_a_missing_topic_is_reported_before_the_query_starts(spark: SparkSession, cluster: Cluster) -> None:
    with pytest.raises(SourceInvalid, match="does not exist"):
        KafkaSource(cluster.broker.servers, "no-such-topic").check(spark)


def test_an_option_that_spark_refuses_is_reported_with_sparks_words(spark: SparkSession, cluster: Cluster) -> None:
    source = KafkaSource(cluster.broker.servers, cluster.topic, options={"auto.offset.reset": "earliest"})
    with pytest.raises(SourceInvalid, match=r"Kafka option 'auto\.offset\.reset' is not supported"):
        source.check(spark)
