"""Records in Kafka equal those of Spark's own sink: keys, headers, partitions, timestamps, topics."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_kit import Cluster, Staged, output, publish

from spark_ckpt.errors import PublishFailed

UTC = datetime.UTC


def test_lanes_publish_in_parallel_and_every_key_stays_in_order(
    cluster: Cluster, staged: Callable[..., Staged]
) -> None:
    publisher = cluster.publisher(lanes=3)
    epochs = [staged(1, lanes=3), staged(2, lanes=3)]

    for number, epoch in enumerate(epochs, start=1):
        publish(publisher, number, epoch)

    cluster.assert_exactly(*epochs)
    assert [marker.epoch for lane in range(3) if (marker := cluster.marker(lane))] == [2, 2, 2]


def test_a_row_can_name_its_topic_and_partition(cluster: Cluster, tmp_path: Path) -> None:
    other = cluster.new_topic()
    table = pa.table(
        {
            "key": pa.array([b"a", b"b", b"c"]),
            "value": pa.array(["1", "2", "3"]),
            "topic": [cluster.topic, other, other],
            "partition": pa.array([2, 0, 1], pa.int32()),
        }
    )
    publisher = cluster.publisher(topic=None, marker_topic=cluster.topic)

    publish(publisher, 1, Staged.table(tmp_path / "s", table))

    assert [(one.partition, one.value) for one in cluster.read()] == [(2, b"1")]
    assert [(one.partition, one.value) for one in cluster.read(other)] == [(0, b"2"), (1, b"3")]


def test_headers_timestamps_and_nulls_arrive_as_they_were_staged(cluster: Cluster, tmp_path: Path) -> None:
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    when = datetime.datetime(2020, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    table = pa.table(
        {
            "key": pa.array([b"a", b"a", None]),
            "value": pa.array([b"x", None, b"z"]),
            "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}], None, []], header),
            "partition": pa.array([1, 1, 1], pa.int32()),
            "timestamp": pa.array([when, None, when], pa.timestamp("us", tz="UTC")),
        }
    )

    publish(cluster.publisher(), 1, Staged.table(tmp_path / "s", table))

    first, second, third = cluster.read()
    milliseconds = int(when.timestamp() * 1000)
    assert (first.key, first.value, first.timestamp) == (b"a", b"x", milliseconds)
    assert first.headers == (("h", b"1"), ("h", b"2"))
    assert (second.key, second.value, second.headers) == (b"a", None, ())
    assert second.timestamp > milliseconds
    assert (third.key, third.value, third.timestamp) == (None, b"z", milliseconds)


def test_both_clients_choose_the_same_partition_for_a_key(cluster: Cluster, staged: Callable[..., Staged]) -> None:
    publish(cluster.publisher(), 1, staged(1))

    found = {record.key: record.partition for record in cluster.read()}

    # Java's murmur2 of the keys, as the Java client assigns them to three partitions.
    assert {key: found[key] for key in (b"key-0", b"key-1", b"key-2", b"key-3")} == {
        b"key-0": murmur2_partition(b"key-0"),
        b"key-1": murmur2_partition(b"key-1"),
        b"key-2": murmur2_partition(b"key-2"),
        b"key-3": murmur2_partition(b"key-3"),
    }


def murmur2_partition(key: bytes, partitions: int = 3) -> int:
    """Kafka's default partitioner, written from its definition."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(key)) & mask
    for at in range(0, len(key) - len(key) % 4, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if tail := key[len(key) - len(key) % 4 :]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions


def test_an_epoch_without_rows_moves_the_marker(cluster: Cluster, staged: Callable[..., Staged]) -> None:
    publisher = cluster.publisher()
    publish(publisher, 1, Staged(Path("nowhere"), (), ()))

    marker = cluster.marker()
    assert marker is not None
    assert (marker.epoch, marker.previous, marker.rows) == (1, 0, 0)
    assert cluster.read() == []


def test_audit_headers_name_the_lane_and_the_epoch(cluster: Cluster, staged: Callable[..., Staged]) -> None:
    publish(cluster.publisher(audit_headers=True), 1, staged(1, rows=10))

    expected = (("ckpt-lane", f"{cluster.store_id}.out.0".encode()), ("ckpt-epoch", b"1"))
    assert {record.headers for record in cluster.read()} == {expected}


def test_a_row_for_a_missing_topic_is_reported_at_once_and_published_later(cluster: Cluster, tmp_path: Path) -> None:
    missing = f"{cluster.topic}-late"
    table = pa.table({"key": [b"k"], "value": [b"v"], "topic": [missing]})
    staged = Staged.table(tmp_path / "s", table)
    publisher = cluster.publisher(topic=None, marker_topic=cluster.topic)

    with pytest.raises(PublishFailed, match="does not exist"):
        publisher.publish(output(1, staged))
    cluster.control.create_topic(missing, 3)
    publisher.publish(output(1, staged))

    assert [record.value for record in cluster.read(missing)] == [b"v"]
