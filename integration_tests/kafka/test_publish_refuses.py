"""The sink refuses to publish if the marker contradicts the log, and reports both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from kafka_kit import Cluster, Staged, output, publish
from spark_ckpt_kafka.library import KafkaConsumer, OffsetAndMetadata, TopicPartition

from spark_ckpt.errors import CkptError, EpochDamaged, PublishConflict, PublishFailed, SinkInvalid


def _commit_offset(cluster: Cluster, offset: int, metadata: str) -> None:
    """Commit as a foreign consumer in the reserved group does."""
    consumer = KafkaConsumer(bootstrap_servers=cluster.broker.servers, group_id=f"{cluster.store_id}.out.0")
    try:
        consumer.commit({TopicPartition(cluster.topic, 0): OffsetAndMetadata(offset, metadata, -1)})
    finally:
        consumer.close()


def test_a_lost_marker_is_refused(cluster: Cluster, staged: Callable[..., Staged]) -> None:
    publisher = cluster.publisher()

    with pytest.raises(PublishConflict, match="there is no marker") as refused:
        publisher.publish(output(7, staged(7), previous=6))

    assert "spark_ckpt_kafka.repair" in refused.value.hint
    assert cluster.read() == []


def test_a_sink_that_was_added_later_needs_no_marker(cluster: Cluster, staged: Callable[..., Staged]) -> None:
    epoch = staged(50)

    cluster.publisher().publish(output(50, epoch, previous=0))

    cluster.assert_exactly(epoch)


def test_a_sink_reports_the_newest_epoch_of_its_publishers_without_fencing(
    cluster: Cluster, staged: Callable[..., Staged]
) -> None:
    assert cluster.sink(lanes=2).newest_published(cluster.context()) is None
    publisher = cluster.publisher(lanes=2)
    first, second = (replace(output(n, staged(n, lanes=2)), decision=name) for n, name in ((1, "a"), (2, "b")))
    publisher.publish(first)

    newest = cluster.sink(lanes=2).newest_published(cluster.context(incarnation=7))
    publisher.publish(second)

    assert newest is not None
    assert (newest.epoch, newest.incarnation, newest.is_of("a"), newest.is_of("b")) == (1, 1, True, False)
    assert cluster.sink(lanes=2).newest_published(cluster.context()).epoch == 2  # type: ignore[union-attr]


def test_an_epoch_left_out_is_refused(cluster: Cluster, staged: Callable[..., Staged]) -> None:
    publisher = cluster.publisher()
    first = staged(1)
    publish(publisher, 1, first)

    with pytest.raises(PublishConflict, match="the marker says epoch 1"):
        publisher.publish(output(3, staged(3), previous=2))

    cluster.assert_exactly(first)


def test_an_offset_of_a_foreign_consumer_is_refused(cluster: Cluster, staged: Callable[..., Staged]) -> None:
    publisher = cluster.publisher()
    first = staged(1)
    publish(publisher, 1, first)
    _commit_offset(cluster, 1, "")

    with pytest.raises(PublishConflict, match="was not written by this sink"):
        publish(publisher, 2, staged(2))

    cluster.assert_exactly(first)


def test_additional_publishers_start_without_a_marker_and_removed_ones_leave_theirs(
    cluster: Cluster, staged: Callable[..., Staged]
) -> None:
    lanes = (1, 2, 1, 2)
    epochs = [staged(number, lanes=count) for number, count in enumerate(lanes, start=1)]

    for number, (count, epoch) in enumerate(zip(lanes, epochs, strict=True), start=1):
        cluster.publisher(lanes=count).publish(output(number, epoch))

    cluster.assert_exactly(*epochs)


def test_a_publisher_that_lost_its_marker_does_not_count_as_new(
    cluster: Cluster, staged: Callable[..., Staged]
) -> None:
    publisher = cluster.publisher(lanes=2)
    first = staged(1, lanes=2)
    publish(publisher, 1, first)
    cluster.administer(lambda admin: admin.delete_groups([f"{cluster.store_id}.out.1"]))

    with pytest.raises(PublishConflict, match="there is no marker"):
        publisher.publish(output(2, staged(2, lanes=2)))


def test_a_staged_file_that_lost_rows_is_not_published(cluster: Cluster, staged: Callable[..., Staged]) -> None:
    good, other = staged(1), staged(1, rows=599)
    swapped = Staged(other.root, good.files, good.rows)

    with pytest.raises(EpochDamaged, match="were committed"):
        publish(cluster.publisher(), 1, swapped)

    assert cluster.read() == []


def test_a_missing_staged_file_is_reported(cluster: Cluster, staged: Callable[..., Staged]) -> None:
    epoch = staged(1)
    (epoch.root / "lane0.parquet").unlink()

    with pytest.raises(EpochDamaged, match="is missing"):
        publish(cluster.publisher(), 1, epoch)


@pytest.mark.parametrize("share", [0.5, *(pytest.param(share, marks=pytest.mark.long) for share in (0.01, 0.33, 0.98))])
def test_one_flipped_bit_is_reported_at_once_and_no_publisher_publishes(
    cluster: Cluster, staged: Callable[..., Staged], share: float
) -> None:
    epoch, publisher = staged(1, lanes=2), cluster.publisher(lanes=2)
    path = epoch.root / "lane1.parquet"
    whole = path.read_bytes()
    place = int(share * len(whole))
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    started = time.monotonic()
    with pytest.raises(EpochDamaged, match=r"lane1\.parquet") as damage:
        publish(publisher, 1, epoch)
    assert time.monotonic() - started < 120, "it was tried again although nothing can come of it"
    assert {"epoch", "sink", "lane", "expected", "found"} <= damage.value.context.keys()
    assert cluster.read() == []
    cluster.assert_settled()
    path.write_bytes(whole)
    publish(publisher, 1, epoch)
    cluster.assert_exactly(epoch)


@pytest.mark.parametrize("servers", ["127.0.0.1:1", None])
def test_check_reports_later_failures_within_seconds(cluster: Cluster, servers: str | None) -> None:
    from pyspark.sql.types import StringType, StructField, StructType
    from spark_ckpt_kafka import KafkaSink

    sink = KafkaSink(servers or cluster.broker.servers, "no-such-topic")
    started = time.monotonic()

    with pytest.raises(SinkInvalid, match="no usable answer" if servers else "does not exist"):
        sink.check(None, StructType([StructField("value", StringType())]))  # type: ignore[arg-type]

    assert time.monotonic() - started < 60


def test_a_broker_that_stays_away_fails_the_publish_and_keeps_the_epoch(
    cluster: Cluster, staged: Callable[..., Staged]
) -> None:
    from spark_ckpt_kafka.publisher import KafkaPublisher, PublishPatience

    settings = cluster.sink(options={"request.timeout.ms": 500, "delivery.timeout.ms": 1500}).lane_settings(
        cluster.context()
    )
    publisher = KafkaPublisher(settings, 1, 1, PublishPatience(total_s=1.0, stall_s=5.0))
    epoch = staged(1)
    cluster.broker.pause()
    try:
        with pytest.raises(PublishFailed) as failed:
            publish(publisher, 1, epoch)
    finally:
        cluster.broker.resume()
    publisher.close()

    assert failed.value.retriable
    assert isinstance(failed.value, CkptError)
    publish(cluster.publisher(), 1, epoch)
    cluster.assert_exactly(epoch)
