"""The exactly-once Kafka sink: rows as for Spark's own Kafka sink, staged by tasks, published in transactions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import PublishedEpoch, SelectsRows, SinkContext, StagePlan
from spark_ckpt.connector_parts.arguments import checks_arguments
from spark_ckpt.errors import ConfigInvalid, SinkInvalid
from spark_ckpt_kafka.control import ControlError, KafkaControl
from spark_ckpt_kafka.limits import longest_transaction_ms, record_rules, topic_limits
from spark_ckpt_kafka.options import Connection, Tuning, split_options, tuning
from spark_ckpt_kafka.publisher import KafkaPublisher, PublishPatience
from spark_ckpt_kafka.publishing import ShardSettings
from spark_ckpt_kafka.record_rules import LONGEST_STAMP, RecordRules, TopicLimits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_ARROW: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(_HEADER),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_SPARK = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
MAX_LANES = 64


_ELSEWHERE = {
    "servers": "write bootstrap_servers=",
    "transactional_id": "the sink names its transactions itself: <store id>.<sink>.<lane>",
    "key": 'give the rows a column key: select("key", "value")',
    "value": 'give the rows a column value: selectExpr("to_json(struct(*)) as value")',
}


@checks_arguments(_ELSEWHERE)
@dataclass(frozen=True)
class KafkaSink(SelectsRows):
    """Write rows with a column value (and key, headers, topic, partition, timestamp) to Kafka, exactly once.

    - `topic`: the topic of all rows. If you omit it, each row needs a column `topic`.
    - `marker_topic`: an existing topic in which the sink stores its progress; required if you omit `topic`. The progress is
      a committed offset of the reserved consumer group `<store id>.<sink>.<lane>`. The sink writes no record to this topic.
    - `lanes`: number of transactions and of processes that publish in parallel. The sink distributes rows by key, so the
      rows of a key stay in order. The lanes of an epoch become visible one after another.
    - `options`: Kafka's dotted names for security and the producer.
    - `audit_headers`: adds the lane and the epoch to the headers of every record.

    Readers must set `isolation.level=read_committed`. Other readers also see rows of aborted transactions.

    A start reads the settings of `topic` and limits batches to its `max.message.bytes`. If a row can never be written to
    the topic, the task that produces it fails before the epoch is committed. The error names the sink and the column. The
    reasons are:

    - no key in a compacted topic;
    - a partition that does not exist;
    - a timestamp out of the topic's bounds;
    - a record that is too large;
    - a header that is null or has no key.

    If the settings of the topic change later, see docs/operations.md.
    """

    bootstrap_servers: str
    topic: str | None = None
    lanes: int = 1
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    marker_topic: str | None = None
    audit_headers: bool = False
    patience: PublishPatience = field(default_factory=PublishPatience, repr=False)
    sends_early: bool = field(default=True, init=False, repr=False)
    _seen: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    # Filled by `check`; containers, because the dataclass is frozen.
    _limits: list[TopicLimits] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= MAX_LANES:
            raise ConfigInvalid(f"lanes must be from 1 to {MAX_LANES}, not {self.lanes}")
        for topic in (self.topic, self.marker_topic):
            if topic is not None and not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic):
                raise ConfigInvalid(f"{topic!r} is not a topic name")
        if self.topic is None and self.marker_topic is None:
            raise ConfigInvalid(
                "a Kafka sink whose rows name their topics needs a place for its marker",
                hint="give topic=..., or marker_topic= an existing topic",
            )
        self._configuration()

    def check(self, spark: SparkSession, schema: StructType) -> None:
        """Check columns, topics, topic limits and the brokers' transaction limit. Raises `SinkInvalid` within
        seconds.
        """
        check_columns(schema, self.topic)
        # `identity` follows at once in the same start, and another connection takes some 20 ms.
        self._seen.update(self._asked())
        _, settings = self._configuration()
        with self._control() as control:
            self._limits[:] = [topic_limits(control, self.topic)] if self.topic else []
            check_transaction(settings, longest_transaction_ms(control))

    def identity(self, spark: SparkSession) -> Mapping[str, str]:
        """Return the endpoint: cluster, topic and marker topic. Topics that rows name are not part of it."""
        seen = dict(self._seen) or self._asked()
        self._seen.clear()  # the answer of `check` serves one call only: later it may be outdated
        return {"kind": "kafka"} | seen

    def _asked(self) -> dict[str, str]:
        with self._control() as control:
            return control.identity([name for name in (self.topic, self.marker_topic) if name])

    @contextmanager
    def _control(self) -> Iterator[KafkaControl]:
        """Connect to the cluster. Raises its errors as `SinkInvalid`."""
        connection, _ = self._configuration()
        try:
            with KafkaControl(connection) as control:
                yield control
        except ControlError as error:
            raise SinkInvalid(error.what, hint=error.hint, topic=self.topic) from error

    def stage(self, schema: StructType) -> StagePlan:
        """Return the staging plan: rows in Kafka's types, split by key. Rows without a key need no order and have
        one shard.
        """
        names = [name for name in schema.fieldNames() if name in _ARROW]
        keyed = "key" in names
        return StagePlan(
            lanes=self.lanes if keyed else 1,
            lane_by="key" if keyed and self.lanes > 1 else None,
            schema=pa.schema([(name, _ARROW[name]) for name in names]),
            compression="lz4",  # each file is read once, soon
            dictionary=False,
            refuses=self._rules(),
        )

    def _rules(self) -> RecordRules:
        tuning = self._configuration()[1]
        limits = self._limits[0] if self._limits else None
        return record_rules(self.topic, tuning, limits, LONGEST_STAMP if self.audit_headers else ())

    def publisher(self, spark: SparkSession, context: SinkContext) -> KafkaPublisher:
        """Start the publisher processes of one incarnation."""
        patience = self.patience.within(context.publish_within_s)
        return KafkaPublisher(self.lane_settings(context), self.lanes, context.incarnation, patience)

    def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
        """Return the newest committed marker of all shards, or None. Raises `SinkInvalid`."""
        settings = self.lane_settings(context)
        with self._control() as control:
            # Without a wait: a driver that died in a publish leaves its marker pending, until an init or its timeout.
            asked = (control.decided_marker(settings.group(lane), settings.marker_topic) for lane in range(self.lanes))
            markers = [marker for marker in asked if marker is not None]
        if not markers:
            return None
        # Shards become visible one after another. The highest marker counts: a log without that epoch is one that
        # lost it.
        newest = max(markers, key=lambda marker: marker.epoch)
        incarnation = max(marker.incarnation for marker in markers)
        return PublishedEpoch(
            Epoch(newest.epoch), Incarnation(incarnation), lambda decision: newest.decision in ("", decision)
        )

    def lane_settings(self, context: SinkContext) -> ShardSettings:
        """Return the settings of shard 0 for this job and sink."""
        connection, settings = self._configuration()
        marker_topic = self.marker_topic or self.topic
        if marker_topic is None:  # `__post_init__` refuses it
            raise ConfigInvalid("a Kafka sink needs topic= or marker_topic=")
        return ShardSettings(
            connection=connection,
            tuning=settings.within(self._limits[0].max_message_bytes if self._limits else None),
            store_id=context.store_id,
            sink=context.sink,
            lane=0,
            topic=self.topic,
            marker_topic=marker_topic,
            audit_headers=self.audit_headers,
        )

    def describe(self) -> Mapping[str, str]:
        """Return kind, topic, servers and security settings, without secrets."""
        connection, _ = self._configuration()
        return {
            "kind": "kafka",
            "topic": self.topic or "(per row)",
            "lanes": str(self.lanes),
        } | connection.describe()

    def _configuration(self) -> tuple[Connection, Tuning]:
        security, others = split_options(self.options)
        return Connection(self.bootstrap_servers, security), tuning(others)


def check_transaction(wanted: Tuning, longest_ms: int | None) -> None:
    """Raise `SinkInvalid` if the brokers allow no transaction as long as the sink's. `longest_ms`: None if not known."""
    # Otherwise the first init would fail (INVALID_TRANSACTION_TIMEOUT), after an epoch has been committed that waits
    # for it.
    if longest_ms is not None and wanted.transaction_timeout_ms > longest_ms:
        options = {"transaction.timeout.ms": longest_ms}
        # They have to be shorter than a transaction.
        if wanted.delivery_timeout_ms >= longest_ms:
            options |= {"delivery.timeout.ms": longest_ms // 2, "request.timeout.ms": longest_ms // 4}
        raise SinkInvalid(
            f"the sink's option transaction.timeout.ms is {wanted.transaction_timeout_ms}, the brokers allow at most {longest_ms}",
            hint=f"give KafkaSink(options={options}), or raise the brokers' transaction.max.timeout.ms",
        )


def check_columns(schema: StructType, topic: str | None) -> None:
    """Check that the columns have the names and types of Spark's Kafka sink. Raises `SinkInvalid`."""
    found: dict[str, Any] = {one.name: one.dataType.simpleString() for one in schema.fields}
    unknown = sorted(set(found) - set(_SPARK))
    if unknown:
        raise SinkInvalid(
            f"Kafka records have no column {', '.join(unknown)}",
            hint="put it into value, e.g. F.to_json(F.struct('*')).alias('value'); known: " + ", ".join(_SPARK),
        )
    for name, kind in found.items():
        if kind not in _SPARK[name]:
            raise SinkInvalid(
                f"column {name!r} is {kind}, Kafka needs {' or '.join(_SPARK[name])}",
                hint=f"select it as {name} with .cast('{_SPARK[name][0]}')",
            )
    if "value" not in found:
        raise SinkInvalid("there is no column 'value'", hint="F.to_json(F.struct('*')).alias('value')")
    if topic is None and "topic" not in found:
        raise SinkInvalid("no row names a topic", hint="give KafkaSink(topic=...), or add a column 'topic'")
