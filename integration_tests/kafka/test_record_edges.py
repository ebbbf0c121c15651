"""Limits of a record's columns, and a broker's answers to records that it always rejects."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka_kit import Cluster, Staged, publish, wait_for
from spark_ckpt_kafka.library import ConfigResource, ConfigResourceType
from spark_ckpt_kafka.record_rules import RecordRules, TopicLimits

from spark_ckpt.errors import PublishFailed, RowsRefused, SinkInvalid

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def at(ms: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(milliseconds=ms)


def table(**columns: list[Any]) -> pa.Table:
    size = len(next(iter(columns.values())))
    kinds = {
        "headers": HEADERS,
        "partition": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "topic": pa.string(),
    }
    columns.setdefault("value", [str(number).encode() for number in range(size)])
    return pa.table({name: pa.array(values, kinds.get(name, pa.binary())) for name, values in columns.items()})


def configure(cluster: Cluster, topic: str, settings: Mapping[str, str]) -> None:
    asked = [ConfigResource(ConfigResourceType.TOPIC, topic, dict(settings))]
    cluster.administer(lambda admin: admin.alter_configs(asked))


EDGES: dict[str, list[Any]] = {
    "key": [None, b"", b"k"],
    "value": [None, b"", b"v"],
    "headers": [None, [], [{"key": "", "value": b""}], [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]],
    "partition": [None, 0, 2],
    "timestamp": [None, at(0), at(1), at(-2), at(-1_000), at(1_600_000_000_123)],
}


@pytest.mark.parametrize("column", EDGES)
def test_a_value_at_its_edge_arrives_as_it_is_or_is_refused_where_it_is_staged(
    cluster: Cluster, tmp_path: Path, column: str
) -> None:
    taken = []
    for number, value in enumerate(EDGES[column]):
        row = table(**{"key": [b"k"], "value": [str(number).encode()], column: [value]})
        if RecordRules(cluster.topic, 1_000_000, limits=TopicLimits(partitions=3))(row) is None:  # type: ignore[arg-type]
            taken.append((value, row))

    publish(cluster.publisher(), 1, Staged.table(tmp_path / "s", pa.concat_tables(row for _, row in taken)))

    found = {record.value: record for record in cluster.read()}
    assert len(found) == len(taken) >= len(EDGES[column]) - 1
    for value, row in taken:
        record = found[row.column("value")[0].as_py()]
        assert same(column, getattr(record, column), value), (
            f"{column} {value!r} has become {getattr(record, column)!r}"
        )


def same(column: str, got: Any, value: Any) -> bool:
    """True if a reader gets the row's value. Null in `partition` and `timestamp` leaves the choice to the client."""
    match column:
        case "headers":
            return bool(got == tuple((each["key"], each["value"]) for each in value or []))
        case "timestamp" if value is None:
            return abs(got / 1000 - time.time()) < 600
        case "timestamp":
            return bool(got == round(value.timestamp() * 1000))
        case "partition" if value is None:
            return True
    return bool(got == value)


def test_the_topic_accepts_the_largest_record_that_the_rules_accept(cluster: Cluster, tmp_path: Path) -> None:
    """With one more byte, both refuse it."""
    topic = cluster.new_topic()
    configure(cluster, topic, {"max.message.bytes": "2000"})
    rules = RecordRules(topic, 1_000_000, limits=TopicLimits(max_message_bytes=2000))  # type: ignore[arg-type]
    sizes = [size for size in range(1_700, 2_000) if rules(table(key=[b"k"], value=[os.urandom(size)])) is None]
    options = {"compression.type": "none"}
    publisher = cluster.publisher(topic=topic, options=options)

    publish(publisher, 1, Staged.table(tmp_path / "most", table(key=[b"k"], value=[b"x" * sizes[-1]])))
    with pytest.raises(RowsRefused, match=r"max\.message\.bytes"):
        publish(publisher, 2, Staged.table(tmp_path / "more", table(key=[b"k"], value=[b"x" * (sizes[-1] + 1)])))

    assert [len(record.value) for record in cluster.read(topic)] == [sizes[-1]]


REFUSED: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "key": ({"cleanup.policy": "compact"}, {"key": None}, "compacted"),
    "timestamp": ({"message.timestamp.after.max.ms": "60000"}, {"timestamp": at(4_000_000_000_000)}, "after.max.ms"),
    "partition": ({}, {"partition": 7}, "partitions 0 to 2"),
    "value": ({"max.message.bytes": "10000"}, {"value": os.urandom(20_000)}, r"max\.message\.bytes"),
}


# in the gate: the others in tests/kafka/test_record_rules.py
@pytest.mark.parametrize(
    "column", ["value", *(pytest.param(name, marks=pytest.mark.long) for name in ("key", "timestamp", "partition"))]
)
def test_a_record_that_a_topic_rejects_is_named_at_once(cluster: Cluster, tmp_path: Path, column: str) -> None:
    """The topic's limit changed after the record was staged. The epoch stays hidden; without the record it is published."""
    settings, wrong, why = REFUSED[column]
    topic = cluster.new_topic()
    good: dict[str, Any] = {"key": b"k", "value": b"v", "timestamp": None, "partition": None}
    rows = [good, good | {"key": b"bad"} | wrong, good]
    columns = {name: [row[name] for row in rows] for name in good}
    configure(cluster, topic, settings)
    publisher = cluster.publisher(topic=topic)
    began_s = time.monotonic()

    with pytest.raises(RowsRefused, match=why) as refused:
        publish(publisher, 1, Staged.table(tmp_path / "bad", table(**columns)))

    assert time.monotonic() - began_s < 30
    context = refused.value.context
    assert (context["sink"], context["topic"], context["row"], context["file"]) == ("out", topic, "1", "rows.parquet")
    assert cluster.read(topic) == []
    publish(publisher, 1, Staged.table(tmp_path / "good", table(key=[b"k"], value=[b"v"])))
    assert len(cluster.read(topic)) == 1


def test_a_record_of_a_topic_that_the_row_names_is_named_too(cluster: Cluster, tmp_path: Path) -> None:
    compacted = cluster.new_topic()
    configure(cluster, compacted, {"cleanup.policy": "compact"})
    rows = table(key=[b"k", None, None], topic=[compacted, cluster.topic, compacted])
    publisher = cluster.publisher(topic=None, marker_topic=cluster.topic)

    with pytest.raises(RowsRefused, match="compacted") as refused:
        publish(publisher, 1, Staged.table(tmp_path / "s", rows))

    assert (refused.value.context["topic"], refused.value.context["row"]) == (compacted, "2")


def test_batches_are_cut_to_the_topics_limit(cluster: Cluster, tmp_path: Path) -> None:
    """The limit decreased after the publishers started."""
    topic = cluster.new_topic()
    publisher = cluster.publisher(topic=topic)
    configure(cluster, topic, {"max.message.bytes": "100000"})
    rows = table(key=[str(number).encode() for number in range(600)], value=[os.urandom(1_000) for _ in range(600)])

    publish(publisher, 1, Staged.table(tmp_path / "s", rows))

    assert len(cluster.read(topic)) == 600


def test_batches_are_cut_to_the_limit_that_the_topic_had_at_the_start(cluster: Cluster, value_schema: Any) -> None:
    topic = cluster.new_topic()
    configure(cluster, topic, {"max.message.bytes": "100000"})
    sink = cluster.sink(topic=topic)
    sink.check(None, value_schema)  # type: ignore[arg-type]

    assert sink.lane_settings(cluster.context()).tuning.batch_size == 100_000


def test_a_transaction_timeout_above_the_brokers_is_refused_at_start(cluster: Cluster, value_schema: Any) -> None:
    options = {"transaction.timeout.ms": "900001"}  # the broker's default is 15 minutes
    with pytest.raises(
        SinkInvalid, match=r"transaction\.timeout\.ms is 900001, the brokers allow at most 900000"
    ) as refused:
        cluster.sink(options=options).check(None, value_schema)  # type: ignore[arg-type]

    assert "900000" in refused.value.hint
    cluster.sink(options={"transaction.timeout.ms": "900000"}).check(None, value_schema)  # type: ignore[arg-type]


@pytest.fixture
def value_schema() -> Any:
    from pyspark.sql.types import BinaryType, StructType

    return StructType().add("value", BinaryType())


def test_a_closed_publisher_starts_no_process_and_fences_no_other(
    cluster: Cluster, staged: Callable[..., Staged]
) -> None:
    ended, next_one = cluster.publisher(), cluster.publisher(2)
    ended.give_up()

    with pytest.raises(PublishFailed, match="its run has ended"):
        publish(ended, 1, staged(1))

    wait_for(lambda: ended.pids() == [None], "the end of the lane's process")
    publish(next_one, 1, staged(1))
